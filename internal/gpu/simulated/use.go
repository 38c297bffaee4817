package simulated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Use describes what is used of simulated GPUs, for tests and to try the watch on any machine. It lies beside the description,
// under its name and UseSuffix; without it nothing is used.
type Use struct {
	Version   int          `json:"version"`
	GPUs      []GPUUse     `json:"gpus,omitempty"` // of those whose totals are not just the sum of the processes
	Processes []ProcessUse `json:"processes"`
}

// GPUUse is what the driver tells of one GPU beside its processes.
type GPUUse struct {
	GPU         int               `json:"gpu"`                  // index
	Hidden      Memory            `json:"hidden,omitzero"`      // in use without a process
	Utilization int               `json:"utilization,omitzero"` // percent
	Health      string            `json:"health,omitzero"`      // where it does not answer
	ComputeMode grant.ComputeMode `json:"compute_mode,omitzero"`
	XIDs        []int             `json:"xids,omitempty"`
}

// ProcessUse is one process. It need not use anything in truth.
type ProcessUse struct {
	PID     int    `json:"pid"`
	GPU     int    `json:"gpu"`
	Device  string `json:"device,omitzero"` // a MIG device on it
	Memory  Memory `json:"memory"`
	Compute int    `json:"compute,omitzero"` // percent
}

// UseSuffix is what the name of the file has behind that of the description.
const UseSuffix = ".use"

// Sample tells what a description and its Use come to, as NVML would.
func Sample(d Description, path string, now time.Time) (grant.Sample, error) {
	use, err := readUse(path + UseSuffix)
	if err != nil {
		return grant.Sample{}, fmt.Errorf("cannot read what is used of simulated GPUs: %w", err)
	}
	s := grant.Sample{Taken: now.UTC(), GPUs: []grant.Usage{}}
	for i, g := range d.GPUs {
		s.GPUs = append(s.GPUs, use.of(g.at(i)))
	}
	return s, nil
}

func readUse(path string) (u Use, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Use{}, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFileSize) {
		err = fmt.Errorf("%s is not a file of at most 4 MiB", path)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(data, &u, json.RejectUnknownMembers(true))
	}
	if err == nil && u.Version != version {
		err = fmt.Errorf("the version of %s is %d and this gpuledger knows %d", path, u.Version, version)
	}
	return u, err
}

// of is what is used of one GPU.
func (u Use) of(g grant.GPU) grant.Usage {
	usage := grant.Usage{UUID: g.UUID, Index: g.Index, Health: g.Health, Total: g.Memory, ComputeMode: grant.ComputeDefault, Processes: []grant.ProcessUse{}}
	for _, m := range g.MIG {
		usage.MIG = append(usage.MIG, m.UUID)
	}
	if i := slices.IndexFunc(u.GPUs, func(o GPUUse) bool { return o.GPU == g.Index }); i >= 0 {
		o := u.GPUs[i]
		usage.Used, usage.Utilization, usage.XIDs = grant.Bytes(o.Hidden), o.Utilization, o.XIDs
		if o.Health != "" {
			usage.Health = o.Health
		}
		if o.ComputeMode != "" {
			usage.ComputeMode = o.ComputeMode
		}
	}
	for _, p := range u.Processes {
		if p.GPU == g.Index {
			usage.Used += grant.Bytes(p.Memory)
			usage.Processes = append(usage.Processes, grant.ProcessUse{PID: p.PID, Device: p.Device, Memory: grant.Bytes(p.Memory), Compute: p.Compute})
		}
	}
	return usage
}
