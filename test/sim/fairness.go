package sim

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// checkQuotas: no user has more than the quota, in another mode, or for longer. That a grant was
// made when it says it was is checked where it is first seen (times.go).
func checkQuotas(v grant.View) string {
	for user, most := range limitsOf {
		var memory grant.Bytes
		gpus, count := 0, 0
		for _, g := range v.Grants {
			if g.User != user || !g.Live(v.Now) {
				continue
			}
			if !slices.Contains(most.modes, g.Mode) {
				return fmt.Sprintf("user %d has grant %s in mode %s, the quota is for %v", user, g.ID, g.Mode,
					most.modes)
			}
			forEver := g.Expires.IsZero()
			if lasts := g.Expires.Sub(g.Created); most.ttl > 0 && (forEver || lasts > most.ttl) {
				return fmt.Sprintf("user %d has grant %s for %s (for ever: %v), the quota is for %s", user,
					g.ID, lasts, forEver, most.ttl)
			}
			memory, gpus, count = memory+g.Memory(), gpus+len(g.GPUs), count+1
		}
		if most.memory > 0 && memory > most.memory || most.gpus > 0 && gpus > most.gpus ||
			most.grants > 0 && count > most.grants {
			return fmt.Sprintf("user %d has %s on %d GPUs in %d grants, which is more than the quota", user,
				memory, gpus, count)
		}
	}
	return ""
}

// checkSecrets: a request has one grant, however often it was sent, and, where the disk keeps what
// is written, none once it was refused.
func checkSecrets(v grant.View, requests []*userAsk, keeps bool) string {
	for _, r := range requests {
		count, hash := 0, ""
		for _, g := range v.Grants {
			if g.Label == r.Ask.Label && g.Live(v.Now) && len(g.Bindings) == 0 && !g.Draining {
				count, hash = count+1, string(g.ID)
			}
		}
		switch {
		case count > 1:
			return fmt.Sprintf("%s has %d grants", r.Ask.Label, count)
		case count > 0 && r.state == refused && keeps:
			return fmt.Sprintf("%s was refused, and has grant %s", r.Ask.Label, hash)
		}
	}
	return ""
}

// checkEnded: an end is final. Where no disk fails, a request that ended without a grant has none.
func (u *users) checkEnded(r *userAsk) string {
	if u.faults {
		return ""
	}
	for _, g := range u.inside().Grants {
		if g.Label == r.Ask.Label && !g.Draining && len(g.Bindings) == 0 && g.Live(u.now) {
			return fmt.Sprintf("%s has ended without a grant, and has %s", r.Ask.Label, g.ID)
		}
	}
	return ""
}

// checkTurns looks at who was served since the last step. What is served is not in the queue any
// more, while its thread has not looked yet.
func (u *users) checkTurns(v grant.View) {
	if u.daemon == nil {
		return
	}
	defer func() { u.clockSet, u.unread = false, false }()
	var waiting, served []*userAsk
	for _, r := range u.requests {
		if r.waiter == nil {
			continue
		}
		if place, _ := u.daemon.queue.Place(r.waiter); place > 0 {
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
				u.fail("%s was served before %s of the same user", r.Ask.Label, other.Ask.Label)
			}
		}
		r.number = 0 // counted
	}
	for _, r := range waiting {
		// What was served before it waited does not count. If its user was served, too, it may be
		// the first one only since then. If the clock was set, it may fit only since then. If a
		// grant could not be read, its GPUs were closed.
		own := func(o *userAsk) bool { return o.User == r.User }
		anew := r.seen != r.number
		r.seen = r.number
		if anew || u.clockSet || u.unread || slices.ContainsFunc(served, own) || !isFirst(r, waiting) ||
			!hasRoom(r.Ask, v, u.inventory) {
			clear(r.passed)
		}
		for user, times := range r.passed {
			if times > 1 {
				u.fail("user %d was served %d times while %s of user %d could be", user, times, r.Ask.Label,
					r.User)
			}
		}
	}
}

// isFirst reports whether a request is the next one of its user.
func isFirst(r *userAsk, waiting []*userAsk) bool {
	return !slices.ContainsFunc(waiting, func(o *userAsk) bool {
		return o.User == r.User && o != r && !r.Since.Before(o.Since)
	})
}

// checkServed: without faults, what fits is granted.
func (u *users) checkServed(v grant.View) string {
	var waiting []*userAsk
	for _, r := range u.requests {
		if r.state == asking && r.waiter != nil {
			waiting = append(waiting, r)
		}
	}
	for _, r := range waiting {
		if isFirst(r, waiting) && hasRoom(r.Ask, v, u.inventory) {
			return fmt.Sprintf("%s waits, and could be granted", r.Ask.Label)
		}
	}
	return ""
}
