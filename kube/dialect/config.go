package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Config says which names of pods are read. The scheduler, the webhook and the device plugin read
// the same file.
type Config struct {
	// The names that are read. If there are none, and no NVIDIA, they are our own: Memory and GPUs.
	Resources []Resource `toml:"resource"`
	// The text of the configuration file of NVIDIA's device plugin. Its part "sharing" is read as
	// that program does, the rest is ignored.
	NVIDIA string `toml:"nvidia_device_plugin"`
	// The least memory that a GPU of the cluster has to give. A claim takes a part of it, because
	// it has to name an amount. Without this a pod that asks for a part of a GPU is refused where
	// pods become claims. If it is more than a GPU has, not all parts of that GPU fit.
	PartOf grant.Size `toml:"part_of"`

	sharing []shared
}

// Resource is a name that a pod may use.
type Resource struct {
	Name string `toml:"name"`
	// The known name whose meaning Name has. "": Name is itself known.
	Like string `toml:"like"`
	// The memory of one, where the name counts memory. 0: the unit of the known name.
	Unit grant.Size `toml:"unit"`
	// The mode of shares by this name. "": the node's.
	Mode grant.Mode `toml:"mode"`
}

// The names that are ours.
const (
	Memory  = "gpuledger.dev/gpu-memory"
	GPUs    = "gpuledger.dev/gpu"
	Compute = "gpuledger.dev/gpu-compute"
)

// kind is what a name counts.
type kind int

const (
	gpus          kind = iota // GPUs: whole ones, unless another name says how much of each
	memoryInAll               // memory over all GPUs, in units
	memoryEach                // memory of each GPU, in units
	percentEach               // percent of the memory of each GPU
	compute                   // percent of the compute of each GPU
	replicas                  // shares of equal size
	annotatedMem              // KAI's annotation: memory of each GPU, in units
	annotatedPart             // KAI's annotation: a part of each GPU
)

// family is the dialect that a name belongs to. A container uses one.
type family string

const (
	ours    family = "gpuledger"
	aliyun  family = "ACK and gpushare"
	nvidia  family = "NVIDIA's device plugin"
	hami    family = "HAMi"
	kai     family = "KAI"
	nothing family = ""
)

// meaning is what a known name means.
type meaning struct {
	family family
	kind   kind
	unit   grant.Bytes
}

// known are the names that gpuledger knows.
var known = map[string]meaning{
	Memory:                           {ours, memoryInAll, grant.GiB},
	GPUs:                             {ours, gpus, 0},
	Compute:                          {ours, compute, 0},
	"aliyun.com/gpu-mem":             {aliyun, memoryInAll, grant.GiB},
	"aliyun.com/gpu-core.percentage": {aliyun, compute, 0},
	"nvidia.com/gpu":                 {nvidia, gpus, 0},
	"nvidia.com/gpumem":              {hami, memoryEach, grant.MiB},
	"nvidia.com/gpumem-percentage":   {hami, percentEach, 0},
	"nvidia.com/gpucores":            {hami, compute, 0},
	kaiMemory:                        {kai, annotatedMem, grant.MiB},
	kaiFraction:                      {kai, annotatedPart, 0},
}

// Names returns the names that a Resource may have or be like, sorted.
func Names() []string {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Decode reads a configuration file. The error is one sentence.
func Decode(text []byte) (Config, error) {
	var c Config
	if err := decode(text, &c); err != nil {
		return Config{}, fmt.Errorf("cannot read the names of resources: %w", err)
	}
	return c, nil
}

func decode(text []byte, into *Config) (err error) {
	// the library panics on some values of another type (go-toml 2.2.4)
	defer func() {
		if recover() != nil {
			err = errors.New("a value has the wrong type")
		}
	}()
	d := toml.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return located(err)
	}
	return into.Ready()
}

// located rewrites an error of the TOML library with the line.
func located(err error) error {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) && len(strict.Errors) > 0 {
		row, _ := strict.Errors[0].Position()
		return fmt.Errorf("line %d: unknown key %q", row,
			grant.Printable(strings.Join(strict.Errors[0].Key(), ".")))
	}
	why := grant.Printable(strings.TrimPrefix(err.Error(), "toml: "))
	var at *toml.DecodeError
	if errors.As(err, &at) {
		row, _ := at.Position()
		return fmt.Errorf("line %d: %s", row, why)
	}
	return errors.New(why)
}

// Ready completes a configuration that was not decoded, and reports whether it can be used.
func (c *Config) Ready() error {
	sharing, err := sharingOf(c.NVIDIA)
	if err != nil {
		return err
	}
	c.sharing = sharing
	if len(c.Resources) == 0 && c.NVIDIA == "" {
		c.Resources = []Resource{{Name: Memory}, {Name: GPUs}}
	}
	seen := map[string]bool{}
	for _, s := range sharing {
		seen[s.offered()] = true
	}
	for i := range c.Resources {
		r := &c.Resources[i]
		if err := r.check(); err != nil {
			return err
		}
		if seen[r.Name] {
			// NVIDIA's file may divide a name that the list has as whole GPUs
			if m := r.meaning(); m.kind == gpus && c.replicated(r.Name) {
				continue
			}
			return fmt.Errorf("resource %q is there twice", grant.Printable(r.Name))
		}
		seen[r.Name] = true
	}
	return nil
}

func (c *Config) replicated(name string) bool {
	return slices.ContainsFunc(c.sharing, func(s shared) bool { return s.offered() == name })
}

func (r *Resource) check() error {
	name := grant.Printable(r.Name)
	like := r.Like
	if like == "" {
		like = r.Name
	}
	m, is := known[like]
	switch {
	case r.Name == "":
		return errors.New("a resource has no name")
	case !is && r.Like != "":
		return fmt.Errorf("resource %q is like %q, which is not known: there are %s", name,
			grant.Printable(r.Like), strings.Join(Names(), ", "))
	case !is:
		return fmt.Errorf("resource %q is not known: say with like = which of these it is: %s", name,
			strings.Join(Names(), ", "))
	case m.family == kai && r.Like != "":
		return fmt.Errorf("resource %q is like %q, which is an annotation and has no other name", name, like)
	case r.Like != "" && !strings.Contains(r.Name, "/"):
		return fmt.Errorf("resource %q is like %q, and has no domain: pods ask for a resource by a name "+
			"such as example.com/gpu", name, like)
	case m.unit == 0 && r.Unit != 0:
		return fmt.Errorf("resource %q has a unit, and counts no memory", name)
	case r.Unit != 0 && grant.Bytes(r.Unit)%grant.MiB != 0:
		return fmt.Errorf("resource %q: the unit has to be a whole number of MiB", name)
	case r.Mode.IsWhole():
		return fmt.Errorf("resource %q: shares are in mode limit, timeslice or mps, not %s", name, r.Mode)
	case r.Mode != "" && !slices.Contains(grant.Modes, r.Mode):
		return fmt.Errorf("resource %q: there is no mode %q", name, grant.Printable(string(r.Mode)))
	case r.Mode != "" && m.kind == gpus:
		return fmt.Errorf("resource %q counts GPUs, which are in mode exclusive unless shares are named",
			name)
	}
	return nil
}

func (r Resource) meaning() meaning {
	m := known[r.Name]
	if r.Like != "" {
		m = known[r.Like]
	}
	if r.Unit != 0 {
		m.unit = grant.Bytes(r.Unit)
	}
	return m
}

// has reports whether the configuration has a name of a family.
func (c Config) has(f family) bool {
	return slices.ContainsFunc(c.Resources, func(r Resource) bool { return r.meaning().family == f })
}
