package dra

import (
	"slices"
	"strings"
	"testing"

	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

// TestDeviceHealth: each published device has the health of its GPU, and so has the device of a
// grant whose GPU is gone.
func TestDeviceHealth(t *testing.T) {
	n := nodeledgertest.New(t, 2, 16*grant.GiB, "")
	gone := n.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit, Source: Source, Owner: "claim:u",
		Names: []string{"1"}})
	health := func() map[string]*drahealth.DeviceHealth {
		p, err := n.Read()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]*drahealth.DeviceHealth{}
		for _, d := range deviceHealth(p, "node") {
			if d.Device.PoolName != "node" || d.LastUpdatedTime != p.Now.Unix() {
				t.Errorf("got %v", d)
			}
			all[d.Device.DeviceName] = d
		}
		return all
	}
	all := health()
	for _, s := range slicesOf(t, n) {
		for _, d := range s.Devices {
			if all[d.Name].GetHealth() != drahealth.HealthStatus_HEALTHY {
				t.Errorf("%s is published, and its health is %v", d.Name, all[d.Name])
			}
		}
	}
	n.SetGPUs(1, 16*grant.GiB, func(all []simulated.GPUDescription) { all[0].Health = "fell off the bus" })
	all = health()
	for _, d := range slicesOf(t, n)[0].Devices {
		if h := all[d.Name]; h.GetHealth() != drahealth.HealthStatus_UNHEALTHY ||
			h.Message != "fell off the bus" {
			t.Errorf("the GPU of %s is unhealthy, and its health is %v", d.Name, h)
		}
	}
	if h := all[deviceName(gone.GPUs[0].UUID, grant.Limit)]; !strings.Contains(h.Message, "no such GPU") ||
		h.GetHealth() != drahealth.HealthStatus_UNHEALTHY {
		t.Errorf("the grant's GPU is gone, and its health is %v", h)
	}
}

// The device of a claim for a whole GPU can have the name of a shared mode. Its grant does not say
// so.
func TestTheDevicesOfAWholeGPUThatIsGone(t *testing.T) {
	s := newSite(t, 2)
	c := s.whole("u", 1, "16Gi", "")
	s.has(t, c)
	s.SetGPUs(1, 16*grant.GiB, func([]simulated.GPUDescription) {})
	name := c.Status.Allocation.Devices.Results[0].Device
	of := slices.DeleteFunc(deviceHealth(contentOf(t, s.Driver), pool),
		func(d *drahealth.DeviceHealth) bool { return d.Device.DeviceName != name })
	if len(of) != 1 || of[0].Health != drahealth.HealthStatus_UNHEALTHY {
		t.Errorf("the health of %s is %v, want it unhealthy", name, of)
	}
}
