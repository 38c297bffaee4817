package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show how much of each GPU is granted, and with --details to whom",
		UsageText: "gpuledger inspect [--details] [--watch] [--json]",
		Description: "Memory is in GiB, with --json in bytes. On a terminal, --watch shows the time, " +
			"keeps to the terminal's size, and ends with q or Ctrl-C.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "details", Usage: "a line for each grant on each GPU"},
			&cli.BoolFlag{Name: "watch", Usage: "show it again each second, until q is pressed or it is interrupted"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error {
			if !c.Bool("watch") {
				return inspect(c, c.App.Writer)
			}
			return inspectAgain(c)
		},
	}
}

func inspect(c *cli.Context, w io.Writer) error {
	o, cards, used, err := survey(c)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(w, inspectToJSON(o, cards, used))
	}
	return printInspect(w, o, cards, used, c.Bool("details"), columnsOf(os.Stdout))
}

// used is what gpuledgerd last found in use; nil if it does not run, or does not know.
type used struct{ watch.Comparison }

func usedOf(n *node.Node) *used {
	boot, err := n.Host.BootID()
	if err != nil {
		return nil
	}
	r, ok := watch.Recent(n.Policy.RunDir, boot, n.Policy.Daemon.Interval, n.Host.Now())
	if !ok {
		return nil
	}
	return &used{r}
}

// gpu returns the use of one GPU; nil if it is not known.
func (u *used) gpu(uuid string) *watch.GPUUse {
	if u == nil {
		return nil
	}
	if i := slices.IndexFunc(u.GPUs, func(g watch.GPUUse) bool { return g.UUID == uuid }); i >= 0 {
		return &u.GPUs[i]
	}
	return nil
}

// grant returns what a grant's containers use of a GPU and its MIG devices.
func (u *used) grant(id grant.ID, card grants.Card) string {
	if u == nil {
		return ""
	}
	var sum grant.Bytes
	for _, g := range u.Grants {
		if g.ID == id && (g.GPU == card.UUID || slices.ContainsFunc(card.MIG,
			func(m grant.MIGDevice) bool { return m.UUID == g.GPU })) {
			sum += g.Used
		}
	}
	return inGiB(sum)
}

type inspectJSON struct {
	GPUs      []inspectGPU `json:"gpus"`
	Allocated grant.Bytes  `json:"allocated"`
	Total     grant.Bytes  `json:"total"`
	// what gpuledgerd found; absent if it does not run
	Findings []grant.Finding `json:"findings,omitempty"`
}

