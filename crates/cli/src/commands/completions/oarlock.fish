# Completes the words of oarlock in fish. Keep it as oarlock.fish in ~/.config/fish/completions.

function __oarlock_candidates
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l current (commandline --current-token --cut-at-cursor)
    set -l program (string replace --regex '^~/' "$HOME/" -- $words[1])
    for line in ($program complete-words "--current=$current" -- $words[2..] 2>/dev/null)
        set -l value (string sub --start 2 -- $line)
        set -l path (string sub --start (math (string length -- "$value") + 1) -- "$current")
        switch (string sub --length 1 -- $line)
            case f
                printf '%s\n' "$value"(__fish_complete_path "$path")
            case d
                printf '%s\n' "$value"(__fish_complete_directories "$path")
            case '*'
                # fish takes what follows the tab for the description, and sets no blank behind =.
                printf '%s\n' $value
        end
    end
end

complete --command oarlock --no-files --keep-order --arguments '(__oarlock_candidates)'
