package campaign

import (
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// forgery is how a container says that it may have a GPU that it may not have.
type forgery string

const (
	allGPUs     forgery = "all GPUs"
	unknownID   forgery = "the id of no grant"
	wrongSecret forgery = "a wrong secret of a free grant"
	inUse       forgery = "the reference of a living container"
	expired     forgery = "an expired reference"
)

// forgeries are all of them, with the code by which the container is refused.
var forgeries = map[forgery]grant.Code{allGPUs: grant.VisibleDevicesAll, unknownID: grant.GrantNotFound,
	wrongSecret: grant.GrantNotFound, inUse: grant.GrantInUse, expired: grant.GrantExpired}

// forge returns the reference that the container of a forged wish says, and its owner, whom nothing
// ends until done is called. It changes the wish where that cannot be forged now.
func (w *worker) forge(s *slot, f *forgery) (said string, owner *slot, done func()) {
	if *f == inUse {
		if owner = w.inUse(s); owner != nil {
			return referenceOf(owner), owner, owner.mu.Unlock
		}
		*f = unknownID
	}
	if *f == expired && w.jumps { // a clock that is set back has it valid again
		*f = wrongSecret
	}
	switch *f {
	case unknownID:
		said = "g-aaaaaaaaaaaa." + strings.Repeat("0123456789abcdef", 2)
	case wrongSecret:
		said = w.otherSecret(referenceOf(s))
	case expired:
		said = referenceOf(s)
		time.Sleep(expiresIn)
	}
	return said, nil, func() {}
}

// expiresIn is the time of a grant that expires before its container is created.
const expiresIn = time.Second

// otherSecret changes one digit of a reference's secret.
func (w *worker) otherSecret(reference string) string {
	at := strings.Index(reference, ".") + 1
	at += w.random.IntN(len(reference) - at)
	digit := byte('0')
	if reference[at] == digit {
		digit = '1'
	}
	return reference[:at] + string(digit) + reference[at+1:]
}

// inUse finds another container that lives with a reference, and locks its slot.
func (w *worker) inUse(s *slot) *slot {
	for _, at := range w.random.Perm(len(w.workers) * slotsEach) {
		other := w.workers[at/slotsEach].slots[at%slotsEach]
		if other == s || !other.mu.TryLock() {
			continue
		}
		over := other.ends && other.jumped
		if other.live && referenceOf(other) != "" && !over && len(other.processes()) > 0 {
			return other
		}
		other.mu.Unlock()
	}
	return nil
}

// refused judges the create of a forged container. It reports whether that lives.
func (w *worker) refused(s *slot, r rig.Result) bool {
	f, code := s.wish.forges, forgeries[s.wish.forges]
	switch {
	case r.Code == 0 && s.owner != nil && len(s.owner.processes()) == 0: // its grant was free by then
		return false
	case r.Code == 0:
		w.violation("container %s of %s says %s and was created", s.id, w.engine.name, f)
		return true
	case strings.Contains(r.Stderr, "refused ("+string(code)+")"):
		w.counts.refuse(string(f))
	case w.faulty == "" && !w.engineFaulty():
		w.violation("container %s of %s says %s and was not refused as %s: %+v", s.id, w.engine.name, f,
			code, r)
	}
	return false
}
