package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/doctor"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "check what works on this node, what does not, and what to do",
		UsageText: "gpuledger doctor [--json]",
		Description: "Checks the configuration, the driver, the kernel, the ledger, the engines and " +
			"other programs that inject GPUs. A problem keeps gpuledger from doing what it is " +
			"configured to do; a warning needs your decision. " +
			grant.Docs + "doctor.md explains each check. It repairs what `gpuledger check` repairs, and " +
			"changes nothing else. Exit status 0: no problem; 1: there is one.",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("cannot find gpuledger's other programs: %w", err)
			}
			facts, err := doctor.Gather(openAnyway(c), policy.Path(configFile(c)), self)
			if err != nil {
				return err
			}
			return printLines(c, doctor.Examine(facts))
		},
	}
}

func printLines(c *cli.Context, lines []doctor.Line) error {
	healthy := doctor.Healthy(lines)
	if c.Bool("json") {
		if err := printJSON(c.App.Writer, map[string]any{"healthy": healthy, "checks": lines}); err != nil {
			return err
		}
	} else {
		for _, l := range lines {
			fmt.Fprintf(c.App.Writer, "%-8s %-13s  %s\n", l.Status, l.Check, l.Message)
			if l.Hint != "" && l.Status != doctor.OK {
				fmt.Fprintf(c.App.Writer, "%24s hint: %s\n", "", l.Hint)
			}
		}
	}
	if !healthy {
		return errors.New("this node has problems; " + grant.Docs + "doctor.md explains each")
	}
	return nil
}
