package placement

import (
	"fmt"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Why says in one sentence why a wish fits on none of some nodes, with the closest fit. Of each
// node only what it has free is named, never whose the rest is.
func Why(w *Wish, nodes []*Node) string { return NewSearch(w).Why(nodes) }

// Why is Why for the search's wish.
func (s *Search) Why(nodes []*Node) string {
	open := 0
	for _, n := range nodes {
		open += number(n.Closed == "" && len(n.GPUs) > 0)
	}
	switch {
	case len(nodes) == 0:
		return "no node that the pod could go to publishes GPUs of gpuledger"
	case open == 0 && nodes[0].Closed != "":
		return fmt.Sprintf("no node takes GPU pods now: node %s %s", nodes[0].Name, nodes[0].Closed)
	case open == 0:
		return "no node that the pod could go to has a GPU"
	}
	for i := range s.wish.Demands {
		d := &s.wish.Demands[i]
		if text := s.whyNot(d, nodes); text != "" {
			if len(s.wish.Demands) > 1 {
				text = fmt.Sprintf("container %s: %s", d.Container, text)
			}
			return text
		}
	}
	return "each container fits on a node alone, and no node has room for all of them together"
}

// closest is the GPU, and the node, that is closest to serving a demand.
type closest struct {
	node   *Node
	gpu    *GPU
	misfit misfit
	fits   int // how many of the node's GPUs do
}

// whyNot says why a demand alone fits on no node; "": it fits on one.
func (s *Search) whyNot(d *Demand, nodes []*Node) string {
	var best closest
	most := closest{fits: -1}
	for _, n := range nodes {
		if n.Closed != "" {
			continue
		}
		at := s.closestOn(d, n)
		if at.fits >= d.count() {
			if _, placed := s.alone(d).Place(n); placed {
				return ""
			}
		}
		if at.fits > most.fits {
			most = at
		}
		if at.gpu != nil && (best.gpu == nil || closer(d, at, best)) {
			best = at
		}
	}
	if d.count() > 1 {
		return whyFew(d, most)
	}
	return whyNone(s.wish, d, best)
}

// alone is the search for one demand only.
func (s *Search) alone(d *Demand) *Search {
	one, w := *s, *s.wish
	w.Demands = []Demand{*d}
	one.wish = &w
	return &one
}

// closestOn returns the GPU of a node that is closest to serving a demand.
func (s *Search) closestOn(d *Demand, n *Node) (best closest) {
	mode, count := n.modeOf(d), 0
	for g := range n.GPUs {
		at := closest{node: n, gpu: &n.GPUs[g], misfit: s.misfitOf(d, mode, &n.GPUs[g])}
		if at.misfit == fits {
			count++
		} else if best.gpu == nil || closer(d, at, best) {
			best = at
		}
	}
	best.node, best.fits = n, count
	return best
}

// closer reports whether x is closer to serving a demand than y.
func closer(d *Demand, x, y closest) bool {
	switch {
	case x.misfit != y.misfit:
		return x.misfit > y.misfit
	case x.misfit == noCompute:
		return x.gpu.Compute > y.gpu.Compute
	}
	return x.gpu.Free > y.gpu.Free
}

// whyFew is the sentence about a demand of several GPUs.
func whyFew(d *Demand, most closest) string {
	mode := most.node.modeOf(d)
	text := fmt.Sprintf("no node has %d GPUs, each with %s: the most are %d, on node %s", d.count(),
		sizeOf(d, mode), most.fits, most.node.Name)
	if most.fits >= d.count() {
		return text + ", and they are of different sizes"
	}
	return text
}

// whyNone is the sentence about a demand of one GPU.
func whyNone(w *Wish, d *Demand, best closest) string {
	mode := best.node.modeOf(d)
	where := fmt.Sprintf("GPU %d of node %s", best.gpu.Index, best.node.Name)
	wanted := "no GPU has " + sizeOf(d, mode)
	switch best.misfit {
	case isClosed:
		return wanted + ": " + where + " takes no grant, it " + best.gpu.Closed
	case otherProduct:
		return fmt.Sprintf("no GPU is one of %s: %s is %q", strings.Join(w.Products, ", "), where,
			best.gpu.Product)
	case tooSmall:
		return fmt.Sprintf("no GPU has %s of memory in all: the largest of its kind has %s, %s", w.AtLeast,
			best.gpu.Memory, where)
	case modeForbidden:
		if mode == grant.Exclusive && d.Mode == "" && !d.all() {
			return fmt.Sprintf("no GPU gives shares: node %s is for whole GPUs", best.node.Name)
		}
		return fmt.Sprintf("no GPU takes grants in mode %s: %s is for %s", mode, where,
			modeNames(best.gpu.Modes))
	case computeForbidden:
		return fmt.Sprintf("%s: node %s gives no share of compute in mode limit, because nothing there "+
			"keeps a container to it", wanted, best.node.Name)
	case otherMode, isServed, isUsed:
		return fmt.Sprintf("%s: the closest is %s, which is in use%s", wanted, where, inMode(best.gpu))
	case noCompute:
		return fmt.Sprintf("%s: the most is %d%%, %s", wanted, best.gpu.Compute, where)
	}
	return fmt.Sprintf("%s: the most is %s, %s", wanted, best.gpu.Free/grant.MiB*grant.MiB, where)
}

// sizeOf returns what a demand wants of a GPU, in words.
func sizeOf(d *Demand, mode grant.Mode) string {
	size := ""
	switch {
	case mode == grant.Exclusive:
		return "all of itself free (mode exclusive)"
	case d.Memory > 0:
		size = d.Memory.String()
	case d.Part > 0:
		size = fmt.Sprintf("%g%% of its memory", float64(d.Part)/10)
	default:
		size = "all of its memory"
	}
	if d.Compute > 0 {
		size += fmt.Sprintf(" and %d%% of its compute", d.Compute)
	}
	return fmt.Sprintf("%s free in mode %s", size, mode)
}

func inMode(g *GPU) string {
	if g.Mode == "" {
		return ""
	}
	return " in mode " + string(g.Mode)
}

func modeNames(modes []grant.Mode) string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = string(m)
	}
	if len(names) == 0 {
		return "no mode"
	}
	return strings.Join(names, ", ")
}
