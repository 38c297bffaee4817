package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/users"
)

func configCommand() *cli.Command {
	return &cli.Command{
		Name:        "config",
		Usage:       "check a configuration before it is used",
		UsageText:   "gpuledger config check FILE",
		Subcommands: []*cli.Command{configCheckCommand()},
	}
}

func configCheckCommand() *cli.Command {
	return &cli.Command{
		Name:  "check",
		Usage: "say what is wrong with a configuration file",
		UsageText: "gpuledger config check /etc/gpuledger/config.toml\ngpuledger config check --cluster " +
			"cluster.toml\ngpuledger config check --json - <config.toml",
		Description: "FILE is a configuration, such as /etc/gpuledger/config.toml; - is standard input. " +
			"Prints the first problem with its line and key. With --cluster, FILE is what a cluster " +
			"sets for its nodes: it is checked over the configuration of this node (--config), as " +
			"gpuledger reads it. Nothing is changed. A quota that has no effect is a warning on " +
			"standard error. Exit status 0: gpuledger takes it; 1: it does not.",
		ArgsUsage: "FILE",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "cluster", Usage: "FILE is read over the node's configuration, as cluster.toml beside it is"},
			jsonFlag(),
		},
		Action: checkConfig,
	}
}

func checkConfig(c *cli.Context) error {
	if c.NArg() != 1 {
		return &grant.UsageError{Message: "cannot check a configuration without one FILE: give its path, " +
			"or - " +
			"for standard input; see `gpuledger config check --help`"}
	}
	file := c.Args().First()
	text, err := configText(file)
	if err != nil {
		return err
	}
	var p grant.Policy
	var wrong error
	if c.Bool("cluster") {
		config := policy.Path(configFile(c))
		if p, wrong = policy.Over(config, text); wrong != nil {
			wrong = errors.New(strings.Replace(wrong.Error(), policy.ClusterPath(config)+":", file+":", 1))
		}
	} else if p, wrong = policy.Parse(text); wrong != nil {
		wrong = fmt.Errorf("%s:%w", file, wrong)
	}
	for i, q := range p.Quotas {
		if why := users.Unserved(q); why != "" {
			fmt.Fprintf(c.App.ErrWriter, "gpuledger: warning: quota[%d]: %s\n", i, why)
		}
	}
	return printConfigCheck(c, file, wrong)
}

// configText reads a file, or standard input, of at most the size that gpuledger accepts.
func configText(file string) ([]byte, error) {
	read := func() ([]byte, error) { return host.ReadFile(file, policy.MaxSize) }
	if file == "-" {
		read = readStdin
	}
	text, err := read()
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return text, nil
}

func readStdin() ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(os.Stdin, policy.MaxSize+1))
	if err == nil && len(text) > policy.MaxSize {
		err = fmt.Errorf("standard input is larger than %d bytes", policy.MaxSize)
	}
	return text, err
}

// configProblem is what is wrong with a configuration, as JSON.
type configProblem struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"` // 0: not known
	Key  string `json:"key,omitempty"`
	Why  string `json:"problem"`
}

func printConfigCheck(c *cli.Context, file string, wrong error) error {
	if c.Bool("json") {
		answer := map[string]any{"valid": wrong == nil, "file": file, "problems": []configProblem{}}
		if wrong != nil {
			answer["problems"] = []configProblem{problemIn(wrong.Error())}
		}
		if err := printJSON(c.App.Writer, answer); err != nil {
			return err
		}
	} else if wrong == nil {
		fmt.Fprintf(c.App.Writer, "%s: gpuledger takes it\n", file)
	}
	if wrong != nil {
		return fmt.Errorf("cannot take the configuration: %w", wrong)
	}
	return nil
}

// locatedError matches an error of a configuration: file, line and key.
var locatedError = regexp.MustCompile(`^(.*?):(?:(\d+):)? (?:unknown key "(.+)"$|([a-z_.\[\]0-9]+): )?`)

// problemIn splits an error about a configuration into its parts.
func problemIn(text string) configProblem {
	part := locatedError.FindStringSubmatch(text)
	if part == nil {
		return configProblem{Why: text}
	}
	line, _ := strconv.Atoi(part[2])
	p := configProblem{part[1], line, part[4], text[len(part[0]):]}
	if part[3] != "" {
		p.Key, p.Why = part[3], "there is no such key"
	}
	return p
}
