package grants

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Overview is the whole ledger beside the inventory.
type Overview struct {
	grant.View
	Inventory grant.Inventory
	Problem   *grant.Problem // of the inventory
}

// Read reads all of it without waiting for a writer. Grants that no longer count are left out.
func Read(n *node.Node) (Overview, error) {
	return read(n, func(tx *ledger.Tx) (grant.View, error) { return tx.Whole(n.Host.Now()) })
}

// ReadAfterChanges waits until each process that has begun to change the ledger is done, and reads.
func ReadAfterChanges(n *node.Node) (Overview, error) {
	if err := n.Ledger.Update(func(*ledger.Tx) error { return nil }); err != nil {
		return Overview{}, err
	}
	return Read(n)
}

// ReadAgain gives an overview with the same grants and bindings, for a caller that knows that they
// have not changed. The rest is read again, and is little.
func ReadAgain(n *node.Node, o Overview) (Overview, error) {
	return read(n, func(tx *ledger.Tx) (v grant.View, err error) {
		v = grant.View{Now: n.Host.Now(), Grants: slices.Clone(o.Grants), Damaged: o.Damaged}
		found, err := tx.Found()
		v.Outside, v.Excess, v.Held = found.Outside, found.Excess, found.HeldGPUs(n.Host)
		return v, err
	})
}

func read(n *node.Node, from func(*ledger.Tx) (grant.View, error)) (o Overview, err error) {
	o.Inventory, o.Problem = n.Inventory()
	err = n.Ledger.View(func(tx *ledger.Tx) (err error) {
		o.View, err = from(tx)
		return err
	})
	o.Grants = slices.DeleteFunc(o.Grants, func(g grant.Grant) bool { return !g.Live(o.Now) })
	for i := range o.Grants {
		g := &o.Grants[i]
		g.Strength = admission.Strength(*g, o.Inventory, n.Policy)
		g.ComputeStrength = admission.ComputeStrength(*g, o.Inventory, n.Policy)
	}
	return o, err
}

func get(tx *ledger.Tx, id grant.ID) (grant.Grant, error) {
	g, err := tx.Get(id)
	if errors.Is(err, ledger.ErrNotFound) {
		return g, &grant.NotFoundError{Message: fmt.Sprintf("the ledger has no grant %s", id)}
	}
	return g, err
}
