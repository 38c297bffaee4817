package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logs "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
)

// shelf is a node with a ledger on this machine's /proc, and containers that are a process each, as their runtime has written them down.
type shelf struct {
	t    *testing.T
	node *node.Node
	book Cache
	root string // the runtime's
}

func newShelf(t *testing.T) *shelf {
	dir := t.TempDir()
	p := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run"}
	h := host.Default()
	s := &shelf{t: t, root: dir + "/runtime", node: &node.Node{Host: h, Policy: p, Ledger: ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})}}
	t.Cleanup(s.book.close)
	return s
}

const aGPU = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7"

// grants enters a grant.
func (s *shelf) grants(letter byte) grant.ID {
	s.t.Helper()
	g := grant.Grant{ID: grant.NewID([16]byte{letter}), Owner: grant.Owner(fmt.Sprintf("pod:u-%d/c", letter)), Mode: grant.Limit, Strength: admission.StrengthOf(grant.Limit),
		GPUs: []grant.Share{{UUID: aGPU, Memory: grant.GiB}}, Created: time.Now().UTC().Truncate(time.Millisecond)}
	must(s.t, s.node.Ledger.Update(func(tx *ledger.Tx) error { return tx.Put(g) }))
	return g.ID
}

// starts binds a container of the name, which is a process.
func (s *shelf) starts(id grant.ID, name string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command("sleep", "1000")
	must(s.t, cmd.Start())
	s.t.Cleanup(func() { s.ends(cmd) })
	p, _, err := s.node.Host.Process(cmd.Process.Pid)
	must(s.t, err)
	state := fmt.Sprintf(`{"pid":%d,"process-start-time":%d,"cgroup-path":"/gpuledger-no-such-cgroup"}`, p.PID, p.Start) // crun's
	must(s.t, os.MkdirAll(filepath.Join(s.root, name), 0o700), os.WriteFile(filepath.Join(s.root, name, "status"), []byte(state), 0o600))
	gone := exec.Command("true") // the creator
	must(s.t, gone.Run())
	must(s.t, s.node.Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: s.root, Container: name, Creator: grant.Process{PID: gone.Process.Pid, Start: 1}})
	}))
	return cmd
}

func (s *shelf) ends(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// reads opens the book until it is not read anew any more, and gives what is in it, as "grants/bindings".
func (s *shelf) reads() string {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		o, fresh, err := s.book.Read(s.node, false)
		must(s.t, err)
		if !fresh {
			return counts(o)
		}
	}
	s.t.Fatal("it is read again and again")
	return ""
}

func counts(o node.Overview) string {
	bindings := 0
	for _, g := range o.Grants {
		bindings += len(g.Bindings)
	}
	return fmt.Sprintf("%d/%d", len(o.Grants), bindings)
}

// TestBook: what was done to the ledger is seen at the next look, however short it was before, and so is a container that has ended, which
// changes no file. What has not changed is not read.
func TestBook(t *testing.T) {
	s := newShelf(t)
	first := s.grants(0)
	if got := s.reads(); got != "1/0" {
		t.Fatalf("one grant is %s", got)
	}
	for i := range 20 { // more of them within one tick than can be told apart
		s.grants(byte(i + 1))
		if o, _, err := s.book.Read(s.node, false); err != nil || counts(o) != fmt.Sprintf("%d/0", i+2) {
			t.Fatalf("%d grants are %s (%v)", i+2, counts(o), err)
		}
	}
	one, two := s.starts(first, "one"), s.starts(first, "two")
	if got := s.reads(); got != "21/2" || !s.book.allWatched {
		t.Fatalf("with two containers %s, settled %v", got, s.book.allWatched)
	}
	reading := s.book.readings
	for range 100 {
		if got := s.reads(); got != "21/2" {
			t.Fatal(got)
		}
	}
	if s.book.readings != reading {
		t.Errorf("it was read %d times and had not changed", s.book.readings-reading)
	}
	s.book.read = s.book.read.Add(-maxAgeWatched / 2) // as if it had been read before the last change, and that had left the stamps the same
	if _, fresh, err := s.book.Read(s.node, false); err != nil || !fresh {
		t.Errorf("a reading of before the last change is believed (%v)", err)
	}
	s.reads()
	s.book.stamp = Stamp{} // as if the files had changed while the clock was set back: they are older than the reading, and others
	if _, fresh, err := s.book.Read(s.node, false); err != nil || !fresh {
		t.Errorf("a reading of other files is believed (%v)", err)
	}
	s.ends(one)
	if got := s.reads(); got != "21/1" {
		t.Errorf("a container has ended: %s", got)
	}
	if s.book.allWatched {
		t.Error("the binding of a container that is gone is there, and nobody is to look for it")
	}
	_ = two
}

// TestBookOfUnheldContainers: where the end of a container would not be noticed, who shows the ledger reads it each time.
func TestBookOfUnheldContainers(t *testing.T) {
	s := newShelf(t)
	s.book.newVigil = nobodyIsHeld
	one := s.starts(s.grants(0), "one")
	if got := s.reads(); got != "1/1" || s.book.allWatched {
		t.Fatalf("%s, settled %v", got, s.book.allWatched)
	}
	s.ends(one)
	if o, err := s.book.Current(s.node); err != nil || counts(o) != "1/0" {
		t.Errorf("the container has ended: %s (%v)", counts(o), err)
	}
}

func nobodyIsHeld() (*host.Vigil, error) { return nil, host.ErrNoVigil }

