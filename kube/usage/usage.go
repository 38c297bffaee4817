// Package usage makes programs answer a wrong command line with one sentence and exit status 2.
package usage

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// The exit statuses of a failed program.
const (
	Failed = 1
	Wrong  = 2
)

// Strict turns usage errors into errors of one sentence: unknown commands, wrong flags, and
// arguments to commands that take none. The library would print the help or ignore them.
func Strict(app *cli.App) {
	app.Action = func(c *cli.Context) error {
		if c.NArg() == 0 {
			return cli.ShowAppHelp(c)
		}
		return Error(c, "cannot understand %q: there is no such command", c.Args().First())
	}
	app.HelpName, app.OnUsageError = app.Name, wrong
	app.ExitErrHandler = func(*cli.Context, error) {}
	app.HideHelpCommand = true
	for _, c := range app.Commands {
		c.OnUsageError, c.HideHelpCommand = wrong, true
		if c.ArgsUsage == "" {
			c.Before = func(c *cli.Context) error {
				if c.NArg() > 0 {
					return Error(c, "cannot understand %q: %s takes no arguments",
						c.Args().First(), c.Command.Name)
				}
				return nil
			}
		}
	}
}

func wrong(c *cli.Context, err error, _ bool) error {
	flags := c.App.Flags
	if c.Command != nil {
		flags = c.Command.Flags
	}
	return Error(c, "cannot understand the arguments: %s", cmdline.Wrong(err, flags))
}

// Error returns a usage error with advice to read the help.
func Error(c *cli.Context, format string, args ...any) error {
	name := c.App.Name
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	return &grant.UsageError{Message: fmt.Sprintf(format, args...) + fmt.Sprintf("; see `%s --help`", name)}
}

// Status returns the exit status for the error with which a program ends.
func Status(err error) int {
	var usage *grant.UsageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return Wrong
	}
	return Failed
}
