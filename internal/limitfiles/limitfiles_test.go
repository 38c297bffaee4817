package limitfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// TestBetweenTwoSizesTheSmallerHolds for each GPU.
func TestBetweenTwoSizesTheSmallerHolds(t *testing.T) {
	before := []grant.Share{{UUID: "a", Memory: 4}, {UUID: "b", Memory: 4}}
	got := Smaller(before, []grant.Share{{UUID: "b", Memory: 6}, {UUID: "a", Memory: 2}})
	if want := []grant.Share{{UUID: "a", Memory: 2}, {UUID: "b", Memory: 4}}; !reflect.DeepEqual(got,
		want) || before[0].Memory != 4 {
		t.Errorf("got %v of %v", got, before)
	}
}

// TestUnlinkedSpaceIsReported: the error names the grants of files that fill the file system, and
// only otherwise a process with unlinked files.
func TestUnlinkedSpaceIsReported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that the error names what fills the file system is not shown")
	}
	dir := t.TempDir()
	ownMounts(t, dir+"/run/limits")
	p, h := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run"}, host.Default()
	l := ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})
	g := grant.Grant{ID: "g-aaaaaaaaaaaa", Owner: grant.Bearer, Mode: grant.Limit,
		Strength: grant.StrengthLibrary,
		GPUs:     []grant.Share{{UUID: "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", Memory: grant.GiB}},
		Created:  h.Now().UTC().Truncate(time.Millisecond)}
	must(t, l.Update(func(tx *ledger.Tx) error { return errors.Join(tx.Put(g), Write(p, g)) }))
	root, region := p.LimitsRoot(), filepath.Join(p.LimitsDir(g.ID), grant.RegionFile)
	reports := func(what string, subjects ...string) {
		t.Helper()
		var findings []ledger.Finding
		err := l.Update(func(tx *ledger.Tx) error {
			findings = Settle(p, h.Now(), tx)
			return nil
		})
		var got []string
		for _, f := range findings {
			if got = append(got, f.Subject); f.Repaired || f.Problem == "" || f.Hint == "" {
				t.Errorf("%s: %+v", what, f)
			}
		}
		if err != nil || !slices.Equal(got, subjects) {
			t.Errorf("%s: %v (%v), want %v", what, got, err, subjects)
		}
	}
	reports("at first")
	for i := range 300 { // more than 64 KiB of names, which no kernel lists, and a third of the room's inodes
		err := unix.Lsetxattr(region, fmt.Sprintf("user.%0250d", i), make([]byte, 10000), 0)
		if errors.Is(err, unix.ENOTSUP) {
			t.Skip("this kernel's tmpfs has no attributes user.*: that the error names a region " +
				"with too many is not shown")
		}
		must(t, err)
	}
	reports("attributes", p.LimitsDir(g.ID))
	held, err := os.OpenFile(region, os.O_RDWR, 0)
	must(t, err)
	defer held.Close()
	must(t, l.Update(func(tx *ledger.Tx) error {
		Remove(p, g.ID)
		return tx.Delete(g.ID)
	}))
	reports("and of a grant that is over", root)
	must(t, held.Close())
	reports("at last")
}

// TestLimitsThatCannotBeOpenedAreReported: a container may have them, so they are not made anew. A
// program that runs is what root cannot open for writing.
func TestLimitsThatCannotBeOpenedAreReported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that limits that cannot be opened are reported is not shown")
	}
	dir := t.TempDir()
	ownMounts(t, dir+"/run/limits")
	p, h := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run"}, host.Default()
	l := ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})
	g := grant.Grant{ID: "g-aaaaaaaaaaaa", Owner: grant.Bearer, Mode: grant.Limit,
		Strength: grant.StrengthLibrary,
		GPUs:     []grant.Share{{UUID: "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", Memory: grant.GiB}},
		Created:  h.Now().UTC().Truncate(time.Millisecond)}
	must(t, l.Update(func(tx *ledger.Tx) error { return errors.Join(tx.Put(g), Write(p, g)) }))
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	program, err := os.ReadFile(sleep)
	file := filepath.Join(p.LimitsDir(g.ID), grant.LimitsFile)
	must(t, err, os.Remove(file), os.WriteFile(file, program, 0o700),
		unix.Mount("", p.LimitsRoot(), "", unix.MS_REMOUNT, "")) // without noexec
	cmd := exec.Command(file, "1000")
	must(t, cmd.Start())
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	must(t, l.Update(func(tx *ledger.Tx) error {
		findings := Settle(p, h.Now(), tx)
		if len(findings) != 1 || findings[0].Subject != p.LimitsDir(g.ID) || findings[0].Repaired ||
			findings[0].Hint == "" {
			t.Errorf("findings %+v, want one about %s", findings, p.LimitsDir(g.ID))
		}
		return nil
	}))
}

