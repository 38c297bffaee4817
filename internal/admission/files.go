package admission

import (
	"path/filepath"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// nodePrograms are programs of the driver that manage the node's GPUs for all users. No container
// gets them.
var nodePrograms = []string{"nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
	"nvidia-imex", "nvidia-imex-ctl"}

// wantedFiles is what a container's driver files depend on, besides the inventory and the policy.
type wantedFiles struct {
	capabilities []grant.Capability
	compat32     bool
	layout       grant.Layout
	own          []grant.OwnLibrary
	grant        grant.ID // whose records the proxies read
	proxies      bool     // proxies of the shim replace the driver's libraries
	throttled    bool     // the proxy of libcuda is the one that throttles launches
}

func wantedBy(r *grant.Request) wantedFiles {
	return wantedFiles{capabilities: r.Capabilities, compat32: r.Compat32, layout: r.Layout, own: r.Own}
}

func (w wantedFiles) equals(o wantedFiles) bool {
	return w.compat32 == o.compat32 && w.layout == o.layout && w.grant == o.grant &&
		w.proxies == o.proxies && w.throttled == o.throttled &&
		slices.Equal(w.capabilities, o.capabilities) && slices.Equal(w.own, o.own)
}

// unseen is the request of a container whose image was not read, as for a CDI file. It gets
// everything that needs neither an X server nor 32-bit programs, where the node has it. An image
// with the layout of the node finds it there.
var unseen = grant.Request{
	Capabilities: []grant.Capability{grant.Compute, grant.Utility, grant.Graphics, grant.Video, grant.NGX},
	Layout:       grant.Layout{Unseen: true},
}

// InstalledFiles returns the mounts of the driver's user space for a container whose image and
// grant are not known.
func InstalledFiles(inv grant.Inventory) []*cdispec.Mount {
	return driverFiles(wantedBy(&unseen), &inv, &grant.Policy{})
}

// driverFiles returns the mounts that give a container the driver's user space: the files for its
// capabilities. Each library is in the directory that the image's own loader searches, under the
// names by which programs open it. An image without a loader can use no library and no program.
func driverFiles(w wantedFiles, inv *grant.Inventory, p *grant.Policy) []*cdispec.Mount {
	var mounts []*cdispec.Mount
	for _, f := range inv.Driver.Files {
		if !wants(w, f) {
			continue
		}
		source, proxy := inv.Driver.Source(f), proxyOf(f)
		if w.proxies && proxy != "" {
			if f.Bits == 32 { // there is no 32-bit proxy
				continue
			}
			mounts = append(mounts, driverMount(source, realDriver(proxy)))
			source = proxyPath(w, inv, proxy)
		}
		mounts = addFile(mounts, f, source, libraryDir(w.layout, f))
	}
	if w.proxies {
		return addProxies(mounts, w, inv, p)
	}
	return mounts
}

// addProxies adds what the proxies need: themselves at every other place where a program would find
// a library of the driver, and the records of the grant.
func addProxies(
	mounts []*cdispec.Mount, w wantedFiles, inv *grant.Inventory, p *grant.Policy,
) []*cdispec.Mount {
	for _, own := range w.own {
		if proxy := proxyFor(own.Name); proxy != "" && !hasMount(mounts, own.Place) {
			mounts = append(mounts, driverMount(proxyPath(w, inv, proxy), own.Place))
		}
	}
	isProxy := func(m *cdispec.Mount) bool { return filepath.Dir(m.HostPath) == inv.Shim.Dir }
	if slices.ContainsFunc(mounts, isProxy) {
		mounts = append(mounts, p.RecordMounts(w.grant)...)
	}
	return mounts
}

// wants reports whether a container gets a file. It gets no sockets: daemons of the node listen on
// them. Without a directory for libraries it gets no programs, because they need the libraries.
func wants(w wantedFiles, f grant.DriverFile) bool {
	switch {
	case f.Kind == grant.FileSocket || slices.Contains(nodePrograms, filepath.Base(f.Target)):
		return false
	case f.Bits == 32 && !w.compat32:
		return false
	case f.Kind == grant.FileLibrary || f.Kind == grant.FileBinary:
		if libraryDir(w.layout, f) == "" {
			return false
		}
	}
	return f.Capability == "" || slices.Contains(w.capabilities, f.Capability)
}

// libraryDir returns the directory in the container for a library; "": none. Modules of the X
// server go where the driver installs them.
func libraryDir(image grant.Layout, f grant.DriverFile) string {
	switch {
	case image.Unseen || f.Kind == grant.FileModule:
		return f.Target
	case f.Bits == 32:
		return image.Lib32
	}
	return image.Lib64
}

// addFile adds the mounts of a file: under each of its names in dir, or where the driver installs
// it.
func addFile(mounts []*cdispec.Mount, f grant.DriverFile, source, dir string) []*cdispec.Mount {
	if len(f.Names) == 0 && f.Kind != grant.FileModule {
		return append(mounts, driverMount(source, f.Target))
	}
	dir = filepath.Clean(dir)
	for _, name := range f.Names {
		mounts = append(mounts, driverMount(source, join(dir, name)))
	}
	return mounts
}

// join joins two clean paths as filepath.Join does, without cleaning the result. A create joins
// tens of paths.
func join(dir, path string) string {
	return strings.TrimSuffix(dir, "/") + "/" + strings.TrimPrefix(path, "/")
}

func driverMount(source, place string) *cdispec.Mount {
	return &cdispec.Mount{HostPath: source, ContainerPath: place, Options: grant.DriverFileOptions}
}

// hasMount reports whether one of the mounts is at a place.
func hasMount(mounts []*cdispec.Mount, place string) bool {
	return slices.ContainsFunc(mounts, func(m *cdispec.Mount) bool { return m.ContainerPath == place })
}

const libcuda = "libcuda.so.1"

// realDriver returns the path at which a proxy opens the driver's own library (shim/place.h).
func realDriver(soname string) string { return filepath.Join(grant.ShimPlace, "driver", soname) }

// proxyFor returns the proxy that replaces a library of this name; "": none.
func proxyFor(name string) string {
	for _, soname := range grant.Shimmed {
		if name == soname {
			return strings.TrimSuffix(soname, ".1") + ".1"
		}
	}
	return ""
}

// proxyOf returns the proxy that replaces a driver file under all of its names; "": none.
func proxyOf(f grant.DriverFile) string {
	for _, name := range f.Names {
		if proxy := proxyFor(name); proxy != "" {
			return proxy
		}
	}
	return ""
}

// proxyPath returns the file of a proxy on the node.
func proxyPath(w wantedFiles, inv *grant.Inventory, proxy string) string {
	if proxy == libcuda && w.throttled {
		proxy = grant.ThrottleLibrary
	}
	return filepath.Join(inv.Shim.Dir, proxy)
}

// NodeMounts returns the mounts by which programs of the node that are in no container get the
// proxies where they find the driver's libraries, and the proxies the records of the grant. There
// are none if nothing but the ledger limits the grant there.
func NodeMounts(g grant.Grant, inv grant.Inventory, p grant.Policy) (mounts []*cdispec.Mount) {
	if g.Mode != grant.Limit || WhyNoShimLimit(len(g.GPUs), inv, p) != "" {
		return nil
	}
	w := wantedFiles{grant: g.ID, proxies: true, throttled: ThrottlePercent(g, p) > 0}
	for _, f := range inv.Driver.Files {
		if proxy := proxyOf(f); proxy != "" && f.Bits != 32 {
			mounts = append(mounts, driverMount(inv.Driver.Source(f), realDriver(proxy)),
				driverMount(proxyPath(w, &inv, proxy), inv.Driver.Source(f)))
		}
	}
	return append(mounts, p.RecordMounts(g.ID)...)
}
