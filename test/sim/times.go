package sim

import (
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// times are when grants were made and used, as the observer saw it: what the product says of that
// is judged by them.
type times struct {
	// what the clock has shown since a process had the ledger's lock last
	from, to time.Time
	// when each grant was entered or had a container last, by the monotonic clock
	used map[grant.ID]time.Duration
	// of the grants that their holders know, unless they last for ever
	ends map[grant.ID]time.Time
}

// sawGrants notes which grants were entered and used since it was called last. It is called
// before the clock is set, and before a process gets the lock: so a new grant was entered by the
// process that had the lock last, while the clock showed from to to.
func (w *world) sawGrants(v grant.View) {
	for _, g := range v.Grants {
		_, seen := w.used[g.ID]
		if !seen && (g.Created.Before(w.from) || g.Created.After(w.to)) {
			w.fail("grant %s was entered between %s and %s, and says %s", g.ID, w.from, w.to, g.Created)
		}
		if !seen || len(g.Bindings) > 0 {
			w.used[g.ID] = w.awake
		}
	}
}

// acknowledged is when the holder of a grant knows it: it ends when it was asked to, or never
// where that is zero.
func (w *world) acknowledged(g grant.Grant, lasts time.Duration) {
	end := time.Time{}
	if lasts > 0 {
		end = g.Created.Add(lasts)
		w.ends[g.ID] = end
	}
	w.happened[grantsIn(g.Mode)]++
	if !g.Expires.Equal(end) {
		w.fail("grant %s ends at %s; it was made at %s for %s", g.ID, g.Expires, g.Created, lasts)
	}
}

// isOver reports whether the time of a grant is over, by what its holder has asked for.
func (w *world) isOver(id grant.ID, now time.Time) bool {
	end, ends := w.ends[id]
	return ends && !now.Before(end)
}

// checkEnds: a grant whose time is over counts only while a container uses it.
func (w *world) checkEnds(v grant.View) string {
	for _, g := range v.Grants {
		if w.isOver(g.ID, v.Now) && len(g.Bindings) == 0 && g.Live(v.Now) {
			return fmt.Sprintf("the time of grant %s was over at %s, and it counts", g.ID, w.ends[g.ID])
		}
	}
	return ""
}
