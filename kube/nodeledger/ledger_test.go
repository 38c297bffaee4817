package nodeledger_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

func TestRoomNamesNoTenant(t *testing.T) {
	n := nodeledgertest.New(t, 4, 16*grant.GiB, "")
	n.SetGPUs(4, 16*grant.GiB, func(all []simulated.GPUDescription) { all[3].Health = "lost" })
	one := n.Grant(admission.Ask{Mode: grant.Exclusive, Names: []string{"0"}, Label: "secret project"})
	n.Grant(admission.Ask{Mode: grant.Timeslice, Memory: 5 * grant.GiB, Names: []string{"1"}})
	if err := n.Open().Ledger.SetFound(ledger.Found{
		Outside: map[string]grant.Bytes{n.UUID(2): grant.GiB}}); err != nil {
		t.Fatal(err)
	}
	_, _, err := n.Enter(admission.Ask{Mode: grant.Limit, Memory: 16 * grant.GiB, Compute: 10,
		Owner: grant.Bearer})
	const want = "cannot grant 16GiB on a GPU in mode limit with 10% of its compute: GPU 0 is taken whole; " +
		"GPU 1 has 11GiB of 16GiB free (mode timeslice); " +
		"GPU 2 has 15GiB free, and 1GiB in use outside the ledger; GPU 3 is unhealthy: lost"
	var refusal *grant.Refusal
	if !errors.As(err, &refusal) || refusal.Message != want ||
		strings.Contains(refusal.Message, string(one.ID)) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// An MPS daemon has a fixed set of GPUs from its start, so a GPU can have room that this grant
// cannot use.
func TestRoomNamesMPSDaemons(t *testing.T) {
	n := nodeledgertest.New(t, 3, 16*grant.GiB, "")
	n.HasMPS()
	n.Grant(admission.Ask{Mode: grant.MPS, Memory: 8 * grant.GiB, Names: []string{"0", "1"}})
	n.Grant(admission.Ask{Mode: grant.MPS, Memory: grant.GiB, Names: []string{"2"}})
	const room = "GPU 0 has 12GiB of 16GiB free (mode mps, with one daemon over 2 GPUs); " +
		"GPU 1 has 12GiB of 16GiB free (mode mps, with one daemon over 2 GPUs); " +
		"GPU 2 has 15GiB of 16GiB free (mode mps, with a daemon of its own)"
	for want, ask := range map[string]admission.Ask{
		"cannot grant 4GiB on a GPU in mode mps: " + room: {Mode: grant.MPS, Memory: 4 * grant.GiB,
			Names: []string{"0"}, Owner: grant.Bearer},
		"cannot grant 4GiB over 2 GPUs in mode mps: " + room: {Mode: grant.MPS, Memory: 4 * grant.GiB,
			Names: []string{"1", "2"}, Owner: grant.Bearer},
	} {
		_, _, err := n.Enter(ask)
		var refusal *grant.Refusal
		if !errors.As(err, &refusal) || refusal.Code != grant.ModeConflict || refusal.Message != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestOnlyGrantsWithASecretAreRenewed(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "")
	pods := n.Grant(admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: "pod:u/c"})
	if _, err := grants.Renew(n.Open(), pods.ID); err == nil || !strings.Contains(err.Error(),
		"without a secret") {
		t.Errorf("a pod's: %v", err)
	}
	claims := n.Grant(admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: "claim:u"})
	end := n.Use(claims.ID, grant.Identity{})
	defer end()
	if err := n.Release(claims.ID); err != nil {
		t.Fatal(err)
	}
	var gone *grant.NotFoundError
	if _, err := grants.Renew(n.Open(), claims.ID); !errors.As(err, &gone) {
		t.Errorf("a released one: %v", err)
	}
	if _, err := grants.Renew(n.Open(), "g-zzzzzzzzzzzz"); !errors.As(err, &gone) {
		t.Errorf("none: %v", err)
	}
}

func TestABrokenConfigurationIsAnError(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "nonsense = 1\n")
	if _, _, err := n.Enter(admission.Ask{Mode: grant.Limit, Memory: grant.GiB,
		Owner: grant.Bearer}); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
}

