package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// The scripts call the program for suggestions (complete.go), so they match its version. If it has
// none, the shell offers files. zsh runs the script as the body of its function at the first
// completion, unless an administrator sources it.
const (
	bashCompletion = `_gpuledger() {
  local words=("${COMP_WORDS[@]:0:COMP_CWORD}") current=${COMP_WORDS[COMP_CWORD]}
  [[ $current == = ]] && current=
  if [[ $current == -* ]]; then words+=("$current"); else words+=(""); fi
  mapfile -t COMPREPLY < <(compgen -W "$("${words[@]}" ` + askNext + ` 2>/dev/null)" -- "$current")
}
complete -o default -F _gpuledger gpuledger
`
	zshCompletion = `#compdef gpuledger
_gpuledger() {
  local -a words_so_far options
  local option
  words_so_far=("${words[@]:0:$((CURRENT-1))}")
  if [[ ${words[CURRENT]} == -* ]]; then words_so_far+=("${words[CURRENT]}"); else words_so_far+=(""); fi
  for option in "${(@f)$("${words_so_far[@]}" ` + askDescribed + ` 2>/dev/null)}"; do
    [[ -z $option ]] && continue
    if [[ $option == *$'\t'* ]]; then
      options+=("${${option%%$'\t'*}//:/\\:}:${option#*$'\t'}")
    else
      options+=("${option//:/\\:}")
    fi
  done
  if (( ${#options} )); then _describe 'values' options; else _files; fi
}
if [[ ${funcstack[1]} == _gpuledger ]]; then _gpuledger "$@"; else compdef _gpuledger gpuledger; fi
`
	fishCompletion = `function __gpuledger_next
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    if string match -q -- '-*' $current
        set -a words $current
    else
        set -a words ''
    end
    set -l options (command $words ` + askDescribed + ` 2>/dev/null)
    if set -q options[1]
        printf '%s\n' $options
    else
        __fish_complete_path $current
    end
end
complete -c gpuledger -f -a '(__gpuledger_next)'
`
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the completion script of a shell",
		ArgsUsage: "bash | zsh | fish",
		UsageText: "gpuledger completion bash >/etc/bash_completion.d/gpuledger\n" +
			"gpuledger completion zsh >/usr/local/share/zsh/site-functions/_gpuledger\n" +
			"gpuledger completion fish >/etc/fish/completions/gpuledger.fish",
		Action: func(c *cli.Context) error {
			script, err := completion(c)
			if err == nil {
				_, err = fmt.Fprint(c.App.Writer, script)
			}
			return err
		},
	}
}

func completion(c *cli.Context) (string, error) {
	switch c.Args().First() {
	case "bash":
		return bashCompletion, nil
	case "zsh":
		return zshCompletion, nil
	case "fish":
		return fishCompletion, nil
	}
	return "", usage("completion: want bash, zsh or fish")
}