// TestOneGrantsFilesThatStay keep no other grant from being entered: what cannot be removed is
// reported, the rest is done, and the next pass tries again. A mount stands in for what a container
// did to its region.
func TestOneGrantsFilesThatStay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that files which cannot be removed are reported is not shown")
	}
	dir := t.TempDir()
	ownMounts(t, dir+"/run/limits")
	p, h := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run"}, host.Default()
	l := ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})
	g := grant.Grant{Owner: grant.Bearer, Mode: grant.Limit, Strength: grant.StrengthLibrary,
		GPUs: []grant.Share{{UUID: "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", Memory: grant.GiB}}}
	for _, g.ID = range []grant.ID{"g-aaaaaaaaaaaa", "g-bbbbbbbbbbbb"} { // over: the ledger has neither
		must(t, Write(p, g))
	}
	stays := p.LimitsDir("g-aaaaaaaaaaaa")
	region := filepath.Join(stays, grant.RegionFile)
	must(t, unix.Mount(region, region, "", unix.MS_BIND, ""))
	settle := func() (findings []ledger.Finding) {
		must(t, l.Update(func(tx *ledger.Tx) (err error) {
			if _, err = Sweep(p, tx); err == nil {
				findings = Settle(p, h.Now(), tx)
			}
			return err
		}))
		return findings
	}
	if found := settle(); len(found) != 1 || found[0].Subject != stays || found[0].Repaired ||
		!strings.Contains(found[0].Problem, "cannot remove") ||
		!strings.Contains(found[0].Hint, "chattr -ia") {
		t.Errorf("findings %+v, want one about %s", found, stays)
	}
	if kept := limits.Kept(p.LimitsRoot()); !slices.Equal(kept, []string{"g-aaaaaaaaaaaa"}) {
		t.Errorf("kept %v", kept)
	}
	must(t, unix.Unmount(region, 0))
	if found, kept := settle(), limits.Kept(p.LimitsRoot()); len(found)+len(kept) > 0 {
		t.Errorf("at last: findings %+v, kept %v", found, kept)
	}
}

// TestLimitsOfOtherDevices: the files of one grant cannot be set. That is reported, and the next
// grant's are set.
func TestLimitsOfOtherDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that limits of other devices are reported is not shown")
	}
	dir := t.TempDir()
	ownMounts(t, dir+"/run/limits")
	p, h := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run"}, host.Default()
	l := ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})
	of := func(id grant.ID, gpu string, memory grant.Bytes) grant.Grant {
		return grant.Grant{ID: id, Owner: grant.Owner("pod:" + id + "/c"), Mode: grant.Limit,
			Created: h.Now().UTC().Truncate(time.Millisecond),
			GPUs:    []grant.Share{{UUID: "GPU-ec6f3a93-0db3-4679-0464-05f99444" + gpu, Memory: memory}}}
	}
	const other, larger = "g-aaaaaaaaaaaa", "g-bbbbbbbbbbbb"
	must(t, Write(p, of(other, "0000", grant.GiB)), Write(p, of(larger, "0000", grant.GiB)))
	must(t, l.Update(func(tx *ledger.Tx) error {
		return errors.Join(tx.Put(of(other, "0001", grant.GiB)), tx.Put(of(larger, "0000", 2*grant.GiB)))
	}))
	must(t, l.Update(func(tx *ledger.Tx) error {
		found := Settle(p, h.Now(), tx)
		if len(found) != 2 || found[0].Subject != p.LimitsDir(other) || found[0].Repaired ||
			found[0].Hint == "" || found[1].Subject != p.LimitsDir(larger) || !found[1].Repaired {
			t.Errorf("findings %+v", found)
		}
		_, err := Sweep(p, tx)
		return err
	}))
}

