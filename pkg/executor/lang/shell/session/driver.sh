# The driver of a shell session: it executes cells in an interactive bash and speaks the protocol of pkg/session/protocol. See session.go.
#
# Usage: bash driver.sh, with a socket as standard input. It has descriptors beside that of the protocol, which commands of cells do not
# inherit:
#
#	50-54  both ends of the pipes of a fork, until the session has opened its own
#	55     the state that a restarted or forked driver reads; then its argument is: restored
#	56     answers of a fork, which has two pipes in place of the socket
#	57     standard input of the shell: the lines of the next iterations
#	58     text that the driver prints for itself
#	59     standard input of cells: an empty pipe. Its number is the highest, because bash keeps the shell's own above it
if [[ $- != *i* ]]; then
    if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
        echo "sandbox-run: a session needs bash 4.4 or later, and this is $BASH_VERSION" >&2
        exit 1
    fi
    exec 57<> <(:)
    exec 58<> <(:)
    exec 59< <(:)
    exec 63<&0 61>&2 0<&57
    printf '__sandbox_restored=%q . %q\n' "$1" "$0" >&57
    exec "$BASH" --norc --noprofile --noediting -i 2>/dev/null # which complains that there is no terminal
fi
exec 2>&61 61>&-
PS1='' PS2=''
unset HISTFILE MAILCHECK
set +o history +H

__sandbox_driver=${BASH_SOURCE[0]}
__sandbox_line='__sandbox_next "$@" && :
\builtin eval -- "$__sandbox_text" 0<&59
{ __sandbox_end; } 2>/dev/null' # as a group, because of the option xtrace
__sandbox_cell=''    # the number of the cell that runs
__sandbox_out=63     # where frames are written
__sandbox_status=0   # of the last cell
__sandbox_ended=1    # the cell has come to its end, and its options are in __sandbox_options
__sandbox_leaving='' # the shell exits for good
__sandbox_byte=''    # read before the rest of its frame
__sandbox_rest=''    # of the line that the session has sent last
__sandbox_options=(+H) # the user's options that would disturb the driver, as arguments of set; without one, set prints variables
__sandbox_trace=''   # the command that traces a cell with the option xtrace
__sandbox_int=''     # the command that sets the user's trap of SIGINT
__sandbox_exit=''    # the same of EXIT
__sandbox_trap=''    # the cell has the driver's function trap
__sandbox_spare=''   # of a fork

