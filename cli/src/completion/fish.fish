# Completion of ccsd for fish. All knowledge is in `ccsd __complete`; see there for what it prints.

function __ccsd_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l answer (command ccsd __complete $words[2..-1] "$typed" 2>/dev/null)
    test (count $answer) -gt 1; and printf '%s\n' $answer[2..-1]
    switch "$answer[1]"
        case files
            __fish_complete_path "$typed"
        case directories
            __fish_complete_directories "$typed"
        case commands
            __fish_complete_command
    end
end

complete --command ccsd --no-files --keep-order --arguments '(__ccsd_complete)'
