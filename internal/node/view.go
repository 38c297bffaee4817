package node

import (
	"errors"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
)

// readLedger gives the facts with all that a decision needs, and the ledger as it is now. It waits
// for no lock.
func readLedger(n *Node, f *createFacts) (*createFacts, grant.View) {
	var v grant.View
	_ = n.Ledger.View(func(tx *ledger.Tx) error {
		v = ledgerView(n, tx, f)
		return nil
	})
	f = gather(f, v)
	return f, withProblem(n, f, v)
}

// viewOf gives the ledger as a container sees it that has these facts.
func viewOf(n *Node, tx *ledger.Tx, f *createFacts) grant.View {
	return withProblem(n, f, ledgerView(n, tx, f))
}

// lastingView is viewOf with the ledger locked. Where the container could adopt a grant, it removes
// what is over first: the grants of containers that ended, this one's last among them.
func lastingView(n *Node, tx *ledger.Tx, f *createFacts) (grant.View, error) {
	for range maxSweeps {
		v := viewOf(n, tx, f)
		if v.Whole == nil || !v.Whole.AnyCouldReturn() {
			return v, nil
		}
		if _, err := limitfiles.Sweep(n.Policy, tx); err != nil {
			return v, err
		}
	}
	return grant.View{}, errors.New("cannot grant: containers end faster than their grants are swept")
}

// maxSweeps is how often an adoption removes what is over, because another container has ended
// meanwhile, before it fails.
const maxSweeps = 16

// ledgerView reads the grants that the container owns or names, and where it could adopt one the
// whole ledger. What cannot be read is a problem of the view: it stops only containers that want a
// GPU.
func ledgerView(n *Node, tx *ledger.Tx, f *createFacts) grant.View {
	v := grant.View{Now: n.Host.Now()}
	if n.Broken != nil {
		v.Problems = append(v.Problems, grant.Problem{Code: grant.ConfigInvalid, Message: n.Broken.Error(),
			Hint: "correct the configuration; containers without GPUs start meanwhile"})
	}
	if owner := f.request.Container.Pod.Owner(); owner != "" {
		g, err := tx.ByOwner(owner)
		f.add(&v, g, err)
	}
	if g, asked := askedFor(tx, f); asked {
		f.add(&v, g, nil)
		v.Asked = g.ID
	}
	read := map[grant.ID]bool{} // each once: the ledger may be locked, and the tenant wrote the list
	for _, m := range f.request.References {
		if m.Malformed == "" && !read[m.ID] {
			read[m.ID] = true
			g, err := tx.Get(m.ID)
			f.add(&v, g, err)
		}
	}
	if slices.ContainsFunc(v.Grants, func(g grant.Grant) bool { return g.Mode.IsWhole() }) {
		found, err := tx.Found()
		if v.Held = found.HeldGPUs(n.Host); err != nil {
			v.Problems = append(v.Problems, unreadable(err))
		}
	}
	v.MPS = mpsstate.ForGrants(n.Host, n.Policy.RunDir, v.Grants)
	if !admission.Adopts(f.request, v, n.Policy) {
		return v
	}
	whole, err := tx.Whole(n.Host.Now())
	if err != nil {
		v.Problems = append(v.Problems, unreadable(err))
		return v
	}
	v.Whole, v.Fresh = &whole, f.fresh
	v.MPS = append(v.MPS, mpsstate.All(n.Host, n.Policy.RunDir)...)
	return v
}

// askedFor returns the grant that this container's own create has entered already: another entry
// point reserved it, or the runtime has made the container since.
func askedFor(tx *ledger.Tx, f *createFacts) (g grant.Grant, asked bool) {
	if !admission.MayAsk(f.request, f.policy) {
		return g, false
	}
	b, found := tx.Bindings.Find(func(b grant.Binding) bool {
		return f.isOwn(b) && (b.Reserved || f.Live != nil || f.AnyRoot)
	})
	if !found {
		return g, false
	}
	g, err := tx.Get(b.Grant)
	return g, err == nil && g.Source == grant.Asked
}

// add adds a grant, as the ledger returned it, to a view.
func (f *createFacts) add(v *grant.View, g grant.Grant, err error) {
	if err == nil && g.Orphaned() {
		return
	}
	if f.AnyRoot && f.holds(g) { // it keeps what it was created with after the grant has expired
		g.Draining, g.Expires = false, time.Time{}
	}
	// A binding of this container does not keep it from its grant. Whether its id is in use is
	// checked elsewhere.
	g.Bindings = slices.DeleteFunc(g.Bindings, f.isOwn)
	var damaged *ledger.DamagedError
	switch {
	case err == nil && !slices.ContainsFunc(v.Grants, func(o grant.Grant) bool { return o.ID == g.ID }):
		v.Grants = append(v.Grants, g)
	case errors.As(err, &damaged):
		v.Damaged = append(v.Damaged, damaged.Damage)
	case err != nil && !errors.Is(err, ledger.ErrNotFound):
		v.Problems = append(v.Problems, unreadable(err))
	}
}

// holds reports whether the container's own create has bound the grant.
func (f *createFacts) holds(g grant.Grant) bool {
	return slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool {
		return f.isOwn(b) && !b.Reserved && !b.Left
	})
}

// withProblem adds to a view what keeps the inventory from being used, if the container asks for a
// GPU.
func withProblem(n *Node, f *createFacts, v grant.View) grant.View {
	if !f.gpu.gathered || !admission.Asks(f.request, v) {
		return v
	}
	problem := f.gpu.problem
	if problem == nil {
		problem = otherDevice(n, f.request, v, f.gpu.inventory)
	}
	if problem == nil {
		problem = replacedDriver(n, f)
	}
	if problem != nil {
		v.Problems = append(slices.Clip(v.Problems), *problem)
	}
	return v
}

func unreadable(err error) grant.Problem {
	return grant.Problem{Code: grant.LedgerUnreadable, Message: err.Error(),
		Hint: "an administrator finds the reason with `gpuledger check`"}
}
