package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// quotas are those of the users 1001, 1002 and 1003.
const quotas = `
[[quota]]
user = "1001"
memory = "12GiB"
gpus = 3
modes = ["limit", "timeslice"]
ttl = "20h"
idle = "9h"
[[quota]]
user = "1002"
memory = "8GiB"
grants = 2
modes = ["limit", "exclusive"]
[[quota]]
user = "1003"
gpus = 2
modes = ["limit", "timeslice", "exclusive"]
idle = "30h"
`

// limitsOf are the same quotas as numbers, for the invariants. 0: no bound.
var limitsOf = map[uint32]struct {
	memory       grant.Bytes
	gpus, grants int
	modes        []grant.Mode
	ttl, idle    time.Duration
}{
	1001: {memory: 12 * grant.GiB, gpus: 3, modes: []grant.Mode{grant.Limit, grant.Timeslice},
		ttl: 20 * time.Hour, idle: 9 * time.Hour},
	1002: {memory: 8 * grant.GiB, grants: 2, modes: []grant.Mode{grant.Limit, grant.Exclusive}},
	1003: {gpus: 2, modes: []grant.Mode{grant.Limit, grant.Timeslice, grant.Exclusive}, idle: 30 * time.Hour},
}

// userAsk is what a user has asked gpuledgerd for, with the client that waits for the answer.
type userAsk struct {
	userqueue.Request
	state  requestState
	waiter *userqueue.Waiter // while it is in the queue
	number int               // of its entry into the queue, in their order
	over   bool              // the time that it waits is over
	seen   int               // the number with which it was seen to wait
	passed map[uint32]int    // how often others were served while it could have been (fairness.go)
}

// requestState is what the client of a request knows.
type requestState int

const (
	asking    requestState = iota // a thread of the daemon serves it
	cut                           // the connection is gone: the client asks again
	left                          // the client is gone, and the thread has not noticed yet
	granted                       // answered
	refused                       // answered: it is not granted
	unsettled                     // the client is gone, or does not ask again after a lost answer
)

func (s requestState) open() bool { return s == asking || s == cut || s == left }

// users are those of the node, with what they have asked for.
type users struct {
	*world
	containers *containers
	holdings   *holdings
	requests   []*userAsk
	entries    int // into the queue
}

// ask has a user ask for a grant, or for one of many small ones, for which users wait together.
func (u *users) ask(small bool) {
	if u.daemon == nil || u.daemon.ending {
		return
	}
	random := u.Random()
	r := &userAsk{passed: map[uint32]int{}}
	r.User, r.Since = 1001+uint32(u.random.IntN(3)), u.now.Add(-time.Duration(u.random.IntN(3))*time.Minute)
	r.Waits = u.random.IntN(3) > 0
	r.Ask = admission.Ask{Owner: grant.Bearer, Source: grant.ByUser, User: r.User,
		Label: fmt.Sprintf("ask-%d", len(u.requests)), Secret: grant.NewSecret(random),
		GPUs: 1 + u.random.IntN(min(2, u.gpus)), Mode: []grant.Mode{grant.Limit, grant.Limit, grant.Limit,
			grant.Timeslice, grant.Exclusive}[u.random.IntN(5)]}
	if r.Ask.Mode != grant.Exclusive {
		r.Ask.Memory = grant.Bytes(1+u.random.IntN(3)*u.random.IntN(4)) * grant.GiB * grant.Bytes(r.Ask.GPUs)
	}
	if u.random.IntN(3) == 0 {
		r.Ask.TTL = time.Duration(1+u.random.IntN(30)) * time.Hour
	}
	if small {
		r.Waits, r.Ask.Mode, r.Ask.GPUs, r.Ask.Memory = true, grant.Limit, 1, grant.GiB
	}
	u.requests = append(u.requests, r)
	u.send(r)
}

// send has a thread of the daemon serve a request.
func (u *users) send(r *userAsk) {
	r.state = asking
	u.thread(fmt.Sprintf("%s of %d", r.Ask.Label, r.User),
		func(p *process, n *node.Node) { u.serve(p, n, r) })
}

// serve is what package userserver does about a request for a grant.
func (u *users) serve(p *process, n *node.Node, r *userAsk) {
	d := p.of
	g, waiter, err := d.queue.GrantOrWait(func() *node.Node { return n }, grants.Read, r.Request)
	if waiter == nil {
		u.report(u.checkUngranted(p, r.Ask, nil, err))
	} else {
		u.entries++
		r.waiter, r.number = waiter, u.entries
		u.trace("%s waits", p.name)
		out := u.await(p, n, r)
		r.waiter = nil
		switch {
		case out != nil:
			if g, err = out.Grant, out.Err; err == nil {
				u.happened[grantsOfQueue]++
			}
		case r.state == left || d.ending:
			u.clientless(r, p)
			return
		}
	}
	u.trace("%s: %v", p.name, err)
	u.pause()
	switch {
	case err == nil && (r.state == left || d.ending):
		userqueue.TakeBack(n, r.User, g.ID)
		u.clientless(r, p)
	case r.state == left:
		u.clientless(r, p)
	case err == nil:
		u.holds(r, g)
	case !d.ending:
		r.state = refused
		u.report(u.checkEnded(r))
	}
}

