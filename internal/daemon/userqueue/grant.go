package userqueue

import (
	"errors"
	"fmt"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// Reader reads the ledger, or returns one that was read before and has not changed.
type Reader func(*node.Node) (grants.Overview, error)

// InQuota returns what is asked for with the quota that is in force now. A request may have waited
// for days.
func InQuota(n *node.Node, ask admission.Ask) (admission.Ask, error) { return inQuota(n, ask, true) }

// inQuota waits for no directory service without wait, as where the queue's lock is held.
func inQuota(n *node.Node, ask admission.Ask, wait bool) (admission.Ask, error) {
	if ask.Source != grant.ByUser { // root's
		return ask, nil
	}
	var err error
	if ask.Quota, err = quotaOf(n, ask.User, wait); err == nil && ask.TTL <= 0 {
		ask.TTL = ask.Quota.MaxTTL()
	}
	return ask, err
}

// QuotaOf is the quota of a user, who is refused without one. The error wraps a *users.LookupError
// if it is not known whose quota is the user's.
func QuotaOf(n *node.Node, uid uint32) (*grant.Quota, error) { return quotaOf(n, uid, true) }

func quotaOf(n *node.Node, uid uint32, wait bool) (*grant.Quota, error) {
	read, name := users.KnownQuotaOf, users.KnownName
	if wait {
		read, name = users.QuotaOf, users.Name
	}
	q, err := read(n.Policy.Quotas, uid)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot grant: %w", err)
	case q != nil:
		return q, nil
	}
	return nil, &grant.Refusal{Code: grant.QuotaExceeded,
		Message: fmt.Sprintf("cannot grant: user %s has no quota on this node", name(uid)),
		Hint: "the administrator sets one in [[quota]], or grants with `gpuledger grant --user` (" +
			grant.Docs + "users.md)"}
}

// GrantOrWait grants a request at once. If that is not possible now and the request waits, it
// enters the queue: then there is a waiter, and the error is why there is no grant yet. current
// returns the node, whose configuration may change meanwhile.
func (q *Queue) GrantOrWait(current func() *node.Node, read Reader, r Request) (grant.Grant, *Waiter, error) {
	n := current()
	g, found, err := grants.FindBySecret(n, r.Ask.User, r.Ask.Secret)
	switch {
	case err != nil: // it may be there
		return grant.Grant{}, nil, err
	case found:
		return g, nil, r.rejoin(n, g)
	}
	_ = q.Pass(n, read) // those who wait come first
	// a look-up may wait for a directory service, so it is not done under the lock
	_, err = InQuota(current(), r.Ask)
	waits := r.Waits && isUnknown(err)
	if err == nil {
		q.turn.Lock()
		n = current()
		ask, e := inQuota(n, r.Ask, false)
		if err = e; err == nil {
			g, err = r.enter(n, ask)
		}
		q.turn.Unlock()
		waits = r.Waits && err != nil && (isUnknown(err) || isOfNode(err) || laterNow(n, ask, err))
	}
	if !waits {
		return g, nil, err
	}
	w, e := q.enter(r)
	if e != nil {
		return g, nil, e
	}
	return g, w, err
}

// isUnknown reports whether a request was refused because the quota of its user is not known.
func isUnknown(err error) bool {
	var unknown *users.LookupError
	return errors.As(err, &unknown)
}

// laterNow is later for an ask that was refused just now. The inventory is read after the refusal:
// one that was read before the ledger's lock may be another.
func laterNow(n *node.Node, ask admission.Ask, refused error) bool {
	inv, _ := n.Inventory()
	return later(n, inv, ask, refused)
}

// later reports whether an ask that was refused can be granted later.
func later(n *node.Node, inv grant.Inventory, ask admission.Ask, refused error) bool {
	return admission.Later(ask, refused, grant.View{Now: n.Host.Now()}, inv, n.Policy)
}

