#compdef oarlock
# Completes the words of oarlock in zsh. Keep it as _oarlock in a folder of fpath, or read it from ~/.zshrc behind compinit.

_oarlock() {
    local line rest value kind program=${(Q)words[1]/#\~\//$HOME/}
    local -a before found whole parts
    before=("${(@Q)words[2,CURRENT-1]}")
    found=("${(@f)$("$program" complete-words "--current=${(Q)PREFIX}" -- "${before[@]}" 2>/dev/null)}")
    for line in "${found[@]}"; do
        kind=${line[1]} rest=${line[2,-1]}
        value=${rest%%$'\t'*}
        # A colon is where a description begins.
        case $kind in
            w) whole+=("${value//:/\\:}:${rest#*$'\t'}") ;;
            p) parts+=("${value//:/\\:}:${rest#*$'\t'}") ;;
        esac
    done
    (( ! $#whole )) || _describe -t words word whole
    # Something follows a part, and so no blank.
    (( ! $#parts )) || _describe -t keys key parts -S ''
    for line in "${found[@]}"; do
        kind=${line[1]} value=${line[2,-1]}
        [[ $kind == [fd] ]] || continue
        [[ -z $value ]] || compset -P "${(b)value}"
        if [[ $kind == f ]]; then _files; else _files -/; fi
    done
}

if [[ $funcstack[1] == _oarlock ]]; then
    _oarlock "$@"
else
    compdef _oarlock oarlock
fi
