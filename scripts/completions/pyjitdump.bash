# bash completion for pyjitdump. Options come from --help, so that there is one list of them.

_pyjitdump_options() {
  "$1" "$2" --help 2>/dev/null | grep -oE '(^|[ ,[])--?[a-zA-Z][a-z-]*' | tr -d ' ,[' | sort -u
}

_pyjitdump() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} sub=${COMP_WORDS[1]} word at
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "record report flamegraph export inspect doctor clean --help --version" -- "$cur")
    return
  fi
  # Behind -- stands a command, which has completions of its own.
  for ((at = 2; at < COMP_CWORD; at++)); do
    if [ "${COMP_WORDS[at]}" = -- ]; then
      if declare -F _command_offset >/dev/null; then _command_offset $((at + 1)); fi
      return
    fi
  done
  case $prev in
    -i | --input | --dir)
      mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
    -o | --output | --library)
      mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
    -f | --format)
      mapfile -t COMPREPLY < <(compgen -W "collapsed speedscope gecko pstats pprof" -- "$cur"); return ;;
    -p | --pid)
      word=$(pgrep python 2>/dev/null)
      mapfile -t COMPREPLY < <(compgen -W "$word" -- "$cur"); return ;;
  esac
  case $cur in
    -*) mapfile -t COMPREPLY < <(compgen -W "$(_pyjitdump_options "${COMP_WORDS[0]}" "$sub")" -- "$cur") ;;
    *) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
  esac
}

complete -o filenames -F _pyjitdump pyjitdump
