# The shim for sh, whether it is dash, busybox or another shell: runs cells in one lasting shell, which keeps its state.
#
# The runner starts `sh -c 'eval "$1";eval "$_cove_main"' sh <this text> <the text of bash.sh>` with its socket
# on descriptor 3. If sh is bash, the second text takes over. bash.sh describes the frames.
#
# `command eval` catches every error that would end the shell, so `exit` in a cell is an alias for an error.
# A failure under `set -e` is not caught, and in busybox nothing but wrong syntax is: there an error in a subshell of
# `command eval` loops forever. But the EXIT trap still has all state, and a subshell forked in it
# inherits that. So the session moves there: the subshell sends the runner its process id, kills its parent, and
# goes on. A move loses the cell's traps, the job table (`wait` and `%1`, but not `$!`), and the outer values of
# variables that were local to the functions that were running. Busybox can move once; the next time it ends.
#
# While a cell runs, descriptors 6 to 9 are closed for it. The shell itself keeps them, marked close-on-exec.

# Turns off options that a cell has left on and that would break or show the shim. Stores code that turns them on again
# for the next cell in `_cove_o`.
_cove_options() {
  case $- in *a*)
    set +a
    set a
    ;;
  esac
  _cove_o=${1-}
  for _cove_rest in e u v x; do
    case $- in *"$_cove_rest"*) _cove_o=$_cove_o$_cove_rest ;; esac
  done
  set +euvx
  _cove_o=${_cove_o:+set -$_cove_o;}
}

_cove_u32() {
  _cove_u=
  for _cove_rest in 24 16 8 0; do
    set -- "$1" "$(($1 >> _cove_rest & 255))"
    _cove_u="$_cove_u\\$(($2 / 64))$(($2 / 8 % 8))$(($2 % 8))"
  done
}

# Stores the id of this process in `_cove_me`; in a subshell `$$` is that of another. Empty without /proc.
_cove_self() {
  _cove_me=
  { IFS=' ' command read -r _cove_me _cove_rest </proc/self/stat; } 2>/dev/null
}

# Replaces marks by newlines.
_cove_newlines() {
  local IFS
  case $- in *f*) _cove_rest=f ;; *) _cove_rest= ;; esac
  set -f
  IFS=$_cove_mark
  set -- $_cove.
  IFS='
'
  _cove=$*
  _cove=${_cove%.}
  [ -n "$_cove_rest" ] || set +f
}

# Answers a question about code. The question brings the script that finds the answer; all of it is ASCII.
_cove_answer() {
  eval "set -- $_cove"
  _cove=$(eval "$1" </dev/null)
  _cove_u32 "$((${#_cove} + 1))"
  command printf "${_cove_u}A%s" "$_cove" >&9
}

# Reports the end of the cell, with this status if no other is known, and reads the next cell. Fails if there is
# none.
_cove_next() {
  unset -f command
  if [ -n "${_cove_running-}" ]; then
    [ -n "${_cove_result-}" ] || _cove_options
    _cove_self
    # In old versions of dash `command eval` also catches errors in the cell's subshells. This is such a subshell.
    [ "$_cove_me" = "$_cove_pid" ] || exit "$1"
    trap '' INT
    set -- "${_cove_result:-$1}"
    _cove_running= _cove_result=
    case $1 in
      i) command printf '\0\0\0\2Di' >&9 || return ;;
      0) command printf '\0\0\0\2Dc' >&9 || return ;;
      *)
        _cove_u32 "$1"
        command printf "\0\0\0\6Dx$_cove_u" >&9 || return
        ;;
    esac
  fi
  while :; do
    IFS=' ' command read -r _cove_bytes _cove_mark _cove_ask <&9 || return
    _cove=
    # `read` makes a system call for each byte, which takes 4 ms for 10,000 bytes.
    case $_cove_bytes in ?????*) _cove=$(command head -c "$_cove_bytes" <&9) ;; esac
    # For short cells, and where there is no `head`.
    [ -n "$_cove" ] || IFS= command read -r _cove <&9 || return
    case $_cove in *"$_cove_mark"*) _cove_newlines ;; esac
    [ -n "${_cove_ask-}" ] || break
    _cove_answer || return
  done
  _cove_running=1 _cove_go=1
  trap '_cove_end i' INT
}

