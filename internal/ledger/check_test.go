package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Each row breaks a sound ledger in one way: grant 1 of a pod, bound to container "c", and grant 2
// of a bearer.
func TestCheckFindsAndRepairs(t *testing.T) {
	key := bindingKey(bindingOf("", "").RuntimeRoot, "c")
	owner := ownerKey(sample(1).Owner)
	write := func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) }
	for name, row := range map[string]struct {
		spoil   func(b *testLedger) error
		subject string // ends with
		says    string
		stays   bool
	}{
		"owner link missing": {func(b *testLedger) error {
			return os.Remove(filepath.Join(string(b.files.owners), owner))
		}, owner, "missing", false},
		"owner link wrong": {func(b *testLedger) error {
			return replaceLink(ownerTarget(id(2)), filepath.Join(string(b.files.owners), owner))
		}, owner, "leads to", false},
		"owner link dangling": {func(b *testLedger) error {
			return os.Symlink(ownerTarget(id(9)), b.files.owners.path("claim:x"))
		}, ownerKey("claim:x"), "not its owner's", false},
		"owner is a file": {func(b *testLedger) error {
			return write(filepath.Join(string(b.files.owners), "x"))
		}, "owners/x", "no link", true},
		"GPU link missing": {func(b *testLedger) error {
			return os.RemoveAll(b.files.gpus.of(gpu0))
		}, string(id(1)), "missing", false},
		"GPU link dangling": {func(b *testLedger) error {
			return os.Symlink(gpuTarget(id(9)), b.files.gpus.of(gpu0)+"/"+string(id(9)))
		}, string(id(9)), "gone", false},
		"GPU link of another GPU": {func(b *testLedger) error {
			return errors.Join(os.Mkdir(b.files.gpus.of(gpu1), 0o700),
				os.Symlink(gpuTarget(id(1)), b.files.gpus.of(gpu1)+"/"+string(id(1))))
		}, gpu1 + "/" + string(id(1)), "gone", false},
		"binding dead": {func(b *testLedger) error {
			return b.Update(func(tx *Tx) error { return tx.Bind(deadBinding(id(1), "c")) })
		}, key + ".json", `"c" is gone`, false},
		"binding of no grant": {func(b *testLedger) error {
			return os.Remove(b.files.grants.path(id(1)))
		}, key + ".json", "not in the ledger", true},
		"dead binding of no grant": {func(b *testLedger) error {
			return errors.Join(b.Update(func(tx *Tx) error { return tx.Bind(deadBinding(id(1), "c")) }),
				os.Remove(b.files.grants.path(id(1))))
		}, key + ".json", `"c" is gone`, false},
		"binding link missing": {func(b *testLedger) error {
			return os.RemoveAll(b.files.bindings.linksOf(id(1)))
		}, key, "missing", false},
		"binding link dangling": {func(b *testLedger) error {
			return os.Remove(b.files.bindings.path(key))
		}, key, "gone", false},
		"binding broken": {func(b *testLedger) error {
			return write(b.files.bindings.path(key))
		}, key + ".json", "cannot be read", true},
		"binding broken, unknown": {func(b *testLedger) error {
			return write(b.files.bindings.path(strings.Repeat("ab", 16)))
		}, ".json", "of no grant", false},
		"temporary grant": {func(b *testLedger) error {
			return write(temporary(b.files.grants.path(id(1))))
		}, ".tmp", "interrupted", false},
		"temporary old grant": {func(b *testLedger) error {
			return write(temporary(b.files.grants.path(id(1))) + ".old")
		}, ".old", "interrupted", false},
		"temporary owner": {func(b *testLedger) error {
			return os.Symlink("x", temporary(b.files.owners.path("claim:x")))
		}, ".tmp", "interrupted", false},
		"temporary binding": {func(b *testLedger) error {
			return write(filepath.Join(b.files.bindings.records, ".x.json.123"))
		}, ".x.json.123", "interrupted", false},
		"temporary outside": {func(b *testLedger) error {
			return write(filepath.Join(b.Run, ".outside.json.123"))
		}, ".outside.json.123", "interrupted", false},
		"stray file": {func(b *testLedger) error {
			return write(filepath.Join(string(b.files.grants), "notes.txt"))
		}, "notes.txt", "no entry", true},
		"damaged grant": {func(b *testLedger) error {
			return write(b.files.grants.path(id(2)))
		}, string(id(2)) + ".json", "closes " + gpu0, true},
		"copied grant": {func(b *testLedger) error {
			return os.Link(b.files.grants.path(id(2)), b.files.grants.path(id(7)))
		}, string(id(7)) + ".json", "closes every GPU", true},
		"directory open": {func(b *testLedger) error {
			return os.Chmod(string(b.files.grants), 0o755)
		}, "state/grants", "mode 0755", true},
		"directory another's": {func(b *testLedger) error {
			return chown(t, b.State)
		}, "state", "user 7", true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLedger(t)
			bearer := sample(2)
			bearer.Owner = grant.Bearer
			b.put(sample(1), bearer)
			b.bind(bindingOf(id(1), "c"))
			if report, err := b.Check(nil); err != nil || len(report.Findings) > 0 || report.Grants != 2 ||
				report.Bindings != 1 {
				t.Fatalf("before: %+v, %v", report, err)
			}
			if err := row.spoil(b); err != nil {
				t.Fatal(err)
			}
			report, err := b.Check(nil)
			if err != nil || report.Sound() == row.stays {
				t.Errorf("Check: sound %v (%v), want %v", report.Sound(), err, !row.stays)
			}
			if !hasFinding(report, row.subject, row.says, !row.stays) {
				t.Errorf("no finding about %q that says %q and is repaired: %v, in %+v", row.subject,
					row.says, !row.stays, report.Findings)
			}
			again, err := b.Check(nil)
			if err != nil || len(again.Findings) > 0 != row.stays {
				t.Errorf("a second Check: %+v, %v", again.Findings, err)
			}
			if row.stays {
				b.unsound()
			}
		})
	}
}