# __sandbox_quote VARIABLE TEXT sets the variable to the text as JSON. The text is UTF-8.
__sandbox_quote() {
    local LC_ALL=C __sandbox_quoted=$2 __sandbox_quoted_char __sandbox_quoted_form
    __sandbox_quoted=${__sandbox_quoted//\\/\\\\}
    __sandbox_quoted=${__sandbox_quoted//\"/\\\"}
    while [[ $__sandbox_quoted == *[$'\001'-$'\037'$'\177']* ]]; do
        __sandbox_quoted_char=${__sandbox_quoted#"${__sandbox_quoted%%[$'\001'-$'\037'$'\177']*}"}
        __sandbox_quoted_char=${__sandbox_quoted_char:0:1}
        builtin printf -v __sandbox_quoted_form '\\u%04x' "'$__sandbox_quoted_char"
        __sandbox_quoted=${__sandbox_quoted//"$__sandbox_quoted_char"/"$__sandbox_quoted_form"}
    done
    builtin printf -v "$1" '"%s"' "$__sandbox_quoted"
}

# __sandbox_send DESCRIPTOR KIND ID BODY writes a frame. A cell that has closed the socket ends the session.
__sandbox_send() {
    local LC_ALL=C
    builtin printf '%s %s %d\n%s' "$2" "$3" "${#4}" "$4" >&"$1" || __sandbox_leave 1
}

__sandbox_leave() {
    __sandbox_leaving=1
    builtin exit "$1"
}

# __sandbox_receive DESCRIPTOR reads a frame. It fails if the body has a zero byte, which option -N would not count.
__sandbox_receive() {
    local LC_ALL=C TMOUT __sandbox_part __sandbox_whole=1
    __sandbox_body=''
    IFS=' ' builtin read -r -u "$1" __sandbox_kind __sandbox_id __sandbox_length __sandbox_argument || __sandbox_leave 0
    __sandbox_kind=$__sandbox_byte$__sandbox_kind __sandbox_byte=''
    while ((__sandbox_length > 0)); do
        IFS='' builtin read -r -d '' -n "$__sandbox_length" -u "$1" __sandbox_part || __sandbox_leave 0
        __sandbox_body+=$__sandbox_part
        if (((__sandbox_length -= ${#__sandbox_part}) > 0)); then
            ((__sandbox_length -= 1, __sandbox_whole = 0))
        fi
    done
    if [[ $__sandbox_spare ]]; then
        exec 50>&- 51>&- 52>&- 53>&- 54>&-
        __sandbox_spare=''
    fi
    ((__sandbox_whole))
}

# __sandbox_on_interrupt is the trap of SIGINT while no cell runs. It notes an interrupt that is meant for a cell which was sent already.
__sandbox_on_interrupt() {
    if [[ $__sandbox_kind ]] || builtin read -t 0 -u 63; then
        __sandbox_pending=1
    fi
}

# __sandbox_end notes that a cell has come to its end, and its status.
__sandbox_end() {
    __sandbox_status=$?
    __sandbox_save_options
    __sandbox_ended=1
}

# __sandbox_next ends the cell before, if there was one, and serves frames until the next cell is in __sandbox_code. It returns the status
# of the last cell, which is $? of the next one. An interrupt can end this function only before its trap is set: hence the spare line.
__sandbox_next() {
    local __sandbox_code_of_line=$?
    __sandbox_kind=''
    [[ $__sandbox_ended ]] || __sandbox_save_options
    {
        builtin trap -p INT
        builtin trap __sandbox_on_interrupt INT
        builtin printf '\0'
        builtin trap -p EXIT
        builtin printf '\0'
    } >&58
    IFS='' TMOUT=0 builtin read -r -d '' -u 58 __sandbox_int
    builtin read -t 0 -u 57 || builtin printf '\\eval "$__sandbox_line"\n' >&57
    builtin printf '\\eval "$__sandbox_line"\n' >&57
    __sandbox_keep_exit
    if [[ $__sandbox_cell ]]; then
        [[ $__sandbox_ended ]] || __sandbox_status=$__sandbox_code_of_line
        __sandbox_done
    fi
    while :; do
        __sandbox_kind='' __sandbox_pending=''
        __sandbox_receive 63 || __sandbox_body='builtin printf "sandbox-run: the code has a zero byte\n" >&2; (exit 1)'
        case $__sandbox_kind in
        execute)
            __sandbox_cell=$__sandbox_id __sandbox_code=$__sandbox_body __sandbox_ended='' __sandbox_rest=''
            [[ $__sandbox_pending ]] || break
            __sandbox_status=130
            __sandbox_done
            ;;
        check | complete | inspect | variables) __sandbox_answer ;;
        fork) __sandbox_fork "$@" ;;
        close) __sandbox_leave 0 ;;
        esac # others are late answers
    done
    [[ $__sandbox_code == *EXIT* ]] && __sandbox_wrap_trap
    __sandbox_text=$__sandbox_trace$__sandbox_code # the driver's own commands are not traced
    builtin trap - INT
    builtin eval "$__sandbox_int"
    builtin set "${__sandbox_options[@]}"
    return "$__sandbox_status"
}

# __sandbox_save_options turns off the options that would disturb the driver.
__sandbox_save_options() {
    local options=:$SHELLOPTS: name
    builtin set +euxvETak +o posix
    __sandbox_options=(+H)
    for name in posix errexit nounset functrace errtrace allexport keyword; do
        [[ $options == *:$name:* ]] && __sandbox_options+=(-o "$name")
    done
    __sandbox_trace=''
    [[ $options == *:xtrace:* ]] && __sandbox_trace='{ builtin set -x; } 2>/dev/null; '
}

# __sandbox_protect DESCRIPTOR… makes descriptors close-on-exec. Bash does that to its copy of one that it redirects, which is the first
# free one from 10 on, and to copies of the copy.
__sandbox_protect() {
    local at free
    for at; do
        [[ -e /dev/fd/$at ]] || continue
        free=10
        while [[ -e /dev/fd/$free ]]; do ((++free)); done
        builtin eval "{ exec 62<&$free; } $at>&-; exec $at<&62 62>&-"
    done
}

# __sandbox_done reports the end of the cell.
__sandbox_done() {
    local report='{"ok":true}' name text='' line number=$__sandbox_cell
    __sandbox_cell=''
    if [[ ! $__sandbox_ended ]] && ((__sandbox_status == 130)); then
        report='{"ok":false,"status":130,"interrupted":true,"error":{"name":"SIGINT","message":"interrupted"}}'
    elif ((__sandbox_status != 0)); then
        name="exit status $__sandbox_status"
        ((__sandbox_status == 2)) && __sandbox_find_error
        __sandbox_quote name "$name"
        if [[ $text ]]; then
            __sandbox_quote text "$text"
            text=",\"message\":$text,\"line\":$line"
        fi
        report="{\"ok\":false,\"status\":$__sandbox_status,\"error\":{\"name\":$name$text}}"
    fi
    if [[ $__sandbox_trap ]]; then
        builtin unset -f trap
        __sandbox_trap=''
    fi
    __sandbox_send "$__sandbox_out" "done" "$number" "$report"
}

# __sandbox_parse CODE prints what bash says about code, which it does not execute.
__sandbox_parse() {
    local extended=-O
    builtin shopt -q extglob || extended=+O
    LC_ALL=C "$BASH" "$extended" extglob -n <<<"$1" 2>&1
}

# __sandbox_find_error sets the caller's name, text and line if the cell is no valid program.
__sandbox_find_error() {
    local LC_ALL=C said
    said=$(__sandbox_parse "$__sandbox_code")
    if [[ $said =~ line\ ([0-9]+):\ ([^$'\n']*) ]]; then
        name='syntax error' line=${BASH_REMATCH[1]} text=${BASH_REMATCH[2]//[$'\200'-$'\377']/?}
    fi
}

# The end of the shell. With the option errexit, bash exits where a cell should end. It then becomes a new shell with the same state.

exit() {
    local __sandbox_code_of_exit=$?
    if ((BASH_SUBSHELL == 0)); then
        __sandbox_leaving=1
    fi
    builtin exit "${@-$__sandbox_code_of_exit}"
}

# __sandbox_keep_exit reads the trap of EXIT. If a cell has set it, the function notes it, and sets the driver's.
__sandbox_keep_exit() {
    local __sandbox_set
    IFS='' TMOUT=0 builtin read -r -d '' -u 58 __sandbox_set
    [[ $__sandbox_set == *__sandbox_on_exit* ]] && return
    __sandbox_exit=$__sandbox_set
    builtin trap '__sandbox_on_exit "$@"' EXIT
}

# __sandbox_wrap_trap defines the function trap for a cell that has the word EXIT: it leaves the driver's trap where it is.
__sandbox_wrap_trap() {
    builtin declare -F trap >/dev/null && return
    __sandbox_trap=1
    trap() {
        local __sandbox_at __sandbox_other=() __sandbox_action=$1
        if ((BASH_SUBSHELL > 0 || $# < 2)) || [[ $1 == -?* || " ${*:2} " != *" EXIT "* ]]; then
            builtin trap "$@"
            return
        fi
        for __sandbox_at in "${@:2}"; do
            [[ $__sandbox_at == EXIT ]] || __sandbox_other+=("$__sandbox_at")
        done
        builtin printf -v __sandbox_exit 'trap -- %q EXIT' "$__sandbox_action"
        [[ $__sandbox_action == - ]] && __sandbox_exit=''
        ((${#__sandbox_other[@]} == 0)) || builtin trap -- "$__sandbox_action" "${__sandbox_other[@]}"
    }
}

# __sandbox_on_exit ARGUMENT… is the trap of EXIT.
__sandbox_on_exit() {
    local __sandbox_code_of_exit=$? __sandbox_words
    if [[ $- == *e* && $__sandbox_cell && ! $__sandbox_leaving ]]; then
        __sandbox_save_options
        __sandbox_status=$__sandbox_code_of_exit __sandbox_ended=1
        __sandbox_keep_traps
        builtin trap : INT
        exec 55< <(__sandbox_print_state "$@")
        __sandbox_restart
    fi
    __sandbox_cell=''
    [[ $__sandbox_exit ]] || return
    builtin eval "__sandbox_words=(${__sandbox_exit#trap })"
    builtin eval "__sandbox_return $__sandbox_code_of_exit
${__sandbox_words[1]}"
}

__sandbox_return() { return "$1"; }

# __sandbox_keep_traps notes all traps, which subshells may have forgotten.
__sandbox_keep_traps() {
    builtin trap -p >&58
    builtin printf '\0' >&58
    IFS='' TMOUT=0 builtin read -r -d '' -u 58 __sandbox_traps
}

# __sandbox_restart replaces this shell by a new one. The copies of descriptors that it makes are inherited.
__sandbox_restart() {
    if ((__sandbox_out == 56)); then
        exec 50>/dev/fd/56 56>&-
        exec 56>&50 50>&-
    fi
    exec 0<&63
    exec "$BASH" "$__sandbox_driver" restored
}

# __sandbox_own are the variables of bash itself, which a new shell has, too.
__sandbox_own=' BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_COMPAT BASH_ENV
 BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_MONOSECONDS BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_TRAPSIG BASH_VERSINFO
 BASH_VERSION COMP_WORDBREAKS COPROC DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HISTFILE
 HISTFILESIZE HISTSIZE HOSTNAME
 HOSTTYPE IFS LINENO LINES COLUMNS MACHTYPE MAILCHECK OLDPWD OPTARG OPTERR OPTIND OSTYPE PATH PIPESTATUS PPID PS1 PS2 PS4 PWD RANDOM
 READLINE_LINE READLINE_POINT REPLY SECONDS SHELL SHELLOPTS SHLVL SRANDOM TERM UID _ '

# __sandbox_print_state ARGUMENT… prints commands that set the state of this shell in a new one. Aliases are last: they change the text
# after them.
__sandbox_print_state() {
    local __sandbox_name __sandbox_flags __sandbox_word
    if [[ ${IFS+set} ]]; then builtin printf 'IFS=%q\n' "$IFS"; else builtin printf 'unset IFS\n'; fi
    local IFS=$' \n'
    builtin shopt -p
    while builtin read -r __sandbox_word; do
        [[ $__sandbox_word == *@(monitor|history|emacs|vi) ]] || builtin printf '%s\n' "$__sandbox_word"
    done < <(builtin set +o)
    builtin declare -f
    while builtin read -r __sandbox_word __sandbox_flags __sandbox_name; do
        [[ $__sandbox_flags == -f ]] || builtin printf 'declare %s %q\n' "$__sandbox_flags" "$__sandbox_name"
    done < <(builtin declare -F)
    for __sandbox_name in $(builtin compgen -v); do
        case $__sandbox_name in
        IFS | __sandbox_name | __sandbox_flags | __sandbox_word | __sandbox_words | __sandbox_code_of_exit) ;;
        PATH | OLDPWD | PS4 | REPLY | HOSTNAME | TERM | SHLVL) builtin declare -p "$__sandbox_name" ;;
        *) [[ $__sandbox_own == *" $__sandbox_name "* ]] || builtin declare -p "$__sandbox_name" ;;
        esac
    done 2>/dev/null
    builtin umask -p
    builtin printf 'set --'
    (($# == 0)) || builtin printf ' %q' "$@"
    builtin printf '\n'
    # A subshell has aliases, and does not expand them.
    builtin printf '%s\n' "$__sandbox_traps" "${__sandbox_aliases-}"
    builtin alias -p
}

# Forks.

# __sandbox_fork ARGUMENT… makes a second shell with this one's state, the leader of its process group. The shell between ends at once, so
# that init adopts the second one. The substitution ends when the second one has opened its pipes, which the session removes next.
__sandbox_fork() {
    local __sandbox_pid
    builtin shopt -q expand_aliases && __sandbox_aliases='shopt -s expand_aliases' || __sandbox_aliases=''
    __sandbox_keep_traps
    __sandbox_traps+="trap - INT; $__sandbox_int"
    __sandbox_pid=$(
        builtin set -m
        (__sandbox_become_fork "$__sandbox_body" "$@") </dev/null 2>/dev/null &
        builtin printf %d $!
    )
    __sandbox_send "$__sandbox_out" reply "$__sandbox_id" "{\"pid\":$__sandbox_pid}"
}

# __sandbox_become_fork DIRECTORY ARGUMENT… opens each pipe for reading and writing first: then no other open waits, in whatever order the
# session opens its ends.
__sandbox_become_fork() {
    exec 63<&- # otherwise bash restores it, because it is close-on-exec
    exec 50<>"$1/stdin" 51<>"$1/stdout" 52<>"$1/stderr" 53<>"$1/to_driver" 54<>"$1/from_driver" || builtin exit 1
    exec 63<"$1/to_driver" 56>"$1/from_driver" 1>"$1/stdout" 2>"$1/stderr" || builtin exit 1
    builtin shift
    __sandbox_spare=1 __sandbox_out=56
    exec 55< <(__sandbox_print_state "$@")
    __sandbox_restart
}

# Input. Commands have an empty standard input; the builtin read, with that input, asks the session for a line.

read() {
    local __sandbox_option __sandbox_prompt='' __sandbox_password=false __sandbox_arguments=() __sandbox_answer OPTIND=1 OPTARG
    if [[ ! $__sandbox_cell || ! /dev/fd/0 -ef /dev/fd/59 ]]; then
        builtin read "$@"
        return
    fi
    while builtin getopts :a:d:ei:n:N:p:rst:u: __sandbox_option; do
        case $__sandbox_option in
        p) __sandbox_prompt=$OPTARG ;;
        s) __sandbox_password=true ;;
        [er]) __sandbox_arguments+=("-$__sandbox_option") ;;
        [adinN]) __sandbox_arguments+=("-$__sandbox_option" "$OPTARG") ;;
        t) ;; # the session waits as long as its user
        *)
            builtin read "$@"
            return
            ;;
        esac
    done
    builtin shift $((OPTIND - 1))
    if [[ ! $__sandbox_rest ]] && ! __sandbox_ask; then
        builtin read "${__sandbox_arguments[@]}" -- "$@" </dev/null
        return
    fi
    {
        builtin read "${__sandbox_arguments[@]}" -- "$@"
        __sandbox_option=$?
        IFS='' builtin read -r -d '' __sandbox_rest
    } <<<"$__sandbox_rest"
    __sandbox_rest=${__sandbox_rest%$'\n'}
    return "$__sandbox_option"
}

# __sandbox_ask reads the caller's line from the session into __sandbox_rest; it fails at the end of input. The first byte is read with
# the user's trap of SIGINT, so that an interrupt ends the wait; the driver needs that byte later if it has arrived.
__sandbox_ask() {
    local __sandbox_trap_of_cell __sandbox_form LC_ALL=C.UTF-8
    __sandbox_is_text "${__sandbox_prompt//[$'\t\n']/}" || builtin printf -v __sandbox_prompt %q "$__sandbox_prompt"
    __sandbox_quote __sandbox_form "$__sandbox_prompt"
    __sandbox_send "$__sandbox_out" input "$__sandbox_cell" "{\"prompt\":$__sandbox_form,\"password\":$__sandbox_password}"
    while :; do
        IFS='' TMOUT=0 LC_ALL=C builtin read -r -N 1 -u 63 __sandbox_byte || builtin exit 0
        builtin trap -p INT >&58
        builtin trap '' INT
        builtin printf '\0' >&58
        IFS='' TMOUT=0 builtin read -r -d '' -u 58 __sandbox_trap_of_cell
        __sandbox_receive 63
        builtin trap - INT
        builtin eval "$__sandbox_trap_of_cell"
        [[ $__sandbox_id == "$__sandbox_cell" ]] || continue
        case $__sandbox_kind in
        input)
            __sandbox_rest=$__sandbox_body
            return 0
            ;;
        end_input) return 1 ;;
        close) __sandbox_leave 0 ;;
        esac
    done
}

