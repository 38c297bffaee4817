package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show who holds what: GPUs by grants, allocated and total",
		UsageText: "gpuledger inspect [--details] [--watch] [--json]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "details", Usage: "a line for each grant on each GPU"},
			&cli.BoolFlag{Name: "watch", Usage: "show it again each second, until interrupted"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			if !c.Bool("watch") {
				return inspect(c)
			}
			return watch(c)
		},
	}
}

// watch redraws until it is interrupted. On a terminal it draws over the last picture.
func watch(c *cli.Context) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)
	terminal := false
	if info, err := os.Stdout.Stat(); err == nil {
		terminal = info.Mode()&os.ModeCharDevice != 0
	}
	for {
		if terminal {
			fmt.Fprint(c.App.Writer, "\x1b[H\x1b[2J")
		}
		if err := inspect(c); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-time.After(time.Second):
		}
	}
}

func inspect(c *cli.Context) error {
	o, cards, err := survey(c)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, inspectToJSON(o, cards))
	}
	return printInspect(c.App.Writer, o, cards, c.Bool("details"))
}

type inspectJSON struct {
	GPUs      []inspectGPU `json:"gpus"`
	Allocated grant.Bytes  `json:"allocated"`
	Total     grant.Bytes  `json:"total"`
}

type inspectGPU struct {
	UUID      string       `json:"uuid"`
	Index     int          `json:"index"`
	Name      string       `json:"name"`
	Mode      grant.Mode   `json:"mode"`
	Allocated grant.Bytes  `json:"allocated"`
	Total     grant.Bytes  `json:"total"`
	Compute   int          `json:"compute"` // percent granted
	Health    string       `json:"health"`
	Grants    []grantJSON  `json:"grants"`
	MIG       []inspectMIG `json:"mig,omitempty"`
}

// inspectMIG is a MIG device: it is granted whole, to one grant.
type inspectMIG struct {
	UUID      string      `json:"uuid"`
	Name      string      `json:"name"` // as 0:1
	Profile   string      `json:"profile"`
	Allocated grant.Bytes `json:"allocated"`
	Total     grant.Bytes `json:"total"`
	Grants    []grant.ID  `json:"grants"`
}

func migToJSON(parts []node.Part) (list []inspectMIG) {
	for _, p := range parts {
		list = append(list, inspectMIG{UUID: p.UUID, Name: p.Name, Profile: p.Profile, Allocated: held(p), Total: p.Memory, Grants: ids(p.Grants)})
	}
	return list
}

// held is what is granted of a MIG device: all of it, or nothing.
func held(p node.Part) grant.Bytes {
	if len(p.Grants) > 0 {
		return p.Memory
	}
	return 0
}

func inspectToJSON(o node.Overview, cards []node.Card) inspectJSON {
	j := inspectJSON{GPUs: []inspectGPU{}}
	for _, card := range cards {
		j.GPUs = append(j.GPUs, inspectGPU{UUID: card.UUID, Index: card.Index, Name: card.Name, Mode: card.Mode, Allocated: card.Allocated,
			Total: card.Memory, Compute: card.Compute, Health: card.Health, Grants: grantsToJSON(card.Grants, o.Now), MIG: migToJSON(card.Parts)})
		j.Allocated += card.Allocated
		j.Total += card.Memory
	}
	return j
}

func printInspect(w io.Writer, o node.Overview, cards []node.Card, details bool) error {
	t := table(w)
	fmt.Fprintln(t, "GPU\tNAME\tMODE\tMEMORY (ALLOCATED/TOTAL)\tCOMPUTE\tGRANTS")
	var allocated, total grant.Bytes
	for _, card := range cards {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s/%s\t%s\t%d\n", card.Index, card.Name, dash(string(card.Mode)), card.Allocated, card.Memory, percentage(card.Compute), len(card.Grants))
		for _, p := range card.Parts {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s/%s\t-\t%d\n", p.Name, "MIG "+p.Profile, grant.MIG, held(p), p.Memory, len(p.Grants))
		}
		allocated, total = allocated+card.Allocated, total+card.Memory
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if details {
		if err := printDetails(w, o, cards); err != nil {
			return err
		}
	}
	share := 0.0
	if total > 0 {
		share = 100 * float64(allocated) / float64(total)
	}
	fmt.Fprintf(w, "\nAllocated/Total GPU memory: %s/%s (%.0f%%)\n", allocated, total, share)
	return nil
}

func printDetails(w io.Writer, o node.Overview, cards []node.Card) error {
	for _, card := range cards {
		fmt.Fprintf(w, "\nGPU %d  %s\n", card.Index, card.UUID)
		t := table(w)
		fmt.Fprintln(t, "  GRANT\tSTATE\tMEMORY\tCOMPUTE\tSTRENGTH\tOWNER\tCONTAINERS\tLABEL")
		for _, g := range card.Grants {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.ID, g.State(o.Now), card.Share(g), percentage(g.Compute), g.Strength, g.Owner, containers(g), g.Label)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