// Pass grants what those who wait can have now. Of each user only the first request is looked at.
// The ledger is read once, without its lock, and written only for what fits. While the ledger
// cannot be written or the inventory is none of this boot, all go on waiting. So does a user whose
// groups cannot be read, or were not read yet: no directory service is waited for.
func (q *Queue) Pass(n *node.Node, read Reader) error {
	q.turn.Lock()
	defer q.turn.Unlock()
	for {
		waiting := q.ordered()
		if len(waiting) == 0 {
			return nil
		}
		o, err := read(n)
		if err != nil {
			return err
		}
		inv, _ := n.Inventory() // o has the one of when the ledger was read
		if served, err := q.grantFirst(n, o, inv, waiting); err != nil || !served {
			return err
		}
	}
}

// grantFirst grants the first request that fits, and reports whether there was one. An error is of
// the node, and no request's.
func (q *Queue) grantFirst(n *node.Node, o grants.Overview, inv grant.Inventory, waiting []*Waiter,
) (served bool, err error) {
	seen := map[uint32]bool{}
	for _, w := range waiting {
		if seen[w.User] {
			continue
		}
		seen[w.User] = true
		g, err := grantWaiting(n, o, inv, w.Request)
		switch {
		case errors.Is(err, errLater):
		case isOfNode(err):
			return false, err
		default:
			q.served(w, Outcome{g, err})
			return true, nil
		}
	}
	return false, nil
}

// isOfNode reports whether an error says nothing about the request, and may be over soon: the
// ledger is locked or cannot be written, as on a full disk, or the inventory was not taken in this
// boot, or not since the driver was loaded. What is wrong with a request has one of the types
// below.
func isOfNode(err error) bool {
	var r *grant.Refusal
	if errors.As(err, &r) {
		return r.Code == grant.InventoryStale || r.Code == grant.InventoryMissing
	}
	var usage *grant.UsageError
	var missing *grant.NotFoundError
	var program *grants.ProgramError
	return err != nil && !errors.As(err, &usage) && !errors.As(err, &missing) && !errors.As(err, &program)
}

var errLater = errors.New("it goes on waiting")

// grantWaiting grants a request that waits, if that is possible by now. errLater: not yet. o and
// inv were read once for all requests, without the ledger's lock. A request that they would refuse
// for good is entered, so that the ledger and the inventory of now decide. A try before may have
// failed after it wrote the grant, on a disk that did not let it take that back: then the request
// has that grant.
func grantWaiting(n *node.Node, o grants.Overview, inv grant.Inventory, r Request) (grant.Grant, error) {
	g, found, err := grants.FindBySecretIn(n, o, r.Ask.User, r.Ask.Secret)
	switch {
	case err != nil:
		return g, err
	case found:
		return g, r.rejoin(n, g)
	}
	ask, err := inQuota(n, r.Ask, false)
	switch {
	case isUnknown(err):
		return g, errLater
	case err != nil:
		return g, err
	}
	_, err = admission.Place(ask, "", o.View, o.Inventory, n.Policy)
	if err != nil && later(n, inv, ask, err) {
		return g, errLater
	}
	g, err = r.enter(n, ask)
	if err != nil && laterNow(n, ask, err) {
		return g, errLater // another process may have been faster
	}
	return g, err
}

func (r Request) enter(n *node.Node, ask admission.Ask) (grant.Grant, error) {
	if r.For != nil {
		return r.For.Enter(n, ask)
	}
	g, _, err := grants.Enter(n, ask)
	return g, err
}

func (r Request) rejoin(n *node.Node, g grant.Grant) error {
	if r.For == nil {
		return nil
	}
	return r.For.Rejoin(n, g)
}

// TakeBack releases a grant of whose client nothing is left, unless a container uses it by now.
func TakeBack(n *node.Node, user uint32, id grant.ID) {
	if released, _ := grants.ReleaseUnused(n, id); released {
		node.RecordUser(n, "released", user, id, nil)
	}
}
