package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

func held(mode grant.Mode, compute int, memory grant.Bytes, containers []string, gpus ...string) grant.Grant {
	g := grant.Grant{Mode: mode, Compute: compute}
	for i, uuid := range gpus {
		g.GPUs = append(g.GPUs, grant.Share{UUID: uuid, Index: i, Memory: memory})
	}
	for _, c := range containers {
		g.Bindings = append(g.Bindings, grant.Binding{Container: c, Creator: grant.Process{PID: 7, Start: 1}})
	}
	return g
}

// TestWants: one daemon for each set of GPUs, with the limits of its largest grant.
func TestWants(t *testing.T) {
	all := wants([]grant.Grant{
		held(grant.MPS, 25, grant.GiB, []string{"a"}, "GPU-0"),
		held(grant.MPS, 10, 4*grant.GiB, []string{"b"}, "GPU-0"),
		held(grant.Limit, 0, 8*grant.GiB, []string{"c"}, "GPU-3"),
		held(grant.MPS, 0, 2*grant.GiB, nil, "GPU-1", "GPU-2"),
	})
	for name, text := range map[string]string{
		grant.MPSName([]string{"GPU-0"}):          "{[GPU-0] map[GPU-0:4294967296] 25 [{a {7 1} false} {b {7 1} false}]}",
		grant.MPSName([]string{"GPU-2", "GPU-1"}): "{[GPU-1 GPU-2] map[GPU-1:2147483648 GPU-2:2147483648] 100 []}",
	} {
		if got := fmt.Sprint(all[name]); got != text {
			t.Errorf("got %s, want %s", got, text)
		}
	}
	if len(all) != 2 {
		t.Errorf("%d daemons", len(all))
	}
}

// TestPossible: a container waits for no daemon of GPUs that are in another mode by now.
func TestPossible(t *testing.T) {
	awaited := func() []grant.Grant {
		return []grant.Grant{held(grant.MPS, 0, 1, nil, "GPU-0"),
			held(grant.MPS, 0, 1, nil, "GPU-1", "GPU-2"),
			held(grant.MPS, 0, 1, nil, "GPU-3"),
			held(grant.MPS, 0, 1, nil, "GPU-4", "GPU-5")} // whose one GPU has a daemon of its own
	}
	got := ""
	for _, g := range possible(awaited(), []grant.Grant{held(grant.MPS, 0, 1, nil, "GPU-0"),
		held(grant.Limit, 0, 1, nil, "GPU-2"), held(grant.MPS, 0, 1, nil, "GPU-4")}) {
		got += fmt.Sprint(g.UUIDs())
	}
	if got != "[GPU-0][GPU-3]" {
		t.Errorf("%s are possible", got)
	}
}

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]grant.Bytes{"3G": 3 * grant.GiB, "512M": 512 * grant.MiB, "0M": 0} {
		if got, err := parseLimit(text); err != nil || got != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	// what is no size is no limit
	for _, text := range []string{"", "3", "G", "-1G", "3GG", "unlimited", "3G\n4G", "99999999999G"} {
		if got, err := parseLimit(text); err == nil {
			t.Errorf("%q is taken for %s", text, got)
		}
	}
}

// TestChanged: a new grant is seen, even if its writer has set the directory's time back.
func TestChanged(t *testing.T) {
	n := &node.Node{Host: host.Default(), Policy: grant.Policy{StateDir: t.TempDir()}}
	m := &Manager{Node: func() *node.Node { return n }}
	dir := filepath.Join(n.Policy.StateDir, "grants")
	if before := m.lastChange(); !before.IsZero() {
		t.Errorf("a ledger that is not there was changed at %s", before)
	}
	must(t, os.Mkdir(dir, 0o700))
	info, err := os.Stat(dir)
	must(t, err)
	before, i := m.lastChange(), 0
	// the clock of file systems has ticks
	for end := time.Now().Add(time.Minute); m.lastChange().Equal(before) && time.Now().Before(end); i++ {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i%100)), nil, 0o600),
			os.Remove(filepath.Join(dir, fmt.Sprint(i%100))), os.Chtimes(dir, info.ModTime(), info.ModTime()))
	}
	if !m.lastChange().After(before) {
		t.Errorf("after %d grants it was changed at %s, as before", i, before)
	}
}

// stopped is a machine whose clock goes on while this process is stopped.
type stopped struct {
	machine
	now time.Time
}

func (s *stopped) Now() time.Time { return s.now }

// TestAPassThatWasStopped: however long a pass took, because the process was stopped, the next one
// is not put off for longer than a pass of an idle manager.
func TestAPassThatWasStopped(t *testing.T) {
	n := &node.Node{Host: host.Default(), Policy: grant.Policy{StateDir: t.TempDir(), RunDir: t.TempDir()}}
	clock, reads := &stopped{now: time.Now().Add(-time.Hour)}, 0
	m := &Manager{Node: func() *node.Node { return n }, System: clock,
		Ledger: func(*node.Node) (grants.Overview, error) {
			if reads++; reads == 1 {
				clock.now = clock.now.Add(10 * time.Minute)
				return grants.Overview{}, errors.New("it could not be read")
			}
			return grants.Overview{}, nil
		}}
	if m.Ensure(t.Context()) == nil {
		t.Error("the error is lost")
	}
	clock.now = clock.now.Add(restIdle + time.Second)
	if must(t, m.Ensure(t.Context())); reads != 2 {
		t.Errorf("the ledger was read %d times, want 2", reads)
	}
	d := &daemon{system: clock}
	d.putOff(errors.New("no answer"), time.Hour)
	if rest := d.askedAgain.Sub(clock.now); rest > time.Minute {
		t.Errorf("a daemon is not asked for %s", rest)
	}
}

// TestReadCommand: a file of an older gpuledgerd has no arguments, and its daemon stays in the
// foreground all the same.
func TestReadCommand(t *testing.T) {
	for text, want := range map[string]string{
		`{"program":"/usr/bin/nvidia-cuda-mps-control","env":["A=b"],"shm":1024}`:                                   "[-f]",
		`{"program":"/usr/bin/nvidia-cuda-mps-control","args":["-f","-multiuser-server"],"env":["A=b"],"shm":1024}`: "[-f -multiuser-server]",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, commandFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if o, err := readCommand(dir); err != nil || fmt.Sprint(o.Args) != want ||
			o.Program != "/usr/bin/nvidia-cuda-mps-control" || fmt.Sprint(o.Env, o.SHM) != "[A=b] 1024" {
			t.Errorf("%s: %+v, %v", text, o, err)
		}
	}
	if _, err := readCommand(t.TempDir()); err == nil {
		t.Error("no orders are taken for some")
	}
}

// TestUnitOf: what `systemd-escape --path --template=gpuledger-mps@.service DIRECTORY` prints
// (systemd 252).
func TestUnitOf(t *testing.T) {
	for dir, want := range map[string]string{
		"/run/gpuledger/mps/0a1b2c3d4e5f": "gpuledger-mps@run-gpuledger-mps-0a1b2c3d4e5f.service",
		"/run/gpu-ledger/.x y/mps/é":      `gpuledger-mps@run-gpu\x2dledger-.x\x20y-mps-\xc3\xa9.service`,
		"/.hidden":                        `gpuledger-mps@\x2ehidden.service`,
	} {
		if got := unitOf(dir); got != want {
			t.Errorf("%s is %s, want %s", dir, got, want)
		}
	}
}
