package cdi

import (
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// ListedDevice is a CDI name in gpuledger's files.
type ListedDevice struct {
	Name   string    `json:"name"`  // kind and device; for a grant without its secret
	Grant  grant.ID  `json:"grant"` // "": a GPU
	Secret bool      `json:"secret"`
	GPUs   []string  `json:"gpus"` // UUIDs
	File   string    `json:"file"`
	State  FileState `json:"state"`
}

// FileState says whether a file has its intended content.
type FileState string

// The states of a file.
const (
	Current FileState = "current"
	// the node or the ledger has changed; `gpuledger cdi generate` writes or removes the file
	Stale FileState = "stale"
)

// List returns the names that engines find in gpuledger's files.
func (f Files) List() ([]ListedDevice, error) {
	files, _, err := f.plan()
	if err != nil {
		return nil, err
	}
	inv, _ := f.Node.Inventory()
	list := []ListedDevice{}
	for _, l := range files {
		if l.spec == nil {
			continue
		}
		state := Stale
		if l.unchanged {
			state = Current
		}
		for _, d := range l.spec.Devices {
			device := ListedDevice{Name: l.spec.Kind + "=" + d.Name, GPUs: []string{}, File: l.path,
				State: state}
			if l.spec.Kind == grant.CDIKindGrant {
				device.ofGrant(d.Name, d.ContainerEdits.Env)
			} else if gpu, found := inv.Device(d.Name); found {
				device.GPUs = []string{gpu.UUID()}
			}
			list = append(list, device)
		}
	}
	return list, nil
}

// ofGrant sets the name without the secret, because lists are copied into tickets and logs.
func (d *ListedDevice) ofGrant(name string, env []string) {
	id, secret, _ := strings.Cut(name, ".")
	d.Name, d.Grant, d.Secret = grant.CDIKindGrant+"="+id, grant.ID(id), secret != ""
	for _, entry := range env {
		if uuids, found := strings.CutPrefix(entry, "NVIDIA_VISIBLE_DEVICES="); found && uuids != "void" {
			d.GPUs = strings.Split(uuids, ",")
		}
	}
}
