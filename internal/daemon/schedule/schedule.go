// Package schedule says when periodic work is due again, so that gpuledgerd uses little of a core.
package schedule

import (
	"time"

	"golang.org/x/sys/unix"
)

// restFactor keeps a manager below one percent of a core, and off the ledger's lock: after work of
// one second it rests a hundred. mostPeriods bounds that. CPUTime counts what the program does for
// its clients meanwhile, too, and they could put the work off for hours. Work that takes as long as
// that begins again after leastFactor times what it cost.
const restFactor, mostPeriods, leastFactor = 100, 10, 2

// Next is when periodic work is due again that began at a time and took so much processor time.
func Next(began time.Time, every, cost time.Duration) time.Time {
	return began.Add(max(every, min(restFactor*cost, mostPeriods*every), leastFactor*cost))
}

// CPUTime is the processor time of this program so far. On a busy machine the time that passes says
// little about the cost of work.
func CPUTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
