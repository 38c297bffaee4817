package userserver

import (
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// releaseIdle releases grants that users asked for and that nothing used for as long as their
// quotas say. Whether a container uses one is what the kernel says now; the time is counted anew
// after a restart of the daemon.
func (s *Server) releaseIdle(n *node.Node, now time.Time) error {
	last := s.idle
	s.idle = map[string]time.Time{}
	if !slices.ContainsFunc(n.Policy.Quotas, func(q grant.Quota) bool { return q.Idle != "" }) {
		return nil
	}
	o, err := s.Ledger(n)
	if err != nil {
		return err
	}
	quotas := map[uint32]*grant.Quota{}
	for _, g := range o.Grants {
		if g.Source != grant.ByUser || len(g.Bindings) > 0 {
			continue
		}
		q, known := quotas[g.User]
		if !known {
			q = users.QuotaOf(n.Policy.Quotas, g.User)
			quotas[g.User] = q
		}
		if q == nil || q.MaxIdle() == 0 {
			continue
		}
		since, was := last[string(g.ID)]
		if !was {
			since = now
		}
		due := now.Sub(since) >= q.MaxIdle()
		if s.opened.by(n, o.Inventory, g, now, due) {
			s.idle[string(g.ID)] = now
			continue
		}
		if !due {
			s.idle[string(g.ID)] = since
			continue
		}
		released, err := grants.ReleaseIdle(n, g.ID)
		if err != nil {
			return err
		}
		if released {
			node.RecordUser(n, "idle", g.User, g.ID, nil)
			s.Log.WithFields(logrusFields(g)).Info("nothing used a user's grant for too long; it is released")
		}
	}
	return nil
}

func logrusFields(g grant.Grant) map[string]any {
	return map[string]any{"grant": g.ID, "user": g.User}
}

// openNodes has the users whose processes have a GPU's device node open, by GPU.
type openNodes struct {
	nodes func(grant.Inventory) map[uint64]string // nil: watch.GPUDevices
	users map[string][]uint32
	read  time.Time // of the pass in which they were read last
	next  time.Time // when they are read again, unless a grant is due before
}

// For how long the open files of the node's processes are not read again, and how many times as
// long as the last reading took. The watch reads them as seldom.
const (
	openEvery  = 5 * time.Second
	openFactor = 100
)

// by reports whether a process of the grant's user has the node of one of the grant's GPUs open, on
// a node where grants open them. So a grant is in use without a container that gpuledger knows: by
// a rootless container, or by a program. If a grant is due for its release, the answer is of this
// pass.
func (a *openNodes) by(n *node.Node, inv grant.Inventory, g grant.Grant, now time.Time, due bool) bool {
	if n.Policy.Enforcement.UserNodes != grant.UserNodesACL {
		return false
	}
	if !now.Before(a.next) || due && !a.read.Equal(now) {
		began := time.Now()
		a.look(n, inv)
		a.read, a.next = now, now.Add(max(openEvery, openFactor*time.Since(began)))
	}
	return slices.ContainsFunc(g.GPUs, func(share grant.Share) bool {
		d, known := inv.Device(share.UUID)
		return known && slices.Contains(a.users[d.GPU.UUID], g.User)
	})
}

// look reads who has nodes open. A process that has ended since has none.
func (a *openNodes) look(n *node.Node, inv grant.Inventory) {
	nodes := a.nodes
	if nodes == nil {
		nodes = watch.GPUDevices
	}
	a.users = map[string][]uint32{}
	for uuid, pids := range watch.OpenGPUs(n.Host, nodes(inv)) {
		for _, pid := range pids {
			if user, err := n.Host.UserOf(pid); err == nil {
				a.users[uuid] = append(a.users[uuid], user)
			}
		}
	}
}