// TestALedgerBelowADirectoryWithSetgid: mkdir gives the bit on, and GNU's chmod keeps it, so no
// hint could be followed.
func TestALedgerBelowADirectoryWithSetgid(t *testing.T) {
	b := newLedger(t)
	if err := os.Chmod(filepath.Dir(b.State), 0o755|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	b.put(sample(1))
	b.bind(bindingOf(id(1), "c"))
	if info, err := os.Stat(b.State); err != nil || info.Mode()&os.ModeSetgid == 0 {
		t.Skipf("this file system gives no setgid on: %v, %v", info, err)
	}
	if report, err := b.Check(nil); err != nil || len(report.Findings) > 0 {
		t.Errorf("%+v, %v", report.Findings, err)
	}
}

// TestCheckCountsWhatGrantsLists: a grant whose time is over is no grant any more, unless a
// container uses it.
func TestCheckCountsWhatGrantsLists(t *testing.T) {
	b := newLedger(t)
	expired, used := sample(2), sample(3)
	expired.Owner, used.Owner = grant.Bearer, grant.Bearer
	expired.Expires, used.Expires = noon, noon
	b.put(sample(1), expired, used)
	b.bind(bindingOf(id(3), "c"))
	report, err := b.Check(nil)
	if err != nil || !report.Sound() || report.Grants != 2 || report.Over != 1 || report.Bindings != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if want := "; entries of grants that are over and not removed yet: 1"; report.Remains() != want {
		t.Errorf("%q, want %q", report.Remains(), want)
	}
}

func chown(t *testing.T, path string) error {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to give a directory away")
	}
	return os.Chown(path, 7, -1)
}

func hasFinding(r Report, subject, says string, repaired bool) bool {
	for _, f := range r.Findings {
		if strings.HasSuffix(f.Subject, subject) && strings.Contains(f.Problem, says) &&
			f.Repaired == repaired {
			return true
		}
	}
	return false
}

