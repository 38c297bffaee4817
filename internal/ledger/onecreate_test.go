package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// opens counts how often a file is opened from now on.
func opens(t *testing.T, path string) (count func() int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err == nil {
		// the kernel merges equal events that follow each other
		_, err = unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_CLOSE)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func() int {
		events := make([]byte, 1<<16)
		n, err := unix.Read(fd, events)
		if err == unix.EAGAIN {
			return 0
		}
		if err != nil {
			t.Fatal(err)
		}
		return n / int(2*unsafe.Sizeof(unix.InotifyEvent{})) // an event of a file has no name in it
	}
}

// crashed is a ledger with a grant whose containers are gone, with no state and no cgroup on
// record, on a node with another process.
func crashed(t *testing.T, containers ...string) (b *testLedger, count func() int) {
	t.Helper()
	b = newLedger(t)
	proc := t.TempDir()
	for name, text := range map[string]string{"1/cgroup": "0::/init.scope\n", "77/cgroup": "0::/other\n",
		"77/stat": "77 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555"} {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.put(sample(1))
	for _, c := range containers {
		binding := deadBinding(id(1), c)
		binding.RuntimeRoot = t.TempDir()
		b.bind(binding)
	}
	b.Containers.Host.Proc = proc
	return b, opens(t, proc+"/77/cgroup")
}

// TestACreateSearchesAllProcessesOnce, however many containers crashed and however often it reads
// their bindings, and never with the ledger locked.
func TestACreateSearchesAllProcessesOnce(t *testing.T) {
	b, count := crashed(t, "c1", "c2", "c3")
	bindings := func(tx *Tx) error {
		g, err := tx.Get(id(1))
		if err == nil && len(g.Bindings) > 0 {
			t.Errorf("%+v", g.Bindings)
		}
		return err
	}
	for range 3 { // each for itself
		if err := b.View(bindings); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(); n != 3 {
		t.Errorf("three creates searched %d times", n)
	}
	g := b.ForOneCreate()
	if err := g.View(bindings); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("it searched %d times before the ledger was locked", n)
	}
	if err := g.Update(func(tx *Tx) error {
		err := bindings(tx)
		tx.DropDead(id(1))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("it searched %d times with the ledger locked", n)
	}
	if left, _ := namesIn(b.files.bindings.linksOf(id(1))); len(left) > 0 {
		t.Errorf("dead bindings are still there: %q", left)
	}
}

// TestABindingFirstSeenWithTheLedgerLockedIsUnknown: a binding that was written after the search
// may be of a container that runs.
func TestABindingFirstSeenWithTheLedgerLockedIsUnknown(t *testing.T) {
	b, count := crashed(t, "c1")
	g := b.ForOneCreate()
	if err := g.Update(func(tx *Tx) error {
		found, err := tx.Bindings.using(id(1))
		if len(found) != 1 || found[0].Life != grant.LifeUnknown || !found[0].Left {
			t.Errorf("%+v", found)
		}
		return err
	}); err != nil || count() != 0 {
		t.Errorf("%v, or it searched", err)
	}
	if err := g.View(func(tx *Tx) error {
		found, err := tx.Bindings.using(id(1))
		if len(found) != 0 {
			t.Errorf("afterwards: %+v", found)
		}
		return err
	}); err != nil || count() != 1 {
		t.Errorf("%v, or it did not search once", err)
	}
}
