package node

import "github.com/gpuledger/gpuledger/internal/grant"

// OnReading has an admission call f before it reads the inventory, which is long before it locks
// the ledger.
func (c *Create) OnReading(n *Node, f func()) {
	c.inventory = func() (grant.Inventory, *grant.Problem) {
		f()
		return n.Inventory()
	}
}
