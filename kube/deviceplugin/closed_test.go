package deviceplugin

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Pods bound to such a node would fail admission, one after another. The devices of containers stay
// healthy: a restarted kubelet does not admit a pod again whose devices are unhealthy.
func TestAClosedNodeOffersNothing(t *testing.T) {
	for name, r := range map[string]Resource{"units": units1GiB, "whole GPUs": Whole()} {
		for _, file := range []string{"state/inventory.json", "config.toml", "state/grants"} {
			t.Run(name+" without "+file, func(t *testing.T) {
				s := newSite(t, 4, r, "")
				s.ensure()
				c, _ := s.kubelet.registered()
				stream, err := c.ListAndWatch(soon(t), &api.Empty{})
				check(t, err)
				all := nextHealthy(t, stream)
				held := []string{s.UUID(1)}
				if r.Unit > 0 {
					held = some(3, 6)
				}
				s.gets(c, held...)
				path := s.SimulatedNode.Dir + "/" + file
				check(t, os.Rename(path, path+".away"))
				check(t, os.WriteFile(path, []byte("nonsense"), 0o600))
				if err := s.Ensure(context.Background()); err == nil {
					t.Error("there is no error")
				}
				if closed := nextHealthy(t, stream); closed != strings.Join(held, " ") {
					t.Errorf("healthy are %s, want only what a container has, %v", closed, held)
				}
				_ = s.Ensure(context.Background())
				check(t, os.Remove(path))
				check(t, os.Rename(path+".away", path))
				s.ensure()
				if again := nextHealthy(t, stream); again != all {
					t.Errorf("healthy are %s, want again %s", again, all)
				}
			})
		}
	}
}

// The kubelet reuses devices between two containers of a pod, and a grant's label has those of the
// first.
func TestReusedDevicesStayHealthy(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	stream, err := c.ListAndWatch(soon(t), &api.Empty{})
	check(t, err)
	nextHealthy(t, stream)
	s.gets(c, some(0, 1)...)
	s.getsAfter(c, some(0, 1), some(1, 3)...)
	check(t, os.Remove(s.SimulatedNode.Dir+"/state/inventory.json"))
	if err := s.Ensure(context.Background()); err == nil ||
		!strings.Contains(err.Error(), string(grant.InventoryMissing)) {
		t.Errorf("got %v", err)
	}
	if closed := nextHealthy(t, stream); closed != strings.Join(some(0, 3), " ") {
		t.Errorf("healthy are %s, want those of both containers", closed)
	}
}

// Each list makes the kubelet write the node's status.
func TestOnlyChangedDevicesAreSent(t *testing.T) {
	s := newSite(t, 2, Whole(), "")
	s.ensure()
	c, _ := s.kubelet.registered()
	stream, err := c.ListAndWatch(soon(t), &api.Empty{})
	check(t, err)
	nextHealthy(t, stream)
	before := s.Plugin.changed
	s.ensure()
	if s.Plugin.changed != before {
		t.Error("the same is sent again")
	}
}

// soon returns a context that ends the wait for a list that is never sent.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// nextHealthy returns the ids of the healthy devices in the next list.
func nextHealthy(t *testing.T, stream api.DevicePlugin_ListAndWatchClient) string {
	t.Helper()
	r, err := stream.Recv()
	check(t, err)
	var ids []string
	for _, d := range r.Devices {
		if d.Health == api.Healthy {
			ids = append(ids, d.ID)
		}
	}
	return strings.Join(ids, " ")
}
