package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// The exit statuses, a contract with scripts.
const (
	exitFailed     = 1
	exitUsage      = 2
	exitRefused    = 3
	exitNotFound   = 4
	exitNoCapacity = 5
)

// errRefused makes explain exit with exitRefused after it has printed its verdict.
var errRefused = errors.New("")

func configFlag() cli.Flag {
	return &cli.StringFlag{Name: "config", Usage: "configuration `FILE` (default: $" + policy.PathEnv +
		", else " + policy.DefaultPath + ")"}
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print one JSON document"}
}

// open gives the node of the command's configuration. A broken one fails every command that is not
// about it.
func open(c *cli.Context) (*node.Node, error) {
	n := openAnyway(c)
	return n, n.Broken
}

// openAlone is open for a command that takes no arguments.
func openAlone(c *cli.Context) (*node.Node, error) {
	if err := noArguments(c); err != nil {
		return nil, err
	}
	return open(c)
}

// openAnyway gives the node even where its configuration is broken, as a create would have it.
func openAnyway(c *cli.Context) *node.Node {
	return node.Open(policy.Path(configFile(c)), host.Default())
}

// configFile is what --config names, before the command's name or behind it; "" without it.
func configFile(c *cli.Context) string {
	file := ""
	for _, level := range c.Lineage() {
		if file == "" && level.IsSet("config") {
			file = level.String("config")
		}
	}
	return file
}

// noArguments refuses what a command would silently ignore.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return &grant.UsageError{Message: fmt.Sprintf("cannot understand %q: %s takes no arguments",
			c.Args().First(), c.Command.HelpName)}
	}
	return nil
}

func unknownCommand(c *cli.Context) error {
	if c.NArg() == 0 {
		return cli.ShowSubcommandHelp(c)
	}
	return &grant.UsageError{Message: fmt.Sprintf("cannot understand %q: there is no such command; see "+
		"`%s --help`", c.Args().First(), c.App.Name)}
}

func usageError(c *cli.Context, err error, _ bool) error {
	name, flags := c.App.Name, c.App.Flags
	if c.Command != nil && c.Command.HelpName != "" {
		name, flags = c.Command.HelpName, c.Command.Flags
	}
	return &grant.UsageError{Message: fmt.Sprintf("cannot understand the arguments: %s; see `%s --help`",
		cmdline.Wrong(err, flags), name)}
}

// complain prints an error with its hint and gives the exit status that belongs to it.
func complain(err error) int {
	var (
		refusal  *grant.Refusal
		notFound *grant.NotFoundError
		usage    *grant.UsageError
		status   = exitFailed
		program  programStatus
		hint     string
	)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errRefused):
		return exitRefused
	case errors.As(err, &program):
		return int(program)
	case errors.As(err, &usage):
		status = exitUsage
	case errors.As(err, &notFound):
		status = exitNotFound
	case errors.As(err, &refusal):
		err, hint = errors.New(refusal.Message), refusal.Hint
		switch refusal.Code {
		case grant.NoCapacity, grant.ModeConflict, grant.GrantInUse: // in the words of a container's refusal
			status, err = exitNoCapacity, refusal
		case grant.LimitUnenforceable, grant.MPSNotReady, grant.GrantOwnerMismatch, grant.QuotaExceeded:
			status, err = exitRefused, refusal
		}
	}
	fmt.Fprintln(os.Stderr, "gpuledger: "+err.Error())
	if hint != "" {
		fmt.Fprintln(os.Stderr, "hint: "+hint)
	}
	return status
}

// output remembers that a write failed: a reference that could not be printed is no success.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if err != nil {
		o.err = err
	}
	return n, err
}

// printJSON writes one document.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
