package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// onSmallDisk puts the ledger's state on a file system of its own, with room for a few files.
func onSmallDisk(t *testing.T) *testLedger {
	privateMounts(t)
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, 0); err != nil {
			t.Errorf("cannot unmount: %v", err)
		}
	})
	return ledgerIn(t, dir)
}

// sound is what newLedger checks, for a ledger that is gone when the test's other clean-ups run.
func (b *testLedger) sound() {
	b.t.Helper()
	if report, err := b.Check(nil); err != nil || len(report.Findings) > 0 {
		b.t.Errorf("Check: %+v (%v), want no finding", report.Findings, err)
	}
}

func TestAFullDiskChangesNothing(t *testing.T) {
	b := onSmallDisk(t)
	b.put(sample(1))
	filler := filepath.Join(b.State, "filler")
	var full error
	for chunk := []byte(strings.Repeat("x", 4096)); full == nil; {
		full = appendTo(filler, chunk)
	}
	if !errors.Is(full, unix.ENOSPC) {
		t.Fatal(full)
	}
	before := b.tree()
	wider := sample(1)
	wider.Owner, wider.Label = "claim:other", strings.Repeat("x", 5000)
	for name, g := range map[string]grant.Grant{"a new grant": sample(2), "a change": wider} {
		if err := b.Update(func(tx *Tx) error { return tx.Put(g) }); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v, want ENOSPC", name, err)
		}
		if after := b.tree(); after != before {
			t.Errorf("%s: the ledger was\n%s\nand is\n%s", name, before, after)
		}
	}
	if err := b.Update(func(tx *Tx) error {
		return tx.PutNew([]grant.Grant{sample(2), sample(3)})
	}); !errors.Is(err, unix.ENOSPC) || b.tree() != before {
		t.Errorf("two new grants: %v, want ENOSPC; the ledger was\n%s\nand is\n%s", err, before, b.tree())
	}
	if g, err := b.byOwner(sample(1).Owner); err != nil || g.Label != "" {
		t.Errorf("the old grant: %+v, %v", g, err)
	}
	b.bind(bindingOf(id(1), "c")) // the run directory is another file system
	b.update(func(tx *Tx) error { return tx.Delete(id(1)) })
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	b.put(sample(2))
	b.sound()
}

func appendTo(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func TestAReadOnlyDiskChangesNothing(t *testing.T) {
	b := onSmallDisk(t)
	b.put(sample(1))
	before := b.tree()
	if err := unix.Mount("", b.State, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	changed := sample(1)
	changed.Label = "changed"
	for name, write := range map[string]func(*Tx) error{
		"Put":    func(tx *Tx) error { return tx.Put(sample(2)) },
		"PutNew": func(tx *Tx) error { return tx.PutNew([]grant.Grant{sample(2), sample(3)}) },
		"change": func(tx *Tx) error { return tx.Put(changed) },
		"Delete": func(tx *Tx) error { return tx.Delete(id(1)) },
	} {
		if err := b.Update(write); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v, want EROFS", name, err)
		}
	}
	if after := b.tree(); after != before {
		t.Errorf("the ledger was\n%s\nand is\n%s", before, after)
	}
	if _, err := b.get(id(1)); err != nil {
		t.Errorf("Get: %v", err)
	}
	b.bind(bindingOf(id(1), "c")) // a container with a grant still starts
	b.sound()
}

func TestADirectoryThatDoesNotSyncChangesNothing(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	before := b.tree()
	defer func() { syncDir = host.SyncDir }()
	syncDir = func(string) error { return unix.EIO }
	changed := sample(1)
	changed.Owner, changed.GPUs = "claim:other", []grant.Share{{UUID: gpu1, Memory: 1}}
	for name, write := range map[string]func(*Tx) error{
		"Put":    func(tx *Tx) error { return tx.Put(sample(2)) },
		"PutNew": func(tx *Tx) error { return tx.PutNew([]grant.Grant{sample(2), sample(3)}) },
		"change": func(tx *Tx) error { return tx.Put(changed) },
		"Delete": func(tx *Tx) error { return tx.Delete(id(1)) },
	} {
		if err := b.Update(write); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: %v, want EIO", name, err)
		}
		if after := b.tree(); after != before {
			t.Errorf("%s: the ledger was\n%s\nand is\n%s", name, before, after)
		}
		if g, err := b.byOwner(sample(1).Owner); err != nil || !g.Has(gpu0) {
			t.Errorf("%s: the old grant: %+v, %v", name, g, err)
		}
	}
}

// TestAPutThatFailsRemovesNoLink, whether the owner's link leads to the grant, led to it before, or
// leads to another grant of the owner.
func TestAPutThatFailsRemovesNoLink(t *testing.T) {
	b := newLedger(t)
	bearer, same, over := sample(2), sample(1), sample(3)
	b.put(same)
	bearer.Owner, same.Label = grant.Bearer, "changed"
	over.Owner, over.Expires = same.Owner, noon
	before := b.tree()
	defer func() { syncDir = host.SyncDir }()
	syncDir = func(string) error { return unix.EIO }
	for name, g := range map[string]grant.Grant{"a bearer's": bearer, "the same": same,
		"one that is over, of an owner who has another": over} {
		if err := b.Update(func(tx *Tx) error { return tx.Put(g) }); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: %v, want EIO", name, err)
		}
		if g, err := b.byOwner(same.Owner); err != nil || g.ID != same.ID || g.Label != "" ||
			b.tree() != before {
			t.Errorf("%s: the owner has %+v (%v), the ledger was\n%s\nand is\n%s", name, g, err, before,
				b.tree())
		}
	}
}

func TestAFullRunDirectoryBindsNothing(t *testing.T) {
	privateMounts(t)
	b := newLedger(t)
	b.put(sample(1))
	err := unix.Mount("tmpfs", b.files.bindings.records, "tmpfs", unix.MS_RDONLY, "mode=0700")
	if err != nil {
		t.Fatal(err)
	}
	before := b.tree()
	if err := b.Update(func(tx *Tx) error {
		return tx.Bind(bindingOf(id(1), "c"))
	}); !errors.Is(err, unix.EROFS) {
		t.Errorf("Bind: %v, want EROFS", err)
	}
	if after := b.tree(); after != before {
		t.Errorf("the ledger was\n%s\nand is\n%s", before, after)
	}
	if err := unix.Unmount(b.files.bindings.records, 0); err != nil {
		t.Fatal(err)
	}
}
