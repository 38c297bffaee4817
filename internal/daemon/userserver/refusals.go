package userserver

import (
	"net/http"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// How many refusals of one user the audit log has in how long a time: one user must not push
// everything else out of it. The others are counted, and recorded as one when the time is over.
const (
	maxRecorded = 4
	recordTime  = time.Minute
)

// withoutQuota stands for all users without a quota, and those without a name whose quota cannot be
// known: they are refused whatever they ask for, and one user has thousands of uids.
const withoutQuota = 1<<32 - 1

// refusals counts the refusals of each user. The zero value has none.
type refusals struct {
	mu sync.Mutex
	of map[uint32]*counter
}

// counter is how often a user was refused since the first refusal that was recorded.
type counter struct {
	since time.Time
	times int
}

// add counts a refusal of a user, and reports whether it is recorded.
func (r *refusals) add(uid uint32, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[uint32]*counter{}
	}
	own := r.of[uid]
	if own == nil {
		own = &counter{since: now}
		r.of[uid] = own
	}
	own.times++
	return own.times <= maxRecorded
}

// over removes the counters whose time is over, and returns them by user.
func (r *refusals) over(now time.Time) map[uint32]counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	over := map[uint32]counter{}
	for uid, c := range r.of {
		if now.Sub(c.since) >= recordTime {
			over[uid] = *c
			delete(r.of, uid)
		}
	}
	return over
}

// refuse answers that the user is refused, and records it.
func (s *Server) refuse(w http.ResponseWriter, n *node.Node, p peer, why error) {
	s.refused(n, p, why)
	fail(w, http.StatusOK, why)
}

// refused records that a user was refused.
func (s *Server) refused(n *node.Node, p peer, why error) {
	now := time.Now()
	s.recordMore(n, now)
	account := p.uid
	if q, err := users.QuotaOf(n.Policy.Quotas, p.uid); q == nil && (err == nil || !isNamed(p.uid)) {
		account = withoutQuota
	}
	if p.root || s.refusals.add(account, now) {
		node.RecordUser(n, "refused", p.uid, "", why)
	}
}

func isNamed(uid uint32) bool {
	named, _ := users.IsNamedHere(uid)
	return named
}

// recordMore records how many refusals were not recorded, where the time is over.
func (s *Server) recordMore(n *node.Node, now time.Time) {
	for uid, c := range s.refusals.over(now) {
		if more := c.times - maxRecorded; more > 0 {
			node.RecordMore(n, uid, uid != withoutQuota, more, c.since)
		}
	}
}
