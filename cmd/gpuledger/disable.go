package main

import (
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/node"
)

func disableCommand() *cli.Command {
	return &cli.Command{
		Name:      "disable",
		Usage:     "break-glass: refuse nothing until the time is over",
		UsageText: "gpuledger disable --for 30m",
		Description: "What would be refused starts as it is, unconfined, and is recorded in the audit log. Containers with a grant are\n" +
			"admitted as always, so the ledger stays true. It survives a reboot, unless the state directory\ncannot be written; `gpuledger enable` ends it.",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "for", Usage: "how long, as 30m (default: until enabled)"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.IsSet("for") && c.Duration("for") <= 0 {
				return usage("--for: want a duration above 0, not %s", c.Duration("for"))
			}
			p, err := openAnyway(c).Disable(c.Duration("for")) // a broken configuration is a reason to break the glass
			if err != nil {
				return err
			}
			return printPause(c, p)
		},
	}
}

func printPause(c *cli.Context, p node.Pause) error {
	if c.Bool("json") {
		return printJSON(c.App.Writer, p)
	}
	_, err := fmt.Fprintf(c.App.Writer, "disabled %s: nothing is refused\n", until(p))
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
		Name:        "enable",
		Usage:       "end `gpuledger disable`",
		UsageText:   "gpuledger enable",
		Description: "Containers that started meanwhile keep what they have. Where the state directory has it and cannot be written, it is\nended until the next boot.",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			e, err := openAnyway(c).Enable()
			if err != nil {
				return err
			}
			text := "it was not disabled"
			if e.Was {
				text = "containers are held to their grants again"
			}
			if e.For != nil {
				text += fmt.Sprintf("; after the next boot the state directory counts again, which cannot be written: %v", e.For)
			}
			_, err = fmt.Fprintf(c.App.Writer, "enabled: %s\n", text)
			return err
		},
	}
}
