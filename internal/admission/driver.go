package admission

import (
	"path/filepath"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// withheld are programs of the driver that manage the node's GPUs for everybody; no tenant needs
// them.
var withheld = []string{"nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
	"nvidia-imex", "nvidia-imex-ctl"}

// plannedFiles are the driver's files of the last decision, and all that they depend on beside the
// inventory and the policy.
type plannedFiles struct {
	done     bool
	wanted   []grant.Capability
	compat32 bool
	layout   grant.Layout
	own      []grant.OwnLibrary
	limited  bool
	throttle bool
	grant    grant.ID
	mounts   []*cdispec.Mount
}

// filesOnce are the driver's files, planned anew only where something is asked for that was not
// before.
func (c *asking) filesOnce() []*cdispec.Mount {
	if c.planned == nil {
		return c.driverFiles()
	}
	r, p := c.request, c.planned
	id, limited, throttle := c.grantID(), c.limited(), c.throttled()
	if !p.done || p.compat32 != r.Compat32 || p.layout != r.Layout || p.limited != limited ||
		p.throttle != throttle || p.grant != id || !slices.Equal(p.wanted, r.Capabilities) ||
		!slices.Equal(p.own, r.Own) {
		*p = plannedFiles{true, r.Capabilities, r.Compat32, r.Layout, r.Own, limited, throttle, id,
			slices.Clip(c.driverFiles())}
	}
	return p.mounts
}

// driverFiles are the mounts by which a container gets the driver's user space: what its
// capabilities ask for, each library in the directory that the image's own loader searches, by the
// names that programs look for. An image without a loader can use no library and no program.
func (c *asking) driverFiles() []*cdispec.Mount {
	image := c.request.Layout
	mounts := c.mounts(func(f grant.DriverFile) string {
		switch {
		case image.Unseen:
			return f.Target
		case f.Bits == 32:
			return image.Lib32
		}
		return image.Lib64
	})
	if c.limited() {
		return c.withLimit(mounts)
	}
	return mounts
}

// unseen is a container whose image nobody has seen, as a CDI file's: it gets all that needs
// neither an X server nor 32-bit programs, each where the node has it. An image of the node's own
// kind finds them there.
var unseen = grant.Request{Capabilities: []grant.Capability{
	grant.Compute, grant.Utility, grant.Graphics, grant.Video, grant.NGX}, Layout: grant.Layout{Unseen: true}}

// InstalledFiles are the mounts of the driver's user space for such a container, where no grant is
// known either.
func InstalledFiles(inv grant.Inventory) []*cdispec.Mount {
	c := newCase(unseen, grant.View{}, inv, grant.Policy{})
	return c.driverFiles()
}

// mounts makes them of the files that the container wants, libraries in the directory that dir
// says; "" is nowhere.
func (c *asking) mounts(dir func(grant.DriverFile) string) []*cdispec.Mount {
	var mounts []*cdispec.Mount
	limited := c.limited()
	for _, f := range c.inventory.Driver.Files {
		if !c.wants(f) {
			continue
		}
		places := placesOf(f, dir(f))
		if len(places) == 0 {
			continue
		}
		source, proxy := c.inventory.Driver.Source(f), proxyOf(f)
		switch {
		case !limited || proxy == "":
		case f.Bits == 32: // which has no proxy
			continue
		default:
			mounts = append(mounts, driverMount(source, realDriver(proxy)))
			source = c.proxyFile(proxy)
		}
		for _, place := range places {
			mounts = append(mounts, driverMount(source, place))
		}
	}
	return mounts
}

func driverMount(source, place string) *cdispec.Mount {
	return &cdispec.Mount{HostPath: source, ContainerPath: place, Options: grant.DriverFileOptions}
}

// below joins two paths that are clean as they stand, as filepath.Join does.
func below(dir, path string) string {
	return strings.TrimSuffix(dir, "/") + "/" + strings.TrimPrefix(path, "/")
}

// wants reports whether a file is one for this container. Sockets are none: behind them are daemons
// of the node's.
func (c *asking) wants(f grant.DriverFile) bool {
	switch {
	case f.Kind == grant.FileSocket || slices.Contains(withheld, filepath.Base(f.Target)):
		return false
	case f.Bits == 32 && !c.request.Compat32:
		return false
	}
	return f.Capability == "" || slices.Contains(c.request.Capabilities, f.Capability)
}

// placesOf are where a file goes in a container whose libraries are in dir. Modules of the X server
// are found where the driver installs them, programs need the libraries.
func placesOf(f grant.DriverFile, dir string) []string {
	switch {
	case f.Kind == grant.FileModule:
		dir = f.Target
	case dir == "" && (f.Kind == grant.FileLibrary || f.Kind == grant.FileBinary):
		return nil
	case len(f.Names) == 0:
		return []string{f.Target}
	}
	places, dir := make([]string, len(f.Names)), filepath.Clean(dir)
	for i, name := range f.Names {
		places[i] = below(dir, name)
	}
	return places
}
