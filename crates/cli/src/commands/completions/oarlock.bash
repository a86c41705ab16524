# Completes the words of oarlock in bash. Read it from ~/.bashrc, or keep it as oarlock in a folder of bash-completion.

_oarlock() {
    local line=${COMP_LINE:0:COMP_POINT} words=() last=-1 at word rest
    # Bash also divides words at = and :, and blanks alone divide those of the command.
    for ((at = 0; at <= COMP_CWORD; at++)); do
        rest=${line#"${line%%[![:space:]]*}"}
        word=${COMP_WORDS[at]}
        ((at < COMP_CWORD)) || word=$rest
        if ((last >= 0)) && [[ $rest == "$line" ]]; then
            words[last]+=$word
        else
            words[++last]=$word
        fi
        line=${rest#"$word"}
    done
    ((last > 0)) || return

    # Of the word bash replaces what follows the last of these marks.
    local current=${words[last]} marks= done= kind value action file program=${words[0]/#"~/"/"$HOME/"} n_parts=0
    [[ $COMP_WORDBREAKS != *=* ]] || marks+==
    [[ $COMP_WORDBREAKS != *:* ]] || marks+=:
    [[ -z $marks ]] || done=${current%"${current##*[$marks]}"}

    COMPREPLY=()
    while IFS= read -r line; do
        kind=${line:0:1} value=${line:1}
        value=${value%%$'\t'*}
        case $kind in
            f | d)
                compopt -o filenames 2>/dev/null
                action=file
                [[ $kind == f ]] || action=directory
                while IFS= read -r file; do
                    file=$value$file
                    COMPREPLY+=("${file#"$done"}")
                done < <(compgen -A "$action" -- "${current#"$value"}")
                ;;
            *)
                [[ $kind != p ]] || ((n_parts++))
                COMPREPLY+=("${value#"$done"}")
                ;;
        esac
    done < <("$program" complete-words "--current=$current" -- "${words[@]:1:last-1}" 2>/dev/null)
    # Something follows a part, and so no blank.
    ((n_parts == 0 || n_parts < ${#COMPREPLY[@]})) || compopt -o nospace 2>/dev/null
}

complete -F _oarlock oarlock