# Ends the cell from anywhere in it.
_cove_end() {
  trap '' INT
  _cove_options
  _cove_result=$1
  case $1$_cove_eval in
    *command*) ;;
    i*) exit 130 ;;
    *) exit "$1" ;;
  esac
  { : "${_cove_unset?}"; } 2>/dev/null
}

_cove_exit() {
  set -- "${1-$?}"
  _cove_self
  # In a subshell only the subshell ends. The shell itself reports bad arguments.
  [ "$_cove_me" = "$_cove_pid" ] || exit "$1"
  case $1 in '' | *[!0-9]* | ??????????*) exit "$1" ;; esac
  # 08 is not octal.
  while :; do case $1 in 0?*) set -- "${1#0}" ;; *) break ;; esac; done
  _cove_end "$(($1 & 255))"
}

# Keeps the user's EXIT trap for the end of the session.
_cove_trap() {
  _cove_self
  if [ "$_cove_me" != "$_cove_pid" ]; then
    trap "$@"
    return
  fi
  [ "${1-}" != -- ] || shift
  case ${1--p} in -[lp]*)
    trap "$@"
    return
    ;;
  esac
  _cove_action=-
  if [ "$#" -gt 1 ]; then
    _cove_action=$1
    shift
  fi
  for _cove_rest; do
    case $_cove_rest in
      EXIT | exit | SIGEXIT | 0) _cove_bye=$_cove_action ;;
      *) trap -- "$_cove_action" "$_cove_rest" || return ;;
    esac
  done
}

# The EXIT trap's first part, in the process that ends.
_cove_left() {
  trap '' INT
  if [ -z "${_cove_running-}" ]; then
    exec >&7 2>&8
    _cove_pid=-
    [ "${_cove_bye--}" = - ] || eval "$_cove_bye"
    exit "$1"
  fi
  if [ -z "${_cove_result-}" ]; then
    _cove_options
    _cove_result=$1
  fi
}

# The second part, in the process that goes on.
_cove_move() {
  _cove_arm
  _cove_self
  [ -n "$_cove_me" ] || return 0
  _cove_u32 "$_cove_me"
  command printf "\0\0\0\5P$_cove_u" >&9 || return
  command kill -KILL "$_cove_pid"
  _cove_pid=$_cove_me
}

_cove_arm() {
  trap '{ _cove_left "$?"; } >/dev/null 2>&1; ( { _cove_move; } >/dev/null 2>&1 && eval "$_cove_main" ); command exit "$?"' EXIT
}

# A shell that knows `$'…'` is busybox, as far as this was tested. There the syntax is checked first, as the body of
# a function.
if [ -n "${BB_ASH_VERSION-}" ] || [ $'a' = a ]; then
  _cove_eval='( eval "_cove_try() { :;$_cove

}" ) 2>&8 && eval'
else
  _cove_eval='command eval'
fi

# `until`, not `while`: after `set -n` every command succeeds without doing anything, and so this loop ends.
_cove_main='until { _cove_next "$?"; } >/dev/null 2>&1; [ -z "${_cove_go-}" ]; do _cove_go=; eval "set -- $_cove"; _cove=$2; shift 2; '$_cove_eval' "$_cove_o$_cove" <&6 >&7 2>&8 6<&- 7>&- 8>&- 9<&-; done'

if [ -n "${BASH_VERSION-}" ]; then
  eval "$2"
else
  exec 9<&3 6<&0 7>&1 8>&2 3<&-
  _cove_self
  _cove_pid=$_cove_me _cove_o=
  _cove_arm
  alias exit=_cove_exit trap=_cove_trap
fi
