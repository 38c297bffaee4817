package auditlog

import (
	"slices"
	"time"
)

// LatencyBounds are the upper bounds of the buckets of Latency.
var LatencyBounds = []time.Duration{250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond,
	2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	250 * time.Millisecond, time.Second, 10 * time.Second}

// Latency is how long decisions took. A decision longer than the last bound is in no bucket.
type Latency struct {
	Count   uint64
	Sum     time.Duration
	Buckets [12]uint64 // one for each of LatencyBounds
}

// maxTook is the longest duration that a line may claim, in milliseconds. No engine waits longer
// for a create.
const maxTook = 3600_000

func (l *Latency) add(milliseconds float64) {
	took := time.Duration(min(milliseconds, maxTook) * float64(time.Millisecond))
	l.Count++
	l.Sum += took
	if i, _ := slices.BinarySearch(LatencyBounds, took); i < len(l.Buckets) {
		l.Buckets[i]++
	}
}
