package grants

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Enter enters a new grant. It returns the reference with its secret this one time: the ledger
// keeps only a hash. Errors are those of admission.Place, *grant.Refusal with GrantInUse if the
// owner has a live grant, and *grant.Refusal with the inventory's problem.
func Enter(n *node.Node, ask admission.Ask) (grant.Grant, grant.Reference, error) {
	if n.Broken != nil {
		return grant.Grant{}, grant.Reference{}, n.Broken
	}
	if err := checkTies(n, ask.For); err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	g, reference, err := node.NewGrant(n, ask)
	if err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		if err := onlyOne(ask.Owner, v); err != nil {
			return err
		}
		if g.GPUs, err = admission.Place(ask, "", v, inv, n.Policy); err != nil {
			return err
		}
		return tx.Put(g)
	})
	return withStrength(n, g), reference, err
}

// Entered is the outcome of one of several asks.
type Entered struct {
	Grant     grant.Grant
	Reference grant.Reference
	Err       error
	// why the files of the grant's limits could not be made; the grant is in the ledger
	Unprepared error
}

// EnterAll enters a grant for each ask, in this order, with one writing of the ledger. An ask that
// is refused does not keep the others from their grants. If the ledger cannot be written, there is
// none of them. meanwhile, unless it is nil, runs while the ledger is written, with the outcomes so
// far: grants without an error may still fail. The files of limits are made, as by Prepare, before
// the ledger is unlocked.
func EnterAll(n *node.Node, asks []admission.Ask, meanwhile func([]Entered)) []Entered {
	all := make([]Entered, len(asks))
	if n.Broken != nil { // it has the ledger of the defaults
		for i := range all {
			all[i].Err = n.Broken
		}
		return all
	}
	for i, ask := range asks {
		e := &all[i]
		if e.Err = checkTies(n, ask.For); e.Err == nil {
			e.Grant, e.Reference, e.Err = node.NewGrant(n, ask)
		}
	}
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		var placed []grant.Grant
		for i, ask := range asks {
			e := &all[i]
			if e.Err == nil {
				e.Err = onlyOne(ask.Owner, v)
			}
			if e.Err == nil {
				e.Grant.GPUs, e.Err = admission.Place(ask, "", v, inv, n.Policy)
			}
			if e.Err == nil {
				placed, v.Grants = append(placed, e.Grant), append(v.Grants, e.Grant)
			}
		}
		var beside sync.WaitGroup
		if meanwhile != nil {
			beside.Go(func() { meanwhile(all) })
		}
		err = tx.PutNew(placed)
		beside.Wait()
		if err != nil {
			return err
		}
		for i := range all {
			if all[i].Err == nil {
				all[i].Unprepared = prepare(n, all[i].Grant, inv)
			}
		}
		return nil
	})
	inv, _ := n.Inventory()
	for i := range all {
		if all[i].Err == nil {
			all[i].Err = err
		}
		all[i].Grant = strengthened(n, inv, all[i].Grant)
	}
	return all
}

// withStrength adds to a grant what holds its containers to it on this node now.
func withStrength(n *node.Node, g grant.Grant) grant.Grant {
	inv, _ := n.Inventory()
	return strengthened(n, inv, g)
}

func strengthened(n *node.Node, inv grant.Inventory, g grant.Grant) grant.Grant {
	g.Strength = admission.Strength(g, inv, n.Policy)
	g.ComputeStrength = admission.ComputeStrength(g, inv, n.Policy)
	return g
}

// onlyOne refuses a second live grant of an owner by name.
func onlyOne(owner grant.Owner, v grant.View) error {
	if owner == grant.Bearer {
		return nil
	}
	i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.Owner == owner && g.Live(v.Now) })
	if i < 0 {
		return nil
	}
	return &grant.Refusal{Code: grant.GrantInUse,
		Message: fmt.Sprintf("cannot grant: %s holds grant %s already", owner, v.Grants[i].ID),
		Hint: fmt.Sprintf("change that one with `gpuledger grant --update %s`, or release it",
			v.Grants[i].ID)}
}

// readForPlacement removes what is over, and reads all that a placement needs.
func readForPlacement(n *node.Node, tx *ledger.Tx) (grant.View, grant.Inventory, error) {
	inv, problem := n.Inventory()
	if problem != nil {
		return grant.View{}, inv, &grant.Refusal{Code: problem.Code, Message: problem.Message,
			Hint: problem.Hint}
	}
	for range limitfiles.MaxSweeps {
		if err := limitfiles.Sweep(n.Policy, n.Host.Now(), tx); err != nil {
			return grant.View{}, inv, err
		}
		v, err := tx.Whole(n.Host.Now())
		if err != nil || !v.AnyCouldReturn() {
			return v, inv, err
		}
	}
	return grant.View{}, inv, limitfiles.ErrEndless
}

// Tree is the processes of a grant that are in no container: one, and those in its cgroup.
type Tree struct {
	Grant  grant.Grant
	Cgroup string // its directory; to be removed when it is empty
}

// EnterTree enters a grant for processes that are in no container. It is bound in the critical
// section that enters it, and counts while this process runs or a process is in the cgroup.
func EnterTree(n *node.Node, ask admission.Ask) (t Tree, err error) {
	if n.Broken != nil {
		return t, n.Broken
	}
	self, err := n.Host.Self()
	if err != nil {
		return t, err
	}
	ask.Owner, ask.Source = grant.Bearer, grant.Asked
	if t.Grant, _, err = node.NewGrant(n, ask); err != nil {
		return t, err
	}
	name := "gpuledger-" + string(t.Grant.ID)
	b := grant.Binding{Grant: t.Grant.ID, RuntimeRoot: n.Policy.RunDir, Container: name, Creator: self,
		Strength: grant.StrengthNone, Weaker: "its processes are in no container"}
	var path string
	if t.Cgroup, path, err = containers.MakeCgroup(n.Host, name); err != nil {
		return t, fmt.Errorf("cannot make the cgroup by which the grant's processes are known: %w", err)
	}
	b.Cgroups, b.Occupies = []string{path}, []string{path}
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		g := &t.Grant
		if g.GPUs, err = admission.Place(ask, "", v, inv, n.Policy); err != nil {
			return err
		}
		if err := tx.Put(*g); err != nil {
			return err
		}
		failpoint.Hit("grants/tree")
		if len(admission.NodeMounts(*g, inv, n.Policy)) > 0 {
			if err := limitfiles.Write(n.Policy, *g); err != nil {
				return err
			}
		}
		return tx.Bind(b)
	})
	if err != nil {
		_ = os.Remove(t.Cgroup)
	}
	t.Grant = withStrength(n, t.Grant)
	return t, err
}