func TestRepairedLinksWorkAgain(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.bind(bindingOf(id(1), "c"))
	for _, dir := range []string{string(b.files.owners), string(b.files.gpus), b.files.bindings.byGrant} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if report, err := b.Check(nil); err != nil || !report.Sound() || len(report.Findings) != 3 {
		t.Errorf("Check: %+v, %v", report, err)
	}
	if g, err := b.byOwner(sample(1).Owner); err != nil || len(g.Bindings) != 1 {
		t.Errorf("ByOwner: %+v, %v", g, err)
	}
	b.setFile(id(1), "")
	if _, damaged := b.all(); damaged[0].GPUs == nil {
		t.Error("the GPU's index was not repaired")
	}
	b.unsound()
}

func TestInvariants(t *testing.T) {
	mig := "MIG-0"
	inv := &grant.Inventory{GPUs: []grant.GPU{
		{UUID: gpu0, Memory: 16 * grant.GiB},
		{UUID: gpu1, Memory: 16 * grant.GiB, MIG: []grant.MIGDevice{{UUID: mig, Memory: 4 * grant.GiB}}},
	}}
	with := func(change func(*grant.Grant)) []grant.Grant {
		changed := sample(2)
		change(&changed)
		return []grant.Grant{sample(1), changed}
	}
	for name, row := range map[string]struct {
		grants  []grant.Grant
		reserve grant.Bytes
		want    string // a finding a line
	}{
		"sound": {with(func(g *grant.Grant) { g.GPUs[0].Memory = 12 * grant.GiB; g.Compute = 100 }),
			0, ""},
		"too much": {with(func(g *grant.Grant) { g.GPUs[0].Memory = 12*grant.GiB + 1 }), 0,
			gpu0 + " 17179869185B are granted of 16GiB"},
		"reserve": {with(func(g *grant.Grant) { g.GPUs[0].Memory = 12 * grant.GiB }), grant.MiB,
			gpu0 + " 16GiB are granted of 16383MiB"},
		"all reserve": {with(func(g *grant.Grant) {}), 99 * grant.GiB, gpu0 + " 8GiB are granted of 0MiB"},
		"expired": {with(func(g *grant.Grant) { g.GPUs[0].Memory = 99 * grant.GiB; g.Expires = noon }),
			0, ""},
		"draining": {with(func(g *grant.Grant) { g.GPUs[0].Memory = 99 * grant.GiB; g.Draining = true }),
			0, ""},
		"draining, bound": {with(func(g *grant.Grant) {
			g.GPUs[0].Memory, g.Draining, g.Bindings = 99*grant.GiB, true, []grant.Binding{{}}
		}), 0, gpu0 + " 103GiB are granted of 16GiB"},
		"compute": {func() []grant.Grant {
			grants := with(func(g *grant.Grant) { g.Compute = 60 })
			grants[0].Compute = 41
			return grants
		}(), 0, gpu0 + " 101 percent of its compute are granted"},
		"modes": {with(func(g *grant.Grant) { g.Mode = grant.MPS }), 0,
			gpu0 + " its grants mix the modes [limit mps]"},
		"exclusive takes the reserve": {[]grant.Grant{func() grant.Grant {
			g := sample(1)
			g.Mode, g.GPUs[0].Memory = grant.Exclusive, 16*grant.GiB
			return g
		}()}, grant.GiB, ""},
		"exclusive twice": {func() []grant.Grant {
			grants := with(func(g *grant.Grant) { g.Mode = grant.Exclusive })
			grants[0].Mode = grant.Exclusive
			return grants
		}(), 0, gpu0 + " 2 grants have it exclusively"},
		"owner twice": {with(func(g *grant.Grant) { g.Owner = sample(1).Owner }),
			0, "pod:uid-1/train the owner has 2 live grants"},
		"bearer twice": {append(with(func(g *grant.Grant) { g.Owner = grant.Bearer }),
			with(func(g *grant.Grant) { g.Owner = grant.Bearer })[1]), 0, ""},
		"partition": {with(func(g *grant.Grant) { g.Mode, g.GPUs[0].UUID = grant.MIG, mig }), 0, ""},
		"partition and its card": {append(with(func(g *grant.Grant) {
			g.Mode, g.GPUs[0].UUID = grant.MIG, mig
		}), func() grant.Grant {
			g := sample(3)
			g.GPUs[0].UUID = gpu1
			return g
		}()), 0, gpu1 + " its grants mix the modes [limit mig]"},
		"vanished GPU": {with(func(g *grant.Grant) {
			g.GPUs[0].UUID, g.GPUs[0].Memory = "GPU-gone", 99*grant.GiB
		}), 0, ""},
	} {
		var got []string
		for _, f := range checkInvariants(row.grants, noon, inv, row.reserve) {
			got = append(got, f.Subject+" "+f.Problem)
		}
		if text := strings.Join(got, "\n"); text != row.want {
			t.Errorf("%s: found %q, want %q", name, text, row.want)
		}
	}
	if found := checkInvariants(with(func(g *grant.Grant) { g.GPUs[0].Memory = 99 * grant.GiB }), noon,
		nil, 0); len(found) != 0 {
		t.Errorf("without an inventory: %+v", found)
	}
}

