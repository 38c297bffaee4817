package node

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestOtherDRMNodesConcernWhoUsesThem: a container with graphics, or that names a DRM node, with a
// grant or before it adopts one. Others start with an inventory from before nvidia-drm was loaded,
// also those with graphics and a MIG device, which cannot draw.
func TestOtherDRMNodesConcernWhoUsesThem(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/bus/pci/devices/0000:01:00.0/drm/renderD128", 0o755),
		os.MkdirAll(dir+"/bus/pci/devices/0000:03:00.0/drm/renderD129", 0o755))
	for _, gi := range []string{"7", "8"} {
		mig := dir + "/driver/nvidia/capabilities/gpu0/mig/gi" + gi
		must(t, os.MkdirAll(mig+"/ci0", 0o755),
			os.WriteFile(mig+"/access", []byte("DeviceFileMinor: 0\n"), 0o644),
			os.WriteFile(mig+"/ci0/access", []byte("DeviceFileMinor: 0\n"), 0o644))
	}
	n := &Node{Host: host.Host{Proc: dir, Sys: dir},
		Policy: grant.Policy{Inventory: grant.Source{Source: grant.NVML}}}
	inv := grant.Inventory{GPUs: []grant.GPU{
		{UUID: "GPU-0", PCI: "0000:01:00.0", Health: grant.Healthy},
		{UUID: "GPU-1", Index: 1, PCI: "0000:02:00.0", Health: grant.Healthy},
		{UUID: "GPU-3", Index: 3, PCI: "0000:03:00.0", Health: grant.Healthy, MIG: []grant.MIGDevice{
			{UUID: "MIG-a", GI: 7, Profile: "1g.10gb"}, {UUID: "MIG-b", GI: 8, Profile: "1g.10gb+gfx"}}}}}
	graphics := grant.Request{Capabilities: []grant.Capability{grant.Graphics}}
	named := grant.Request{Hits: []grant.Hit{{Node: grant.DeviceNode{Class: grant.ClassDRM, Minor: 128}}}}
	for name, c := range map[string]struct {
		request grant.Request
		gpu     string
		stale   string
	}{
		"graphics":            {graphics, "GPU-0", "GPU 0"},
		"a named node":        {named, "GPU-0", "GPU 0"},
		"compute":             {grant.Request{}, "GPU-0", ""},
		"of another GPU":      {graphics, "GPU-1", ""},
		"of a lost GPU":       {graphics, "GPU-2", ""},
		"of a MIG device":     {graphics, "MIG-a", ""},
		"of one that draws":   {graphics, "MIG-b", "GPU 3"},
		"before an adoption":  {graphics, "", "GPU 0"},
		"compute before that": {grant.Request{}, "", ""},
	} {
		v := grant.View{Grants: []grant.Grant{{GPUs: []grant.Share{{UUID: c.gpu}}}}}
		if c.gpu == "" {
			v = grant.View{Whole: &grant.View{}}
		}
		problem := otherDevice(n, c.request, v, inv)
		if (problem != nil) != (c.stale != "") || problem != nil && (problem.Code != grant.InventoryStale ||
			!strings.Contains(problem.Message, "DRM nodes [] for "+c.stale)) {
			t.Errorf("%s: %+v", name, problem)
		}
	}
	n.Policy.Inventory.Source = grant.Simulated
	if why := OtherDRM(n, inv.GPUs); why != "" {
		t.Errorf("on a simulated node: %s", why)
	}
}
