package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const gpu0, gpu1 = "GPU-00000000-aaaa-bbbb-cccc-000000000000", "GPU-11111111-aaaa-bbbb-cccc-111111111111"

// testLedger is a ledger with a clock that a test sets.
type testLedger struct {
	*Ledger
	t   testing.TB
	now time.Time
}

// newLedger makes an empty ledger. When the test is over the ledger must be sound, whatever was
// done to it; a test that leaves damage on purpose calls unsound.
func newLedger(t testing.TB) *testLedger {
	b := ledgerIn(t, t.TempDir())
	t.Cleanup(func() {
		report, err := b.Check(nil)
		if err != nil {
			t.Errorf("Check after the test: %v", err)
		}
		if unsound := unsoundTests[t.Name()]; !t.Failed() && report.Sound() == unsound {
			t.Errorf("Check after the test: sound %v, want %v: %+v", report.Sound(), !unsound,
				report.Findings)
		}
	})
	return b
}

var unsoundTests = map[string]bool{}

func (b *testLedger) unsound() { unsoundTests[b.t.Name()] = true }

func ledgerIn(t testing.TB, dir string) *testLedger {
	b := &testLedger{t: t, now: noon}
	h := host.Default()
	h.Now = func() time.Time { return b.now }
	b.Ledger = Open(Options{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"), Host: h})
	return b
}

func (b *testLedger) update(fn func(*Tx) error) {
	b.t.Helper()
	if err := b.Update(fn); err != nil {
		b.t.Fatalf("Update: %v", err)
	}
}

func (b *testLedger) put(grants ...grant.Grant) {
	b.t.Helper()
	b.update(func(tx *Tx) error {
		for _, g := range grants {
			if err := tx.Put(g); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *testLedger) get(id grant.ID) (g grant.Grant, err error) {
	err = b.View(func(tx *Tx) (err error) { g, err = tx.Get(id); return err })
	return g, err
}

func (b *testLedger) byOwner(o grant.Owner) (g grant.Grant, err error) {
	err = b.View(func(tx *Tx) (err error) { g, err = tx.ByOwner(o); return err })
	return g, err
}

func (b *testLedger) all() (grants []grant.Grant, damaged []grant.Damage) {
	b.t.Helper()
	err := b.View(func(tx *Tx) (err error) { grants, damaged, err = tx.All(); return err })
	if err != nil {
		b.t.Fatalf("All: %v", err)
	}
	return grants, damaged
}

// tree is every name in the ledger, for "nothing was left behind".
func (b *testLedger) tree() string {
	var names []string
	for _, root := range []string{b.State, b.Run} {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				names = append(names, strings.TrimPrefix(path, filepath.Dir(root)))
			}
			return nil
		})
	}
	return strings.Join(names, "\n")
}

func id(n int) grant.ID {
	text := []byte("g-aaaaaaaaaaaa")
	for i := len(text) - 1; n > 0; i, n = i-1, n/26 {
		text[i] = 'a' + byte(n%26)
	}
	return grant.ID(text)
}

// sample is a pod's grant of 4 GiB on one GPU.
func sample(n int) grant.Grant {
	return grant.Grant{
		ID: id(n), Owner: grant.PodOwner(fmt.Sprintf("uid-%d", n), "train"), Mode: grant.Limit,
		Strength: grant.StrengthLibrary,
		GPUs:     []grant.Share{{UUID: gpu0, Index: 0, Memory: 4 * grant.GiB}}, Source: "cli",
		Created: noon.Add(time.Duration(n) * time.Second),
	}
}

func TestPutThenGetIsTheSame(t *testing.T) {
	b := newLedger(t)
	full := sample(1)
	full.App = "team/web"
	full.Owner, full.Secret, full.Label = "claim:uid-9", grant.SecretHash("s"), "für \"Team A\" <\x01>"
	full.GPUs = append(full.GPUs, grant.Share{UUID: gpu1, Index: 1, Memory: grant.GiB})
	full.Compute, full.Expires, full.Draining = 50, noon.Add(time.Hour), true
	bearer := sample(2)
	bearer.Owner = grant.Bearer
	for _, g := range []grant.Grant{full, bearer} {
		b.put(g)
		if got, err := b.get(g.ID); err != nil || !reflect.DeepEqual(got, g) {
			t.Errorf("Get(%s):\n got %+v (%v)\nwant %+v", g.ID, got, err, g)
		}
	}
}

func TestMissingIsNotFound(t *testing.T) {
	b := newLedger(t)
	look := func(tx *Tx) error {
		_, byID := tx.Get(id(1))
		_, odd := tx.Get("../../etc/passwd")
		_, owner := tx.ByOwner("pod:uid/train")
		_, bearer := tx.ByOwner(grant.Bearer)
		_, nobody := tx.ByOwner("")
		_, binding := tx.Bindings.Of("/run/runc", "c")
		for i, err := range []error{byID, odd, owner, bearer, nobody, binding} {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("look-up %d: %v, want ErrNotFound", i, err)
			}
		}
		return nil
	}
	if err := b.View(look); err != nil { // no directory yet
		t.Error(err)
	}
	if grants, damaged := b.all(); grants != nil || damaged != nil {
		t.Errorf("All of a ledger that nobody wrote: %v, %v", grants, damaged)
	}
	b.update(look)
	b.update(func(tx *Tx) error {
		if err := tx.Delete(id(1)); !errors.Is(err, ErrNotFound) {
			t.Errorf("Delete: %v, want ErrNotFound", err)
		}
		if err := tx.Bind(bindingOf(id(1), "c")); !errors.Is(err, ErrNotFound) {
			t.Errorf("Bind: %v, want ErrNotFound", err)
		}
		return tx.Unbind("/run/runc", "c")
	})
	if left := b.tree(); left != "/run/lock" {
		t.Errorf("look-ups left files:\n%s", left)
	}
}

func TestAStateThatCannotBeReadIsNotEmpty(t *testing.T) {
	b := ledgerIn(t, t.TempDir())
	if err := os.WriteFile(b.State, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := b.View(func(tx *Tx) error { _, _, err := tx.All(); return err })
	if err == nil {
		t.Error("All of a state directory that is a file: no error")
	}
	if _, err := b.get(id(1)); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("Get from a state directory that is a file: %v, want an error other than ErrNotFound", err)
	}
	if err := b.Update(func(*Tx) error { return nil }); err == nil {
		t.Error("Update of a state directory that is a file: no error")
	}
}

func TestAllIsSortedByAgeThenID(t *testing.T) {
	b := newLedger(t)
	old, twin := sample(5), sample(3)
	old.Created, twin.Created = noon.Add(-time.Hour), noon.Add(4*time.Second)
	b.put(sample(4), old, twin)
	grants, _ := b.all()
	var ids []grant.ID
	for _, g := range grants {
		ids = append(ids, g.ID)
	}
	if want := []grant.ID{id(5), id(3), id(4)}; !reflect.DeepEqual(ids, want) {
		t.Errorf("All: %v, want %v", ids, want)
	}
}

func TestOnlyUpdateWrites(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	writes := map[string]func(*Tx) error{
		"Put":    func(tx *Tx) error { return tx.Put(sample(2)) },
		"Delete": func(tx *Tx) error { return tx.Delete(id(1)) },
		"Bind":   func(tx *Tx) error { return tx.Bind(bindingOf(id(1), "c")) },
		"Unbind": func(tx *Tx) error { return tx.Unbind("/run/runc", "c") },
		"Sweep":  func(tx *Tx) error { return tx.Sweep() },
	}
	before := b.tree()
	var kept *Tx
	b.update(func(tx *Tx) error { kept = tx; return nil })
	for name, write := range writes {
		for place, err := range map[string]error{"View": b.View(write),
			"a Tx after its Update": write(kept)} {
			if err == nil || !strings.HasPrefix(err.Error(), "internal error: ") {
				t.Errorf("%s in %s: %v, want an internal error", name, place, err)
			}
		}
	}
	if after := b.tree(); after != before {
		t.Errorf("a refused write changed the ledger from\n%s\nto\n%s", before, after)
	}
}

func TestUpdateReturnsItsFunctionsError(t *testing.T) {
	b := newLedger(t)
	mine := errors.New("mine")
	if err := b.Update(func(*Tx) error { return mine }); err != mine {
		t.Errorf("Update: %v, want the very error", err)
	}
	b.update(func(*Tx) error { return nil }) // the lock was released
}

func TestNoOtherUserCanReadTheLedger(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.update(func(tx *Tx) error { return tx.Bind(bindingOf(id(1), "c")) })
	if err := b.SetFound(Found{Outside: map[string]grant.Bytes{gpu0: 1}}); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{b.State, b.Run} {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, _ error) error {
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if mode := info.Mode(); mode&os.ModeSymlink == 0 && mode.Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v", path, mode)
			}
			return nil
		})
	}
}

