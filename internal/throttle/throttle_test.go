package throttle

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// program launches kernels that each run for this long, as far ahead of the GPU as it goes, with
// this much of its own work between two launches.
type program struct {
	kernel, work time.Duration
	ahead        int
}

// process is a program on a simulated GPU.
type process struct {
	program
	next time.Duration   // when it launches next
	ends []time.Duration // of its last kernels
	past bool            // it has waited at the gate
}

// gpu runs what is launched, one kernel after the other.
type gpu struct {
	free time.Duration         // when it has run all that was launched
	busy map[int]time.Duration // in each second
	gate Gate
}

// launch has the GPU run a kernel, and returns when it ends.
func (g *gpu) launch(now, kernel time.Duration) time.Duration {
	at := max(g.free, now)
	g.free = at + kernel
	for at < g.free {
		second := int(at / time.Second)
		until := min(g.free, time.Duration(second+1)*time.Second)
		g.busy[second] += until - at
		at = until
	}
	return g.free
}

// step launches, or waits for the gate as the shim does.
func (p *process) step(g *gpu) {
	at := p.next % g.gate.Period
	if !p.past && at >= g.gate.Open {
		p.next += g.gate.Period - at
		p.past = true
		return
	}
	p.past = false
	p.ends = append(p.ends, g.launch(p.next, p.kernel))
	p.next += 5*time.Microsecond + p.work
	if len(p.ends) > p.ahead {
		p.next = max(p.next, p.ends[0])
		p.ends = p.ends[1:]
	}
}

// simulate takes a sample each second, for this many seconds, and returns what percent of the GPU's
// time the programs had in each.
func simulate(share, seconds int, programs ...program) (percents []int) {
	g := &gpu{busy: map[int]time.Duration{}, gate: ForShare(share)}
	var all []*process
	for _, p := range programs {
		all = append(all, &process{program: p})
	}
	var loop Controller
	for second := range seconds {
		for {
			next := all[0]
			for _, p := range all {
				if p.next < next.next {
					next = p
				}
			}
			if next.next >= time.Duration(second+1)*time.Second {
				break
			}
			next.step(g)
		}
		percent := int(g.busy[second] * 100 / time.Second)
		percents = append(percents, percent)
		g.gate = loop.Next(share, percent, time.Second)
	}
	return percents
}

func mean(percents []int) float64 {
	sum := 0
	for _, p := range percents {
		sum += p
	}
	return float64(sum) / float64(len(percents))
}

// TestAGrantGetsItsShare: whatever is launched, and however far ahead, the grant has its share of
// the GPU's time on average, within the five points that a share may be off. From half a minute on:
// first the gate has to measure what a launch costs.
func TestAGrantGetsItsShare(t *testing.T) {
	times := func(n int, p program) (all []program) {
		for range n {
			all = append(all, p)
		}
		return all
	}
	for name, programs := range map[string][]program{
		"short kernels, one at a time":         {{kernel: 100 * time.Microsecond}},
		"kernels of 5 ms, one at a time":       {{kernel: 5 * time.Millisecond}},
		"kernels of 50 ms, one at a time":      {{kernel: 50 * time.Millisecond}},
		"kernels of 400 ms, one at a time":     {{kernel: 400 * time.Millisecond}},
		"short kernels, far ahead":             {{kernel: 100 * time.Microsecond, ahead: 1000}},
		"kernels of 1 ms, far ahead":           {{kernel: time.Millisecond, ahead: 1000}},
		"kernels of 10 ms, 30 ahead":           {{kernel: 10 * time.Millisecond, ahead: 30}},
		"eight processes":                      times(8, program{kernel: 300 * time.Microsecond, ahead: 2}),
		"eight processes with kernels of 5 ms": times(8, program{kernel: 5 * time.Millisecond}),
		"sixty-four processes":                 times(64, program{kernel: 200 * time.Microsecond}),
		"work between launches":                {{kernel: time.Millisecond, work: 100 * time.Microsecond}},
		"large and small":                      {{kernel: 30 * time.Millisecond}, {kernel: 50 * time.Microsecond, ahead: 100}},
	} {
		for _, share := range []int{5, 10, 30, 50, 70, 90} {
			t.Run(fmt.Sprintf("%s/%d%%", name, share), func(t *testing.T) {
				percents := simulate(share, 180, programs...)
				if got := mean(percents[30:]); math.Abs(got-float64(share)) > 5 {
					t.Errorf("it has %.1f%% of the time\n%v", got, percents)
				}
			})
		}
	}
}

// TestAProgramThatLaunchesFarAheadIsLimited: ten seconds of work in one launch are more than a gate
// can ration, because no launch waits for it longer than five seconds. Such a program has less than
// its share, or little more than the minimum.
func TestAProgramThatLaunchesFarAheadIsLimited(t *testing.T) {
	for _, share := range []int{5, 10, 30, 50, 70, 90} {
		percents := simulate(share, 180, program{kernel: 10 * time.Millisecond, ahead: 1000})
		if got := mean(percents[60:]); got > float64(share)+5 || got < float64(share)/2 {
			t.Errorf("of a share of %d it has %.1f%% of the time\n%v", share, got, percents)
		}
	}
}

// TestIdleTimeIsNotCredited: after an hour of idling, or of having less than the share because
// there is no more work, the gate closes again as quickly as at the beginning, or from fully open
// at most. After an hour of overuse it is at most as narrow as a gate can be.
func TestIdleTimeIsNotCredited(t *testing.T) {
	after := func(percent int) *Controller {
		l := &Controller{}
		for range 3600 {
			l.Next(30, percent, time.Second)
		}
		return l
	}
	if l := after(0); math.Abs(l.duty-0.3) > 0.01 {
		t.Errorf("after an hour of idling the gate is open for %.2f of the time", l.duty)
	}
	for name, c := range map[string]struct{ before, then, looks int }{
		"less than its share": {20, 100, 8},
		"more than its share": {100, 0, 60},
	} {
		l, looks := after(c.before), 0
		for wide := l.duty; looks < 1000 && (c.then == 100) == (l.duty > 0.1) && wide > 0; looks++ {
			l.Next(30, c.then, time.Second)
		}
		if looks > c.looks {
			t.Errorf("after an hour of %s it takes %d samples until the gate follows, want %d",
				name, looks, c.looks)
		}
	}
}

// TestAGate: the value is always a valid gate, whatever was sampled.
func TestAGate(t *testing.T) {
	for share := 1; share <= 100; share++ {
		if g := ForShare(share); g.Open*100/Period != time.Duration(share)*g.Period/Period || g.Open <= 0 ||
			g.Open > g.Period {
			t.Errorf("the gate of %d%% is %v", share, g)
		}
		for _, percent := range []int{0, 1, 50, 100, 6400} { // of 64 processes the driver may report 100 each
			l := Controller{}
			for _, passed := range []time.Duration{0, time.Second, time.Microsecond, time.Hour} {
				if g := l.Next(share, percent, passed); g.Open <= 0 || g.Open > g.Period ||
					g.Period > Longest || g.Period < Period/2 {
					t.Errorf("share %d, %d%% after %v: %v", share, percent, passed, g)
				}
			}
		}
	}
}
