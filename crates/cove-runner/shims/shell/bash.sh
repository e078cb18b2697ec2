# The bash shim: runs cells in one lasting bash, which keeps its state however a cell ends.
#
# The runner starts `bash --norc --noprofile -c 'eval "$1";eval "$_cove_main"' bash <this text>` with its
# socket on descriptor 3. Both `eval`s being on line 1 makes line numbers in messages those of the cell.
#
# A request is two lines, `<bytes> <mark>` and then that many bytes: name, code and arguments as
# 'single quoted' words, a newline inside written as the mark (a control character that occurs in none
# of them), and a newline at the end. An answer is `length:u32be D kind`. A question about code is `<bytes> <mark> ?` and
# other words, see questions.sh; its answer is `length:u32be A text`.
#
# No code can stop a bash that has decided to exit: `exit`, a failure under `set -e`, an unset variable under
# `set -u`. But the EXIT trap still has all state, and a subshell forked in it inherits that. So the session
# moves there: the subshell sends the runner its process id (`P pid:u32be`), kills its parent, and goes on. An
# interrupt works the same way. A move loses the job table: `wait` and `%1`, but not `$!`.
#
# Cells run at the top level, not in a function: there `declare` would make locals. All names begin with
# `_cove`. Every command has `builtin` before it, because a cell may define functions of any name; but `builtin exec`
# would not keep its redirections.

# Turns off options that a cell has left on and that would break or show the shim. Stores code that turns them on again
# for the next cell in `_cove_o`.
_cove_options() {
  if [[ -o allexport ]]; then
    builtin set +a
    builtin set a
  fi
  _cove_o=${1-}${-//[!euvx]/}
  builtin set +euvx
  _cove_o=${_cove_o:+builtin set -$_cove_o;}
}

_cove_u32() {
  builtin printf -v _cove_u '\\%03o\\%03o\\%03o\\%03o' \
    "$(($1 >> 24 & 255))" "$(($1 >> 16 & 255))" "$(($1 >> 8 & 255))" "$(($1 & 255))"
}

# Replaces marks by newlines. `${_cove//…}` would take quadratic time.
_cove_newlines() {
  builtin local - IFS=$_cove_mark
  builtin set -f
  builtin set -- $_cove.
  IFS=$'\n'
  _cove=$*
  _cove=${_cove%.}
}

# Answers a question about code. The question brings the script that finds the answer; all of it is ASCII.
_cove_answer() {
  builtin eval "builtin set -- $_cove"
  _cove=$(builtin eval "$1" </dev/null)
  _cove_u32 "$((${#_cove} + 1))"
  builtin printf "${_cove_u}A%s" "$_cove" >&230
}

# Reports the end of the cell, with this status if no other is known, and reads the next cell. Fails if there is
# none.
_cove_next() {
  unset -f unset builtin exec
  builtin trap '' INT
  if [[ ${_cove_running-} ]]; then
    [[ ${_cove_result-} ]] || _cove_options
    builtin set -- "${_cove_result:-$1}"
    _cove_running= _cove_result=
    case $1 in
      i) builtin printf '\0\0\0\2Di' >&230 || builtin return ;;
      0) builtin printf '\0\0\0\2Dc' >&230 || builtin return ;;
      *)
        _cove_u32 "$1"
        builtin printf "\0\0\0\6Dx$_cove_u" >&230 || builtin return
        ;;
    esac
  fi
  while :; do
    TMOUT= IFS=' ' builtin read -r -u 230 _cove_bytes _cove_mark _cove_ask || builtin return
    LC_ALL=C TMOUT= IFS= builtin read -r -d '' -N "$_cove_bytes" -u 230 _cove || builtin return
    [[ $_cove == *"$_cove_mark"* ]] && _cove_newlines
    [[ ${_cove_ask-} ]] || builtin break
    _cove_answer || builtin return
  done
  _cove_running=1 _cove_go=1
  builtin trap _cove_interrupt INT
}

# Ends the cell from anywhere in it. Unlike `exit`, this error leaves all functions, loops and `eval`s first.
_cove_end() {
  builtin trap '' INT
  _cove_options
  _cove_result=$1
  { : "${_cove_unset?}"; } 2>/dev/null
}

_cove_interrupt() {
  builtin trap '' INT
  if [[ $BASHPID != "$_cove_pid" ]]; then
    # This is a subshell, interrupted before it could reset this trap.
    builtin trap - INT
    builtin kill -INT "$BASHPID"
  elif [[ ! ${_cove_ending-} ]]; then
    _cove_end i
  fi
}

_cove_exit() {
  builtin set -- "$?" "$@"
  # In a subshell only the subshell ends. Bash itself reports bad arguments.
  if [[ $BASHPID != "$_cove_pid" || $# -gt 2 || ! ${2-0} =~ ^-?[0-9]{1,9}$ ]]; then
    builtin exit "${@:2-($# == 1)}"
    builtin return
  fi
  builtin set -- "${2-$1}"
  # In base ten, because 08 is not octal.
  case $1 in
    -*) _cove_end "$((-10#${1#-} & 255))" ;;
    *) _cove_end "$((10#$1 & 255))" ;;
  esac
}