// A node with a broken configuration has the ledger of the defaults, which nothing may write.
func TestABrokenConfigurationWritesNothing(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "")
	broken := n.Open()
	broken.Broken = errors.New("broken")
	n.Open = func() *node.Node { return broken }
	for name, together := range map[string]*nodeledger.Batch{"alone": nil, "together": {}} {
		n.Batch = together
		if _, _, err := n.Enter(admission.Ask{Mode: grant.Limit, Memory: grant.GiB,
			Owner: grant.Bearer}); err != broken.Broken {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := os.Lstat(n.Dir + "/state/grants"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the ledger was written (%v)", name, err)
		}
	}
}

// Callers that come at once are served together, and an owner has one grant all the same.
func TestAnOwnerTwiceAtOnce(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "")
	ask := admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: "claim:u"}
	all := grants.EnterAll(n.Open(), []admission.Ask{ask, ask, {Mode: grant.Limit, Memory: grant.GiB,
		Owner: "claim:u.a"}}, nil)
	var refusal *grant.Refusal
	if all[0].Err != nil || !errors.As(all[1].Err, &refusal) || refusal.Code != grant.GrantInUse ||
		all[2].Err != nil || len(n.Grants()) != 2 {
		t.Errorf("got %+v and %+v, want the first and the third", all, n.Grants())
	}
}

// Of several grants that are prepared at once each has its own error, and all have that of the
// ledger.
func TestPreparedTogether(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "")
	g, _, err := n.Enter(admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: grant.Bearer})
	if err != nil {
		t.Fatal(err)
	}
	const none = grant.ID("g-aaaaaaaaaaaa")
	errs := grants.PrepareAll(n.Open(), []grant.ID{none, g.ID, none})
	var gone *grant.NotFoundError
	if !errors.As(errs[0], &gone) || errs[1] != nil || !errors.As(errs[2], &gone) {
		t.Errorf("got %v", errs)
	}
	at := n.Open()
	at.Ledger.Wait = time.Millisecond
	if err := at.Ledger.Update(func(*ledger.Tx) error {
		errs = grants.PrepareAll(at, []grant.ID{g.ID, none})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var locked *ledger.LockError
	if !errors.As(errs[0], &locked) || !errors.As(errs[1], &locked) {
		t.Errorf("while the ledger is locked: got %v", errs)
	}
}

// The files of limits are made with the grant. Where that is impossible there is none.
func TestAGrantWithoutItsLimits(t *testing.T) {
	shim := t.TempDir()
	head := append([]byte("\x7fELF\x02\x01"), make([]byte, 14)...) // a library by its head
	head[16], head[18] = 3, map[string]byte{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if err := os.WriteFile(shim+"/"+name, head, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, together := range map[string]*nodeledger.Batch{"alone": nil, "together": {}} {
		t.Run(name, func(t *testing.T) {
			n := nodeledgertest.New(t, 1, 16*grant.GiB, fmt.Sprintf("[enforcement]\nshim = %q\n", shim))
			n.Batch, n.References = together, n.Dir+"/references"
			inv, _ := n.Open().Inventory()
			inv.Driver.Files = []grant.DriverFile{{Kind: grant.FileLibrary, Bits: 64, Target: "/usr/lib",
				Path: "/usr/lib/libcuda.so.580.65.06", Names: []string{"libcuda.so.1"}}}
			n.SetInventory(inv)
			if err := errors.Join(os.MkdirAll(n.Dir+"/run", 0o700),
				os.WriteFile(n.Dir+"/run/limits", nil, 0o600)); err != nil { // where the directory is to be
				t.Fatal(err)
			}
			_, err := n.EnterWithCDI(admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: grant.Bearer})
			if err == nil || !strings.Contains(err.Error(), "limits") {
				t.Errorf("got %v", err)
			}
			references, err := os.ReadDir(n.References)
			files, e := os.ReadDir(n.Dir + "/cdi")
			if err != nil || e != nil || len(references)+len(files)+len(n.Grants()) > 0 {
				t.Errorf("there are %v (%v), %v (%v) and %+v", references, err, files, e, n.Grants())
			}
		})
	}
}

// A reference is kept with its grant: both are there, or none.
func TestReferencesAreKeptWithTheirGrants(t *testing.T) {
	for name, together := range map[string]*nodeledger.Batch{"alone": nil, "together": {}} {
		t.Run(name, func(t *testing.T) {
			n := nodeledgertest.New(t, 2, 16*grant.GiB, "")
			n.Batch, n.References = together, n.Dir+"/references"
			inv, _ := n.Open().Inventory()
			ask := admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: grant.Bearer,
				Names: []string{inv.GPUs[0].UUID}}
			r, err := n.EnterWithCDI(ask)
			if err != nil {
				t.Fatal(err)
			}
			if kept, err := os.ReadFile(n.References + "/" + string(r.ID)); string(kept) != r.String()+"\n" {
				t.Errorf("kept is %q (%v), want %s", kept, err, r)
			}
			if _, _, err := n.Enter(ask); err != nil {
				t.Error(err)
			}
			isLeft := func(what string, references, grants int) {
				t.Helper()
				files, err := os.ReadDir(n.References)
				if err != nil || len(files) != references || len(n.Grants()) != grants {
					t.Errorf("%s: there are %v (%v) and %+v", what, files, err, n.Grants())
				}
			}
			isLeft("Enter keeps none", 1, 2)
			file := n.Dir + "/state/gpus/" + inv.GPUs[1].UUID // where its links are to be
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			ask.Names = []string{inv.GPUs[1].UUID}
			if _, err := n.EnterWithCDI(ask); err == nil {
				t.Error("a grant without its GPU's link")
			}
			isLeft("the ledger cannot be written", 1, 2)
		})
	}
}

// syncs notes which directories are synced.
type syncs map[string]bool

func (syncs) Random() (r [16]byte)   { return r }
func (syncs) Before(host.Step) error { return nil }
func (s syncs) After(step host.Step, err error) {
	s[step.Path] = s[step.Path] || step.Kind == host.SyncsDir && err == nil
}

// TestAGrantThatIsWrittenAgainIsDurable: the driver that entered it may have been killed before.
func TestAGrantThatIsWrittenAgainIsDurable(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "")
	n.References = n.Dir + "/references"
	ask := admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: grant.Bearer}
	if _, err := n.EnterWithCDI(ask); err != nil {
		t.Fatal(err)
	}
	seen := syncs{}
	host.Simulated = seen
	defer func() { host.Simulated = nil }()
	if _, err := n.WriteCDI(n.Grants()[0]); err != nil || !seen[n.Dir+"/state/grants"] {
		t.Errorf("%v; synced %v", err, seen)
	}
}

