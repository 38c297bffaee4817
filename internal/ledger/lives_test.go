package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// texts are the files of a node's /proc and /sys, by path below them.
type texts map[string]string

// write makes files below a directory.
func (f texts) write(t *testing.T, dir string) {
	t.Helper()
	for name, text := range f {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// The stat files of an invented node's processes: each was started at 555.
const (
	runningStat = "50 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555"
	zombieStat  = "50 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555"
	spoiltStat  = "50"
)

// TestWithoutBootOrNamespaceNoContainerIsDead: a program that cannot read its own boot or
// namespaces compares no binding with them.
func TestWithoutBootOrNamespaceNoContainerIsDead(t *testing.T) {
	unreadable := errors.New("unreadable")
	for name, spoil := range map[string]func(b *testLedger){
		"the boot": func(b *testLedger) {
			b.Containers.Here.BootID = func() (string, error) { return "", unreadable }
		},
		"the pid namespace": func(b *testLedger) {
			ns, _ := b.Containers.Here.PIDNS()
			b.Containers.Here.PIDNS = func() (uint64, error) { return ns, unreadable }
		},
		"the time namespace": func(b *testLedger) {
			ns, _ := b.Containers.Here.TimeNS()
			b.Containers.Here.TimeNS = func() (uint64, error) { return ns, unreadable }
		},
	} {
		b := newLedger(t)
		b.put(sample(1))
		b.bind(deadBinding(id(1), "c"))
		if got, err := b.binding("c"); err != nil || got.Life != grant.Dead {
			t.Fatalf("before: life %d (%v), want dead", got.Life, err)
		}
		if err := b.SetFound(Found{Outside: map[string]grant.Bytes{gpu0: 1}}); err != nil {
			t.Fatal(err)
		}
		known := b.Containers.Here
		spoil(b)
		got, err := b.binding("c")
		if err != nil || got.Life != grant.LifeUnknown || b.usedBy(id(1)) != "c" {
			t.Errorf("%s: life %d (%v), want unknown", name, got.Life, err)
		}
		fresh := bindingOf(id(1), "d")
		if err := b.Update(func(tx *Tx) error { return tx.Bind(fresh) }); !errors.Is(err, unreadable) {
			t.Errorf("%s: a binding is written that does not say where it counts: %v", name, err)
		}
		err = b.Creates.Announce([]string{"/c"})
		if name == "the pid namespace" && !errors.Is(err, unreadable) {
			t.Errorf("%s: a create is announced without the name of its process: %v", name, err)
		}
		if err := b.SetFound(Found{}); name == "the boot" && !errors.Is(err, unreadable) {
			t.Errorf("%s: what is outside the ledger is written without a boot: %v", name, err)
		}
		if _, err := b.Outside(); name == "the boot" && !errors.Is(err, unreadable) {
			t.Errorf("%s: what was found outside the ledger is read for an unknown boot: %v", name, err)
		}
		b.Containers.Here = known
	}
}

// found is what the watch found, as View reads it.
func (b *testLedger) found() (found Found, err error) {
	err = b.View(func(tx *Tx) (err error) { found, err = tx.Found(); return err })
	return found, err
}

// Outside is the memory that the watch found.
func (b *testLedger) Outside() (map[string]grant.Bytes, error) {
	found, err := b.found()
	return found.Outside, err
}

// TestHeldByProcessesThatMayRun: a GPU is held while one of the processes runs or is unknown.
func TestHeldByProcessesThatMayRun(t *testing.T) {
	b := newLedger(t)
	texts{"50/stat": runningStat, "51/stat": zombieStat, "52/stat": spoiltStat}.write(t, b.State+"/../proc")
	b.Host.Proc = b.State + "/../proc"
	process := func(pid int, start uint64) grant.Process { return grant.Process{PID: pid, Start: start} }
	runs, ended, reused, unknown, gone := process(50, 555), process(51, 555), process(50, 554),
		process(52, 555), process(53, 555)
	held := func() (found map[string]bool, err error) {
		all, err := b.found()
		return all.HeldGPUs(b.Host), err
	}
	if found, err := held(); len(found) != 0 || err != nil {
		t.Errorf("before anybody looked: %v, %v", found, err)
	}
	err := b.SetFound(Found{Outside: map[string]grant.Bytes{gpu0: 1}, Held: map[string][]grant.Process{
		"runs": {runs}, "ended": {ended}, "reused": {reused}, "unknown": {unknown}, "gone": {gone},
		"one runs": {gone, runs, ended}, "none runs": {gone, ended}, "nobody": nil}})
	if err != nil {
		t.Fatal(err)
	}
	found, err := held()
	if got, want := fmt.Sprint(found), fmt.Sprint(map[string]bool{
		"runs": true, "unknown": true, "one runs": true}); got != want || err != nil {
		t.Errorf("held: %s (%v), want %s", got, err, want)
	}
	if memory, err := b.Outside(); len(memory) != 1 || memory[gpu0] != 1 || err != nil {
		t.Errorf("outside: %v (%v)", memory, err)
	}
	b.Containers.Here.BootID = func() (string, error) { return "another", nil }
	if found, err := held(); len(found) != 0 || err != nil {
		t.Errorf("in another boot: %v, %v", found, err)
	}
	if err := os.WriteFile(b.files.found, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := held(); err == nil {
		t.Errorf("damaged: %v, and no error", found)
	}
}

// TestABindingThatCannotBeReplacedStays, and so does its link, which keeps its grant in use.
func TestABindingThatCannotBeReplacedStays(t *testing.T) {
	privateMounts(t)
	b := newLedger(t)
	b.put(sample(1), sample(2))
	b.bind(bindingOf(id(1), "c"))
	for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
		if err := unix.Mount(b.files.bindings.records, b.files.bindings.records, "", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= 2; n++ {
		if err := b.Update(func(tx *Tx) error {
			return tx.Bind(bindingOf(id(n), "c"))
		}); !errors.Is(err, unix.EROFS) {
			t.Errorf("Bind of grant %d: %v, want EROFS", n, err)
		}
		if one, two := b.usedBy(id(1)), b.usedBy(id(2)); one != "c" || two != "" {
			t.Errorf("after that of grant %d: grant 1 is used by %q, grant 2 by %q; want c and nobody", n,
				one, two)
		}
	}
	if err := b.Update(func(tx *Tx) error {
		return tx.Unbind(bindingOf("", "").RuntimeRoot, "c")
	}); !errors.Is(err, unix.EROFS) {
		t.Errorf("Unbind: %v, want EROFS", err)
	}
	if one := b.usedBy(id(1)); one != "c" {
		t.Errorf("after an Unbind that failed grant 1 is used by %q", one)
	}
	links, err := namesIn(b.files.bindings.linksOf(id(2)))
	if len(links) != 0 || err != nil {
		t.Errorf("grant 2 keeps links %q (%v)", links, err)
	}
	if err := unix.Unmount(b.files.bindings.records, 0); err != nil {
		t.Fatal(err)
	}
}

// TestDraftsOfAnnouncementsDoNotCount: another process is about to rename its file, and has
// announced nothing yet.
func TestDraftsOfAnnouncementsDoNotCount(t *testing.T) {
	b := newLedger(t)
	draft := filepath.Join(b.Creates.dir, ".1-2-3")
	texts{"creates/.1-2-3": "/a", "creates/1-2-4": "/b"}.write(t, b.Run)
	if err := os.Chmod(b.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	texts{"creates/1-2-5": "/c", "creates/1-2-6": "/d\x00/e"}.write(t, b.Run)
	// the order of the listing does not count
	for cgroup, want := range map[string]bool{"/a": false, "/b": true, "/c": true, "/d": true, "/e": true} {
		if found, err := b.Creates.Announced([]string{cgroup}); found != want || err != nil {
			t.Errorf("%s is announced: %v, %v", cgroup, found, err)
		}
	}
	if _, err := os.Stat(draft); err != nil {
		t.Errorf("a draft is removed: %v", err)
	}
	own, err := b.Creates.own()
	if err != nil {
		t.Fatal(err)
	}
	texts{"creates/" + own + "/x": ""}.write(t, b.Run)
	if err := b.Creates.Announce([]string{"/c"}); err == nil {
		t.Error("an announcement that cannot be written gives no error")
	}
}

// TestABindingOfAContainerThatIsAPathIsUnknown: that a runtime root has no state of it proves
// nothing.
func TestABindingOfAContainerThatIsAPathIsUnknown(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.bind(deadBinding(id(1), "c"))
	for _, container := range []string{"..", "../x", "", "."} {
		binding, err := b.binding("c")
		if err != nil || binding.Life != grant.Dead {
			t.Fatal(binding, err)
		}
		binding.Container, binding.RuntimeRoot = container, t.TempDir()
		data, err := bindingRecord{1, binding}.encode()
		if err == nil {
			err = os.WriteFile(b.files.bindings.path(bindingKey(binding.RuntimeRoot, container)), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := b.life(binding); got.Life != grant.LifeUnknown {
			t.Errorf("%q: life %d, want unknown", container, got.Life)
		}
		if err := os.Remove(b.files.bindings.path(bindingKey(binding.RuntimeRoot, container))); err != nil {
			t.Fatal(err)
		}
	}
}