# Questions.

__sandbox_answer() {
    local reply LC_ALL=C.UTF-8 IFS=$' \t\n'
    case $__sandbox_kind in
    check) reply=$(__sandbox_check "$__sandbox_body") ;;
    complete) reply=$(__sandbox_complete "$__sandbox_argument" "$__sandbox_body") ;;
    inspect) reply=$(__sandbox_inspect "$__sandbox_body") ;;
    variables) reply=$(__sandbox_list_variables) ;;
    esac 2>/dev/null
    [[ $reply ]] || case $__sandbox_kind in # the question was interrupted
        check) reply='{"status":"complete"}' ;;
        complete) reply="{\"matches\":[],\"start\":$__sandbox_argument,\"end\":$__sandbox_argument}" ;;
        inspect) reply='{"found":false}' ;;
        variables) reply='{"variables":[]}' ;;
    esac
    __sandbox_send "$__sandbox_out" reply "$__sandbox_id" "$reply"
}

# __sandbox_check CODE distinguishes incomplete from invalid code by what bash says about it.
__sandbox_check() {
    local said
    if said=$(__sandbox_parse "$1") && [[ $said != *'delimited by end-of-file'* && ! $1 =~ (^|[^\\])(\\\\)*\\$ ]]; then
        builtin printf '{"status":"complete"}'
    elif [[ ! $said || $said =~ 'unexpected end of file'|'unexpected EOF'|'delimited by end-of-file' ]]; then
        builtin printf '{"status":"incomplete"}'
    else
        builtin printf '{"status":"invalid"}'
    fi
}

