package nvmlchild

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Sampler asks a child process what is used of the GPUs.
type Sampler struct {
	Child
	renewed time.Time     // when the child was last ended because a GPU did not answer
	rest    time.Duration // after that, before it may be ended again
}

// NewSampler has `gpuledger inventory measure` answer, with the configuration at the path.
// inventory gives the present state of the node's inventory.
func NewSampler(config string, inventory func() host.Stamp) *Sampler {
	return &Sampler{Child: newChild(config, inventory, "measure", "--follow")}
}

// Sample takes one sample. fresh: with the processes' shares of the GPU's time as they are now. An
// error says why there is none; the next call may start a new child.
func (m *Sampler) Sample(ctx context.Context, source grant.Source, fresh bool) (sample grant.Sample,
	err error) {
	var line []byte
	if fresh {
		line = []byte(gpu.FreshShares)
	}
	err = m.exchange(ctx, source, line, func(line []byte) (err error) {
		sample, err = readSample(line)
		return err
	})
	if err != nil {
		return grant.Sample{}, fmt.Errorf("cannot tell what is used of the GPUs: %w", err)
	}
	sample.Taken = monotonic(sample.Taken, time.Now())
	return sample, nil
}

// Renew ends the child if a GPU of the inventory did not answer (lost), for an NVML that was loaded
// later to answer next: a GPU that was away can stay lost to the present one. It does so less and
// less often, and not while a child hangs in the driver: the present one reports the other GPUs.
func (m *Sampler) Renew(lost bool) {
	since := time.Since(m.renewed)
	switch {
	case !lost && since > lastBackoff:
		m.rest = 0
	case lost && since >= m.rest && m.stuck.Load() == 0:
		m.drop()
		m.renewed, m.rest = time.Now(), min(max(2*m.rest, firstBackoff), lastBackoff)
	}
}

// maxSampleAge is how old a sample may claim to be.
const maxSampleAge = 10 * time.Second

// monotonic gives a sample's time the clock that cannot be set (time.Time's monotonic reading),
// which the child's text does not carry. For how long a finding stands, and when work is due again,
// is measured by it.
func monotonic(taken, now time.Time) time.Time {
	age := now.Round(0).Sub(taken)
	if age < 0 || age > maxSampleAge { // the clock was set in between
		age = 0
	}
	return now.Add(-age)
}

// readSample reads an answer, and refuses one that cannot be true of any GPU.
func readSample(line []byte) (grant.Sample, error) {
	s, err := gpu.ReadSample(line)
	if err != nil {
		return s, fmt.Errorf("NVML's answer cannot be understood: %w", err)
	}
	seen := map[string]bool{}
	for _, g := range s.GPUs {
		switch {
		case g.UUID == "" || seen[g.UUID]:
			return s, fmt.Errorf("NVML's answer cannot be true: GPU %d has the UUID %q", g.Index,
				grant.Printable(g.UUID))
		case g.Health == grant.Healthy && (g.Used > g.Total || g.Total > maxTotal):
			return s, fmt.Errorf("NVML's answer cannot be true: of GPU %d %s of %s are in use", g.Index,
				g.Used, g.Total)
		}
		seen[g.UUID] = true
		for _, p := range g.Processes {
			if p.PID <= 0 || p.Memory > maxTotal {
				return s, fmt.Errorf("NVML's answer cannot be true: process %d uses %s of GPU %d", p.PID,
					p.Memory, g.Index)
			}
		}
	}
	return s, nil
}

// maxTotal is more memory than any GPU has.
const maxTotal = 64 * grant.TiB
