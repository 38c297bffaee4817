package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// The scripts ask the program itself what may come next (--generate-bash-completion), so they never lag behind it. zsh runs the file
// as the function's body when it is first asked, or an administrator sources it.
const (
	bashCompletion = `_gpuledger() {
  local words=("${COMP_WORDS[@]:0:COMP_CWORD}") current=${COMP_WORDS[COMP_CWORD]}
  [[ $current == -* ]] && words+=("$current")
  mapfile -t COMPREPLY < <(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$current")
}
complete -o default -F _gpuledger gpuledger
`
	zshCompletion = `#compdef gpuledger
_gpuledger() {
  local -a words_so_far options
  words_so_far=("${words[@]:0:$((CURRENT-1))}")
  [[ ${words[CURRENT]} == -* ]] && words_so_far+=("${words[CURRENT]}")
  options=("${(@f)$(_CLI_ZSH_AUTOCOMPLETE_HACK=1 "${words_so_far[@]}" --generate-bash-completion 2>/dev/null)}")
  if [[ -n ${options[1]} ]]; then _describe 'values' options; else _files; fi
}
if [[ ${funcstack[1]} == _gpuledger ]]; then _gpuledger "$@"; else compdef _gpuledger gpuledger; fi
`
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the completion script of a shell",
		ArgsUsage: "bash | zsh | fish",
		UsageText: "gpuledger completion bash >/etc/bash_completion.d/gpuledger",
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
		return c.App.ToFishCompletion()
	}
	return "", usage("completion: want bash, zsh or fish")
}
