package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
)

func grantsCommand() *cli.Command {
	return &cli.Command{
		Name:      "grants",
		Usage:     "list the grants and the containers that use them",
		UsageText: "gpuledger grants --json | jq '.grants[] | select(.state == \"free\").id'",
		Flags:     []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			o, err := look(c)
			if err != nil {
				return err
			}
			if o.asked != nil {
				o.Grants = slices.DeleteFunc(o.Grants, func(g grant.Grant) bool { return !o.isMine(g) })
			}
			warnDamaged(c.App.ErrWriter, o.Damaged)
			if c.Bool("json") {
				return printJSON(c.App.Writer, map[string]any{"grants": grantsToJSON(o.Grants, o.Now)})
			}
			noteWeaker(c.App.ErrWriter, o.Grants)
			return printGrants(c.App.Writer, o.Grants, o.Now)
		},
	}
}

// grantJSON is a grant as scripts read it: a contract.
type grantJSON struct {
	ID    grant.ID    `json:"id"`
	Owner grant.Owner `json:"owner"`
	// which of the containers with its reference may use it; absent: all
	For []grant.Tie `json:"for,omitempty"`
	// the uid of the user that it belongs to; absent: root
	User     uint32         `json:"user,omitempty"`
	Label    string         `json:"label"`
	App      string         `json:"app,omitzero"`
	Mode     grant.Mode     `json:"mode"`
	Strength grant.Strength `json:"strength"`
	State    grant.State    `json:"state"`
	GPUs     []grant.Share  `json:"gpus"`
	Compute  int            `json:"compute"`
	// strength of the compute share, if launches are throttled (docs/adr/0042); otherwise the mode
	// says it
	ComputeStrength grant.Strength `json:"compute_strength,omitempty"`
	Created         time.Time      `json:"created"`
	Expires         *time.Time     `json:"expires"` // null: never
	Source          string         `json:"source"`
	Bindings        []bindingJSON  `json:"bindings"`
}

type bindingJSON struct {
	Container string `json:"container"`
	PID       int    `json:"pid"` // the container's init; 0 while it is being created
	// why the container's strength is less than the grant's listed strength; absent: it is not
	Weaker string `json:"weaker,omitempty"`
}

func grantToJSON(g grant.Grant, now time.Time) grantJSON {
	j := grantJSON{ID: g.ID, Owner: g.Owner, For: g.For, User: g.User, Label: g.Label, App: g.App,
		Mode: g.Mode, Strength: g.Strength, State: g.State(now), GPUs: g.GPUs,
		Compute: g.Compute, Created: g.Created, Source: g.Source, Bindings: []bindingJSON{}}
	if g.Mode == grant.Limit && g.ComputeStrength == grant.StrengthLibrary {
		j.ComputeStrength = g.ComputeStrength
	}
	if !g.Expires.IsZero() {
		j.Expires = &g.Expires
	}
	for _, b := range g.Bindings {
		j.Bindings = append(j.Bindings, bindingJSON{Container: b.Container, PID: b.PID, Weaker: b.Weaker})
	}
	return j
}

func grantsToJSON(grants []grant.Grant, now time.Time) []grantJSON {
	list := make([]grantJSON, len(grants))
	for i, g := range grants {
		list[i] = grantToJSON(g, now)
	}
	return list
}

func printGrants(w io.Writer, all []grant.Grant, now time.Time) error {
	if len(all) == 0 {
		fmt.Fprintln(w, "no grants")
		return nil
	}
	t := table(w)
	fmt.Fprintln(t, "ID\tSTATE\tMODE\tGPUS\tCOMPUTE\tSTRENGTH\tOWNER\tCONTAINERS\tEXPIRES\tLABEL")
	for _, g := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.ID, g.State(now), g.Mode,
			shares(g), compute(g),
			g.Strength, grants.Owner(g), containers(g), expiry(g, now), g.Label)
	}
	return t.Flush()
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

// shares writes a grant's GPUs as 0:4GiB,1:4GiB.
func shares(g grant.Grant) string {
	parts := make([]string, len(g.GPUs))
	for i, s := range g.GPUs {
		parts[i] = s.Label()
	}
	return strings.Join(parts, ",")
}

func percentage(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", n)
}

// compute returns a grant's share of compute as listings print it. A throttled share is marked,
// because the throttle is an experiment.
func compute(g grant.Grant) string {
	if g.Mode == grant.Limit && g.ComputeStrength == grant.StrengthLibrary {
		return percentage(g.Compute) + " (library, experimental)"
	}
	return percentage(g.Compute)
}

func containers(g grant.Grant) string {
	if len(g.Bindings) == 0 {
		return "-"
	}
	names := make([]string, len(g.Bindings))
	for i, b := range g.Bindings {
		names[i] = b.Container
	}
	return strings.Join(names, ",")
}

func expiry(g grant.Grant, now time.Time) string {
	if g.Expires.IsZero() {
		return "never"
	}
	if left := g.Expires.Sub(now).Round(time.Second); left > 0 {
		return "in " + left.String()
	}
	return "over"
}

// noteWeaker prints a note for each container with less strength than its grant has.
func noteWeaker(w io.Writer, grants []grant.Grant) {
	for _, g := range grants {
		for _, b := range g.Bindings {
			if b.Weaker != "" {
				fmt.Fprintf(w, "gpuledger: note: grant %s, container %s: %s\n", g.ID, b.Container, b.Weaker)
			}
		}
	}
}

// warnDamaged names the entries that no listing can show.
func warnDamaged(w io.Writer, damaged []grant.Damage) {
	for _, d := range damaged {
		fmt.Fprintf(w, "gpuledger: warning: the ledger's entry %s is damaged or missing (%s); its GPUs take "+
			"no new grants\nhint: `gpuledger check` says more\n", d.ID, d.Path)
	}
}
