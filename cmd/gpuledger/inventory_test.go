package main

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestNoScanBesideAnother: while another process takes the inventory, none is taken here.
func TestNoScanBesideAnother(t *testing.T) {
	dir := t.TempDir()
	path, description := gpu.Path(dir), dir+"/node.json"
	d, err := simulated.Describe(1, grant.GiB, simulated.DefaultName, nil)
	if err == nil {
		err = simulated.WriteFile(description, d)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := &node.Node{Host: host.Default(), Policy: grant.Policy{StateDir: dir,
		Inventory: grant.Source{Source: grant.Simulated, File: description}}}
	unlock, err := gpu.Lock(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	var held *gpu.HeldError
	if _, _, err := takeInventory(n, path, time.Millisecond, scan); !errors.As(err, &held) {
		t.Errorf("beside another one: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an inventory is written")
	}
	unlock()
	for range 2 { // each gives the lock back
		if _, _, err := takeInventory(n, path, 0, scan); err != nil {
			t.Error(err)
		}
	}
	if inv, err := gpu.Read(path); err != nil || len(inv.GPUs) != 1 {
		t.Errorf("%d GPUs, %v", len(inv.GPUs), err)
	}
}

// TestAGPUThatComesDuringTheScan: the driver registers its GPUs one after the other. Another scan
// helps only if one has come since the last began, and is missing.
func TestAGPUThatComesDuringTheScan(t *testing.T) {
	const first, second = "0000:01:00.0", "0000:02:00.0"
	for name, c := range map[string]struct {
		before, during []string // what the driver registers, before and during the first scan
		sees           []string // what the first scan finds
		scans          int
	}{
		"the second comes during the scan":      {[]string{first}, []string{second}, []string{first}, 2},
		"the scan loads the driver":             {nil, []string{first, second}, []string{first, second}, 1},
		"NVML knows none before they are there": {nil, []string{first, second}, nil, 2},
		"one is excluded for ever":              {[]string{first, second}, nil, []string{first}, 1},
		"nothing changes":                       {[]string{first, second}, nil, []string{first, second}, 1},
	} {
		h := host.Default()
		h.Proc = t.TempDir()
		register := func(gpus []string) {
			for _, pci := range gpus {
				if err := os.MkdirAll(h.Proc+"/driver/nvidia/gpus/"+pci, 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}
		register(c.before)
		scans := 0
		inv, err := scanAgain(h, func() (inv grant.Inventory, err error) {
			scans++
			found := c.sees
			if register(c.during); scans > 1 {
				found = []string{first, second}
			}
			for _, pci := range found {
				inv.GPUs = append(inv.GPUs, grant.GPU{PCI: pci})
			}
			return inv, nil
		})
		if err != nil || scans != c.scans || c.scans == 2 && len(inv.GPUs) != 2 {
			t.Errorf("%s: %d scans, want %d; the last found %+v, %v", name, scans, c.scans, inv.GPUs, err)
		}
	}
}

// TestASecondScanThatFails: what the first one found is written. Without an inventory no container
// would get a GPU.
func TestASecondScanThatFails(t *testing.T) {
	dir := t.TempDir()
	path := gpu.Path(dir)
	n := &node.Node{Host: host.Default(), Policy: grant.Policy{StateDir: dir}}
	n.Host.Proc = dir + "/proc"
	failure, scans := errors.New("it hangs"), 0
	_, _, err := takeInventory(n, path, 0, func(h host.Host, _ grant.Source) (grant.Inventory, error) {
		if scans++; scans > 1 {
			return grant.Inventory{}, failure
		}
		d, err := simulated.Describe(1, grant.GiB, simulated.DefaultName, nil)
		if err = errors.Join(err, os.MkdirAll(h.Proc+"/driver/nvidia/gpus/0000:99:00.0", 0o700)); err != nil {
			t.Fatal(err)
		}
		return simulated.Scan(d, host.Default(), dir)
	})
	inv, unread := gpu.Read(path)
	if !errors.Is(err, failure) || unread != nil || len(inv.GPUs) != 1 {
		t.Errorf("%v; %d GPUs, %v", err, len(inv.GPUs), unread)
	}
}
