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
// anew after a restart of the daemon. The clock is asked after a grant was looked at, never before:
// a daemon that stands still in between must not count that time. It is called by one goroutine.
func (q *Queue) ReleaseIdle(n *node.Node, read Reader, clock func() time.Time, opened Opened,
) (over []grant.Grant, err error) {
	last := q.idle
	q.idle = map[grant.ID]idleness{}
	if !slices.ContainsFunc(n.Policy.Quotas, func(q grant.Quota) bool { return q.Idle != "" }) {
		return nil, nil
	}
	o, err := read(n)
	if err != nil {
		return nil, err
	}
	quotas := map[uint32]*grant.Quota{}
	for _, g := range o.Grants {
		if g.Source != grant.ByUser || len(g.Bindings) > 0 {
			continue
		}
		limit, known := quotas[g.User]
		if !known {
			var e error
			if limit, e = users.QuotaOf(n.Policy.Quotas, g.User); e != nil { // its time begins anew
				err = errors.Join(err, fmt.Errorf("cannot release idle grants of user %d: %w", g.User, e))
			}
			quotas[g.User] = limit
		}
		if limit == nil || limit.MaxIdle() == 0 {
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
		due := now.Sub(idle.since) >= limit.MaxIdle()
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
	return over, err
}
