// Package throttle decides how wide the gate before a grant's launches is, so that the grant has its share of a GPU's time. The gate
// itself is the shim's (shim/throttle.c): open for the first part of each period, for all processes of the grant at once.
//
// What a launch will cost the GPU nobody knows when it passes, and a program may launch far ahead of the GPU. So the gate is moved by
// what the GPU was seen to do, from outside: narrower as long as the grant has more than its share, wider while it has less.
package throttle

import (
	"math"
	"time"
)

// Gate is open for the first part of each period.
type Gate struct{ Open, Period time.Duration }

// What the shim goes by, too (shim/record.h).
const (
	Period  = 20 * time.Millisecond // of a gate that is open for the share, and about that of others
	Longest = 5 * time.Second       // period of any gate: what a launch waits at most
)

// shortest is how long a gate is open in the least: what is open for less is open more seldom instead. Whoever has waited
// for the opening passes in any case, so this is for what programs launch at once: some forty launches.
const shortest = 200 * time.Microsecond

// narrowest is the least part of the time that a gate can be open.
const narrowest = float64(shortest) / float64(Longest)

// Of is the gate of a share that nobody looks after: percent of the time.
func Of(share int) Gate { return Gate{Period * time.Duration(share) / 100, Period} }

// gateOf is open for a part of the time, in periods of such a length as far as that goes.
func gateOf(duty float64, period time.Duration) Gate {
	open := time.Duration(duty * float64(period))
	if open >= shortest {
		return Gate{open, period}
	}
	return Gate{shortest, min(time.Duration(float64(shortest)/duty), Longest)}
}

// Loop moves the gate of one grant on one GPU. The zero value knows nothing yet.
type Loop struct {
	duty float64 // the part of the time that the gate is open; 0: not set yet
	used float64 // the part of the GPU's time that the grant has, over the last seconds
	look int     // which of the periods is next

	wide  bool          // the grant had more than its share at the last look
	since time.Duration // for how long that has been as it is
}

// periods take turns: kernels that divide one of them evenly would be in step with the gate, and have a quarter of the time, or a half,
// and nothing between.
var periods = [...]time.Duration{Period, Period * 23 / 20, Period * 29 / 20, Period * 17 / 20}

// How fast a loop moves, by a second. One that is too fast swings, because what it measures is a mean over a second and the effect of a
// gate is seen after it; the numbers are from simulated GPUs (throttle_test.go), none from a real one.
const (
	memory   = 1500 * time.Millisecond // over which use is a mean, or two periods of the gate where that is longer
	pull     = 0.3                     // change of the duty, as a part of it, where the grant has nothing of its share, or all of the GPU
	least    = 0.15                    // of the GPU's time: what a share can be off by in full, however near it is to all
	fastest  = 1.0                     // the same, whatever it has
	relax    = 0.1                     // back to the share, of a gate that is wider, while the grant is as good as idle
	idle     = 0.25                    // of the share: who has less is not held up by the gate
	patience = 4 * time.Second         // after which a gate that is still wrong in the same way moves faster,
	haste    = 5                       // by so much in the end
)

// Next is the gate after a look: what percent of the GPU's time the grant has had since the last one, which was so long ago. The first
// look begins with the gate of the share. The gate is held to narrowest and to always open, so that no time of idling or of overuse is
// saved up beyond that.
func (l *Loop) Next(share, percent int, passed time.Duration) Gate {
	want, had := float64(share)/100, float64(percent)/100
	if l.duty == 0 {
		l.duty, l.used = want, want
		return Of(share)
	}
	if passed <= 0 {
		return gateOf(l.duty, Period)
	}
	passed = min(passed, Longest)
	span := max(memory, 2*gateOf(l.duty, Period).Period)
	l.used += (had - l.used) * (1 - math.Exp(-passed.Seconds()/span.Seconds()))
	// A share of 90 is as far from all of the GPU as one of 10 is from nothing.
	rate := pull * (want - l.used) / min(want, max(1-want, least)) * l.hasten(l.used > want, passed)
	if l.used < idle*want {
		rate = min(max(math.Log(want/l.duty)/passed.Seconds(), -relax), pull)
	}
	rate = max(rate, -fastest)
	l.duty = min(max(l.duty*math.Exp(rate*passed.Seconds()), narrowest), 1)
	l.look++
	return gateOf(l.duty, periods[l.look%len(periods)])
}

// hasten is by how much faster a gate moves that has been wrong in the same way for long. Beside another that fills the GPU, too, a grant is never far
// from its share, and where programs launch far ahead its gate may have to be a hundred times as narrow before less comes through.
func (l *Loop) hasten(wide bool, passed time.Duration) float64 {
	if wide != l.wide {
		l.wide, l.since = wide, 0
	}
	l.since += passed
	return min(max(1, l.since.Seconds()/patience.Seconds()), haste)
}
