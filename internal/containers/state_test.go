package containers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestKeptStates: what a runtime wrote is read again when it is another, and not when it is the
// same.
func TestKeptStates(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "c", "state.json")
	write := func(pid int) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, fmt.Appendf(nil, `{"init_process_pid":%d,"init_process_start":5}`, pid),
				0o600)); err != nil {
			t.Fatal(err)
		}
	}
	r := New(host.Default())
	r.Keep()
	is := func(what string, want int) {
		t.Helper()
		if init, _ := r.Init(root, "c"); init.PID != want {
			t.Errorf("%s: the first process is %d and not %d", what, init.PID, want)
		}
	}
	is("no container", 0)
	// within one tick of the clock and of one length: nothing but the text tells them apart
	for pid := 1; pid < 10; pid++ {
		write(pid)
		is("written over", pid)
	}
	reads := 0
	read := func(path string) (containerState, error) {
		reads++
		return readRunc(path)
	}
	for end := time.Now().Add(time.Minute); ; { // until it is older than a tick
		if s, err := r.states.read(path, read); err != nil || s.init != (grant.Process{PID: 9, Start: 5}) {
			t.Fatal(s.init, err)
		}
		if _, kept := r.states.known[path]; kept {
			before := reads
			if s, err := r.states.read(path, read); err != nil || s.init.PID != 9 || reads != before {
				t.Errorf("what has not changed is read again: %d times, %v (%v)", reads-before, s.init, err)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is read each time, and does not change")
		}
	}
	write(7)
	is("written over long afterwards", 7)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	is("spoiled", 0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := r.readState(root, "c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is gone: %v", err)
	}
}