// TestReferencesOfMissingGrantsAreKept: the state directory is an older copy, and a container of
// the grant runs. When the right copy is back it needs the reference, which nothing else has.
func TestReferencesOfMissingGrantsAreKept(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "")
	n.References = n.Dir + "/references"
	ask := admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Owner: grant.Bearer}
	r, err := n.EnterWithCDI(ask)
	if err != nil {
		t.Fatal(err)
	}
	self, err := host.Default().Self()
	if err == nil {
		err = n.Open().Ledger.Update(func(tx *ledger.Tx) error {
			return tx.Bind(grant.Binding{Grant: r.ID, RuntimeRoot: n.Dir + "/runtime", Container: "c",
				Creator: self})
		})
	}
	if err := errors.Join(err, os.Remove(n.Dir+"/state/grants/"+string(r.ID)+".json")); err != nil {
		t.Fatal(err)
	}
	isKept := func(want bool) {
		t.Helper()
		o, err := nodeledger.ReadNode(n.Open())
		if err == nil {
			err = n.RemoveOrphans(o.View)
		}
		_, missing := os.Stat(n.References + "/" + string(r.ID))
		if err != nil || (missing == nil) != want {
			t.Errorf("%v; the reference is kept: %v, want %v", err, missing == nil, want)
		}
	}
	isKept(true)
	if _, err := grants.Release(n.Open(), r.ID, true); err != nil {
		t.Fatal(err)
	}
	isKept(false)
}
