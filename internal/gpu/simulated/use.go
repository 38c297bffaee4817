package simulated

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Use describes what is used of simulated GPUs, for tests and to try the watch on any machine. Its
// file is beside the description, with UseSuffix; without the file nothing is used.
type Use struct {
	Version int `json:"version"`
	// of GPUs that have more than the sum of their processes
	GPUs      []GPUReading     `json:"gpus,omitempty"`
	Processes []ProcessReading `json:"processes"`
}

// GPUReading has the driver's values for one GPU, except its processes.
type GPUReading struct {
	GPU         int               `json:"gpu"`                  // index
	Hidden      Memory            `json:"hidden,omitzero"`      // in use without a process
	Utilization int               `json:"utilization,omitzero"` // percent
	Power       int               `json:"power,omitzero"`       // watts
	Temperature int               `json:"temperature,omitzero"` // °C
	Health      string            `json:"health,omitzero"`      // "": that of the description
	ComputeMode grant.ComputeMode `json:"compute_mode,omitzero"`
	XIDs        []int             `json:"xids,omitempty"`
}

// ProcessReading is one process. A process with this pid need not use a GPU, or exist.
type ProcessReading struct {
	PID     int    `json:"pid"`
	GPU     int    `json:"gpu"`
	Device  string `json:"device,omitzero"` // a MIG device on it
	Memory  Memory `json:"memory"`
	Compute int    `json:"compute,omitzero"` // percent
}

// UseSuffix is appended to the description's name.
const UseSuffix = ".use"

// Sampler returns samples made from a description and its Use, as NVML's Sampler does.
type Sampler struct {
	Path string // of the description

	stamp host.Stamp
	read  time.Time
	gpus  []grant.GPU
}

// Sample reads what is used now. The description is read when it has changed.
func (s *Sampler) Sample(now time.Time) (grant.Sample, error) {
	if is, began := host.StampOf(s.Path), time.Now(); is != s.stamp || !is.Before(s.read) {
		d, err := Read(s.Path)
		if err != nil {
			return grant.Sample{}, err
		}
		s.stamp, s.read, s.gpus = is, began, nil
		for i, g := range d.GPUs {
			s.gpus = append(s.gpus, g.at(i))
		}
	}
	use, err := readUse(s.Path + UseSuffix)
	if err != nil {
		return grant.Sample{}, fmt.Errorf("cannot read what is used of simulated GPUs: %w", err)
	}
	sample := grant.Sample{Taken: now.UTC(), GPUs: []grant.Usage{}}
	for _, g := range s.gpus {
		sample.GPUs = append(sample.GPUs, use.of(g))
	}
	return sample, nil
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
		data, err = host.ReadFile(path, maxFileSize)
	}
	if err == nil {
		err = tokens.Whole(data,
			func(d *jsontext.Decoder) error { return u.readFrom(d) }, jsontext.AllowDuplicateNames(true))
	}
	if err == nil && u.Version != version {
		err = fmt.Errorf("the version of %s is %d and this gpuledger knows %d", path, u.Version, version)
	}
	return u, err
}

// readFrom reads a file that people write: an unknown key is an error. A test may rewrite the file
// every second.
func (u *Use) readFrom(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.Int(d, &u.Version)
		case "gpus":
			return json.UnmarshalDecode(d, &u.GPUs, json.RejectUnknownMembers(true))
		case "processes":
			return tokens.List(d, &u.Processes, readProcess)
		}
		return fmt.Errorf("unknown key %q", name)
	})
}

func readProcess(d *jsontext.Decoder, p *ProcessReading) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "pid":
			return tokens.Int(d, &p.PID)
		case "gpu":
			return tokens.Int(d, &p.GPU)
		case "device":
			return tokens.String(d, &p.Device)
		case "memory":
			if d.PeekKind() == '0' {
				return tokens.Uint64(d, &p.Memory)
			}
			return p.Memory.UnmarshalJSONFrom(d)
		case "compute":
			return tokens.Int(d, &p.Compute)
		}
		return fmt.Errorf("unknown key %q", name)
	})
}

// of returns what is used of one GPU.
func (u Use) of(g grant.GPU) grant.Usage {
	usage := grant.Usage{UUID: g.UUID, Index: g.Index, Health: g.Health, Total: g.Memory,
		ComputeMode: grant.ComputeDefault, Processes: []grant.ProcessUse{}}
	for _, m := range g.MIG {
		usage.MIG = append(usage.MIG, m.UUID)
	}
	if i := slices.IndexFunc(u.GPUs, func(o GPUReading) bool { return o.GPU == g.Index }); i >= 0 {
		o := u.GPUs[i]
		usage.Used, usage.Utilization, usage.XIDs = grant.Bytes(o.Hidden), o.Utilization, o.XIDs
		usage.Power, usage.Temperature = 1000*o.Power, o.Temperature
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
			usage.Processes = append(usage.Processes, grant.ProcessUse{PID: p.PID, Device: p.Device,
				Memory: grant.Bytes(p.Memory), Compute: p.Compute})
		}
	}
	return usage
}
