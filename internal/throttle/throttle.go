// Package throttle decides how wide the gate before a grant's launches is, so that the grant has
// its share of a GPU's time. A launch is a call by which a program starts a CUDA kernel on the GPU.
// The gate itself is in the shim (shim/throttle.c): open for the first part of each period, for all
// processes of the grant at once.
//
// When a launch passes the gate, its cost is unknown, and a program may launch far ahead of the
// GPU. So the gate follows measurements of the GPU: it gets narrower while the grant has more than
// its share, and wider while it has less.
package throttle

import (
	"math"
	"time"
)

// Gate is open for the first part of each period.
type Gate struct{ Open, Period time.Duration }

// Constants that the shim uses, too (shim/record.h).
const (
	Period  = 20 * time.Millisecond // of the gate of a share, and about that of others
	Longest = 5 * time.Second       // the longest period of a gate: the longest wait of a launch
)

// minOpen is the shortest time for which a gate is open. A gate that should be open for less is
// open more rarely instead. A launch that has waited for the opening always passes, so this is for
// what programs launch at once: some forty launches.
const minOpen = 200 * time.Microsecond

// minDuty is the smallest part of the time for which a gate can be open.
const minDuty = float64(minOpen) / float64(Longest)

// ForShare is the gate of a share without measurements: open for its percent of the time.
func ForShare(share int) Gate { return Gate{Period * time.Duration(share) / 100, Period} }

// gateForDuty is open for a part of the time, in periods of that length if possible.
func gateForDuty(duty float64, period time.Duration) Gate {
	open := time.Duration(duty * float64(period))
	if open >= minOpen {
		return Gate{open, period}
	}
	return Gate{minOpen, min(time.Duration(float64(minOpen)/duty), Longest)}
}

// Controller moves the gate of one grant on one GPU. The zero value has no measurements yet.
type Controller struct {
	duty    float64 // the part of the time that the gate is open; 0: not set yet
	used    float64 // the part of the GPU's time that the grant has, over the last seconds
	updates int     // so far: says which of the periods is next

	aboveShare   bool          // the grant had more than its share, at the last measurement
	unchangedFor time.Duration // for how long aboveShare has been as it is
}

// periods take turns. Kernels that divide one period evenly would be in step with the gate, and get
// a quarter of the time, or half of it, and nothing in between.
var periods = [...]time.Duration{Period, Period * 23 / 20, Period * 29 / 20, Period * 17 / 20}

// How fast a loop moves, per second. A loop that is too fast swings: what it measures is a mean
// over a second, and the effect of a gate is seen after that. The numbers are from simulated GPUs
// (throttle_test.go), none from a real one.
const (
	averageTime = 1500 * time.Millisecond // of the mean of use; or two periods of the gate, if that is longer
	// relative change of the duty, if the grant has no time at all, or all
	gain       = 0.3
	minGap     = 0.15            // of the GPU's time: the smallest full error of a share
	maxRate    = 1.0             // relative change of the duty at most
	idleRate   = 0.1             // back to the share, while the grant is nearly idle
	idleShare  = 0.25            // of the share: a grant with less is nearly idle
	steadyTime = 4 * time.Second // a gate that is wrong in one direction for longer moves faster,
	maxSpeedUp = 5               // by this factor in the end
)

// Next is the gate after a measurement: the percent of the GPU's time that the grant had since the
// last one, and how long ago that was. The first measurement begins with the gate of the share. The
// gate stays between minDuty and always open, so that idling and overuse have no lasting effect.
func (l *Controller) Next(share, percent int, passed time.Duration) Gate {
	want, had := float64(share)/100, float64(percent)/100
	if l.duty == 0 {
		l.duty, l.used = want, want
		return ForShare(share)
	}
	if passed <= 0 {
		return gateForDuty(l.duty, Period)
	}
	passed = min(passed, Longest)
	span := max(averageTime, 2*gateForDuty(l.duty, Period).Period)
	l.used += (had - l.used) * (1 - math.Exp(-passed.Seconds()/span.Seconds()))
	// A share of 90 is as far from all of the GPU as one of 10 is from nothing.
	rate := gain * (want - l.used) / min(want, max(1-want, minGap)) * l.speedUp(l.used > want, passed)
	if l.used < idleShare*want {
		rate = min(max(math.Log(want/l.duty)/passed.Seconds(), -idleRate), gain)
	}
	rate = max(rate, -maxRate)
	l.duty = min(max(l.duty*math.Exp(rate*passed.Seconds()), minDuty), 1)
	l.updates++
	return gateForDuty(l.duty, periods[l.updates%len(periods)])
}

// speedUp is how much faster a gate moves that has been wrong in the same direction for long.
// Beside another grant that fills the GPU, a grant is never far from its share. If programs launch
// far ahead, the gate may have to be a hundred times as narrow before less comes through.
func (l *Controller) speedUp(wide bool, passed time.Duration) float64 {
	if wide != l.aboveShare {
		l.aboveShare, l.unchangedFor = wide, 0
	}
	l.unchangedFor += passed
	return min(max(1, l.unchangedFor.Seconds()/steadyTime.Seconds()), maxSpeedUp)
}
