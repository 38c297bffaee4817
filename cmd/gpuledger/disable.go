package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

func disableCommand() *cli.Command {
	return &cli.Command{
		Name:      "disable",
		Usage:     "emergency: refuse nothing for some time",
		UsageText: "gpuledger disable --for 30m\ngpuledger disable --until-enabled",
		Description: "A container that would be refused starts unchanged and unconfined, and the audit " +
			"log records it. Containers with a grant are admitted as always, so the ledger stays " +
			"correct. This survives a reboot, unless the state directory cannot be written; `gpuledger " +
			"enable` ends it. Without a time the command asks for confirmation at a terminal; elsewhere " +
			"it prints that there is no end.\n\nUsers keep the device nodes of their grants (user_nodes " +
			"= \"acl\"), and the kernel still keeps others out of them.",
		Flags: []cli.Flag{
			&cli.GenericFlag{Name: "for", Value: new(cmdline.Duration), DefaultText: "until enabled", Usage: "how long, for example 30m or 1d"},
			&cli.BoolFlag{Name: "until-enabled", Usage: "until gpuledger enable, without a question"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.IsSet("for") && c.Duration("for") <= 0 {
				return usage("--for: want a duration above 0, not %s", c.Duration("for"))
			}
			if c.IsSet("for") && c.Bool("until-enabled") {
				return usage("--for and --until-enabled say two things; leave one of them out")
			}
			if !c.IsSet("for") && !c.Bool("until-enabled") {
				if err := confirmNoEnd(c); err != nil {
					return err
				}
			}
			// a broken configuration must not prevent it
			n := openAnyway(c)
			p, err := n.Disable(c.Duration("for"))
			if err != nil {
				return hintRoot(err)
			}
			return printPause(c, p, n.Policy.Enforcement.UserNodes)
		},
	}
}

// confirmNoEnd asks for confirmation at a terminal if no end is given. Elsewhere it prints a
// warning, because existing scripts give no end.
func confirmNoEnd(c *cli.Context) error {
	const what = "nothing is refused until `gpuledger enable` is run, also after a reboot"
	if stdin, isFile := c.App.Reader.(*os.File); !isFile || !isTerminal(stdin) {
		fmt.Fprintf(c.App.ErrWriter, "gpuledger: warning: %s; `--for 1h` sets an end, and `gpuledger "+
			"doctor` says what is in force\n", what)
		return nil
	}
	fmt.Fprintf(c.App.ErrWriter, "Without --for %s. Go on? [y/N] ", what)
	answer, _ := bufio.NewReader(c.App.Reader).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("not disabled, and nothing is changed; `gpuledger disable --for 1h` sets an end")
	}
	return nil
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// keptNodes says what disable does not change: with access lists on device nodes, users keep the
// GPUs of their grants. The lists let users in, so without them a grant would be of no use.
const keptNodes = "device nodes stay as user_nodes = \"acl\" has them: a user opens the GPUs of its grants " +
	"and no others; `chmod 0666 /dev/nvidia*` opens them to all, `chmod 0660 /dev/nvidia*` undoes that\n"

func printPause(c *cli.Context, p node.Pause, nodes grant.UserNodes) error {
	if c.Bool("json") {
		return printJSON(c.App.Writer, p)
	}
	text := fmt.Sprintf("disabled %s: nothing is refused\n", until(p))
	if nodes == grant.UserNodesACL {
		text += keptNodes
	}
	_, err := fmt.Fprint(c.App.Writer, text)
	return err
}

func until(p node.Pause) string {
	text := "until `gpuledger enable`"
	if !p.Until.IsZero() {
		text = "until " + p.Until.Local().Format(time.RFC3339)
	}
	if p.BootID != "" {
		text += ", or the next boot, as the state directory cannot be written"
	}
	return text
}

func enableCommand() *cli.Command {
	return &cli.Command{
		Name:      "enable",
		Usage:     "end `gpuledger disable`",
		UsageText: "gpuledger enable",
		Description: "Containers that started meanwhile keep what they have. If `gpuledger disable` was " +
			"recorded in the state directory and that cannot be written now, it is ended only until the " +
			"next boot.",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			e, err := openAnyway(c).Enable()
			if err != nil {
				return hintRoot(err)
			}
			text := "it was not disabled"
			if e.Was {
				text = "containers are held to their grants again"
			}
			if e.For != nil {
				text += fmt.Sprintf("; after the next boot the state directory counts again, which cannot "+
					"be written: %v", e.For)
			}
			_, err = fmt.Fprintf(c.App.Writer, "enabled: %s\n", text)
			return err
		},
	}
}
