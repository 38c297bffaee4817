package admission

import (
	"path/filepath"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// graphicsNodes are the nodes beside the driver's own that a container draws with (docs/adr/0031):
// with graphics or display its GPUs' render nodes; if nobody else has these GPUs also their card
// nodes and the modeset node, by which a display is driven.
func (c *asking) graphicsNodes() []*cdispec.DeviceNode {
	if !c.draws() {
		return nil
	}
	var nodes []*cdispec.DeviceNode
	for _, d := range c.devices() {
		if !drawsGraphics(d) {
			continue
		}
		for _, path := range d.GPU.Render {
			if isRender(path) || c.drives() {
				nodes = append(nodes, drmNodes(d.GPU, path)...)
			}
		}
	}
	if c.drives() {
		nodes = append(nodes, deviceNode("/dev/nvidia-modeset", grant.MajorNVIDIA, grant.MinorModeset))
	}
	return nodes
}

// draws reports whether the container wants to draw.
func (c *asking) draws() bool {
	return slices.Contains(c.request.Capabilities, grant.Graphics) ||
		slices.Contains(c.request.Capabilities, grant.Display)
}

// drives reports whether it may have displays: whoever has a card node can be the one that all
// others ask.
func (c *asking) drives() bool { return c.draws() && c.grant.Mode == grant.Exclusive }

func isRender(path string) bool { return strings.HasPrefix(filepath.Base(path), "renderD") }

// drmNodes are a DRM node and, where the node has a link to it by its card's address, the same
// under that name: a link cannot be given to a container by values, and a second node opens the
// same.
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
