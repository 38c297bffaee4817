package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
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
				return inspect(c, c.App.Writer)
			}
			return redraw(c)
		},
	}
}

// redraw shows it again until it is interrupted. On a terminal it draws over the last picture.
func redraw(c *cli.Context) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)
	terminal := false
	if info, err := os.Stdout.Stat(); err == nil {
		terminal = info.Mode()&os.ModeCharDevice != 0
	}
	if terminal {
		fmt.Fprint(c.App.Writer, "\x1b[2J")
	}
	for {
		var picture bytes.Buffer
		if err := inspect(c, &picture); err != nil {
			return err
		}
		text := picture.String()
		if terminal { // from the top; what the last picture had more of each line and of lines is cleared
			text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		}
		if _, err := io.WriteString(c.App.Writer, text); err != nil {
			return err
		}
		select {
		case <-stop:
			return nil
		case <-time.After(time.Second):
		}
	}
}

func inspect(c *cli.Context, w io.Writer) error {
	o, cards, err := survey(c)
	if err != nil {
		return err
	}
	used := usedOf(openAnyway(c))
	if c.Bool("json") {
		return printJSON(w, inspectToJSON(o, cards, used))
	}
	return printInspect(w, o, cards, used, c.Bool("details"))
}

// used is what the daemon last found in use; nil where it does not run, or cannot tell.
type used struct{ watch.Report }

// stale is when a report says nothing about now any more, in intervals of the daemon.
const stale = 5

func usedOf(n *node.Node) *used {
	boot, err := n.Host.BootID()
	if err != nil {
		return nil
	}
	r, err := watch.Load(n.Policy.RunDir, boot)
	interval, e := time.ParseDuration(n.Policy.Daemon.Interval)
	if err != nil || e != nil || n.Host.Now().Sub(r.Taken) > max(stale*interval, stale*time.Second) {
		return nil
	}
	return &used{r}
}

// gpu is what is used of one; nil where that is not known.
func (u *used) gpu(uuid string) *watch.GPUUse {
	if u == nil {
		return nil
	}
	if i := slices.IndexFunc(u.GPUs, func(g watch.GPUUse) bool { return g.UUID == uuid }); i >= 0 {
		return &u.GPUs[i]
	}
	return nil
}

// grant is what a grant's containers use of a GPU and its MIG devices.
func (u *used) grant(id grant.ID, card node.Card) string {
	if u == nil {
		return ""
	}
	var sum grant.Bytes
	for _, g := range u.Grants {
		if g.ID == id && (g.GPU == card.UUID || slices.ContainsFunc(card.MIG, func(m grant.MIGDevice) bool { return m.UUID == g.GPU })) {
			sum += g.Used
		}
	}
	return sum.String()
}

// column is a cell that is only there where use is known.
func (u *used) column(text string) string {
	if u == nil {
		return ""
	}
	return text + "\t"
}

type inspectJSON struct {
	GPUs      []inspectGPU `json:"gpus"`
	Allocated grant.Bytes  `json:"allocated"`
	Total     grant.Bytes  `json:"total"`
	// What the daemon found; absent where it does not run.
	Findings []grant.Finding `json:"findings,omitempty"`
}

type inspectGPU struct {
	UUID      string       `json:"uuid"`
	Index     int          `json:"index"`
	Name      string       `json:"name"`
	Mode      grant.Mode   `json:"mode"`
	Allocated grant.Bytes  `json:"allocated"`
	Total     grant.Bytes  `json:"total"`
	Used      *grant.Bytes `json:"used,omitempty"`    // absent where it is not known
	Outside   *grant.Bytes `json:"outside,omitempty"` // of it in nobody's grant
	Compute   int          `json:"compute"`           // percent granted
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

func inspectToJSON(o node.Overview, cards []node.Card, u *used) inspectJSON {
	j := inspectJSON{GPUs: []inspectGPU{}}
	if u != nil {
		j.Findings = u.Findings
	}
	for _, card := range cards {
		g := inspectGPU{UUID: card.UUID, Index: card.Index, Name: card.Name, Mode: card.Mode, Allocated: card.Allocated,
			Total: card.Memory, Compute: card.Compute, Health: card.Health, Grants: grantsToJSON(card.Grants, o.Now), MIG: migToJSON(card.Parts)}
		if is := u.gpu(card.UUID); is != nil {
			g.Used, g.Outside = &is.Used, &is.Outside
		}
		j.GPUs = append(j.GPUs, g)
		j.Allocated += card.Allocated
		j.Total += card.Memory
	}
	return j
}

func printInspect(w io.Writer, o node.Overview, cards []node.Card, u *used, details bool) error {
	t := table(w)
	if u == nil {
		fmt.Fprintln(t, "GPU\tNAME\tMODE\tMEMORY (ALLOCATED/TOTAL)\tCOMPUTE\tGRANTS")
	} else {
		fmt.Fprintln(t, "GPU\tNAME\tMODE\tUSED\tALLOCATED/TOTAL\tCOMPUTE\tGRANTS")
	}
	var allocated, total grant.Bytes
	for _, card := range cards {
		memory := fmt.Sprintf("%s/%s", card.Allocated, card.Memory)
		if is := u.gpu(card.UUID); is != nil {
			memory = is.Used.String() + "\t" + memory
		} else if u != nil {
			memory = "-\t" + memory
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%d\n", card.Index, card.Name, dash(string(card.Mode)), memory, percentage(card.Compute), len(card.Grants))
		for _, p := range card.Parts {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s%s/%s\t-\t%d\n", p.Name, "MIG "+p.Profile, grant.MIG, u.column("-"), held(p), p.Memory, len(p.Grants))
		}
		allocated, total = allocated+card.Allocated, total+card.Memory
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if details {
		if err := printDetails(w, o, cards, u); err != nil {
			return err
		}
	}
	share := 0.0
	if total > 0 {
		share = 100 * float64(allocated) / float64(total)
	}
	fmt.Fprintf(w, "\nAllocated/Total GPU memory: %s/%s (%.0f%%)\n", allocated, total, share)
	if u != nil {
		for _, f := range u.Findings {
			fmt.Fprintf(w, "%s: %s\n", f.Kind, f.Message)
		}
	}
	return nil
}

func printDetails(w io.Writer, o node.Overview, cards []node.Card, u *used) error {
	for _, card := range cards {
		fmt.Fprintf(w, "\nGPU %d  %s\n", card.Index, card.UUID)
		t := table(w)
		fmt.Fprintf(t, "  GRANT\tSTATE\tMEMORY\t%sCOMPUTE\tSTRENGTH\tOWNER\tCONTAINERS\tLABEL\n", u.column("USED"))
		for _, g := range card.Grants {
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s%s\t%s\t%s\t%s\t%s\n", g.ID, g.State(o.Now), card.Share(g), u.column(u.grant(g.ID, card)), percentage(g.Compute), g.Strength, g.Owner, containers(g), g.Label)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
