package ledger

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestOccupiedCgroups: a create asks about its own cgroup and those above it; if the cgroup is not
// named after the container, also about those below it.
func TestOccupiedCgroups(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	b.put(g)
	if b.Bindings.NameCgroups() {
		t.Error("before any binding a cgroup is occupied")
	}
	alive, dead := bindingOf(g.ID, "a"), deadBinding(g.ID, "dead")
	alive.Occupies, dead.Occupies = []string{"/pods/a", "/x.slice/a.scope", "a.scope", "/parent"},
		[]string{"/pods/dead", "/only/dead"}
	b.bind(alive, dead)
	own := func(name string) func(grant.Binding) bool {
		return func(b grant.Binding) bool { return b.Container == name }
	}
	asked := func(name string, cgroups []string) (in, below bool) {
		t.Helper()
		_ = b.View(func(tx *Tx) error {
			in, below = tx.Bindings.Occupied(cgroups, own(name), func(_ grant.Binding, path string) bool {
				return path == "/parent"
			}), tx.Bindings.OccupiedBelow(cgroups, own(name))
			return nil
		})
		return in, below
	}
	for _, c := range []struct {
		name      string
		cgroups   []string
		in, below bool
	}{
		{"c", []string{"/pods/a"}, true, false},
		{"c", []string{"/pods/a/b/c"}, true, false},
		{"c", []string{"/none", "/x.slice/a.scope"}, true, false},
		{"c", []string{"/y.slice/a.scope", "a.scope"}, true, false},
		{"c", []string{"/a.scope", "b.scope"}, false, false},
		{"c", []string{"/parent"}, true, false},
		{"c", []string{"/parent/c"}, false, false},
		{"c", []string{"/pods"}, false, true},
		{"c", []string{"/none", "/"}, false, true},
		{"c", []string{"."}, false, false},
		{"c", []string{"/pod"}, false, false},
		{"c", []string{"/pods/ab"}, false, false},
		{"c", []string{"/pods/dead/x"}, false, false},
		{"c", []string{"/only"}, false, false},
		{"c", nil, false, false},
		{"a", []string{"/pods/a"}, false, false},
		{"a", []string{"/pods"}, false, false},
	} {
		if in, below := asked(c.name, c.cgroups); in != c.in || below != c.below {
			t.Errorf("%s in %q: occupied %v, below %v", c.name, c.cgroups, in, below)
		}
	}
	if !b.Bindings.NameCgroups() {
		t.Error("with a binding no cgroup is occupied")
	}
	moved := alive
	moved.Occupies = []string{"/pods/a", "/pods/other"}
	b.bind(moved)
	for path, want := range map[string]bool{"/pods/a": true, "/pods/other": true, "/x.slice/a.scope": false} {
		if in, _ := asked("c", []string{path}); in != want {
			t.Errorf("after another binding of the container %s is occupied: %v", path, in)
		}
	}
	if _, err := os.Lstat(b.files.bindings.cgroups.path("/x.slice/a.scope")); err == nil {
		t.Error("the link of a cgroup that it left is there still")
	}
	taken := bindingOf(g.ID, "taken")
	taken.Occupies = []string{"/pods/other"}
	b.bind(taken) // the link leads to this one now
	b.update(func(tx *Tx) error { return tx.Unbind(moved.RuntimeRoot, moved.Container) })
	for path, want := range map[string]bool{"/pods/a": false, "/pods/other": true} {
		if in, _ := asked("c", []string{path}); in != want {
			t.Errorf("after the binding has gone %s is occupied: %v", path, in)
		}
	}
}

// TestACgroupOfADamagedBindingIsOccupied: the binding may be of any container.
func TestACgroupOfADamagedBindingIsOccupied(t *testing.T) {
	b := newLedger(t)
	b.unsound()
	g := sample(1)
	b.put(g)
	its := bindingOf(g.ID, "a")
	its.Occupies = []string{"/pods/a"}
	b.bind(its)
	path := b.files.bindings.path(bindingKey(its.RuntimeRoot, its.Container))
	for text, want := range map[string]bool{"{": true, "": true} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = b.View(func(tx *Tx) error {
			if got := tx.Bindings.Occupied([]string{"/pods/a"}, nobody, closed); got != want {
				t.Errorf("with %q as its record: %v", text, got)
			}
			return nil
		})
	}
}

