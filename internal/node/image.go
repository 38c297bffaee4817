package node

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/layout"
	"github.com/gpuledger/gpuledger/internal/order"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/internal/rootfs"
)

// listed enters the driver's libraries into the image's ld.so.cache and returns the admission. If
// that fails, the loader finds them all the same, and only programs that read the cache do not. So
// a failure is recorded and refuses nothing.
func listed(f *createFacts, d Decision) Decision {
	if d.Kind != grant.Admit || d.Known || len(d.Edits.Mounts) == 0 {
		return d
	}
	l := f.request.Layout
	var libraries []rootfs.Library
	for _, m := range d.Edits.Mounts {
		switch dir, name := filepath.Split(m.ContainerPath); {
		case !strings.Contains(name, ".so"):
		case l.Cache && isDirectory(dir, l.Lib64):
			libraries = append(libraries, rootfs.Library{Path: m.ContainerPath, Bits: 64})
		case l.Cache && isDirectory(dir, l.Lib32):
			libraries = append(libraries, rootfs.Library{Path: m.ContainerPath, Bits: 32})
		}
	}
	if len(libraries) == 0 {
		return d
	}
	if err := tree(f.image, f.Container.Bundle).Enter(libraries); err != nil {
		d.Recorded = append(d.Recorded, "ld.so.cache lists no driver: "+err.Error())
	}
	return d
}

// isDirectory reports whether a path with a slash at its end, as filepath.Split leaves one, is a
// directory whose path is clean.
func isDirectory(path, clean string) bool {
	return clean != "" && strings.TrimSuffix(path, "/") == clean || filepath.Clean(path) == clean
}

func tree(i layout.Image, bundle string) rootfs.Tree {
	return rootfs.Tree{Root: i.Root, Bundle: bundle, Mounts: i.Mounts}
}

// Delete does what RemoveDeadBinding does, at a container's delete. It also removes what was made
// in the container's root file system for the mounts of the driver's files.
func (n *Node) Delete(runtimeRoot, container string) {
	if bundle := n.RemoveDeadBinding(runtimeRoot, container); bundle != "" {
		removeMountPoints(n, bundle)
	}
}

// removeMountPoints takes the mount points of the driver's files out of the root file system of a
// bundle whose container is dead. Whatever it cannot read it leaves as it is.
func removeMountPoints(n *Node, bundle string) {
	path := filepath.Join(bundle, "config.json")
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	config, err := host.ReadRegular(path, request.MaxSpec)
	if err != nil {
		return
	}
	spec, err := request.Parse(config)
	if err != nil || spec.Root == nil {
		return
	}
	inv, _ := n.Inventory() // one that is stale still tells whose files they are
	ours := inv.Driver.Sources()
	image, places := imageOf(spec, bundle), []string(nil)
	t := rootfs.Tree{Root: image.Root, Bundle: bundle}
	for _, m := range spec.Mounts {
		if ours.Has(m.Source) || isShim(n, m) {
			places = append(places, m.Destination)
		} else {
			t.Mounts = append(t.Mounts, m.Destination)
		}
	}
	if len(places) > 0 {
		t.RemoveMountPoints(places, info.ModTime().UnixNano(),
			filepath.Join(grant.ShimPlace, "driver"), grant.ShimPlace)
	}
}

// isShim reports whether a mount is one that a limit brings: of a proxy, whichever version's, or of
// a record.
func isShim(n *Node, m specs.Mount) bool {
	return n.Policy.RecordOf(m.Source, m.Destination, m.Options) != "" || shimmed(m.Destination) != "" &&
		(strings.HasSuffix(shimmed(m.Source), ".1") || filepath.Base(m.Source) == grant.ThrottleLibrary)
}

// shimmed returns the name of the library at a path if the shim takes its place; "" if it does not.
func shimmed(path string) string {
	if name := filepath.Base(path); slices.Contains(grant.Shimmed, name) {
		return name
	}
	return ""
}

// compat are the directories of a CUDA in which images have a libcuda of their own, newer than the
// node's (NVIDIA's "forward compatibility" packages). In NVIDIA's NGC images it is in lib.real. The
// script that runs there first (/etc/shinit_v2, by BASH_ENV) enters that into LD_LIBRARY_PATH, or
// links lib to it.
var compat = []string{"compat", "compat/lib", "compat/lib.real"}

// compatDirs returns the directories for every version of CUDA that the image may have. A program
// can be started with any, so all count.
func compatDirs(i layout.Image) (dirs []string) {
	for _, cuda := range append(layout.Named(i, "/usr/local", "cuda-"), "/usr/local/cuda") {
		for _, dir := range compat {
			dirs = append(dirs, filepath.Join(cuda, dir))
		}
	}
	return dirs
}

// maxSearched bounds how many directories of LD_LIBRARY_PATH are looked into.
const maxSearched = 64

// ownLibraries returns the places where a program of the container would find a libcuda or an NVML
// of the image's or of its own mounts: in LD_LIBRARY_PATH, which comes before all, by ld.so.cache,
// and for forward compatibility. A limit has to lie over them.
func ownLibraries(i layout.Image, bundle string) []grant.OwnLibrary {
	var own []grant.OwnLibrary
	for _, place := range i.Mounts {
		if name := shimmed(place); name != "" && !strings.HasPrefix(filepath.Clean(place), grant.ShimPlace+
			"/") {
			own = append(own, grant.OwnLibrary{Place: filepath.Clean("/" + place), Name: name})
		}
	}
	if i.Root != "" {
		places := tree(i, bundle).Listed(grant.Shimmed)
		for _, dir := range slices.Concat(i.Search[:min(len(i.Search), maxSearched)], compatDirs(i)) {
			for _, name := range grant.Shimmed {
				places = append(places, filepath.Join(dir, name))
			}
		}
		for _, f := range layout.Files(i, places) {
			own = append(own, grant.OwnLibrary{Place: f.Real, Name: filepath.Base(f.Path)})
		}
	}
	order.Stable(own, func(a, b grant.OwnLibrary) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), cmp.Compare(a.Name, b.Name))
	})
	return slices.CompactFunc(own, func(a, b grant.OwnLibrary) bool { return a.Place == b.Place })
}
