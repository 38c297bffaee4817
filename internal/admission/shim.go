package admission

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// maxLimited is how many GPUs one grant can have under the shim (RECORD_DEVICES, shim/record.h).
const maxLimited = 16

const libcuda = "libcuda.so.1"

// realDriver is where the proxies need the driver's own libraries (shim/place.h).
func realDriver(soname string) string { return filepath.Join(grant.ShimPlace, "driver", soname) }

// proxyFor is the proxy that takes the place of a library's name, "" where none does.
func proxyFor(name string) string {
	for _, soname := range grant.Shimmed {
		if name == soname {
			return strings.TrimSuffix(soname, ".1") + ".1"
		}
	}
	return ""
}

// proxyOf is the proxy that takes a driver file's place, under all of its names.
func proxyOf(f grant.DriverFile) string {
	for _, name := range f.Names {
		if proxy := proxyFor(name); proxy != "" {
			return proxy
		}
	}
	return ""
}

// Limitless says why this node's shim cannot hold a container of a grant to its memory; "" where it
// can.
func Limitless(gpus int, inv grant.Inventory, p grant.Policy) string {
	hasDriver := slices.ContainsFunc(inv.Driver.Files, func(f grant.DriverFile) bool {
		return f.Bits == 64 && proxyOf(f) == libcuda
	})
	switch {
	case p.Enforcement.Limit == grant.DriverBackend:
		return `enforcement.limit is "driver"`
	case inv.Shim.Dir == "" && inv.Shim.Problem == "":
		return "the shim is not installed"
	case inv.Shim.Dir == "":
		return inv.Shim.Problem
	case !hasDriver:
		return "the inventory has no " + libcuda + " of the driver"
	case gpus > maxLimited:
		return fmt.Sprintf("the shim limits at most %d GPUs", maxLimited)
	}
	return ""
}

// limited reports whether the container gets the proxies in place of the driver's libraries: in
// mode limit where the driver itself does not limit it. In mode mps they count the container's
// processes together, as its server does not, and show the grant as the GPU's memory.
func (c *asking) limited() bool {
	return c.grant != nil && (c.grant.Mode == grant.Limit && !c.driven() || c.grant.Mode == grant.MPS) &&
		Limitless(len(c.grant.GPUs), c.inventory, c.policy) == ""
}

// proxyFile is the file of a proxy: of libcuda, that which throttles launches where the grant has a
// share of compute to be held to.
func (c *asking) proxyFile(proxy string) string {
	if proxy == libcuda && c.throttled() {
		proxy = grant.ThrottleLibrary
	}
	return filepath.Join(c.inventory.Shim.Dir, proxy)
}

// withLimit adds to a container's driver files what the proxies need: the records of the grant, and
// the proxies at every other place where a program would find a library of the driver's.
func (c *asking) withLimit(mounts []*cdispec.Mount) []*cdispec.Mount {
	for _, own := range c.request.Own {
		taken := slices.ContainsFunc(mounts, func(m *cdispec.Mount) bool {
			return m.ContainerPath == own.Place
		})
		if proxy := proxyFor(own.Name); !taken && proxy != "" {
			mounts = append(mounts, driverMount(c.proxyFile(proxy), own.Place))
		}
	}
	if slices.ContainsFunc(mounts, func(m *cdispec.Mount) bool {
		return filepath.Dir(m.HostPath) == c.inventory.Shim.Dir
	}) {
		mounts = append(mounts, c.policy.RecordMounts(c.grantID())...)
	}
	return mounts
}

// grantID is the grant's, which one that is to be adopted gets with its binding.
func (c *asking) grantID() grant.ID {
	if c.grant.ID == "" {
		return c.view.Fresh
	}
	return c.grant.ID
}

// has reports whether the container gets something at a place.
func has(mounts []*cdispec.Mount, place string) bool {
	return slices.ContainsFunc(mounts, func(m *cdispec.Mount) bool { return m.ContainerPath == place })
}

// enforceable refuses a limit that the policy wants kept by what this container cannot have.
func (c *asking) enforceable() {
	backend := c.policy.Enforcement.Limit
	var why string
	switch {
	case c.grant.Mode != grant.Limit:
		return
	case backend == grant.DriverBackend && !c.driven():
		why = c.driverless()
	case backend == grant.LibraryBackend && !c.held:
		if why = Limitless(len(c.grant.GPUs), c.inventory, c.policy); why == "" {
			why = "it does not get the driver's libraries, by its image or by NVIDIA_DRIVER_CAPABILITIES"
		}
	default:
		return
	}
	c.tell(grant.LimitUnenforceable, "enforcement.limit", string(backend),
		fmt.Sprintf("cannot be held to the memory of its grant %s: %s", c.grantID(), why),
		"an administrator sees with `gpuledger doctor` what the node lacks, or sets "+
			"enforcement.limit = \"auto\"")
}

// Strength is what holds the containers of a grant to it: the weakest that one of them has, and
// where none uses it what the node would give the next.
func Strength(g grant.Grant, inv grant.Inventory, p grant.Policy) grant.Strength {
	if len(g.Bindings) == 0 {
		switch {
		case g.Mode == grant.Limit && Driverless(g, inv, p) == "":
			return grant.StrengthDriver
		case g.Mode == grant.Limit && Limitless(len(g.GPUs), inv, p) == "":
			return grant.StrengthLibrary
		}
		return g.Strength
	}
	weakest := grant.StrengthHardware
	for _, b := range g.Bindings {
		if b.Strength == "" { // of a version that limited nothing
			b.Strength = g.Strength
		}
		if !b.Strength.AtLeast(weakest) {
			weakest = b.Strength
		}
	}
	return weakest
}
