package admission

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// desk is a container with a grant in this mode, of a GPU with a display.
func desk(mode grant.Mode, capabilities ...grant.Capability) *world {
	w := newWorld()
	w.bearer()
	w.v.Grants[1].GPUs, w.v.Grants[1].Mode = w.v.Grants[1].GPUs[:1], mode
	w.inv.GPUs[0].Render = []string{"/dev/dri/card1", "/dev/dri/renderD128"}
	w.inv.GPUs[0].Links = []string{"/dev/dri/by-path/pci-0000:01:00.0-card",
		"/dev/dri/by-path/pci-0000:01:00.0-render"}
	w.r.Capabilities = capabilities
	return w
}

// TestGraphicsNodes tests that a container with the capability graphics or display gets render
// nodes, and one with an exclusive grant also the nodes that drive a display.
func TestGraphicsNodes(t *testing.T) {
	const usual = "nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools"
	const render = " dri/renderD128 dri/by-path/pci-0000:01:00.0-render"
	const drives = " dri/card1 dri/by-path/pci-0000:01:00.0-card" + render + " nvidia-modeset"
	for _, c := range []struct {
		mode         grant.Mode
		capabilities []grant.Capability
		want         string
	}{
		{grant.Exclusive, []grant.Capability{grant.Compute, grant.Utility, grant.Video, grant.NGX}, usual},
		{grant.Exclusive, []grant.Capability{grant.Graphics}, usual + drives},
		{grant.Exclusive, []grant.Capability{grant.Display}, usual + drives},
		{grant.Limit, []grant.Capability{grant.Compute}, usual},
		{grant.Limit, []grant.Capability{grant.Graphics}, usual + render},
		{grant.Timeslice, []grant.Capability{grant.Display}, usual + render},
	} {
		v := desk(c.mode, c.capabilities...).decide()
		if v.Kind != grant.Admit || paths(v.Edits.DeviceNodes) != c.want {
			t.Errorf("%s with %v: %s (%s), nodes %s\nwant %s", c.mode, c.capabilities, v.Kind, v.Message,
				paths(v.Edits.DeviceNodes), c.want)
		}
		rules := map[grant.DeviceRule]bool{}
		for _, r := range v.Rules {
			if rules[r] {
				t.Errorf("%s with %v: twice the rule %+v", c.mode, c.capabilities, r)
			}
			rules[r] = true
		}
		for _, n := range v.Edits.DeviceNodes {
			if n.Type != "c" || !rules[grant.DeviceRule{Allow: true, Type: 'c', Major: n.Major,
				Minor: n.Minor, Access: "rw"}] {
				t.Errorf("%s with %v: no rule for %s", c.mode, c.capabilities, n.Path)
			}
			if strings.HasPrefix(n.Path, "/dev/dri/") && (n.Major != grant.MajorDRM ||
				n.Minor != map[bool]int64{true: 128, false: 1}[strings.Contains(n.Path, "render")]) {
				t.Errorf("%s is %d:%d", n.Path, n.Major, n.Minor)
			}
		}
	}
}

// TestAModesetNodeOfTheSpec tests that the node stays if the grant brings it, and otherwise is
// removed.
func TestAModesetNodeOfTheSpec(t *testing.T) {
	for _, c := range []struct {
		w       *world
		removed int
	}{
		{desk(grant.Exclusive, grant.Graphics), 0}, {desk(grant.Exclusive, grant.Compute), 1},
		{desk(grant.Limit, grant.Display), 1},
	} {
		c.w.hit(node(grant.ClassModeset, grant.MinorModeset))
		if v := c.w.decide(); v.Kind != grant.Admit || len(v.Removed) != c.removed {
			t.Errorf("%s with %v: %s, removed %v", c.w.v.Grants[1].Mode,
				c.w.r.Capabilities, v.Kind, v.Removed)
		}
	}
}

// TestGraphicsNodesOfMIGDevices tests that only MIG devices of a profile with graphics get such
// nodes.
func TestGraphicsNodesOfMIGDevices(t *testing.T) {
	w := mig("MIG-a")
	w.inv.GPUs[0].Render = []string{"/dev/dri/renderD128"}
	w.r.Capabilities = []grant.Capability{grant.Graphics}
	if v := w.decide(); strings.Contains(paths(v.Edits.DeviceNodes), "dri") {
		t.Errorf("nodes %s", paths(v.Edits.DeviceNodes))
	}
	w.inv.GPUs[0].MIG[0].Profile = "1g.10gb+gfx"
	if v := w.decide(); !strings.HasSuffix(paths(v.Edits.DeviceNodes), " dri/renderD128") {
		t.Errorf("nodes %s", paths(v.Edits.DeviceNodes))
	}
}

// TestACardNodeBelongsToAWholeGPU: by it a container could take the displays of a shared one.
func TestACardNodeBelongsToAWholeGPU(t *testing.T) {
	d := grant.Device{GPU: grant.GPU{Minor: 1, Render: []string{"/dev/dri/card1", "/dev/dri/renderD128"}}}
	for _, whole := range []bool{false, true} {
		if isNodeOf(&d, grant.DeviceNode{Class: grant.ClassDRM, Minor: 1}, whole) != whole {
			t.Errorf("whole: %v, the card node", whole)
		}
		if !isNodeOf(&d, grant.DeviceNode{Class: grant.ClassDRM, Minor: 128}, whole) {
			t.Errorf("whole: %v, the render node", whole)
		}
	}
}