type inspectGPU struct {
	UUID      string       `json:"uuid"`
	Index     int          `json:"index"`
	Name      string       `json:"name"`
	Mode      grant.Mode   `json:"mode"`
	Allocated grant.Bytes  `json:"allocated"`
	Total     grant.Bytes  `json:"total"`
	Used      *grant.Bytes `json:"used,omitempty"`    // absent if it is not known
	Outside   *grant.Bytes `json:"outside,omitempty"` // the part of it outside the ledger
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

func migToJSON(parts []grants.Part) (list []inspectMIG) {
	for _, p := range parts {
		list = append(list, inspectMIG{UUID: p.UUID, Name: p.Name, Profile: p.Profile, Allocated: held(p),
			Total: p.Memory, Grants: ids(p.Grants)})
	}
	return list
}

// held returns what is granted of a MIG device: all of it, or nothing.
func held(p grants.Part) grant.Bytes {
	if len(p.Grants) > 0 {
		return p.Memory
	}
	return 0
}

func inspectToJSON(o grants.Overview, cards []grants.Card, u *used) inspectJSON {
	j := inspectJSON{GPUs: []inspectGPU{}}
	if u != nil {
		j.Findings = u.Findings
	}
	for _, card := range cards {
		g := inspectGPU{UUID: card.UUID, Index: card.Index, Name: card.Name, Mode: card.Mode,
			Allocated: card.Allocated,
			Total:     card.Memory, Compute: card.Compute, Health: card.Health,
			Grants: grantsToJSON(card.Grants, o.Now), MIG: migToJSON(card.Parts)}
		if is := u.gpu(card.UUID); is != nil {
			g.Used, g.Outside = &is.Used, &is.Outside
		}
		j.GPUs = append(j.GPUs, g)
		j.Allocated += card.Allocated
		j.Total += card.Memory
	}
	return j
}

func printInspect(w io.Writer, o grants.Overview, cards []grants.Card, u *used, details bool,
	columns int) error {
	head := u.memoryCells("USED GiB", "ALLOCATED/TOTAL GiB", "MEMORY GiB (ALLOCATED/TOTAL)", "COMPUTE",
		"GRANTS")
	rows := [][]string{append([]string{"GPU", "NAME", "MODE"}, head...)}
	var allocated, total grant.Bytes
	for _, card := range cards {
		is := "-"
		if now := u.gpu(card.UUID); now != nil {
			is = inGiB(now.Used)
		}
		memory := shareOf(card.Allocated, card.Memory)
		cells := u.memoryCells(is, memory, memory, percentage(card.Compute), fmt.Sprint(len(card.Grants)))
		rows = append(rows, append([]string{fmt.Sprint(card.Index), card.Name, dash(string(card.Mode))},
			cells...))
		for _, p := range card.Parts {
			memory := shareOf(held(p), p.Memory)
			cells := u.memoryCells("-", memory, memory, "-", fmt.Sprint(len(p.Grants)))
			rows = append(rows, append([]string{"  " + p.Name, "MIG " + p.Profile, string(grant.MIG)},
				cells...))
		}
		allocated, total = allocated+card.Allocated, total+card.Memory
	}
	if err := printCards(w, rows, columns); err != nil {
		return err
	}
	if details {
		if err := printDetails(w, o, cards, u, columns); err != nil {
			return err
		}
	}
	share := 0.0
	if total > 0 {
		share = 100 * float64(allocated) / float64(total)
	}
	sum := fmt.Sprintf("Allocated/Total GPU memory: %s GiB (%.0f%%)", shareOf(allocated, total), share)
	fmt.Fprintf(w, "\n%s\n", wrap(sum, columns, "", "  "))
	if u != nil {
		for _, f := range u.Findings {
			fmt.Fprintln(w, wrap(fmt.Sprintf("%s: %s", f.Kind, f.Message), columns, "", "  "))
		}
	}
	return nil
}

// printCards prints the table of GPUs. If it is too wide, names are shortened first, and then
// columns are left out.
func printCards(w io.Writer, rows [][]string, columns int) error {
	last := len(rows[0]) - 1 // GPU NAME MODE [USED] MEMORY COMPUTE GRANTS
	for column := 3; column < last-1; column++ {
		alignRight(rows[1:], column)
	}
	fit(rows, 1, columns)
	// COMPUTE, NAME, GRANTS, MODE: indexes after the columns before it are gone
	for _, column := range []int{last - 1, 1, last - 2, 1} {
		if widthOf(rows, -1) > columns {
			leaveOut(rows, column)
		}
	}
	return writeRows(w, rows)
}

// memoryCells returns a row's cells from the memory on, with one more if the use is known.
func (u *used) memoryCells(is, known, unknown string, more ...string) []string {
	if u == nil {
		return append([]string{unknown}, more...)
	}
	return append([]string{is, known}, more...)
}

func printDetails(w io.Writer, o grants.Overview, cards []grants.Card, u *used, columns int) error {
	for _, card := range cards {
		fmt.Fprintf(w, "\nGPU %d  %s\n", card.Index, card.UUID)
		head := []string{"  GRANT", "STATE", "GiB"}
		if u != nil {
			head = append(head, "USED GiB")
		}
		rows := [][]string{append(head, "COMPUTE", "STRENGTH", "OWNER", "CONTAINERS", "LABEL")}
		for _, g := range card.Grants {
			row := []string{"  " + string(g.ID), string(g.State(o.Now)), inGiB(card.Share(g))}
			if u != nil {
				row = append(row, u.grant(g.ID, card))
			}
			rows = append(rows, append(row, compute(g), string(g.Strength),
				grants.Owner(g)+grants.Tied(g, " for "), containers(g), g.Label))
		}
		for column := 2; rows[0][column] != "COMPUTE"; column++ {
			alignRight(rows[1:], column)
		}
		if err := writeDetails(w, rows, columns); err != nil {
			return err
		}
	}
	return nil
}

// linePrefixes are the prefixes of the last cells of a row of details, if each gets a line of its
// own.
var linePrefixes = []string{"compute ", "strength ", "of ", "in ", "label "}

// writeDetails prints one line for each grant. If a line is too long, the last three cells of each
// row get lines of their own, and on a narrow terminal all cells of linePrefixes.
func writeDetails(w io.Writer, rows [][]string, columns int) error {
	if widthOf(rows, -1) <= columns {
		return writeRows(w, rows)
	}
	for _, apart := range []int{3, len(linePrefixes)} {
		var short [][]string
		for _, row := range rows {
			short = append(short, row[:len(row)-apart])
		}
		if widthOf(short, -1) <= columns || apart == len(linePrefixes) {
			return writeApart(w, rows, short, columns)
		}
	}
	return nil
}

// writeApart writes the short rows, and below each the cells that only the full row has.
func writeApart(w io.Writer, rows, short [][]string, columns int) error {
	var lines strings.Builder
	if err := writeRows(&lines, short); err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSuffix(lines.String(), "\n"), "\n") {
		fmt.Fprintln(w, line)
		if i == 0 {
			continue
		}
		more := rows[i][len(short[i]):]
		for k, text := range more {
			if dash(text) != "-" {
				prefix := linePrefixes[len(linePrefixes)-len(more)+k]
				fmt.Fprintln(w, wrap(prefix+text, columns, "      ", "      "))
			}
		}
	}
	return nil
}
