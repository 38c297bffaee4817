package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// meter asks a child process what is used of the GPUs.
type Sampler struct{ Child }

func NewSampler(config string) *Sampler {
	return &Sampler{Child{Command: []string{Program("gpuledger"), "inventory", "measure", "--follow"}, config: config, firstAnswer: firstSample, laterAnswer: laterSample}}
}

// Sample asks once. An error says why there is none; the next call may begin anew.
func (m *Sampler) Sample(ctx context.Context, source grant.Source) (sample grant.Sample, err error) {
	err = m.exchange(ctx, source, nil, func(line []byte) (err error) {
		sample, err = readSample(line)
		return err
	})
	if err != nil {
		return grant.Sample{}, fmt.Errorf("cannot tell what is used of the GPUs: %w", err)
	}
	sample.Taken = monotonic(sample.Taken, time.Now())
	return sample, nil
}

// oldest is how old a sample may say that it is.
const maxSampleAge = 10 * time.Second

// steady is the time of a sample that is here now, by the clock that nobody sets (time.Time's monotonic reading, which no text carries over
// from the process that took it). All that is told from sample to sample goes by it: for how long a finding stands, what is due again.
func monotonic(taken, now time.Time) time.Time {
	age := now.Round(0).Sub(taken)
	if age < 0 || age > maxSampleAge { // the clock was set in between
		age = 0
	}
	return now.Add(-age)
}

// readSample understands an answer, and refuses one that no GPU can give.
func readSample(line []byte) (grant.Sample, error) {
	s, err := gpu.ReadSample(line)
	if err != nil {
		return s, fmt.Errorf("NVML's answer cannot be understood: %w", err)
	}
	seen := map[string]bool{}
	for _, g := range s.GPUs {
		switch {
		case g.UUID == "" || seen[g.UUID]:
			return s, fmt.Errorf("NVML's answer cannot be true: GPU %d has the UUID %q", g.Index, grant.Printable(g.UUID))
		case g.Health == grant.Healthy && (g.Used > g.Total || g.Total > maxTotal):
			return s, fmt.Errorf("NVML's answer cannot be true: of GPU %d %s of %s are in use", g.Index, g.Used, g.Total)
		}
		seen[g.UUID] = true
		for _, p := range g.Processes {
			if p.PID <= 0 || p.Memory > maxTotal {
				return s, fmt.Errorf("NVML's answer cannot be true: process %d uses %s of GPU %d", p.PID, p.Memory, g.Index)
			}
		}
	}
	return s, nil
}

// maxTotal is more than any GPU has, or will for some time.
const maxTotal = 64 * grant.TiB
