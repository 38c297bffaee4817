package userqueue

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// Opened reports whether a grant is in use without a container that gpuledger knows. due: if it is
// not, it is released.
type Opened func(inv grant.Inventory, g grant.Grant, due bool) bool

// idleness is since when nothing has used a grant, and what its bindings were then.
type idleness struct {
	since time.Time
	stamp host.Stamp
}

// ReleaseIdle releases grants that users asked for and that nothing used for as long as their
// quotas say, and returns them. Whether a container uses one is what the kernel says now, or a
// changed stamp of its bindings: a container can come and go between two calls. The time is counted
// anew after a restart of the daemon. It goes on while a user's quota is not known, and nothing of
// that user is released meanwhile; the error is one for all such users. The clock is asked after a
// grant was looked at, never before: a daemon that stands still in between must not count that
// time. It is called by one goroutine.
func (q *Queue) ReleaseIdle(n *node.Node, read Reader, clock func() time.Time, opened Opened,
) (over []grant.Grant, err error) {
	if !slices.ContainsFunc(n.Policy.Quotas, func(q grant.Quota) bool { return q.Idle != "" }) {
		q.idle = nil
		return nil, nil
	}
	o, err := read(n)
	if err != nil { // the time goes on
		return nil, err
	}
	last := q.idle
	q.idle = map[grant.ID]idleness{}
	limits := idleLimits{quotas: n.Policy.Quotas, of: map[uint32]idleLimit{}}
	for _, g := range o.Grants {
		if g.Source != grant.ByUser || len(g.Bindings) > 0 {
			continue
		}
		limit := limits.get(g.User)
		if !limit.unknown && limit.after == 0 {
			continue
		}
		idle, was := last[g.ID]
		stamp := n.Ledger.Bindings.UseStamp(g.ID)
		now := clock()
		if !was || stamp != idle.stamp {
			// the stamp may be of a container that came after the ledger was read
			if used, err := grants.InUse(n, g.ID); used || err != nil {
				continue
			}
			idle = idleness{now, stamp}
		}
		due := !limit.unknown && now.Sub(idle.since) >= limit.after
		if opened(o.Inventory, g, due) {
			idle.since, due = clock(), false
		}
		if !due {
			q.idle[g.ID] = idle
			continue
		}
		released, e := grants.ReleaseIdle(n, g.ID, idle.stamp)
		if e != nil { // the next pass tries again
			q.idle[g.ID], err = idle, errors.Join(err, e)
		}
		if released {
			node.RecordUser(n, "idle", g.User, g.ID, nil)
			over = append(over, g)
		}
	}
	return over, errors.Join(err, limits.err())
}

// idleLimit is how long a user's grants may be idle; 0: for ever.
type idleLimit struct {
	after   time.Duration
	unknown bool
}

// idleLimits are those of the users, each read once, without waiting for a directory service.
type idleLimits struct {
	quotas []grant.Quota
	of     map[uint32]idleLimit
	failed int // for how many users
	why    error
}

func (l *idleLimits) get(uid uint32) idleLimit {
	limit, known := l.of[uid]
	if known {
		return limit
	}
	q, err := users.KnownQuotaOf(l.quotas, uid)
	switch {
	case err != nil:
		limit.unknown = true
		if !errors.Is(err, users.ErrNotYet) { // else a later pass knows it
			if l.failed++; l.why == nil {
				l.why = err
			}
		}
	case q != nil:
		limit.after = q.MaxIdle()
	}
	l.of[uid] = limit
	return limit
}

// err is one error for all users.
func (l *idleLimits) err() error {
	if l.failed == 0 {
		return nil
	}
	return fmt.Errorf("cannot release idle grants of users whose quotas are not known (%d users): %w",
		l.failed, l.why)
}
