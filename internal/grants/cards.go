package grants

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Card is a physical GPU with what is granted of it and of its MIG devices.
type Card struct {
	grant.GPU
	Mode      grant.Mode // "" if no grant is on it
	Allocated grant.Bytes
	Free      grant.Bytes // what a placement could still grant
	Compute   int         // percent granted
	Grants    []grant.Grant
	Parts     []Part // its MIG devices
}

// Part is a MIG device of a card.
type Part struct {
	grant.MIGDevice
	Name   string      // "0:1"
	Free   grant.Bytes // all of it, or nothing
	Grants []grant.Grant
}

// Cards adds an overview up, GPU by GPU, as a placement does.
func Cards(n *node.Node, o Overview) ([]Card, error) {
	free, err := admission.Free(o.View, o.Inventory, n.Policy)
	if err != nil {
		return nil, err
	}
	return CardsOf(o, free), nil
}

// CardsOf is Cards for a caller that knows what is free, by UUID.
func CardsOf(o Overview, free map[string]grant.Bytes) []Card {
	cards := make([]Card, len(o.Inventory.GPUs))
	for i, gpu := range o.Inventory.GPUs {
		card := Card{GPU: gpu, Free: free[gpu.UUID]}
		if len(gpu.MIG) > 0 {
			card.Mode = grant.MIG
		}
		for part, m := range gpu.MIG {
			card.Parts = append(card.Parts, Part{MIGDevice: m, Name: grant.Device{GPU: gpu,
				MIG: &gpu.MIG[part], Part: part}.Name(), Free: free[m.UUID]})
		}
		for _, g := range o.Grants {
			card.add(g)
		}
		cards[i] = card
	}
	return cards
}

// add counts what a grant has of the card.
func (c *Card) add(g grant.Grant) {
	if !slices.ContainsFunc(g.GPUs, c.has) {
		return
	}
	c.Mode = g.Mode
	c.Allocated += c.Share(g)
	c.Compute += g.Compute
	c.Grants = append(c.Grants, g)
	for i := range c.Parts {
		if g.Has(c.Parts[i].UUID) {
			c.Parts[i].Grants = append(c.Parts[i].Grants, g)
		}
	}
}

// has reports whether a share is one of the card or of its MIG devices.
func (c *Card) has(s grant.Share) bool {
	return s.UUID == c.UUID || slices.ContainsFunc(c.Parts, func(p Part) bool { return p.UUID == s.UUID })
}

// Share is what a grant has of the card and of its MIG devices.
func (c *Card) Share(g grant.Grant) (memory grant.Bytes) {
	for _, s := range g.GPUs {
		if c.has(s) {
			memory += s.Memory
		}
	}
	return memory
}
