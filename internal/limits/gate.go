package limits

import (
	"sync/atomic"
	"time"
)

// Share is the percent of each device's time for which launches of the grant pass. 0: nothing is
// throttled.
func (l *Limits) Share() int { return int(atomic.LoadUint64(&l.record.Device[0].Share)) }

// SetGate opens the gate for launches on a device during the first part of each period. Both
// durations are whole microseconds. Launches read the gate within a millisecond, and those that
// wait within a tenth of a second.
func (l *Limits) SetGate(uuid string, open, period time.Duration) error {
	d, err := l.device(uuid)
	if err != nil {
		return err
	}
	atomic.StoreUint64(&d.Gate, gateWord(open, period))
	return nil
}

// Beat increments the counter by which the shim knows that a daemon sets the gates. The shim obeys
// a gate for ten seconds after the last beat, and then uses the share alone.
func (l *Limits) Beat() { atomic.AddUint64(&l.record.Beat, 1) }

// gateWord is RECORD_GATE of shim/record.h: the period in the high 32 bits, the open part in the
// low ones, in microseconds.
func gateWord(open, period time.Duration) uint64 {
	return uint64(period.Microseconds())<<32 | uint64(uint32(open.Microseconds()))
}
