package limits

import (
	"sync/atomic"
	"time"
)

// Share is the percent of each device's time that the grant's launches pass for, 0 where nothing is
// throttled.
func (l *Limits) Share() int { return int(atomic.LoadUint64(&l.record.Device[0].Share)) }

// SetGate opens the gate before launches on a device for the first part of each period; both are of
// whole microseconds. Launches see it at once, those that wait within a tenth of a second.
func (l *Limits) SetGate(uuid string, open, period time.Duration) error {
	d, err := l.device(uuid)
	if err != nil {
		return err
	}
	atomic.StoreUint64(&d.Gate, gateWord(open, period))
	return nil
}

// Beat tells the shim that somebody looks after the gates: it goes by them for ten seconds, and by
// the share alone after that.
func (l *Limits) Beat() { atomic.AddUint64(&l.record.Beat, 1) }

// gateWord is RECORD_GATE.
func gateWord(open, period time.Duration) uint64 {
	return uint64(period.Microseconds())<<32 | uint64(uint32(open.Microseconds()))
}
