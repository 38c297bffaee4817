// Command gpuledger shows and changes the ledger: it grants and releases shares of GPUs, lists
// grants and the containers that use them, and explains refusals. Each command has its own file.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/version"
)

func main() { os.Exit(run(os.Args)) }

// run is main, but returns the exit status. Flags of the whole program work before and after the
// command's name.
func run(args []string) int {
	out := &output{Writer: os.Stdout}
	app := program()
	app.Writer = out
	if answerShell(out, app, args) {
		return 0
	}
	err := app.Run(cmdline.Ordered(app, args, "run"))
	if out.err != nil && !errors.Is(err, out.err) {
		err = fmt.Errorf("cannot print the answer: %w", out.err)
	}
	return complain(err)
}

// program is the command line with all of its commands.
func program() *cli.App {
	app := &cli.App{
		Name:  "gpuledger",
		Usage: "a ledger of GPU grants on a container node, enforced at container creation",
		Description: "A container started through gpuledger-runtime reaches exactly the GPUs that the " +
			"ledger grants it, or it does not start and the error says why. Exit status: 0 done, 1 " +
			"failed, 2 usage, 3 refused, 4 not found, 5 not possible now: no " +
			"capacity, a mode conflict, or the grant is in use.",
		Version:         version.Version,
		HideHelpCommand: true,
		Flags:           []cli.Flag{configFlag()},
		Commands: []*cli.Command{
			inventoryCommand(), gpusCommand(), grantCommand(), grantsCommand(),
			releaseCommand(), runCommand(), inspectCommand(), mineCommand(),
			explainCommand(), auditCommand(), checkCommand(), cdiCommand(), doctorCommand(), disableCommand(),
			enableCommand(), configureCommand(), configCommand(), completionCommand(), manCommand(),
		},
		Action:         unknownCommand,
		OnUsageError:   usageError,
		ExitErrHandler: func(*cli.Context, error) {}, // complain does it, for every kind of error alike
	}
	app.Description = wrapParagraphs(app.Description, descriptionColumns)
	for _, c := range app.Commands {
		prepare(c)
	}
	return app
}

// descriptionColumns is the width of descriptions. The library indents them by 3 columns.
const descriptionColumns = 97

// prepare sets what all commands have in common, for a command and its subcommands.
func prepare(c *cli.Command) {
	c.OnUsageError = usageError
	c.HideHelpCommand = true
	c.Description = wrapParagraphs(c.Description, descriptionColumns)
	c.Flags = append(c.Flags, configFlag())
	if len(c.Subcommands) > 0 {
		c.Action = unknownCommand
	}
	for _, sub := range c.Subcommands {
		prepare(sub)
	}
}
