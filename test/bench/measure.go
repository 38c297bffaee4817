package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A contestant is one of the variants that a comparison measures. Only the process that command
// names is timed, from before its fork to its exit.
type contestant struct {
	name    string
	before  func() error // not timed; may be nil
	command func() *exec.Cmd
	after   func() error // not timed; may be nil
}

// compare measures every contestant once a round.
func (r *rig) compare(rounds int, contestants ...contestant) ([][]time.Duration, error) {
	return inTurns(r, rounds, len(contestants), func(i int) (time.Duration, error) {
		took, err := r.once(contestants[i])
		if err != nil {
			return 0, fmt.Errorf("%s: %w", contestants[i].name, err)
		}
		return took, nil
	})
}

// inTurns measures each of n contestants once a round, each round in a new random order. A
// temporary disturbance of the machine then affects all of them, and a ratio within a round stays
// meaningful. The first rounds fill caches and are not kept.
func inTurns[T any](r *rig, rounds, n int, measure func(int) (T, error)) ([][]T, error) {
	const warmUp = 3
	kept := make([][]T, n)
	for round := range warmUp + rounds {
		for _, i := range rand.Perm(n) {
			if r.ctx.Err() != nil {
				return nil, fmt.Errorf("interrupted")
			}
			measured, err := measure(i)
			if err != nil {
				return nil, err
			}
			if round >= warmUp {
				kept[i] = append(kept[i], measured)
			}
		}
	}
	return kept, nil
}

func (r *rig) once(c contestant) (time.Duration, error) {
	if c.before != nil {
		if err := c.before(); err != nil {
			return 0, err
		}
	}
	took, err := r.timed(c.command())
	if err != nil {
		return 0, err
	}
	if c.after != nil {
		return took, c.after()
	}
	return took, nil
}

// timed runs one process. Its output goes to a file and not to a pipe. A container's init inherits
// the output and would keep a pipe open long after the process has ended.
func (r *rig) timed(cmd *exec.Cmd) (time.Duration, error) {
	output, err := os.Create(r.path("output"))
	if err != nil {
		return 0, err
	}
	defer output.Close()
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = output, output
	}
	begin := time.Now()
	err = cmd.Run()
	took := time.Since(begin)
	if err != nil {
		said, _ := os.ReadFile(output.Name())
		return 0, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, said)
	}
	return took, nil
}

// run is timed for a process that is not measured.
func (r *rig) run(cmd *exec.Cmd) error {
	_, err := r.timed(cmd)
	return err
}

// A Spread is a median and the interval that holds the true median with 95 % confidence. A create
// waits for the kernel's RCU several times, so it scatters by 5 ms and more. Without the interval a
// median of 60 rounds would look more exact than it is.
type Spread struct {
	Low    float64 `json:"low"`
	Median float64 `json:"median"`
	High   float64 `json:"high"`
}

// spread takes the interval from the ranks n/2 +- 1.96 sqrt(n)/2, which assumes nothing about the
// values' distribution.
func spread(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	half := 0.98 * math.Sqrt(float64(n))
	low := max(int(float64(n)/2-half), 0)
	high := min(int(math.Ceil(float64(n)/2+half)), n-1)
	return Spread{sorted[low], (sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[high]}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func inMilliseconds(times []time.Duration) []float64 {
	out := make([]float64, len(times))
	for i, t := range times {
		out[i] = milliseconds(t)
	}
	return out
}

// pairwise compares each time with the base's of the same round.
func pairwise(base, times []time.Duration) (ratio, added Spread) {
	ratios, differences := make([]float64, len(times)), make([]float64, len(times))
	for i := range times {
		ratios[i] = float64(times[i]) / float64(base[i])
		differences[i] = milliseconds(times[i] - base[i])
	}
	return spread(ratios), spread(differences)
}
