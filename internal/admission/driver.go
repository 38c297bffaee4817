package admission

import (
	"path/filepath"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// withheld are programs of the driver that manage the node's GPUs for everybody; no tenant needs them.
var withheld = []string{"nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl"}

// mountOptions of every driver file: the container neither changes it nor gains by it.
var mountOptions = []string{"ro", "nosuid", "nodev", "bind"}

// driverFiles are the mounts by which a container gets the driver's user space: what its capabilities ask for, each library in
// the directory that the image's own loader searches, by the names that programs look for. An image without a loader can use no
// library and no program.
func (c *asking) driverFiles() []*cdispec.Mount {
	image := c.request.Layout
	return c.mounts(func(f grant.DriverFile) string {
		switch {
		case image.Unseen:
			return f.Target
		case f.Bits == 32:
			return image.Lib32
		}
		return image.Lib64
	})
}

// InstalledFiles are the mounts of the driver's user space for a container whose image nobody has seen, as a CDI file's: all that
// needs neither an X server nor 32-bit programs, each where the node has it. An image of the node's own kind finds them there.
func InstalledFiles(inv grant.Inventory) []*cdispec.Mount {
	r := grant.Request{Capabilities: []grant.Capability{grant.Compute, grant.Utility, grant.Graphics, grant.Video, grant.NGX}}
	c := newCase(r, grant.View{}, inv, grant.Policy{})
	return c.mounts(func(f grant.DriverFile) string { return f.Target })
}

// mounts makes them of the files that the container wants, libraries in the directory that dir says; "" is nowhere.
func (c *asking) mounts(dir func(grant.DriverFile) string) []*cdispec.Mount {
	var mounts []*cdispec.Mount
	for _, f := range c.inventory.Driver.Files {
		if !c.wants(f) {
			continue
		}
		for _, place := range placesOf(f, dir(f)) {
			mounts = append(mounts, &cdispec.Mount{HostPath: filepath.Join(c.inventory.Driver.Root, f.Path), ContainerPath: place, Options: slices.Clone(mountOptions)})
		}
	}
	return mounts
}

// wants reports whether a file is one for this container. Sockets are none: behind them are daemons of the node's.
func (c *asking) wants(f grant.DriverFile) bool {
	switch {
	case f.Kind == grant.FileSocket || slices.Contains(withheld, filepath.Base(f.Target)):
		return false
	case f.Bits == 32 && !c.request.Compat32:
		return false
	}
	return f.Capability == "" || slices.Contains(c.request.Capabilities, f.Capability)
}

// placesOf are where a file goes in a container whose libraries are in dir. Modules of the X server are found where the driver
// installs them, programs need the libraries.
func placesOf(f grant.DriverFile, dir string) []string {
	switch {
	case f.Kind == grant.FileModule:
		dir = f.Target
	case dir == "" && (f.Kind == grant.FileLibrary || f.Kind == grant.FileBinary):
		return nil
	case len(f.Names) == 0:
		return []string{f.Target}
	}
	places := make([]string, len(f.Names))
	for i, name := range f.Names {
		places[i] = filepath.Join(dir, name)
	}
	return places
}
