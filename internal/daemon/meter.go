package daemon

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// meter asks a child process what is used of the GPUs.
type meter struct{ asker }

func newMeter(config string) *meter {
	return &meter{asker{command: []string{beside("gpuledger"), "inventory", "measure", "--follow"}, config: config, first: firstSample, later: laterSample}}
}

// Sample asks once. An error says why there is none; the next call may begin anew.
func (m *meter) Sample(ctx context.Context, source grant.Source) (sample grant.Sample, err error) {
	err = m.exchange(ctx, source, nil, func(line []byte) (err error) {
		sample, err = readSample(line)
		return err
	})
	if err != nil {
		return grant.Sample{}, fmt.Errorf("cannot tell what is used of the GPUs: %w", err)
	}
	return sample, nil
}

// readSample understands an answer, and refuses one that no GPU can give.
func readSample(line []byte) (grant.Sample, error) {
	var s grant.Sample
	if err := json.Unmarshal(line, &s); err != nil {
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
