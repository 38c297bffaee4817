package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

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

// open returns the node of the command's configuration. A broken configuration is an error;
// commands that must work with one use openAnyway.
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

// openAsRoot is openAlone for a command that always reads the ledger's files itself.
func openAsRoot(c *cli.Context) (*node.Node, error) {
	n, err := openAlone(c)
	if err == nil && errors.Is(unix.Access(n.Policy.StateDir, unix.R_OK|unix.X_OK), fs.ErrPermission) {
		err = &grant.Refusal{Hint: "run it as root",
			Message: "cannot read the ledger in " + n.Policy.StateDir + ": permission denied"}
	}
	return n, err
}

// hintRoot adds to an error about permissions the hint to be root, unless the caller is root.
func hintRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return &grant.Refusal{Message: err.Error(), Hint: "run it as root"}
	}
	return err
}

// fileToWrite returns the absolute path that a flag names. A file must be possible there.
func fileToWrite(c *cli.Context, flag string) (string, error) {
	path, err := filepath.Abs(c.String(flag))
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return "", usage("--%s: %s is a directory; want the name of a file", flag, path)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return "", usage("--%s: there is no directory %s; make it, or name another file", flag, dir)
	}
	return path, nil
}

// openAnyway returns the node even if its configuration is broken, as a create does.
func openAnyway(c *cli.Context) *node.Node {
	return node.Open(policy.Path(configFile(c)), host.Default())
}

// configFile returns the value of --config, before or after the command's name; "" without it.
func configFile(c *cli.Context) string {
	file := ""
	for _, level := range c.Lineage() {
		if file == "" && level.IsSet("config") {
			file = level.String("config")
		}
	}
	return file
}

// noArguments refuses arguments, which the command would silently ignore.
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
	what := "there is no such command"
	if names := subcommandsOf(c.Command); len(names) > 1 {
		last := len(names) - 1
		what = "want " + strings.Join(names[:last], ", ") + " or " + names[last]
	}
	return &grant.UsageError{Message: fmt.Sprintf("cannot understand %q: %s; see `%s --help`",
		c.Args().First(), what, c.App.Name)}
}

// subcommandsOf returns the names of a command's visible subcommands, and none for the program.
func subcommandsOf(command *cli.Command) (names []string) {
	if !strings.Contains(command.HelpName, " ") {
		return nil
	}
	for _, c := range command.Subcommands {
		if !c.Hidden && c.Name != "help" {
			names = append(names, c.Name)
		}
	}
	return names
}

func usageError(c *cli.Context, err error, _ bool) error {
	name, flags := c.App.Name, c.App.Flags
	if c.Command != nil && c.Command.HelpName != "" {
		name, flags = c.Command.HelpName, c.Command.Flags
	}
	return &grant.UsageError{Message: fmt.Sprintf("cannot understand the arguments: %s; see `%s --help`",
		cmdline.Wrong(err, flags), name)}
}

// complain prints an error with its hint, and returns the exit status.
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
		case grant.NoCapacity, grant.ModeConflict, grant.GrantInUse: // worded as a container's refusal
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

// output records that a write failed: a command that could not print its answer must fail.
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
