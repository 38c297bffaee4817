// Package simulated makes an inventory of GPUs that are not there, from a description that a person
// can edit, so that grants, admissions and refusals can be tried on any machine.
package simulated

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// DefaultName is the product name of a simulated GPU whose maker gave it none.
const DefaultName = "Simulated GPU"

const (
	version = 1
	maxGPUs = 64 // their DRM render nodes fill minors 128 to 191

	maxName     = 95 // bytes: NVML_DEVICE_NAME_V2_BUFFER_SIZE less its end
	maxMinor    = 247
	maxMemory   = 64 * grant.TiB // no sum over GPUs can then overflow
	maxFileSize = 4 << 20
)

// Description says which GPUs to simulate, one entry each, in the order of their indexes.
type Description struct {
	Version int              `json:"version"`
	GPUs    []GPUDescription `json:"gpus"`
}

// GPUDescription describes one simulated GPU.
type GPUDescription struct {
	Name   string   `json:"name"`           // product name; with the index it makes the UUID
	Memory Memory   `json:"memory"`         // what can be granted of it
	MIG    []string `json:"mig"`            // profiles of its partitions, as 1g.10gb
	Health string   `json:"health"`         // "ok", or what is wrong with it
	Minor  *int     `json:"minor,omitzero"` // N of /dev/nvidiaN where it isn't the index
	NUMA   *int     `json:"numa,omitzero"`  // NUMA node where it isn't 0
}

// Memory is an amount that a description may hold as plain bytes or with its unit, as "80GiB". It
// is written as bytes.
type Memory grant.Bytes

// UnmarshalJSONFrom reads either form.
func (m *Memory) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '"' {
		return json.UnmarshalDecode(dec, (*grant.Bytes)(m))
	}
	var text string
	if err := json.UnmarshalDecode(dec, &text); err != nil {
		return err
	}
	b, err := grant.ParseBytes(text)
	*m = Memory(b)
	return err
}

// Describe makes the description of n equal GPUs, 1 to 64, each with so much memory and with
// partitions of these MIG profiles. An empty name stands for DefaultName. Its errors are
// *grant.UsageError.
func Describe(n int, memory grant.Bytes, name string, mig []string) (Description, error) {
	if n < 1 || n > maxGPUs {
		return Description{}, usage("cannot simulate %d GPUs: want 1 to %d", n, maxGPUs)
	}
	if name == "" {
		name = DefaultName
	}
	d := Description{Version: version}
	for range n {
		d.GPUs = append(d.GPUs, GPUDescription{Name: name, Memory: Memory(memory), MIG: append([]string{},
			mig...),
			Health: grant.Healthy})
	}
	if err := d.check(); err != nil {
		return Description{}, usage("cannot simulate these GPUs: %v", err)
	}
	return d, nil
}

func usage(format string, args ...any) error {
	return &grant.UsageError{Message: fmt.Sprintf(format, args...)}
}

// WriteFile puts the description at path, where everyone may read it. A pipe or a terminal, as
// /dev/stdout, is written to and not replaced.
func WriteFile(path string, d Description) error {
	data, err := json.Marshal(d, jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	data = append(data, '\n')
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, data, 0o644)
	}
	path, err = filepath.Abs(path) // a file is replaced in its own directory, so it must have one
	if err != nil {
		return err
	}
	return host.ReplaceFile(path, data, 0o644, host.Durable)
}

// Read reads and checks the description at path. People edit it, so an unknown key is an error, and
// what is left out has a sensible value: the name is DefaultName, the health is ok.
func Read(path string) (Description, error) {
	d, err := read(path)
	if err != nil {
		return Description{}, fmt.Errorf("cannot read the description %s: %w", path, err)
	}
	return d, nil
}

func read(path string) (d Description, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return d, unwrapPath(err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxFileSize {
		return d, fmt.Errorf("it is not a file of at most 4 MiB")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return d, unwrapPath(err)
	}
	return decode(data)
}

// unwrapPath drops the path that the caller's sentence has already.
func unwrapPath(err error) error {
	if e, ok := err.(*os.PathError); ok {
		return e.Err
	}
	return err
}

func decode(data []byte) (d Description, err error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return d, fmt.Errorf("it is empty; `gpuledger inventory simulate` writes one")
	}
	if err := json.Unmarshal(data, &d, json.RejectUnknownMembers(true)); err != nil {
		return Description{}, mistake(err)
	}
	for i := range d.GPUs {
		g := &d.GPUs[i]
		if g.Name == "" {
			g.Name = DefaultName
		}
		if g.Health == "" {
			g.Health = grant.Healthy
		}
	}
	if err := d.check(); err != nil {
		return Description{}, err
	}
	return d, nil
}

// check reports why the described GPUs cannot be in one node.
func (d Description) check() error {
	if d.Version != version {
		return fmt.Errorf("its version is %d and this gpuledger knows %d", d.Version, version)
	}
	if len(d.GPUs) > maxGPUs {
		return fmt.Errorf("it has %d GPUs and at most %d can be simulated", len(d.GPUs), maxGPUs)
	}
	minors := map[int]int{}
	for i, g := range d.GPUs {
		if err := g.check(); err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
		minor := g.minor(i)
		if other, taken := minors[minor]; taken {
			return fmt.Errorf("GPU %d: minor %d is GPU %d's", i, minor, other)
		}
		minors[minor] = i
	}
	return nil
}

func (g GPUDescription) check() error {
	notPrintable := func(r rune) bool { return !unicode.IsPrint(r) }
	switch {
	case g.Name == "" || len(g.Name) > maxName || strings.ContainsFunc(g.Name, notPrintable):
		return fmt.Errorf("name %q is not 1 to %d printable bytes", g.Name, maxName)
	case strings.ContainsFunc(g.Health, notPrintable):
		return fmt.Errorf("health %q is not printable", g.Health)
	case g.Memory == 0:
		return fmt.Errorf("it has no memory; want a size as 80GiB")
	case grant.Bytes(g.Memory) > maxMemory:
		return fmt.Errorf("memory %v is more than %v", grant.Bytes(g.Memory), maxMemory)
	case g.Minor != nil && (*g.Minor < 0 || *g.Minor > maxMinor):
		return fmt.Errorf("minor %d is not one of 0 to %d", *g.Minor, maxMinor)
	case g.NUMA != nil && *g.NUMA < -1:
		return fmt.Errorf("numa %d is below -1", *g.NUMA)
	}
	_, err := partition(g.MIG, grant.Bytes(g.Memory))
	return err
}

// minor is N of /dev/nvidiaN: the index unless the description says another.
func (g GPUDescription) minor(index int) int {
	if g.Minor != nil {
		return *g.Minor
	}
	return index
}
