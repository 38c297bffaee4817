package userserver

import (
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// releaseIdle releases what nothing used for as long as the users' quotas say.
func (s *Server) releaseIdle(n *node.Node, clock func() time.Time) error {
	over, err := s.queue.ReleaseIdle(n, s.Ledger, clock,
		func(inv grant.Inventory, g grant.Grant, due bool) bool { return s.opened.by(n, inv, g, clock, due) })
	for _, g := range over {
		s.Log.WithFields(logrus.Fields{"grant": g.ID, "user": g.User}).Info("nothing used a user's grant " +
			"for too long; it is released")
	}
	return err
}

// openNodes has the users whose processes have a GPU's device node open, by GPU.
type openNodes struct {
	// open is watch.OpenGPUs; nil: it is
	open  func(host.Host, map[uint64]string) (map[string][]grant.Process, []int)
	nodes func(grant.Inventory) map[uint64]string // nil: watch.GPUDevices
	users map[string][]uint32
	read  time.Time // when they were read last
	next  time.Time // when they are read again, unless a grant is due before
}

// lookAge is how old a look may be that says of a grant that is due that nothing uses it: many may
// be due at once, and a look takes long on a node with many processes.
const lookAge = time.Second

// by reports whether a process of the grant's user has the node of one of the grant's GPUs open, on
// a node where grants open them. So a grant is in use without a container that gpuledger knows: by
// a rootless container, or by a program. If a grant is due for its release, the answer is not older
// than lookAge.
func (a *openNodes) by(n *node.Node, inv grant.Inventory, g grant.Grant, clock func() time.Time,
	due bool) bool {
	if n.Policy.Enforcement.UserNodes != grant.UserNodesACL {
		return false
	}
	if now := clock(); !now.Before(a.next) || due && now.Sub(a.read) >= lookAge {
		began := time.Now()
		a.look(n, inv)
		a.read, a.next = now, now.Add(watch.OpenRest(time.Since(began)))
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
	add := func(uuid string, pid int) {
		if user, err := n.Host.UserOf(pid); err == nil {
			a.users[uuid] = append(a.users[uuid], user)
		}
	}
	gpus := nodes(inv)
	find := a.open
	if find == nil {
		find = watch.OpenGPUs
	}
	open, unread := find(n.Host, gpus)
	for uuid, processes := range open {
		for _, p := range processes {
			add(uuid, p.PID)
		}
	}
	for _, uuid := range gpus { // a process with very many open files may have any
		for _, pid := range unread {
			add(uuid, pid)
		}
	}
}
