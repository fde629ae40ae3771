# Completion of ccsd for bash. All knowledge is in `ccsd __complete`; see there for what it prints.

# Whether a value may be put into an open quote. bash puts it there as it is, and names of processes, functions and files may
# be anybody's: what a shell acts on within quotes is not offered.
_ccsd_is_safe() {
    [[ -z $1 || $2 != *[\\\$\`\"\'!]* ]]
}

_ccsd() {
    local IFS=$'\n' rest=${COMP_LINE:0:COMP_POINT} words=() i part trimmed
    # bash takes words apart at : and =, so `session:3` is three. Parts without a blank between them are one word.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        part=${COMP_WORDS[i]}
        trimmed=${rest#"${rest%%[![:blank:]]*}"}
        ((i == COMP_CWORD)) && part=$trimmed
        if ((i > 1)) && [[ $trimmed == "$rest" && -n $rest ]]; then
            words[${#words[@]} - 1]+=$part
        else
            words+=("$part")
        fi
        rest=${trimmed#"$part"}
    done

    # A quote that is open, quotes that are closed, and backslashes.
    local word=${words[${#words[@]} - 1]} quote=
    case $word in
        \"*) quote=\" ;;
        \'*) quote=\' ;;
    esac
    for i in "${!words[@]}"; do
        part=${words[i]}
        case $part in
            \"* | \'*) part=${part//[\"\']/} ;;
        esac
        words[i]=${part//\\/}
    done
    word=${words[${#words[@]} - 1]}

    local answer=() kind line value about
    mapfile -t answer < <(command ccsd __complete "${words[@]:1}" 2>/dev/null)
    kind=${answer[0]-}

    # What stands before the last : or = is not replaced by bash.
    local kept=
    if [[ -z $quote && $word == *[:=]* && $COMP_WORDBREAKS == *:* ]]; then
        kept=${word%"${word##*[:=]}"}
    fi

    # Descriptions are shown where bash lists several values, and are never put in.
    local described=
    [[ ${COMP_TYPE-} == 63 && ${#answer[@]} -gt 2 ]] && described=1
    COMPREPLY=()
    for line in "${answer[@]:1}"; do
        value=${line%%$'\t'*} about=${line#*$'\t'}
        value=${value#"$kept"}
        _ccsd_is_safe "$quote" "$value" || continue
        [[ -z $quote ]] && printf -v value %q "$value" && value=${value//\\:/:}
        if [[ -n $described && -n $about && $value != -* ]]; then
            value="$value  ($about)"
            value=${value:0:$((${COLUMNS:-80} - 1))}
        fi
        COMPREPLY+=("$value")
    done

    case $kind in
        files | directories)
            if ((${#COMPREPLY[@]} == 0)); then
                if [[ $kind == directories ]]; then
                    compopt -o dirnames
                else
                    compopt -o default
                fi
            else
                while read -r value; do
                    [[ -e $value ]] && _ccsd_is_safe "$quote" "$value" || continue
                    [[ -d $value ]] && value+=/
                    [[ -z $quote ]] && printf -v value %q "$value"
                    COMPREPLY+=("$value")
                done < <(compgen -f -- "${word#"$kept"}")
            fi
            ;;
        commands)
            compopt -o filenames
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -c -- "$word"; compgen -d -- "$word")
            ;;
    esac
    if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *[:/=] ]]; then
        compopt -o nospace
    fi
}

complete -o nosort -F _ccsd ccsd
