package node

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
)

// Basis is what a verdict is decided by, beside the container and the configuration. gpuledgerd
// shows it to a user who cannot read the node's files.
type Basis struct {
	grant.View // the whole ledger; grants of others without what is theirs
	Inventory  grant.Inventory
	Problem    *grant.Problem // of the inventory
}

// ReadBasis returns the node's, with a view of the whole ledger that was read already.
func ReadBasis(n *Node, v grant.View) (b Basis, err error) {
	b.View = v
	b.Inventory, b.Problem = n.Inventory()
	b.MPS = mpsstate.All(n.Host, n.Policy.RunDir)
	err = n.Ledger.View(func(tx *ledger.Tx) error {
		found, err := tx.Found()
		b.Held = found.HeldGPUs(n.Host)
		return err
	})
	return b, err
}

// ExplainBy is Explain for a caller that cannot read the node's files: what an engine that runs as
// root would be answered. Whether another container has the cgroup is not known to the caller.
func ExplainBy(n *Node, c Create, b Basis) Decision {
	asRoot := *n
	asRoot.Host.UID = 0
	n = &asRoot
	c.inventory = func() (grant.Inventory, *grant.Problem) { return b.Inventory, b.Problem }
	f, refused := readFacts(n, c)
	if refused != nil {
		return *refused
	}
	view := viewBy(n, f, b)
	f = gather(f, view)
	d := planned(f, withProblem(n, f, view)).Decision
	switch {
	case d.Kind == grant.Refused || d.Kind == grant.Pass && admission.Exempt(f.pod(), n.Policy):
		return d
	case d.Kind == grant.Admit && f.inParent():
		return *sharedCgroup(f)
	}
	if unit := takenSlice(f); unit != "" {
		return *outsideCgroup(f, unit)
	}
	return d
}

// viewBy gives the ledger as ledgerView does.
func viewBy(n *Node, f *createFacts, b Basis) grant.View {
	v := grant.View{Now: b.Now, Held: b.Held, MPS: b.MPS}
	if n.Broken != nil {
		v.Problems = append(v.Problems, grant.Problem{Code: grant.ConfigInvalid, Message: n.Broken.Error()})
	}
	add := func(is func(grant.Grant) bool) {
		if i := slices.IndexFunc(b.Grants, is); i >= 0 {
			f.add(&v, b.Grants[i], nil)
		}
	}
	if owner := f.request.Container.Pod.Owner(); owner != "" {
		add(func(g grant.Grant) bool { return g.Owner == owner })
	}
	for _, m := range f.request.References {
		if m.Malformed == "" {
			add(func(g grant.Grant) bool { return g.ID == m.ID })
		}
	}
	if admission.Adopts(f.request, v, n.Policy) {
		v.Whole, v.Fresh = &b.View, f.fresh
	}
	return v
}