# __sandbox_is_text TEXT reports whether a text can be shown and typed as it is.
__sandbox_is_text() {
    local __sandbox_form
    builtin printf -v __sandbox_form %q "$1"
    [[ $__sandbox_form != \$\'* ]]
}

__sandbox_command_follows=$'(^|[;|&(`\n]|(^|[ \t\n;])(then|do|else|elif|if|while|until|!|time|\\{)[ \t])[ \t]*$'

# __sandbox_complete CURSOR CODE
__sandbox_complete() {
    local __sandbox_before __sandbox_word __sandbox_form __sandbox_match __sandbox_start __sandbox_matches=() __sandbox_list=''
    LC_ALL=C
    __sandbox_before=${2:0:$1}
    __sandbox_word=${__sandbox_before##*[$' \t\n'\;\|\&\(\)\<\>\"\'\`=:]}
    __sandbox_start=$(($1 - ${#__sandbox_word}))
    LC_ALL=C.UTF-8
    __sandbox_before=${__sandbox_before%"$__sandbox_word"}
    case $__sandbox_word in
    \$\{*) builtin mapfile -t __sandbox_matches < <(builtin compgen -v -P '${' -S '}' -- "${__sandbox_word#??}") ;;
    \$*) builtin mapfile -t __sandbox_matches < <(builtin compgen -v -P '$' -- "${__sandbox_word#?}") ;;
    *)
        if [[ $__sandbox_word != */* && $__sandbox_before =~ $__sandbox_command_follows ]]; then
            builtin mapfile -t __sandbox_matches < <(builtin compgen -c -- "$__sandbox_word")
        else
            builtin mapfile -t __sandbox_matches < <(builtin compgen -f -- "$__sandbox_word")
            for __sandbox_form in "${!__sandbox_matches[@]}"; do
                builtin printf -v __sandbox_match %q "${__sandbox_matches[__sandbox_form]}"
                [[ ! -d ${__sandbox_matches[__sandbox_form]} ]] || __sandbox_match+=/
                __sandbox_matches[__sandbox_form]=$__sandbox_match
            done
        fi
        ;;
    esac
    local -A __sandbox_seen=()
    for __sandbox_match in "${__sandbox_matches[@]}"; do
        [[ $__sandbox_match && $__sandbox_match != *__sandbox_* && ! ${__sandbox_seen[$__sandbox_match]} ]] || continue
        ((${#__sandbox_seen[@]} < 1000)) && __sandbox_is_text "$__sandbox_match" || continue
        __sandbox_seen[$__sandbox_match]=1
        __sandbox_quote __sandbox_match "$__sandbox_match"
        __sandbox_list+=,$__sandbox_match
    done
    builtin printf '{"matches":[%s],"start":%d,"end":%d}' "${__sandbox_list#,}" "$__sandbox_start" "$1"
}

# __sandbox_inspect NAME describes what a name is: a variable, or what bash does with a command of that name.
__sandbox_inspect() {
    local __sandbox_name=${1#"${1%%[!$' \t\n$']*}"} __sandbox_text
    __sandbox_name=${__sandbox_name#\{}
    __sandbox_name=${__sandbox_name%%[!a-zA-Z0-9_./+-]*}
    __sandbox_text=$(builtin declare -p -- "$__sandbox_name" || builtin type -- "$__sandbox_name")
    if [[ $__sandbox_text && $__sandbox_name != __sandbox_* ]]; then
        __sandbox_is_text "${__sandbox_text//[$'\t\n']/}" || builtin printf -v __sandbox_text %q "$__sandbox_text"
        __sandbox_quote __sandbox_text "${__sandbox_text:0:65536}"
        builtin printf '{"found":true,"text":%s}' "$__sandbox_text"
    else
        builtin printf '{"found":false}'
    fi
}

# __sandbox_list_variables lists the variables that are neither bash's nor of the environment in which the session began.
__sandbox_list_variables() {
    local __sandbox_name __sandbox_value __sandbox_kind __sandbox_flags __sandbox_list='' __sandbox_count=0
    local -A __sandbox_first=()
    while IFS='' builtin read -r -d '' __sandbox_name; do
        __sandbox_first[${__sandbox_name%%=*}]=1
    done <"/proc/$$/environ"
    for __sandbox_name in $(builtin compgen -v); do
        [[ $__sandbox_name != __sandbox_* && ! ${__sandbox_first[$__sandbox_name]} ]] || continue
        [[ $__sandbox_own != *" $__sandbox_name "* ]] || continue
        __sandbox_value=$(builtin declare -p -- "$__sandbox_name") || continue
        __sandbox_flags=${__sandbox_value#declare -}
        case ${__sandbox_flags%% *} in
        *A*) __sandbox_kind=map ;;
        *a*) __sandbox_kind=array ;;
        *i*) __sandbox_kind=integer ;;
        *n*) __sandbox_kind=reference ;;
        *) __sandbox_kind=string ;;
        esac
        if ((++__sandbox_count > 1000)); then break; fi
        __sandbox_value=${__sandbox_value#declare -* "$__sandbox_name"}
        __sandbox_value=${__sandbox_value#=}
        __sandbox_is_text "${__sandbox_value//[$'\t\n']/}" || builtin printf -v __sandbox_value %q "$__sandbox_value"
        __sandbox_quote __sandbox_value "${__sandbox_value:0:200}"
        __sandbox_list+=",{\"name\":\"$__sandbox_name\",\"type\":\"$__sandbox_kind\",\"value\":$__sandbox_value}"
    done
    __sandbox_flags=false
    ((__sandbox_count > 1000)) && __sandbox_flags=true
    builtin printf '{"variables":[%s],"truncated":%s}' "${__sandbox_list#,}" "$__sandbox_flags"
}

if [[ ${__sandbox_restored-} ]]; then
    . /dev/fd/55
    exec 55<&-
fi
__sandbox_protect 56 57 58 59 63
__sandbox_own=${__sandbox_own//$'\n'/}
builtin printf '\\eval "$__sandbox_line"\n%.0s' 1 2 >&57
if [[ ! $__sandbox_cell ]]; then
    __sandbox_version=${BASH_VERSION%%[^0-9.]*}
    __sandbox_ready='{"protocol":1,"language":"shell","features":["check","complete","inspect","variables","fork"],'
    __sandbox_ready+="\"version\":\"$__sandbox_version\",\"banner\":\"bash $__sandbox_version\"}"
    __sandbox_send "$__sandbox_out" ready 0 "$__sandbox_ready"
fi