// TestWhatIsHeldAgain: where first processes could not be held, for want of descriptors say, they are as soon as they can; each is said once.
func TestWhatIsHeldAgain(t *testing.T) {
	s := newShelf(t)
	log, said := logs.NewNullLogger()
	s.book.vigilProblem.Log, s.book.newVigil = log, nobodyIsHeld
	s.starts(s.grants(0), "one")
	for range 3 {
		if _, _, err := s.book.Read(s.node, true); err != nil || s.book.allWatched {
			t.Fatalf("settled %v (%v)", s.book.allWatched, err)
		}
	}
	if got := said.AllEntries(); len(got) != 1 || got[0].Level != logrus.WarnLevel || got[0].Data[logrus.ErrorKey] != host.ErrNoVigil {
		t.Errorf("said is %+v", got)
	}
	s.book.newVigil = nil
	for range 3 {
		if _, _, err := s.book.Read(s.node, true); err != nil || !s.book.allWatched {
			t.Fatalf("settled %v (%v)", s.book.allWatched, err)
		}
	}
	if got := said.AllEntries(); len(got) != 2 || got[1].Level != logrus.InfoLevel {
		t.Errorf("said is %+v", got)
	}
}

// TestTidyWaitsForAnEnd: bindings of containers that are gone are removed at the next turn, and nothing is looked for where none is.
func TestTidyWaitsForAnEnd(t *testing.T) {
	s := newShelf(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	r := &ledgerManager{cache: &s.book, log: log}
	id := s.grants(0)
	cmd := s.starts(id, "one")
	s.starts(id, "two")
	there := func() bool { return s.node.Ledger.HasBinding(s.root, "one") }
	s.reads()
	for range 3 {
		r.tidyDead(s.node)
	}
	if !s.book.AllRun(s.node) || !there() {
		t.Fatalf("somebody is to be looked for while both run; the binding is there: %v", there())
	}
	s.ends(cmd)
	if s.book.AllRun(s.node) {
		t.Error("nobody is to be looked for, and one has ended")
	}
	if r.tidyDead(s.node); there() {
		t.Error("the binding of a container that is gone stays")
	}
	s.reads()
	if r.tidyDead(s.node); !s.book.AllRun(s.node) || !s.node.Ledger.HasBinding(s.root, "two") {
		t.Error("afterwards somebody is still to be looked for, or the other one's binding is gone")
	}
}

// TestASoundLedgerIsBelievedToBe for five turns, while nobody has changed it and all containers run; what is wrong with it is found at each.
func TestASoundLedgerIsBelievedToBe(t *testing.T) {
	s := newShelf(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	r := &ledgerManager{cache: &s.book, log: log, wait: func() time.Duration { return time.Second }}
	id := s.grants(0)
	cmd := s.starts(id, "one")
	s.starts(id, "two")
	s.reads() // until the last change is older than a tick
	turn, now := checkEvery*time.Second, time.Now()
	looked := func() bool { // at the whole ledger
		t.Helper()
		before := r.found.Checked
		must(t, r.check(s.node, now))
		return r.found.Checked != before
	}
	if !looked() {
		t.Fatal("nobody has looked yet")
	}
	for i := range soundChecks - 1 {
		if now = now.Add(turn); looked() {
			t.Errorf("after %d turns it is looked at, and nothing has changed", i+1)
		}
	}
	if now = now.Add(turn); !looked() {
		t.Errorf("after %d turns nobody looks", soundChecks)
	}
	now = now.Add(turn)
	s.grants(1)
	if !looked() {
		t.Error("there is another grant, and nobody looks")
	}
	now = now.Add(turn)
	s.ends(cmd)
	if !looked() || s.node.Ledger.HasBinding(s.root, "one") {
		t.Error("a container has ended, and nobody looks")
	}
	stray := filepath.Join(s.node.Policy.StateDir, "grants", "stray")
	must(t, os.WriteFile(stray, nil, 0o600))
	for range 2 {
		now = now.Add(turn)
		if err := r.check(s.node, now); err == nil {
			t.Error("the ledger is not sound, and nothing is said of it")
		}
	}
}

// TestWhatTheLimitsPassCannotRepairIsSaidAtOnce: what a container does to its region changes nothing in the ledger, which is believed to be sound all
// the while. It stays an error for as long as it is so.
func TestWhatTheLimitsPassCannotRepairIsSaidAtOnce(t *testing.T) {
	s := newShelf(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	r := &ledgerManager{cache: &s.book, log: log, wait: func() time.Duration { return time.Second }}
	id := s.grants(0)
	dir := s.node.Policy.LimitsDir(id)
	must(t, os.MkdirAll(dir, 0o700), limits.Ensure(dir, []grant.Share{{UUID: aGPU, Memory: grant.GiB}}, 0))
	s.reads() // until the last change is older than a tick
	turn, now := checkEvery*time.Second, time.Now()
	must(t, r.check(s.node, now))

	must(t, os.Truncate(filepath.Join(dir, grant.RegionFile), 1<<20))
	held, err := os.Open(filepath.Join(dir, grant.RegionFile))
	must(t, err)
	defer held.Close()
	signal.Ignore(unix.SIGIO) // by which the kernel asks for a lease back
	defer signal.Reset(unix.SIGIO)
	if _, err := unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Skipf("this file system has no leases (%v): that what cannot be repaired is told is not shown", err)
	}
	for i := range 2 {
		now = now.Add(turn)
		if sound := r.stillSound(s.node, now); sound != (i == 0) {
			t.Errorf("turn %d: the ledger is believed to be sound: %v", i, sound)
		}
		if err := r.check(s.node, now); err == nil || !strings.Contains(err.Error(), string(id)) || r.Found().Problems != 1 {
			t.Errorf("a region that cannot be cut: %v, %d problems", err, r.Found().Problems)
		}
	}
	held.Close()
	now = now.Add(turn)
	if err := r.check(s.node, now); err != nil || r.Found().Problems != 0 {
		t.Errorf("afterwards: %v, %d problems", err, r.Found().Problems)
	}
}