// TestCreatesAreAnnounced until their process ends. A process of another pid namespace counts for a
// minute.
func TestCreatesAreAnnounced(t *testing.T) {
	b := newLedger(t)
	announced := func(cgroups ...string) bool {
		t.Helper()
		found, err := b.Creates.Announced(cgroups)
		if err != nil {
			t.Error(err)
		}
		return found
	}
	if announced("/pods/a") {
		t.Error("a create is announced before any announcement")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(b.Creates.Announce([]string{"/pods/a"}))
	if announced("/pods/a") {
		t.Error("its own create counts")
	}
	cmd := exec.Command("sleep", "1000")
	must(cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	child, err := startOf(cmd.Process.Pid)
	must(err)
	ns, err := b.Containers.Here.PIDNS()
	must(err)
	name := func(ns uint64, p grant.Process) string { return fmt.Sprintf("%d-%d-%d", ns, p.PID, p.Start) }
	later := child
	later.Start++
	for _, c := range []struct {
		name string
		age  time.Duration
		runs bool
	}{
		{name(ns, child), time.Hour, true},
		{name(ns, later), 0, false},
		{name(ns+1, child), 0, true},
		{name(ns+1, child), time.Hour, false},
		{"1-2", 0, false},
		{"x-y-z", time.Hour, false},
	} {
		file := filepath.Join(b.Creates.dir, c.name)
		write := func() {
			t.Helper()
			must(errors.Join(os.WriteFile(file, []byte("/other\x00/pods/b/c"), 0o600),
				os.Chtimes(file, time.Now().Add(-c.age), time.Now().Add(-c.age))))
		}
		for cgroup, its := range map[string]bool{"/pods/b/c": true, "/pods/b": true, "/other": true,
			"/pods/b/c/d": false, "/pods": true, "/pod": false, "/none": false} {
			write()
			if got := announced("/nothing", cgroup); got != (its && c.runs) {
				t.Errorf("%s of %s: %v", cgroup, c.name, got)
			}
			if _, err := os.Lstat(file); (err == nil) != c.runs {
				t.Errorf("after that %s is there: %v", c.name, err == nil)
			}
		}
		write()
		must(b.Creates.Announce(nil)) // which forgets those that are over
		if _, err := os.Lstat(file); (err == nil) != c.runs {
			t.Errorf("after another create %s is there: %v", c.name, err == nil)
		}
		_ = os.Remove(file)
	}
}

// TestAnnouncementsThatCannotBeRead are an error: they may be of any cgroup.
func TestAnnouncementsThatCannotBeRead(t *testing.T) {
	b := newLedger(t)
	ns, err := b.Containers.Here.PIDNS()
	parent, e := startOf(os.Getppid())
	// it runs, and its file is none
	file := filepath.Join(b.Creates.dir, fmt.Sprintf("%d-%d-%d", ns, parent.PID, parent.Start))
	if err := errors.Join(err, e, os.MkdirAll(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	unread := func(path string) {
		t.Helper()
		if found, err := b.Creates.Announced([]string{"/pods/a"}); found || err == nil ||
			!strings.Contains(err.Error(), path+": ") {
			t.Errorf("%v, %v; want an error about %s", found, err, path)
		}
		r, err := b.Check(nil)
		if err != nil || r.Sound() || !strings.Contains(r.Findings[0].Problem, path) {
			t.Errorf("the check says %+v (%v), want a finding about %s", r, err, path)
		}
	}
	unread(file)
	if err := errors.Join(os.RemoveAll(b.Creates.dir), os.WriteFile(b.Creates.dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	unread(b.Creates.dir)
	if err := os.Remove(b.Creates.dir); err != nil {
		t.Fatal(err)
	}
}
