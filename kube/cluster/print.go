package cluster

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Print shows the cluster as a table: a line a node, a column a GPU, allocated and total in GiB, and the sum of all.
func Print(w io.Writer, nodes []Node, details bool) error {
	if len(nodes) == 0 {
		_, err := fmt.Fprintln(w, "no node has GPUs: none has published any, and none has a resource of gpuledger's device plugin")
		return err
	}
	widest := 0
	for _, n := range nodes {
		widest = max(widest, len(n.GPUs))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "NAME\tIPADDRESS")
	for i := range widest {
		fmt.Fprintf(t, "\tGPU%d(Allocated/Total)", i)
	}
	fmt.Fprintln(t, "\tGPU Memory(GiB)")
	var used, total int64
	for _, n := range nodes {
		fmt.Fprintf(t, "%s\t%s", n.Name, n.Address)
		var here, all int64
		for i := range widest {
			if i >= len(n.GPUs) {
				fmt.Fprint(t, "\t-")
				continue
			}
			g := n.GPUs[i]
			fmt.Fprintf(t, "\t%s/%s%s", gib(g.Allocated), gib(g.Total), remark(g))
			here, all = here+g.Allocated, all+g.Total
		}
		fmt.Fprintf(t, "\t%s/%s\n", gib(here), gib(all))
		used, total = used+here, total+all
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, strings.Repeat("-", 72))
	fmt.Fprintln(w, "Allocated/Total GPU Memory In Cluster:")
	fmt.Fprintf(w, "%s/%s (%d%%)\n", gib(used), gib(total), percent(used, total))
	printCounts(w, nodes)
	if details {
		return printShares(w, nodes)
	}
	return nil
}

// plain is somebody else's text without what a terminal would act on: whoever may write events, or publishes slices, writes it.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// gib is an amount in GiB, with one decimal where it is no whole number.
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
				fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Index, s.Namespace, s.Claim, strings.Join(s.Pods, ","), s.Mode, gib(s.Memory), compute)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
