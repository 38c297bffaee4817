package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

func checkCommand() *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "verify the ledger",
		UsageText: "gpuledger check [--json]",
		Description: "Repairs what is derived (links, leftovers of a crash, bindings of dead " +
			"containers) and prints what it has repaired. Exit status 0: the ledger is sound; 1: an " +
			"entry is damaged or the sums do not add up.",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			n, err := openAsRoot(c)
			if err != nil {
				return err
			}
			report, err := grants.Check(n)
			if err != nil {
				return err
			}
			if err := printReport(c, report); err != nil {
				return err
			}
			if !report.Sound() {
				return errors.New("the ledger is not sound")
			}
			return nil
		},
	}
}

func printReport(c *cli.Context, r ledger.Report) error {
	if c.Bool("json") {
		type finding struct {
			Subject  string `json:"subject"`
			Problem  string `json:"problem"`
			Repaired bool   `json:"repaired"`
			Hint     string `json:"hint,omitempty"`
		}
		findings := []finding{}
		for _, f := range r.Findings {
			findings = append(findings, finding{f.Subject, f.Problem, f.Repaired, f.Hint})
		}
		return printJSON(c.App.Writer, map[string]any{"sound": r.Sound(), "grants": r.Grants,
			"over": r.Over, "findings": findings})
	}
	for _, f := range r.Findings {
		state := "problem"
		if f.Repaired {
			state = "repaired"
		}
		fmt.Fprintf(c.App.Writer, "%s: %s: %s\n", state, f.Subject, f.Problem)
		if f.Hint != "" {
			fmt.Fprintf(c.App.Writer, "%*s hint: %s\n", len(state), "", f.Hint)
		}
	}
	if r.Sound() {
		fmt.Fprintf(c.App.Writer, "the ledger is sound: %d grants%s\n", r.Grants, r.Remains())
	}
	return nil
}