# Keeps the user's EXIT trap for the end of the session.
_cove_trap() {
  if [[ $BASHPID != "$_cove_pid" ]]; then
    builtin trap "$@"
    builtin return
  fi
  [[ ${1-} != -- ]] || builtin shift
  if [[ $# -eq 0 || $1 == -[lp]* ]]; then
    builtin trap "$@"
    builtin return
  fi
  builtin local action=- signal failed=0
  if (($# > 1)); then
    action=$1
    builtin shift
  fi
  for signal; do
    case $signal in
      EXIT | exit | SIGEXIT | 0) _cove_bye=$action ;;
      *) builtin trap -- "$action" "$signal" || failed=1 ;;
    esac
  done
  builtin return "$failed"
}

# The EXIT trap's first part, in the process that ends.
_cove_keep() {
  builtin trap '' INT
  unset -f unset builtin exec
  builtin export -n _cove_ending
  [[ $BASHPID == "$_cove_pid" ]] || builtin exit "$1"
  if [[ ! ${_cove_running-} ]]; then
    exec >&232 2>&233
    _cove_pid=
    [[ ${_cove_bye--} == - ]] || builtin eval "$_cove_bye"
    builtin exit "$1"
  fi
  if [[ ! ${_cove_result-} ]]; then
    _cove_options
    _cove_result=$1
  fi
  _cove_traps=$(builtin trap -p)
}

# The second part, one process later. Bash may have stopped inside functions, with their local variables. A failure
# under `set -e` leaves all functions, except after a `command exit` in a function in an `eval` whose failure is
# ignored (`if eval f`). From there the session cannot go on.
_cove_leave='_cove_between=$BASHPID; builtin trap "$_cove_left" EXIT; builtin set -e; builtin false; builtin trap - EXIT; builtin exit "$_cove_result"'
_cove_left='builtin set +e; ( _cove_move && builtin eval "$_cove_main" ); builtin exit "$?"'

# The third part, in the process that goes on.
_cove_move() {
  builtin eval "$_cove_traps"
  _cove_arm
  _cove_ending=
  _cove_u32 "$BASHPID"
  builtin printf "\0\0\0\5P$_cove_u" >&230 || builtin return
  # In this order, because otherwise the first would report that the second was killed.
  builtin kill -KILL "$_cove_pid" "$_cove_between"
  _cove_pid=$BASHPID
  # A killed parent that is still in wait(2) could take the status of this process with it. So nothing goes on before
  # this process is a child of the runner.
  while IFS= builtin read -r _cove_u <"/proc/$_cove_pid/stat" && [[ ${_cove_u##*) } == ?" $_cove_between "* ]]; do :; done
  _cove_u=
}

_cove_arm() {
  builtin trap '_cove_ending=$?; { _cove_keep "$_cove_ending"; builtin trap - DEBUG; } >/dev/null 2>&1; ( builtin eval "$_cove_leave" ) >/dev/null 2>&1; builtin exit "$?"' EXIT
}

# Ends the shell: what is left of the standard descriptors is not the session's, and output would be lost.
_cove_closed() {
  builtin printf 'a cell has closed the descriptors 231 to 233, which this shell needs\n' >&2
  builtin trap - EXIT
  builtin exit 3
}

# `until`, not `while`: after `set -n` every command succeeds without doing anything, and so this loop ends.
_cove_main='until { _cove_next "$?" && builtin trap - DEBUG; } >/dev/null 2>&1; [[ ! ${_cove_go-} ]]; do _cove_go=; [[ ! $_cove_sees || ( -e /proc/self/fd/231 && -p /proc/self/fd/232 && -p /proc/self/fd/233 ) ]] || _cove_closed; exec <&231 >&232 2>&233; builtin eval "set -- $_cove"; BASH_ARGV0=$1 _cove=$2; builtin shift 2; builtin eval "$_cove_o$_cove"; done; builtin exit 3'

# Moves the channel to 230 and keeps copies of the standard descriptors, all marked close-on-exec. Bash has no command
# for that, but it marks the copy that it keeps of a redirected descriptor, which is 10, and copies of that copy.
# Here 11 is open only if 10 was in use.
if { true <&11; } 2>/dev/null; then
  exec 230<&3 231<&0 232>&1 233>&2
else
  { exec 230<&10; } 3<&-
  { exec 231<&10; } <&-
  { exec 232>&10; } >&-
  { exec 233>&10; } 2>&-
fi
exec 3<&-
_cove_pid=$BASHPID _cove_o= _cove_sees=
[[ -p /proc/self/fd/232 && -p /proc/self/fd/233 ]] && _cove_sees=1
_cove_arm
shopt -s expand_aliases
alias exit=_cove_exit trap=_cove_trap
