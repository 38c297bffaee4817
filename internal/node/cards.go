package node

import (
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Card is a GPU with what is granted of it.
type Card struct {
	grant.GPU
	Mode      grant.Mode // "" when nobody holds it
	Allocated grant.Bytes
	Free      grant.Bytes // what a placement could still grant
	Compute   int         // percent granted
	Grants    []grant.Grant
}

// Cards adds an overview up, GPU by GPU, as a placement does.
func (n *Node) Cards(o Overview) ([]Card, error) {
	free, err := admission.Free(o.View, o.Inventory, n.Policy)
	if err != nil {
		return nil, err
	}
	cards := make([]Card, len(o.Inventory.GPUs))
	for i, gpu := range o.Inventory.GPUs {
		card := Card{GPU: gpu, Free: free[gpu.UUID]}
		if len(gpu.MIG) > 0 {
			card.Mode = grant.MIG
		}
		for _, g := range o.Grants {
			card.add(g)
		}
		cards[i] = card
	}
	return cards, nil
}

func (c *Card) add(g grant.Grant) {
	for _, s := range g.GPUs {
		if s.UUID == c.UUID {
			c.Mode = g.Mode
			c.Allocated += s.Memory
			c.Compute += g.Compute
			c.Grants = append(c.Grants, g)
		}
	}
}
