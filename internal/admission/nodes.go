package admission

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// nodesOf lists the device nodes that the grant brings, each once. MIG devices share the node of
// their GPU.
func nodesOf(q *question, u *grantUse) []*cdispec.DeviceNode {
	var nodes []*cdispec.DeviceNode
	for _, d := range u.devices {
		for _, n := range DeviceNodes(q.inventory, d) {
			if !slices.ContainsFunc(nodes, func(o *cdispec.DeviceNode) bool { return o.Path == n.Path }) {
				nodes = append(nodes, n)
			}
		}
	}
	return append(append(nodes, ControlNodes(q.inventory)...), graphicsNodes(q, u)...)
}

// GPUNode returns the device node of a GPU.
func GPUNode(gpu grant.GPU) *cdispec.DeviceNode {
	return deviceNode("/dev/nvidia"+strconv.Itoa(gpu.Minor), grant.MajorNVIDIA, gpu.Minor)
}

// DeviceNodes returns the nodes that open a GPU or a MIG device: the node of the GPU, and those of
// the MIG device's GPU instance and compute instance.
func DeviceNodes(inv grant.Inventory, d grant.Device) []*cdispec.DeviceNode {
	nodes := []*cdispec.DeviceNode{GPUNode(d.GPU)}
	if d.MIG == nil {
		return nodes
	}
	for _, minor := range d.MIG.Caps {
		if node := CapsNode(inv, minor); node != nil {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// CapsNode returns the node of a MIG instance. minor is the number in the instance's capability
// file of the driver. It is nil if the driver has no major for such nodes.
func CapsNode(inv grant.Inventory, minor int) *cdispec.DeviceNode {
	major, known := inv.Majors[string(grant.ClassCaps)]
	if !known {
		return nil
	}
	return deviceNode("/dev/nvidia-caps/nvidia-cap"+strconv.Itoa(minor), major, minor)
}

// ControlNodes returns the nodes that every client of the driver needs, whichever GPU it uses.
func ControlNodes(inv grant.Inventory) []*cdispec.DeviceNode {
	nodes := []*cdispec.DeviceNode{deviceNode("/dev/nvidiactl", grant.MajorNVIDIA, grant.MinorControl)}
	if uvm, known := inv.Majors[string(grant.ClassUVM)]; known {
		nodes = append(nodes,
			deviceNode("/dev/nvidia-uvm", uvm, 0), deviceNode("/dev/nvidia-uvm-tools", uvm, 1))
	}
	return nodes
}

func deviceNode(path string, major, minor int) *cdispec.DeviceNode {
	mode := os.FileMode(0o666) // as the driver makes them; the device cgroup denies them to others
	return &cdispec.DeviceNode{Path: path, HostPath: path, Type: "c",
		Major: int64(major), Minor: int64(minor), FileMode: &mode, Permissions: "rw"}
}

// graphicsNodes returns the nodes for graphics besides the driver's own (docs/adr/0031). A
// container with the capability graphics or display gets the render nodes of its GPUs. With an
// exclusive grant it also gets their card nodes and the modeset node, which drive displays.
func graphicsNodes(q *question, u *grantUse) []*cdispec.DeviceNode {
	if !wantsGraphics(q.request) {
		return nil
	}
	var nodes []*cdispec.DeviceNode
	for i := range u.devices {
		d := &u.devices[i]
		if !hasGraphics(d) {
			continue
		}
		for _, path := range d.GPU.Render {
			if isRender(path) || u.display {
				nodes = append(nodes, drmNodes(d.GPU, path)...)
			}
		}
	}
	if u.display {
		nodes = append(nodes, deviceNode("/dev/nvidia-modeset", grant.MajorNVIDIA, grant.MinorModeset))
	}
	return nodes
}

func wantsGraphics(r grant.Request) bool {
	return slices.Contains(r.Capabilities, grant.Graphics) || slices.Contains(r.Capabilities, grant.Display)
}

// UsesDRM reports whether a container gets DRM nodes with a grant of a device, or names some.
func UsesDRM(r grant.Request, d grant.Device) bool {
	return wantsGraphics(r) && hasGraphics(&d) || slices.ContainsFunc(r.Hits, func(h grant.Hit) bool {
		return h.Node.Class == grant.ClassDRM
	})
}

// hasGraphics reports whether a device has graphics. Of MIG devices, only those of some profiles
// have.
func hasGraphics(d *grant.Device) bool {
	return d.MIG == nil || strings.Contains(d.MIG.Profile, "+gfx")
}

func isRender(path string) bool { return strings.HasPrefix(filepath.Base(path), "renderD") }

// drmNodes returns a DRM node, and if the host has a link to it by its PCI address, the same node
// under the link's path. Edits cannot express a link, and a second node opens the same device.
func drmNodes(gpu grant.GPU, path string) []*cdispec.DeviceNode {
	minor := drmMinor(path)
	if minor < 0 {
		return nil
	}
	nodes := []*cdispec.DeviceNode{deviceNode(path, grant.MajorDRM, minor)}
	kind := "-card"
	if isRender(path) {
		kind = "-render"
	}
	for _, name := range gpu.Links {
		if strings.HasSuffix(name, kind) {
			link := *nodes[0]
			link.Path = name
			nodes = append(nodes, &link)
		}
	}
	return nodes
}

// drmMinor returns the device minor of a DRM node: N of cardN and of renderDN. It returns -1 for
// other names.
func drmMinor(path string) int {
	minor, err := strconv.Atoi(path[len(strings.TrimRight(path, "0123456789")):])
	if err != nil {
		return -1
	}
	return minor
}
