package watch

import (
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Status is what the watch found last, for the metrics and the page.
type Status struct {
	Comparison
	Failure string // why there is nothing newer; "" if the last sample was taken
	Samples uint64
	Events  map[grant.FindingKind]uint64
	XIDs    map[XID]uint64
	Stopped map[grant.FindingKind]uint64 // containers
	Changes map[string]uint64            // of the ledger, by operation, as this daemon saw them
	History []HistorySample              // the last minute, oldest first
}

// HistorySample is one sample of the past.
type HistorySample struct {
	Taken time.Time
	GPUs  map[string]MemoryLevel // by UUID
}

// MemoryLevel is how much of a GPU was used and granted.
type MemoryLevel struct{ Used, Granted, Total grant.Bytes }

// How much history is kept: for how long, and how many samples at most.
const (
	historyTime = time.Minute
	maxHistory  = 120
)

// AddHistory adds a report to the history. It removes what is older than the history's time, and
// what is of a later time than the report: the clock was set back since.
func (s *Status) AddHistory(r Comparison, grants []grant.Grant) {
	m := HistorySample{Taken: r.Taken, GPUs: map[string]MemoryLevel{}}
	for _, g := range r.GPUs {
		m.GPUs[g.UUID] = MemoryLevel{Used: g.Used, Total: g.Total}
	}
	for _, g := range grants {
		for _, share := range g.GPUs {
			if level, found := m.GPUs[share.UUID]; found {
				level.Granted += share.Memory
				m.GPUs[share.UUID] = level
			}
		}
	}
	s.History = slices.DeleteFunc(s.History, func(h HistorySample) bool {
		age := r.Taken.Sub(h.Taken)
		return age < 0 || age > historyTime
	})
	// too soon to be drawn
	if n := len(s.History); n > 0 && r.Taken.Sub(s.History[n-1].Taken) < historyTime/maxHistory {
		return
	}
	s.History = append(s.History, m)
	s.History = s.History[max(0, len(s.History)-maxHistory):]
}
