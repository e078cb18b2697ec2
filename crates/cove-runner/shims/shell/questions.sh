# Questions about code that a person is writing, for every shell. The runner sends this text with each of them and the
# shim evaluates it in a subshell, so nothing of it is left. $2 is the question, $3 the shell's program, $4 the code.

# What the shell says of the syntax of code, which it does not run. Bash reads it with its own options; elsewhere `set -n`
# does not always hold for `eval`.
_cove_parse() (
  if [ -n "${BASH_VERSION-}" ]; then
    builtin eval "builtin set -n
$1" 2>&1
  else
    command printf '%s\n' "$1" | command "$_cove_program" -n 2>&1
  fi
)

_cove_completeness() {
  _cove_rest=$1
  while :; do case $_cove_rest in *\\\\) _cove_rest=${_cove_rest%??} ;; *) break ;; esac done
  case $_cove_rest in *\\) return 1 ;; esac
  if _cove_said=$(_cove_parse "$1"); then
    # In a document whose end has not come, a line that is wrong everywhere else is one more line of it.
    case $1 in *'<<'*) ! _cove_parse "$1
)" >/dev/null ;; esac
  else
    # Without the second line, which repeats the code.
    case ${_cove_said%%"
"*} in
      *'unexpected EOF'* | *'unexpected end of file'* | *'end of file unexpected'*) return 1 ;;
      *"unexpected token \`EOF'"* | *[Uu]'nterminated '* | *'EOF in '* | *[Mm]"issing '"*) return 1 ;;
    esac
  fi
}

_cove_completions() {
  _cove_word=${1##*[!A-Za-z0-9_./+@%,-]}
  _cove_rest=${1%"$_cove_word"}
  while :; do case $_cove_rest in *[' 	']) _cove_rest=${_cove_rest%?} ;; *) break ;; esac done
  case $_cove_word,$_cove_rest in
    */*,*) _cove_files ;;
    *,*'$' | *,*'${') [ -z "${BASH_VERSION-}" ] || builtin compgen -v -- "$_cove_word" ;;
    *, | *,*['|&;(`{!'] | *,*"
") _cove_commands ;;
    *) _cove_files ;;
  esac
}

_cove_files() {
  for _cove_name in "$_cove_word"*; do
    [ ! -d "$_cove_name" ] || _cove_name=$_cove_name/
    [ ! -e "$_cove_name" ] || command printf '%s\n' "$_cove_name"
  done
}

_cove_commands() {
  if [ -n "${BASH_VERSION-}" ]; then
    builtin compgen -c -- "$_cove_word"
    return
  fi
  IFS=:
  for _cove_folder in $PATH; do
    for _cove_name in "$_cove_folder/$_cove_word"*; do
      [ ! -x "$_cove_name" ] || command printf '%s\n' "${_cove_name##*/}"
    done
  done
}

# As many as fit into one answer, and only what means itself when it is written in a command.
_cove_plain() {
  _cove_count=0
  while IFS= read -r _cove_name && [ "$_cove_count" -lt 500 ]; do
    case $_cove_name in '' | _cove* | *[!A-Za-z0-9_./+@%,-]*) continue ;; esac
    [ "${#_cove_name}" -le 60 ] || continue
    command printf '%s\n' "$_cove_name"
    _cove_count=$((_cove_count + 1))
  done
}

LC_ALL=C
set +f
_cove_program=$3
case $2 in
  c) if _cove_completeness "$4"; then command printf complete; else command printf open; fi ;;
  n) _cove_completions "$4" | _cove_plain ;;
esac
