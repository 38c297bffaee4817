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
	if _, _, err := takeInventory(n, path, time.Millisecond); !errors.As(err, &held) {
		t.Errorf("beside another one: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an inventory is written")
	}
	unlock()
	for range 2 { // each gives the lock back
		if _, _, err := takeInventory(n, path, 0); err != nil {
			t.Error(err)
		}
	}
	if inv, err := gpu.Read(path); err != nil || len(inv.GPUs) != 1 {
		t.Errorf("%d GPUs, %v", len(inv.GPUs), err)
	}
}
