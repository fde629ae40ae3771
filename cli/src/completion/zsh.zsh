#compdef ccsd
# Completion of ccsd for zsh. All knowledge is in `ccsd __complete`; see there for what it prints.

_ccsd() {
    local -a answer values
    local kind line value about
    answer=("${(@f)$(command ccsd __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    kind=$answer[1]
    for line in "${(@)answer[2,-1]}"; do
        [[ -n $line ]] || continue
        value=${line%%$'\t'*} about=${line#*$'\t'}
        values+=("${${value//\\/\\\\}//:/\\:}${about:+:$about}")
    done
    (( $#values )) && _describe -V ccsd values
    case $kind in
        (files) _files ;;
        (directories) _files -/ ;;
        (commands) _command_names -e; _files -/ ;;
    esac
}

if [[ $funcstack[1] == _ccsd ]]; then
    _ccsd "$@"
else
    compdef _ccsd ccsd
fi
