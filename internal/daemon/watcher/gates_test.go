package watcher

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Offsets of shim/record.h as above: the beat, and the first device's gate.
const (
	beatAt = 32
	gateAt = overheadAt + 16
)

// TestGates: a gate follows what the grant computes, and is that of the share if that is unknown.
func TestGates(t *testing.T) {
	const uuid, id = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", grant.ID("g-aaaaaaaaaaaa")
	run := t.TempDir()
	dir := filepath.Join(run, "limits", string(id))
	shares := []grant.Share{{UUID: uuid, Memory: grant.GiB}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := limits.Ensure(dir, shares, 30, nil); err != nil {
		t.Fatal(err)
	}
	word := func(at int) uint64 {
		text, err := os.ReadFile(filepath.Join(dir, grant.LimitsFile))
		if err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint64(text[at:])
	}
	// open is the part of the time, in percent; -1 for a gate that was never set.
	open := func() int {
		gate := word(gateAt)
		if gate == 0 {
			return -1
		}
		return int(uint64(uint32(gate)) * 100 / (gate >> 32))
	}
	n := &node.Node{Policy: grant.Policy{RunDir: run, Enforcement: grant.Enforcement{
		Compute: grant.ThrottleShare}}}
	grants := []grant.Grant{{ID: id, Mode: grant.Limit, Compute: 30, GPUs: shares},
		{ID: "g-bbbbbbbbbbbb", Mode: grant.Limit, Compute: 70, GPUs: shares}}
	var ts gateSetter
	now := time.Now()
	look := func(compute int) {
		now = now.Add(time.Second)
		r := watch.Comparison{Taken: now, Grants: []watch.GrantUse{
			{ID: "g-bbbbbbbbbbbb", GPU: uuid, Compute: 90}}}
		if compute != absent {
			r.Grants = append(r.Grants, watch.GrantUse{ID: id, GPU: uuid, Compute: compute})
		}
		ts.update(n, grants, r)
	}
	look(100)
	if open() != 30 || word(beatAt) != 1 {
		t.Errorf("in the first sample the gate is open for %d%%, want the share; %d samples",
			open(), word(beatAt))
	}
	for range 20 {
		look(100)
	}
	if open() > 5 {
		t.Errorf("of a grant that has the whole GPU the gate is open for %d%%", open())
	}
	look(-1)
	if open() != 30 {
		t.Errorf("without a sample the gate is open for %d%%", open())
	}
	for range 20 {
		look(20)
	}
	if open() < 90 {
		t.Errorf("of a grant that has less than its share the gate is open for %d%%", open())
	}
	look(absent)
	if open() != 30 || word(beatAt) != 43 {
		t.Errorf("of a grant that runs nothing the gate is open for %d%%, after %d samples",
			open(), word(beatAt))
	}
	n.Policy.Enforcement.Compute = grant.CountShare
	look(100)
	if word(beatAt) != 43 {
		t.Error("the gate of a share that is only counted was moved")
	}
}

const absent = -2
