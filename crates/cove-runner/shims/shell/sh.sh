# The shim for sh, be it dash, busybox or another: runs cells in one lasting shell, which keeps its state.
#
# The runner starts `sh -c 'eval "$1";eval "$_cove_main"' sh <this text> <the text of bash.sh>` with its socket
# on descriptor 3. Where sh is bash, the second text takes over. bash.sh describes the wire.
#
# `command eval` catches every error that would end the shell, so `exit` in a cell is an alias for an error.
# A failure under `set -e` is not caught, and in busybox only wrong syntax is: there an error in a subshell of
# `command eval` loops for ever. But the EXIT trap still has all state, and a subshell forked in it
# inherits that. So the session moves there: the subshell tells the runner its process id, ends its parent, and
# goes on. What a move loses are the cell's traps, the job table (`wait` and `%1`, not `$!`), and the outer
# values of variables that the functions it was in had made local. Busybox can move once: the next time it ends.
#
# While a cell runs, 6 to 9 are closed to it: the shell itself keeps them, closed on exec.

# What a cell had left on of the options that would break or show the shim, as code for the next cell.
_cove_options() {
  case $- in *a*)
    set +a
    set a
    ;;
  esac
  _cove_o=${1-}
  case $- in *e*) _cove_o=${_cove_o}e ;; esac
  case $- in *u*) _cove_o=${_cove_o}u ;; esac
  case $- in *v*) _cove_o=${_cove_o}v ;; esac
  case $- in *x*) _cove_o=${_cove_o}x ;; esac
  set +euvx
  _cove_o=${_cove_o:+set -$_cove_o;}
}

_cove_byte() {
  _cove_u="$_cove_u\\$(($1 / 64))$(($1 / 8 % 8))$(($1 % 8))"
}

_cove_u32() {
  _cove_u=
  _cove_byte "$(($1 >> 24 & 255))"
  _cove_byte "$(($1 >> 16 & 255))"
  _cove_byte "$(($1 >> 8 & 255))"
  _cove_byte "$(($1 & 255))"
}

# The process id of this very process, which `$$` is not in a subshell. Empty without /proc.
_cove_self() {
  _cove_me=
  { IFS=' ' command read -r _cove_me _cove_rest </proc/self/stat; } 2>/dev/null
}

# Puts newlines for marks.
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

# Answers for the cell that has ended, with this status if nothing else is known, and waits for another. Fails
# when there is none.
_cove_next() {
  unset -f command
  if [ -n "${_cove_running-}" ]; then
    [ -n "${_cove_result-}" ] || _cove_options
    _cove_self
    # In old dash `command eval` also catches the errors of the cell's subshells: this is one.
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
  IFS=' ' command read -r _cove_bytes _cove_mark <&9 || return
  _cove=
  # `read` asks the kernel for each byte: 4 ms for these.
  case $_cove_bytes in ?????*) _cove=$(command head -c "$_cove_bytes" <&9) ;; esac
  # Also where there is no `head`.
  [ -n "$_cove" ] || IFS= command read -r _cove <&9 || return
  case $_cove in *"$_cove_mark"*) _cove_newlines ;; esac
  _cove_running=1 _cove_go=1
  trap '_cove_end i' INT
}

# Ends the cell from wherever it is.
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
  # What ends in a subshell is the subshell, and the shell knows what to say about odd arguments.
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

# The second, in the process that goes on.
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

# What knows `$'…'` is busybox, or nothing that this was tried with. There the syntax is tried first, as
# that of a function.
if [ -n "${BB_ASH_VERSION-}" ] || [ $'a' = a ]; then
  _cove_eval='( eval "_cove_try() { :;$_cove

}" ) 2>&8 && eval'
else
  _cove_eval='command eval'
fi

# `until` and not `while`: after `set -n` every command is a success that did nothing, and this ends.
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
