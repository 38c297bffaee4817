package mpsstate

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestWanted: what creates ask for is there for a minute, or until they need it no more.
func TestWanted(t *testing.T) {
	h, run := host.Default(), t.TempDir()
	a, b := grant.Container{ID: "a", RuntimeRoot: "/r"}, grant.Container{ID: "../b", RuntimeRoot: "/r"}
	for i, c := range []grant.Container{a, b} {
		g := grant.Grant{Mode: grant.MPS, Compute: 30 * i, GPUs: []grant.Share{{UUID: fmt.Sprint("GPU-", i),
			Memory: grant.GiB}, {UUID: "GPU-9", Index: 9, Memory: grant.GiB}}}
		if err := Want(h, run, c, &g); err != nil {
			t.Fatal(err)
		}
	}
	says := func(want string) {
		t.Helper()
		got := map[string]bool{}
		for _, g := range Wanted(h, run) {
			got[fmt.Sprint(g.Mode, g.UUIDs(), g.Compute, g.Memory())] = true
		}
		if fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	says("map[mps[GPU-0 GPU-9] 0 2GiB:true mps[GPU-1 GPU-9] 30 2GiB:true]")
	if err := os.WriteFile(filepath.Join(WantedDir(run), "x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	WantNoMore(run, b)
	says("map[mps[GPU-0 GPU-9] 0 2GiB:true]")
	for _, since := range []time.Duration{-WantedFor - time.Second, time.Hour} { // or the clock was set back
		if err := Want(h, run, a, &grant.Grant{Mode: grant.MPS}); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(WantedDir(run) + "/*")
		for _, file := range files {
			at := time.Now().Add(since)
			if err := os.Chtimes(file, at, at); err != nil {
				t.Fatal(err)
			}
		}
		says("map[]")
		if files, _ := filepath.Glob(WantedDir(run) + "/*"); len(files) > 0 {
			t.Errorf("%v are left", files)
		}
	}
}
