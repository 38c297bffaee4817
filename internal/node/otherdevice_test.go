package node

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestOtherDRMNodesConcernWhoUsesThem: a container with graphics, or that names a DRM node. Others
// start with an inventory from before nvidia-drm was loaded.
func TestOtherDRMNodesConcernWhoUsesThem(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/bus/pci/devices/0000:01:00.0/drm/renderD128", 0o755))
	n := &Node{Host: host.Host{Proc: dir, Sys: dir},
		Policy: grant.Policy{Inventory: grant.Source{Source: grant.NVML}}}
	inv := grant.Inventory{GPUs: []grant.GPU{
		{UUID: "GPU-0", PCI: "0000:01:00.0", Health: grant.Healthy},
		{UUID: "GPU-1", Index: 1, PCI: "0000:02:00.0", Health: grant.Healthy}}}
	graphics := grant.Request{Capabilities: []grant.Capability{grant.Graphics}}
	named := grant.Request{Hits: []grant.Hit{{Node: grant.DeviceNode{Class: grant.ClassDRM, Minor: 128}}}}
	for name, c := range map[string]struct {
		request grant.Request
		gpu     string
		stale   bool
	}{
		"graphics":       {graphics, "GPU-0", true},
		"a named node":   {named, "GPU-0", true},
		"compute":        {grant.Request{}, "GPU-0", false},
		"of another GPU": {graphics, "GPU-1", false},
		"of a lost GPU":  {graphics, "GPU-2", false},
	} {
		held := []grant.Grant{{GPUs: []grant.Share{{UUID: c.gpu}}}}
		problem := otherDevice(n, c.request, held, inv)
		if (problem != nil) != c.stale || c.stale && (problem.Code != grant.InventoryStale ||
			!strings.Contains(problem.Message, "DRM nodes [] for GPU 0")) {
			t.Errorf("%s: %+v", name, problem)
		}
	}
	n.Policy.Inventory.Source = grant.Simulated
	if why := OtherDRM(n, inv.GPUs); why != "" {
		t.Errorf("on a simulated node: %s", why)
	}
}