func capacityOf(inv *grant.Inventory, reserve grant.Bytes) Capacity {
	return func() (*grant.Inventory, grant.Bytes) { return inv, reserve }
}

func TestCheckJudgesTheGrants(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1), sample(2))
	inv := &grant.Inventory{GPUs: []grant.GPU{{UUID: gpu0, Memory: 8 * grant.GiB}}}
	if report, err := b.Check(capacityOf(inv, 0)); err != nil || !report.Sound() {
		t.Errorf("full: %+v, %v", report, err)
	}
	if report, err := b.Check(capacityOf(inv, 1)); err != nil || report.Sound() {
		t.Errorf("too full: %+v, %v", report, err)
	}
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("of %d", n), func(b *testing.B) {
			l := ledgerIn(b, b.TempDir())
			sync := syncDir
			syncDir = func(string) error { return nil }
			defer func() { syncDir = sync }()
			for i := range n {
				l.put(sample(i))
			}
			i := 0
			for b.Loop() {
				if _, err := l.get(id(i % n)); err != nil {
					b.Fatal(err)
				}
				i += 7919 // another each time, which is not the last one in the kernel's caches
			}
		})
	}
}

func BenchmarkByOwner(b *testing.B) {
	l := ledgerIn(b, b.TempDir())
	l.put(sample(1))
	for b.Loop() {
		if _, err := l.byOwner(sample(1).Owner); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBind(b *testing.B) {
	l := ledgerIn(b, b.TempDir())
	l.put(sample(1))
	binding := bindingOf(id(1), "c")
	binding.Created = time.Now()
	for b.Loop() {
		l.bind(binding)
	}
}

func BenchmarkPut(b *testing.B) {
	l := ledgerIn(b, b.TempDir())
	i := 0
	for b.Loop() {
		l.put(sample(i % 1000))
		i++
	}
}

// TestTidyingRemovesNoFile: a file in the place of a directory that the ledger removes when it is
// empty was made by another program, and stays.
func TestTidyingRemovesNoFile(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.update(func(tx *Tx) error { return tx.Bind(bindingOf(id(1), "c")) })
	strays := []string{b.files.bindings.byGrant + "/stray", string(b.files.gpus) + "/stray"}
	for _, stray := range strays {
		if err := os.WriteFile(stray, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.update(func(tx *Tx) error { _ = tx.Sweep(); return nil })
	for _, stray := range strays {
		if err := os.Remove(stray); err != nil {
			t.Error(err)
		}
	}
}