// ownMounts gives the test's thread a mount namespace, so that the file system ends with it.
func ownMounts(t *testing.T, room string) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
	t.Cleanup(func() { _ = unix.Unmount(room, unix.MNT_DETACH) })
	must(t, unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAFullFileSystemIsEnlarged until there is space for the next grant: a process may fill it
// again in between. If there is still no space, the error says what to do.
func TestAFullFileSystemIsEnlarged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that a room which is full is made larger is not shown")
	}
	root := filepath.Join(t.TempDir(), "limits")
	ownMounts(t, root)
	tries := 0
	full := func(times int) func() error {
		tries = 0
		return func() error {
			if tries++; tries > times {
				return nil
			}
			return &fs.PathError{Op: "mkdir", Path: "g-next", Err: unix.ENOSPC}
		}
	}
	for _, c := range []struct{ full, grows int }{{0, 0}, {1, 16}, {3, 16 + 64 + 256}, {4,
		16 + 64 + 256 + 1024}} {
		must(t, limits.Mount(root))
		if err := makeRoom(root, full(c.full)); err != nil || tries != c.full+1 {
			t.Errorf("full %d times: %v after %d tries", c.full, err, tries)
		}
		var st unix.Statfs_t
		must(t, unix.Statfs(root, &st), unix.Unmount(root, 0))
		if size := int(st.Blocks) * int(st.Bsize) >> 20; size != 128+c.grows {
			t.Errorf("full %d times: %d MiB", c.full, size)
		}
	}
	region := filepath.Join(root, "g-greedy", grant.RegionFile)
	must(t, limits.Mount(root), os.Mkdir(filepath.Dir(region), 0o700), os.WriteFile(region, make([]byte,
		1<<20), 0o666))
	if err := makeRoom(root, full(5)); !errors.Is(err, unix.ENOSPC) || tries != 5 ||
		!strings.HasSuffix(err.Error(), "; containers of g-greedy have taken the room") {
		t.Errorf("full for ever: %v after %d tries", err, tries)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has, less [2]unix.CapUserData
	must(t, unix.Capget(&header, &has[0]))
	less = has
	less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	must(t, unix.Capset(&header, &less[0]))
	err := makeRoom(root, full(5))
	must(t, unix.Capset(&header, &has[0]))
	if !errors.Is(err, fs.ErrPermission) || !errors.Is(err, unix.ENOSPC) ||
		tries != 1 { // Prepare leaves that to the create
		t.Errorf("an agent in a pod: %v after %d tries", err, tries)
	}
	must(t, unix.Unmount(root, 0))
	if err := makeRoom(root, full(5)); !errors.Is(err, unix.ENOSPC) || tries != 1 ||
		!strings.Contains(err.Error(), "cannot make "+root+" larger") {
		t.Errorf("no file system of its own: %v after %d tries", err, tries)
	}
}

// TestLimitsThatCannotBeReached are an error if a container has limits: the ledger must not state a
// limit that is not set.
func TestLimitsThatCannotBeReached(t *testing.T) {
	p := grant.Policy{RunDir: t.TempDir()}
	g := func(strength grant.Strength) grant.Grant {
		return grant.Grant{ID: "g-aaaaaaaaaaaa", Bindings: []grant.Binding{{Strength: grant.StrengthNone},
			{Strength: strength}}}
	}
	for strength, fails := range map[grant.Strength]bool{grant.StrengthLibrary: true,
		grant.StrengthNone: false, grant.StrengthDriver: false} {
		if l, err := Open(p, g(strength)); l != nil || (err != nil) != fails {
			t.Errorf("held by %s: %v", strength, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(p.LimitsDir("g-aaaaaaaaaaaa"), grant.LimitsFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(p, g(grant.StrengthNone)); err == nil {
		t.Error("limits that are there and cannot be opened are none")
	}
}
