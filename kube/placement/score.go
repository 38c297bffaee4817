package placement

import "github.com/gpuledger/gpuledger/internal/grant"

// Best is the best score.
const Best = 100

// Score says how good a node is for a wish, with the choices that Place made there: 0 to Best.
//
// Binpack prefers GPUs that are in use, and leaves the least on them. If it has to begin with empty
// GPUs, it prefers the node with the fewest, so that whole nodes stay for pods that need many GPUs.
// Spread prefers the node of which the most is free. If the wish has an application, nodes where
// its replicas get GPUs without other replicas come first.
func Score(w *Wish, n *Node, choices []Choice) int {
	score := 0
	if n.policyOf(w) == Spread {
		score = spread(n, choices)
	} else {
		score = binpack(n, choices)
	}
	if w.App == "" {
		return score
	}
	for _, c := range choices {
		for _, g := range c.GPUs {
			if n.GPUs[g].Apps[w.App] > 0 {
				return score / 2
			}
		}
	}
	return Best/2 + score/2
}

// binpack has three ranges: GPUs in use alone, some empty ones, and within both what is left over.
func binpack(n *Node, choices []Choice) int {
	taken := takenOf(n, choices)
	empty, opened := 0, 0
	var left, space grant.Bytes
	for g := range n.GPUs {
		gpu := &n.GPUs[g]
		memory, chosen := taken[g]
		switch {
		case chosen:
			left, space = left+gpu.Free-min(gpu.Free, memory), space+gpu.space()
			opened += number(gpu.Mode == "")
		case gpu.Mode == "" && gpu.Closed == "":
			empty++
		}
	}
	waste := float64(left) / float64(max(space, 1))
	if opened == 0 {
		return Best - int(49*waste)
	}
	return int(50 * (1 - (float64(min(empty, 16))+waste)/17))
}

// spread is the part of a node's memory that stays free.
func spread(n *Node, choices []Choice) int {
	var free, space grant.Bytes
	taken := takenOf(n, choices)
	for g := range n.GPUs {
		gpu := &n.GPUs[g]
		space += gpu.space()
		free += gpu.Free - min(gpu.Free, taken[g])
	}
	return int(Best * float64(min(free, space)) / float64(max(space, 1)))
}

// takenOf returns what the choices take of each GPU, at most at a time.
func takenOf(n *Node, choices []Choice) map[int]grant.Bytes {
	taken := map[int]grant.Bytes{}
	loads := map[int][]Load{}
	for _, c := range choices {
		for _, g := range c.GPUs {
			memory := c.Memory
			if c.Mode == grant.Exclusive {
				memory = n.GPUs[g].Free
			}
			loads[g] = append(loads[g], Load{Init: c.Init, Memory: memory})
		}
	}
	for g, all := range loads {
		taken[g], _ = Peak(all)
	}
	return taken
}
