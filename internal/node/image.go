package node

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/internal/rootfs"
)

// listed is an admission with the driver's libraries in the image's ld.so.cache. Where that cannot be, the loader finds them all the
// same and only what asks the cache does not, so it is recorded and no more.
func (v visit) listed(d Decision) Decision {
	if d.Kind != grant.Admit || d.Known || len(d.Edits.Mounts) == 0 {
		return d
	}
	l := v.layout()
	var libraries []rootfs.Library
	for _, m := range d.Edits.Mounts {
		switch dir, name := filepath.Split(m.ContainerPath); {
		case !strings.Contains(name, ".so"):
		case l.Cache && filepath.Clean(dir) == l.Lib64:
			libraries = append(libraries, rootfs.Library{Path: m.ContainerPath, Bits: 64})
		case l.Cache && filepath.Clean(dir) == l.Lib32:
			libraries = append(libraries, rootfs.Library{Path: m.ContainerPath, Bits: 32})
		}
	}
	if len(libraries) == 0 {
		return d
	}
	if err := v.tree().Enter(libraries); err != nil {
		d.Recorded = append(d.Recorded, "ld.so.cache lists no driver: "+err.Error())
	}
	return d
}

func (v visit) tree() rootfs.Tree {
	return rootfs.Tree{Root: v.image.Root, Bundle: v.Container.Bundle, Mounts: v.image.Mounts}
}

// Delete is Tidy at a container's delete: what was made in its root file system for the mounts of the driver's files goes, too.
func (n *Node) Delete(runtimeRoot, container string) {
	if bundle := n.Tidy(runtimeRoot, container); bundle != "" {
		n.clear(bundle)
	}
}

// clear takes the mount points of the driver's files out of the root file system of a bundle whose container is dead. Whatever it
// cannot read it leaves as it is.
func (n *Node) clear(bundle string) {
	path := filepath.Join(bundle, "config.json")
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	config, err := host.ReadFile(path, request.MaxSpec)
	if err != nil {
		return
	}
	spec, err := request.Parse(config)
	if err != nil || spec.Root == nil {
		return
	}
	inv, _ := n.Inventory() // one that is stale still tells whose files they are
	ours := make(map[string]bool, len(inv.Driver.Files))
	for _, f := range inv.Driver.Files {
		ours[filepath.Join(inv.Driver.Root, f.Path)] = true
	}
	image, places := imageOf(spec, bundle), []string(nil)
	t := rootfs.Tree{Root: image.Root, Bundle: bundle}
	for _, m := range spec.Mounts {
		if ours[m.Source] {
			places = append(places, m.Destination)
		} else {
			t.Mounts = append(t.Mounts, m.Destination)
		}
	}
	if len(places) > 0 {
		t.Tidy(places, info.ModTime().UnixNano())
	}
}
