# Completes the words of oarlock in elvish. Read it from rc.elv.

use str

set edit:completion:arg-completer[oarlock] = {|@words|
    var current = $words[-1]
    var program = (external $words[0])
    $program complete-words '--current='$current -- (all $words[1..-1]) 2>/dev/null | from-lines | each {|line|
        var kind rest = $line[0] $line[1..]
        if (or (eq $kind f) (eq $kind d)) {
            edit:complete-filename (str:trim-prefix $current $rest) | each {|file|
                edit:complex-candidate $rest$file[stem] &code-suffix=$file[code-suffix] &display=$file[display]
            }
        } else {
            var value about = (str:split &max=2 "\t" $rest)
            var blank = (if (eq $kind w) { put ' ' } else { put '' })
            edit:complex-candidate $value &code-suffix=$blank &display=$value'  '$about
        }
    }
}
