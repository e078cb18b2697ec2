# The shim for an sh that is not bash: dash, busybox or another. Each cell is a new process, and what lasts is text.
#
# The runner starts `sh -c 'eval "$1";eval "$_cove_main"' sh <this text> <the text of bash.sh>` with its socket
# on descriptor 3. If sh is bash, the second text takes over. bash.sh describes the requests.
#
# The process runs one cell and ends with the cell's status, which the runner, its parent, gets from the kernel. No other
# message says how the cell ended. Before that, the EXIT trap sends the state as commands for the next process:
# `\0\0\0\0S`, text, `\0`. The runner sends it back as the first request of that process: `<bytes> <lines> =`, and
# then the text. If no state comes, the cell has replaced or killed the shell, and its state is lost.
#
# The state is every variable, with its attributes, the directory, the umask and the options. These shells cannot print
# functions, and aliases, traps, jobs and open descriptors end with their process. A cell that ends inside a function
# leaves the values of the function's local variables.
#
# While a cell runs, descriptor 9 is closed for it. The shell itself keeps it, marked close-on-exec.

# Turns off options that a cell has left on and that would break the shim. Stores code that turns them on again for the
# next cell in `_cove_o`.
_cove_options() {
  _cove_o=
  for _cove_rest in a b e f u v x C; do
    case $- in *"$_cove_rest"*) _cove_o=$_cove_o$_cove_rest ;; esac
  done
  set +abefuvxC
  _cove_o=${_cove_o:+set -$_cove_o;}
  case $(set +o) in *'-o pipefail'*) _cove_o="set -o pipefail;$_cove_o" ;; esac
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
  set -f
  IFS=$_cove_mark
  set -- $_cove.
  IFS='
'
  _cove=$*
  _cove=${_cove%.}
  set +f
}

# Answers a question about code. The question brings the script that finds the answer; all of it is ASCII.
_cove_answer() {
  eval "set -- $_cove"
  _cove=$(
    _cove_restore
    eval "$1" </dev/null
  )
  _cove_u32 "$((${#_cove} + 1))"
  command printf "${_cove_u}A%s" "$_cove" >&9
}

# Reads the state: `$_cove_bytes` bytes, which are `$_cove_mark` lines.
_cove_read_state() {
  _cove_state=$(command head -c "$_cove_bytes" <&9)
  [ -z "$_cove_state" ] || return 0
  # There is no `head`.
  while [ "$_cove_mark" -gt 0 ]; do
    IFS= command read -r _cove_rest <&9 || return
    _cove_state="$_cove_state$_cove_rest
"
    _cove_mark=$((_cove_mark - 1))
  done
}

# Makes the state of the cell before that of this process, which the runner has started without an environment. From
# then on each variable may be unset, read-only or anything else, so the shim does this last.
_cove_restore() {
  [ -n "${_cove_state-}" ] || return 0
  # The shell gives these a value when it starts. The state has them, unless a cell has unset them.
  unset PATH OLDPWD IFS PS1 PS2 PS4
  eval "$_cove_state"
  umask "$_cove_umask"
  set -- "$_cove_folder" "$_cove_o" "${OLDPWD-}"
  # `set -a` has exported these.
  unset _cove_state _cove_umask _cove_folder _cove_o
  command cd -- "$1" || _cove_gone=1
  _cove_o=$2 OLDPWD=$3
  [ -n "$3" ] || unset OLDPWD
  _cove_lock
  _cove_kept=1
}

# Reads requests until there is a cell. Fails if there is none.
_cove_next() {
  while :; do
    IFS=' ' command read -r _cove_bytes _cove_mark _cove_ask <&9 || return
    if [ "${_cove_ask-}" = = ]; then
      _cove_read_state || return
      continue
    fi
    _cove=
    # `read` makes a system call for each byte, which takes 4 ms for 10,000 bytes.
    case $_cove_bytes in ?????*) _cove=$(command head -c "$_cove_bytes" <&9) ;; esac
    # For short cells, and where there is no `head`.
    [ -n "$_cove" ] || IFS= command read -r _cove <&9 || return
    case $_cove in *"$_cove_mark"*) _cove_newlines ;; esac
    [ -n "${_cove_ask-}" ] || break
    _cove_answer || return
  done
  _cove_restore
}

# Keeps the cell's EXIT trap for the end of the cell, because the shim needs the shell's own.
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

# Sends the state. `set` prints every variable in quotes, so the rest of the state is in variables too.
_cove_save() {
  _cove_umask=$(umask)
  _cove_folder=$(
    command pwd
    command printf .
  )
  _cove_folder=${_cove_folder%??}
  # Each shell has its own.
  command unset PPID LINENO FUNCNAME SHLVL
  unset _cove _cove_action _cove_ask _cove_bye _cove_bytes _cove_gone _cove_kept _cove_main _cove_mark _cove_me
  unset _cove_pid _cove_rest _cove_status _cove_u
  command printf '\0\0\0\0S'
  set
  export -p
  # As a function, because until the next shell is ready its shim has to change some variables.
  command printf '_cove_lock() {\n:\n'
  readonly -p
  command printf '}\n\0'
}

_cove_note() {
  command printf 'note: %s\n' "$1" >&2
}

# The EXIT trap's first part, with nothing to see of it under `set -x`.
_cove_left() {
  _cove_status=$1
  trap '' INT
  unset -f command
  _cove_options
}

# Its second part: the cell's own trap. An `exit` there ends the process without its state.
_cove_part() {
  if [ "$_cove_status" = 127 ] && [ -n "${_cove_kept-}" ]; then
    _cove_note 'each cell is a new sh here: it keeps variables and the directory, but no functions, aliases or traps'
  fi
  case ${_cove_bye--} in -) return ;; esac
  (exit "$_cove_status")
  eval "$_cove_bye"
}

# Its third part.
_cove_keep() {
  set +abefuvxC
  _cove_save >&9
}

_cove_arm() {
  trap '{ _cove_left "$?"; } 2>/dev/null; _cove_part; { _cove_keep; } 2>/dev/null' EXIT
  trap 'exit 130' INT
}

_cove_main='_cove_next 2>/dev/null || exit 3; eval "set -- $_cove"; _cove=$2; shift 2; [ -z "${_cove_gone-}" ] || _cove_note "the directory of the cell before is gone"; _cove_arm; eval "$_cove_o$_cove" 9<&-'

if [ -n "${BASH_VERSION-}" ]; then
  eval "$2"
else
  exec 9<&3 3<&-
  _cove_self
  _cove_pid=$_cove_me _cove_o=
  trap '' INT
  alias trap=_cove_trap
fi