func TestPutRefusesWhatItCouldNotRead(t *testing.T) {
	b := newLedger(t)
	for name, spoil := range map[string]func(*grant.Grant){
		"id is a path":        func(g *grant.Grant) { g.ID = "../x" },
		"no owner":            func(g *grant.Grant) { g.Owner = "" },
		"unknown mode":        func(g *grant.Grant) { g.Mode = "half" },
		"compute above 100":   func(g *grant.Grant) { g.Compute = 101 },
		"no GPU":              func(g *grant.Grant) { g.GPUs = nil },
		"a GPU twice":         func(g *grant.Grant) { g.GPUs = append(g.GPUs, g.GPUs[0]) },
		"a GPU that is a way": func(g *grant.Grant) { g.GPUs[0].UUID = "../owners" },
		"a GPU that hides":    func(g *grant.Grant) { g.GPUs[0].UUID = ".x" },
		"a GPU with no UUID":  func(g *grant.Grant) { g.GPUs[0].UUID = "" },
		"a GPU with NUL":      func(g *grant.Grant) { g.GPUs[0].UUID = "GPU\x00" },
		"a very long GPU":     func(g *grant.Grant) { g.GPUs[0].UUID = strings.Repeat("G", 129) },
	} {
		g := sample(1)
		spoil(&g)
		err := b.Update(func(tx *Tx) error { return tx.Put(g) })
		if err == nil || !strings.HasPrefix(err.Error(), "internal error: ") {
			t.Errorf("%s: %v, want an internal error", name, err)
		}
	}
	if left := b.tree(); left != "/run/lock" {
		t.Errorf("refused grants left files:\n%s", left)
	}
}

func TestOutsideHoldsForOneBoot(t *testing.T) {
	b := newLedger(t)
	outside := b.Outside
	if m, err := outside(); m != nil || err != nil {
		t.Errorf("before anybody looked: %v, %v", m, err)
	}
	want := map[string]grant.Bytes{gpu0: 3 * grant.GiB, gpu1: 17}
	if err := b.SetFound(Found{Outside: want}); err != nil {
		t.Fatal(err)
	}
	if m, err := outside(); !reflect.DeepEqual(m, want) || err != nil {
		t.Errorf("Outside: %v (%v), want %v", m, err, want)
	}
	for text, fails := range map[string]bool{
		`{"version":1,"boot_id":"other","gpus":{"` + gpu0 + `":5}}`: false,
		`{"version":2,"boot_id":"other"}`:                           true,
		`{"version":1,`:                                             true,
		``:                                                          true,
	} {
		if err := os.WriteFile(b.files.found, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := outside(); m != nil || (err != nil) != fails {
			t.Errorf("%s: %v, %v; want nothing, and an error: %v", text, m, err, fails)
		}
	}
}
