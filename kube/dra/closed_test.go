package dra

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// closedFor lists the devices that were published last, each with the effect and value of its taint
// "closed".
func (p *recorder) closedFor() map[string]string {
	devices := map[string]string{}
	for _, s := range p.all[len(p.all)-1].Pools[pool].Slices {
		for _, d := range s.Devices {
			devices[d.Name] = ""
			for _, t := range d.Taints {
				if t.Key == taintClosed {
					devices[d.Name] += string(t.Effect) + " " + t.Value
				}
			}
		}
	}
	return devices
}

// Pods that are bound to a node that can enter no grant stay in ContainerCreating.
func TestANodeThatCannotGrantIsClosed(t *testing.T) {
	for file, code := range map[string]grant.Code{"state/inventory.json": grant.InventoryMissing,
		"config.toml": grant.ConfigInvalid, "state/grants": grant.LedgerUnreadable} {
		t.Run(string(code), func(t *testing.T) {
			s, to := newSite(t, 2), &recorder{}
			s.SetGPUs(2, 16*grant.GiB, func(all []simulated.GPUDescription) { all[1].Health = "lost" })
			publish := func() error { return s.Publish(context.Background(), to) }
			if err := publish(); err != nil {
				t.Fatal(err)
			}
			open := to.closedFor()
			s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0")))
			path := s.Dir + "/" + file
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("nonsense"), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := publish(); err == nil || !strings.Contains(err.Error(),
					"cannot offer the node's GPUs: ") {
					t.Errorf("got %v", err)
				}
			}
			closed := to.closedFor()
			if len(to.all) != 2 || len(closed) != len(open) {
				t.Fatalf("published %d times, at last with %v; want it once with %v",
					len(to.all)-1, closed, open)
			}
			for name, taint := range closed {
				if taint != "NoSchedule "+string(code) {
					t.Errorf("device %s is closed for %q, want NoSchedule for %s", name, taint, code)
				}
			}
			fresh, empty := &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: s.Client, Log: s.Log},
				&recorder{}
			fresh.chosen.Store(&choice{})
			if err := fresh.Publish(context.Background(), empty); err == nil || len(empty.all) != 1 ||
				len(empty.closedFor()) > 0 {
				t.Errorf(
					"a driver that knows nothing yet: %v, published %v; want an empty list published",
					err,
					empty.all)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".away", path); err != nil {
				t.Fatal(err)
			}
			if err := publish(); err != nil {
				t.Fatal(err)
			}
			if again := to.closedFor(); len(again) != len(open) ||
				again[s.result("gpu", 0, grant.Limit).Device] != "" ||
				again[s.result("gpu", 1, grant.Limit).Device] != open[s.result("gpu", 1,
					grant.Limit).Device] {
				t.Errorf("healed: %v, want %v", again, open)
			}
		})
	}
}

// A typing error in the configuration must not keep pods in Terminating.
func TestUnprepareUsesTheLastReadableConfiguration(t *testing.T) {
	s := newSite(t, 1)
	publishes := &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: s.Client, Log: s.Log}
	publishes.chosen.Store(&choice{})
	if err := publishes.Publish(context.Background(), &recorder{}); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Driver{s.Driver, publishes} {
		s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0")))
		right, err := os.ReadFile(s.Config)
		if err != nil {
			t.Fatal(err)
		}
		configure(s.SimulatedNode, "nonsense = 1\n")
		late := &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: s.Client, Log: s.Log}
		if err := late.unprepare("u-1"); err == nil || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("a driver that has read no other: %v", err)
		}
		(site{s.SimulatedNode, d}).unprepares(t, "u-1")
		if err := os.WriteFile(s.Config, right, 0o600); err != nil {
			t.Fatal(err)
		}
		if grants, files := s.Grants(), s.cdiFiles(t); len(grants) > 0 || files > 0 {
			t.Errorf("given up: %v and %d CDI files are left", grants, files)
		}
	}
}