// await waits in the queue, and returns what came of it; nil: nothing.
func (u *users) await(p *process, n *node.Node, r *userAsk) *userqueue.Outcome {
	d, w := p.of, r.waiter
	for {
		p.blocked = func() bool { return len(w.Woken()) == 0 && !r.over && r.state == asking && !d.ending }
		u.pause()
		p.blocked = nil
		if r.over || r.state == left || d.ending {
			r.number = 0 // if it is not in the queue any more, it has left it
		}
		switch {
		case r.state == left || d.ending:
			out := d.queue.Leave(w)
			if out != nil && out.Err == nil && !d.ending {
				userqueue.TakeBack(n, r.User, out.Grant.ID)
			}
			return nil
		case r.over:
			return d.queue.Leave(w)
		}
		select {
		case <-w.Woken():
		default:
		}
		if place, _ := d.queue.Place(w); place == 0 {
			return d.queue.Leave(w)
		}
	}
}

// clientless is the end of a thread whose client is gone or was cut off.
func (u *users) clientless(r *userAsk, p *process) {
	u.trace("%s has no client any more", p.name)
	if r.state == left {
		r.state = unsettled
		if !p.of.ending { // it takes nothing back then: clients ask the next gpuledgerd again
			u.report(u.checkEnded(r))
		}
	}
}

// holds: the client has the answer, and a grant. It may have been entered long before: a lost
// answer is asked for again.
func (u *users) holds(r *userAsk, g grant.Grant) {
	r.state = granted
	u.acknowledged(g, cmp.Or(r.Ask.TTL, limitsOf[r.User].ttl))
	u.holdings.list = append(u.holdings.list, &holding{label: r.Ask.Label, id: g.ID, user: r.User,
		acked: true, over: u.holdings.closing, expires: g.Expires,
		reference: grant.Reference{ID: g.ID, Secret: r.Ask.Secret}, possible: []grant.Bytes{g.Memory()}})
}

// powerCut: the clients are on this node.
func (u *users) powerCut() {
	for _, r := range u.requests {
		if r.waiter = nil; r.state.open() {
			r.state = unsettled
		}
	}
}

// cutOff: the daemon has ended, and with it all connections. Who does not wait does not ask again.
func (u *users) cutOff() {
	for _, r := range u.requests {
		if r.waiter = nil; r.state == asking && r.Waits {
			r.state = cut
		} else if r.state.open() && r.state != cut {
			r.state = unsettled
		}
	}
}

// clients is what clients do: ask again after the daemon was started again, give up, or go away.
func (u *users) clients() {
	var open []*userAsk
	for _, r := range u.requests {
		if r.state.open() {
			open = append(open, r)
		}
	}
	if len(open) == 0 {
		return
	}
	switch r := open[u.random.IntN(len(open))]; {
	case r.state == cut && u.daemon != nil && !u.daemon.ending:
		u.send(r)
	case r.state == cut && u.random.IntN(3) == 0:
		r.state = unsettled
	case r.state == asking && r.waiter != nil && u.random.IntN(3) == 0:
		u.trace("the time of %s is over", r.Ask.Label)
		r.over = true
	case r.state == asking && u.random.IntN(4) == 0:
		u.trace("the client of %s goes away", r.Ask.Label)
		r.state = left
	}
}

// releaseOf has a user release a grant, which may be another's.
func (u *users) releaseOf() {
	h := u.holdings.pick()
	if h == nil || u.daemon == nil || u.daemon.ending {
		return
	}
	user := h.user
	if u.random.IntN(4) == 0 {
		user = 1001 + uint32(u.random.IntN(3))
	}
	own := h.user == user && user != 0
	if own {
		h.busy, h.over = true, true
	}
	d := u.daemon
	u.thread(fmt.Sprintf("release by %d", user), func(p *process, n *node.Node) {
		_, err := grants.ReleaseOf(n, h.id, user)
		switch {
		case own:
			h.answered(p, err)
		case err == nil:
			u.fail("user %d has released grant %s of user %d", user, h.id, h.user)
		}
		d.queue.Poke()
	})
}

// pass is a pass of the daemon's managers for users. There is one at a time.
func (u *users) pass() {
	d := u.daemon
	if d == nil || d.passing || d.ending {
		return
	}
	d.passing = true
	u.thread("pass", func(_ *process, n *node.Node) {
		_ = d.queue.Pass(n, grants.Read)
		u.releaseIdle(n)
		if !u.calm && u.random.IntN(3) == 0 {
			u.clock(u.now.Add(31 * time.Hour)) // longer than any grant may be idle
			u.releaseIdle(n)
		}
		d.passing = false
	})
}

// releaseIdle is the part of a pass that releases what nothing uses.
func (u *users) releaseIdle(n *node.Node) {
	clock := func() time.Time { return epoch.Add(u.awake) }
	looked := map[grant.ID]time.Duration{}
	over, _ := u.daemon.queue.ReleaseIdle(n, grants.Read, clock,
		func(_ grant.Inventory, g grant.Grant, due bool) bool {
			if looked[g.ID] = u.awake; due {
				u.lastMoment(g.ID)
			}
			return false
		})
	u.happened[releasesIdle] += len(over)
	for _, g := range over {
		after, idle := looked[g.ID]-u.used[g.ID], limitsOf[g.User].idle
		if idle == 0 || after < idle {
			u.fail("grant %s of user %d was released as idle after %s, the quota says %s (0s: never)", g.ID,
				g.User, after, idle)
		}
	}
	for _, h := range u.holdings.list {
		if slices.ContainsFunc(over, func(g grant.Grant) bool { return g.ID == h.id }) {
			h.over, h.released = true, true
		}
	}
}

// lastMoment is when gpuledgerd has found that nothing uses a grant, and has not released it yet: a
// container may take it.
func (u *users) lastMoment(id grant.ID) {
	h := u.holdings.of(id)
	u.holdings.tried[id] = true
	if h == nil || !h.acked || h.busy || h.over || u.random.IntN(2) == 0 {
		return
	}
	u.containers.start(u.random.IntN(names), grant.Containerd, h.annotations())
	for range u.random.IntN(60) {
		u.pause()
	}
}
