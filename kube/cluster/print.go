package cluster

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Print shows the cluster as a table: a line for each node, and a column for each GPU index. It
// shows allocated and total memory in GiB, and the sum of all.
func Print(w io.Writer, nodes []Node, details bool) error {
	if len(nodes) == 0 {
		_, err := fmt.Fprintln(w,
			"no node has GPUs: none has published any, and none has a resource of gpuledger's device plugin")
		return err
	}
	indexes := columns(nodes)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "NAME\tIPADDRESS")
	for _, i := range indexes {
		fmt.Fprintf(t, "\tGPU%d(Allocated/Total)", i)
	}
	fmt.Fprintln(t, "\tGPU Memory(GiB)")
	var used, total int64
	for _, n := range nodes {
		fmt.Fprintf(t, "%s\t%s", n.Name, n.Address)
		for _, i := range indexes {
			fmt.Fprint(t, "\t"+cell(n.GPUs, i))
		}
		here, all := sum(n.GPUs)
		if len(n.GPUs) == 0 {
			fmt.Fprintln(t, "\t-") // only the units of its device plugin are known
		} else {
			fmt.Fprintf(t, "\t%s/%s\n", gib(here), gib(all))
		}
		used, total = used+here, total+all
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, rule)
	fmt.Fprintln(w, "Allocated/Total GPU Memory In Cluster:")
	if total == 0 {
		fmt.Fprintln(w, "unknown: no node publishes its GPUs")
	} else {
		fmt.Fprintf(w, "%s/%s (%d%%)\n", gib(used), gib(total), percent(used, total))
	}
	printCounts(w, nodes)
	if details {
		return printShares(w, nodes)
	}
	return nil
}

// rule is the line below a table.
var rule = strings.Repeat("-", 72)

// columns returns the indexes that GPUs have on any node.
func columns(nodes []Node) []int64 {
	var indexes []int64
	for _, n := range nodes {
		for _, g := range n.GPUs {
			indexes = append(indexes, g.Index)
		}
	}
	slices.Sort(indexes)
	return slices.Compact(indexes)
}

// cell describes the GPU of a column, or the sum of its MIG devices.
func cell(gpus []GPU, index int64) string {
	gpus = slices.DeleteFunc(slices.Clone(gpus), func(g GPU) bool { return g.Index != index })
	if len(gpus) == 0 {
		return "-"
	}
	used, total := sum(gpus)
	var remarks []string
	for _, g := range gpus {
		if r := remark(g); r != "" && !slices.Contains(remarks, r) {
			remarks = append(remarks, r)
		}
	}
	return gib(used) + "/" + gib(total) + strings.Join(remarks, "")
}

func sum(gpus []GPU) (used, total int64) {
	for _, g := range gpus {
		used, total = used+g.Allocated, total+g.Total
	}
	return used, total
}

// label names a GPU, or a MIG device as the ledger's listings do.
func label(g GPU) string {
	if g.Profile != "" {
		return fmt.Sprintf("%d/%s", g.Index, g.Profile)
	}
	return fmt.Sprint(g.Index)
}

// plain removes what a terminal would act on from a text. Others can write events and publish
// slices, so the text is not trusted.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// gib formats bytes in GiB, with one decimal unless it is a whole number.
func gib(bytes int64) string {
	text := fmt.Sprintf("%.1f", float64(bytes)/(1<<30))
	return strings.TrimSuffix(text, ".0")
}

func percent(used, total int64) int64 {
	if total == 0 {
		return 0
	}
	return used * 100 / total
}

func remark(g GPU) string {
	switch {
	case g.Health != "" && g.Health != "ok":
		return " " + g.Health
	case g.Mode != "":
		return " " + g.Mode
	}
	return ""
}

func printCounts(w io.Writer, nodes []Node) {
	for _, n := range nodes {
		for _, c := range n.Counted {
			fmt.Fprintf(w, "%s: %d/%d %s by the device plugin\n", n.Name, c.Allocated, c.Total, c.Resource)
		}
	}
}

func printShares(w io.Writer, nodes []Node) error {
	for _, n := range nodes {
		fmt.Fprintf(w, "\nNODE %s\n", n.Name)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "GPU\tNAMESPACE\tCLAIM\tPODS\tMODE\tMEMORY(GiB)\tCOMPUTE")
		for _, g := range n.GPUs {
			for _, s := range g.Shares {
				compute := "-"
				if s.Compute > 0 {
					compute = fmt.Sprintf("%d%%", s.Compute)
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", label(g), s.Namespace, cmp.Or(s.name(), "-"),
					strings.Join(s.Pods, ","),
					s.Mode, gib(s.Memory), compute)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, g := range n.GPUs {
			if g.Used > 0 {
				fmt.Fprintf(w, "GPU %s: %s GiB used by processes\n", label(g), gib(g.Used))
			}
		}
	}
	return nil
}
