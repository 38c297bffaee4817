package cluster

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// podRow is a pod with what it has of each GPU index, in bytes.
type podRow struct {
	name, namespace string
	of              map[int64]int64
}

// PrintPods shows the pods of each node, with a column for each of its GPUs, as `kubectl inspect
// cgpu -d` does on ACK.
func PrintPods(w io.Writer, nodes []Node) error {
	var used, total int64
	for _, n := range nodes {
		fmt.Fprintf(w, "NAME:       %s\nIPADDRESS:  %s\n\n", n.Name, n.Address)
		indexes := columns([]Node{n})
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(t, "NAME\tNAMESPACE")
		for _, i := range indexes {
			fmt.Fprintf(t, "\tGPU%d(Allocated)", i)
		}
		fmt.Fprintln(t)
		for _, row := range podRows(n) {
			fmt.Fprintf(t, "%s\t%s", row.name, row.namespace)
			for _, i := range indexes {
				fmt.Fprintf(t, "\t%s", gib(row.of[i]))
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		here, all := sum(n.GPUs)
		fmt.Fprintf(w, "Allocated :  %s (%d%%)\n", gib(here), percent(here, all))
		if processes := usedBy(n.GPUs); processes > 0 {
			fmt.Fprintf(w, "Used :       %s (%d%%)\n", gib(processes), percent(processes, all))
		}
		fmt.Fprintf(w, "Total :      %s\n%s\n", gib(all), rule)
		used, total = used+here, total+all
	}
	_, err := fmt.Fprintf(w, "Allocated/Total GPU Memory In Cluster:  %s/%s (%d%%)\n", gib(used), gib(total),
		percent(used, total))
	return err
}

func usedBy(gpus []GPU) (sum int64) {
	for _, g := range gpus {
		sum += g.Used
	}
	return sum
}

// podRows returns the pods of a node. Pods that share a claim have a row together, because its
// memory counts once. A claim without pods has its own name.
func podRows(n Node) (rows []podRow) {
	for _, g := range n.GPUs {
		for _, s := range g.Shares {
			name := strings.Join(s.Pods, ",")
			if name == "" {
				name = "claim " + s.Claim
			}
			i := slices.IndexFunc(rows, func(r podRow) bool {
				return r.name == name && r.namespace == s.Namespace
			})
			if i < 0 {
				rows = append(rows, podRow{name: name, namespace: s.Namespace, of: map[int64]int64{}})
				i = len(rows) - 1
			}
			rows[i].of[g.Index] += s.Memory
		}
	}
	slices.SortFunc(rows, func(a, b podRow) int {
		return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name)
	})
	return rows
}
