package sim

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// checkQuotas: no user has more than the quota.
func checkQuotas(v grant.View) string {
	for user, most := range limitsOf {
		var memory grant.Bytes
		gpus, count := 0, 0
		for _, g := range v.Grants {
			if g.User == user && g.Live(v.Now) {
				memory, gpus, count = memory+g.Memory(), gpus+len(g.GPUs), count+1
			}
		}
		if most.memory > 0 && memory > most.memory || most.gpus > 0 && gpus > most.gpus ||
			most.grants > 0 && count > most.grants {
			return fmt.Sprintf("user %d has %s on %d GPUs in %d grants, which is more than the quota", user,
				memory, gpus, count)
		}
	}
	return ""
}

// checkSecrets: a request has one grant, however often it was sent, and none once it was refused.
func (l *life) checkSecrets(v grant.View) {
	for _, r := range l.requests {
		count, hash := 0, ""
		for _, g := range v.Grants {
			if g.Label == r.Ask.Label && g.Live(l.now) && len(g.Bindings) == 0 && !g.Draining {
				count, hash = count+1, string(g.ID)
			}
		}
		switch {
		case count > 1:
			l.fail("%s has %d grants", r.Ask.Label, count)
		case count > 0 && r.state == refused && l.rates.fault == 0 && !l.calm:
			l.fail("%s was refused, and has grant %s", r.Ask.Label, hash)
		}
	}
}

// refusedFinally: an end is final. Where no disk fails, a request that ended without a grant has
// none.
func (l *life) refusedFinally(r *userAsk) {
	if l.faults {
		return
	}
	for _, g := range l.inside().Grants {
		if g.Label == r.Ask.Label && !g.Draining && len(g.Bindings) == 0 && g.Live(l.now) {
			l.fail("%s has ended without a grant, and has %s", r.Ask.Label, g.ID)
		}
	}
}

// checkTurns looks at who was served since the last step. What is served is not in the queue any
// more, while its thread has not looked yet.
func (l *life) checkTurns(v grant.View) {
	if l.daemon == nil {
		return
	}
	defer func() { l.clockSet = false }()
	var waiting, served []*userAsk
	for _, r := range l.requests {
		if r.waiter == nil {
			continue
		}
		if place, _ := l.daemon.queue.Place(r.waiter); place > 0 {
			waiting = append(waiting, r)
		} else if r.number != 0 && r.state == asking && !r.over {
			served = append(served, r)
		}
	}
	for _, r := range served {
		for _, other := range waiting {
			if other.User != r.User {
				other.passed[r.User]++
			} else if other.number < r.number && other.Since.Before(r.Since) {
				l.fail("%s was served before %s of the same user", r.Ask.Label, other.Ask.Label)
			}
		}
		r.number = 0 // counted
	}
	for _, r := range waiting {
		// If its user was served, too, it may be the first one only since then. If the clock was
		// set, it may fit only since then.
		own := func(o *userAsk) bool { return o.User == r.User }
		if l.clockSet || slices.ContainsFunc(served, own) || !l.isFirst(r, waiting) || !l.fits(r, v) {
			clear(r.passed)
		}
		for user, times := range r.passed {
			if times > 1 {
				l.fail("user %d was served %d times while %s of user %d could be", user, times, r.Ask.Label,
					r.User)
			}
		}
	}
}

// isFirst reports whether a request is the next one of its user.
func (l *life) isFirst(r *userAsk, waiting []*userAsk) bool {
	return !slices.ContainsFunc(waiting, func(o *userAsk) bool {
		return o.User == r.User && o != r && !r.Since.Before(o.Since)
	})
}

// fits reports whether a request could be granted now.
func (l *life) fits(r *userAsk, v grant.View) bool {
	inv, problem := l.eyes.Inventory()
	ask, err := userqueue.InQuota(l.eyes, r.Ask)
	if err != nil || problem != nil {
		return false
	}
	_, err = admission.Place(ask, "", v, inv, l.eyes.Policy)
	return err == nil
}

// settleUsers: without faults, what fits is granted.
func (l *life) settleUsers() {
	l.goneDaemon() // if it was told to end before
	l.startDaemon()
	for _, r := range l.requests {
		if r.state == cut {
			l.send(r)
		}
	}
	l.passes()
	v := l.view()
	for _, r := range l.requests {
		if r.state == asking && r.waiter != nil && l.firstOf(r) && l.fits(r, v) {
			l.fail("%s waits, and could be granted", r.Ask.Label)
		}
	}
}

func (l *life) firstOf(r *userAsk) bool {
	var waiting []*userAsk
	for _, o := range l.requests {
		if o.state == asking && o.waiter != nil {
			waiting = append(waiting, o)
		}
	}
	return l.isFirst(r, waiting)
}

// passes are two passes of the daemon, one after the other.
func (l *life) passes() {
	for range 2 {
		l.drain()
		l.pass()
		l.drain()
	}
}

// serveAll: when grants end one after the other, each request that waits gets its own.
func (l *life) serveAll() {
	for range len(l.requests) + 2 {
		l.passes()
		if !slices.ContainsFunc(l.requests, func(r *userAsk) bool { return r.state == asking }) {
			return
		}
		for _, g := range l.view().Grants {
			_ = l.one("end", func(n *node.Node) error {
				_, err := grants.Release(n, g.ID, false)
				return err
			})
		}
	}
	for _, r := range l.requests {
		if r.state == asking {
			l.fail("%s waits for ever, and everything is free", r.Ask.Label)
		}
	}
}

// checkIdle: what nobody uses is released once its time is over.
func (l *life) checkIdle() {
	l.passes()
	l.awake += keep * 10
	l.passes()
	for _, g := range l.view().Grants {
		if g.Source == grant.ByUser && limitsOf[g.User].idle > 0 && len(g.Bindings) == 0 && g.Live(l.now) {
			l.fail("grant %s of user %d is idle, and was not released", g.ID, g.User)
		}
	}
}
