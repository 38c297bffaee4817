package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// TestTheShimIsToldWithoutLinks: a package's link may lead elsewhere tomorrow, what is mounted stays. What is not there, or of another
// machine, is a problem with a reason.
func TestTheShimIsToldWithoutLinks(t *testing.T) {
	dir := t.TempDir()
	head := func(machine byte) []byte {
		b := append([]byte("\x7fELF\x02\x01"), make([]byte, 58)...)
		b[16], b[18] = 3, machine
		return b
	}
	for name, content := range map[string][]byte{"whole": head(elfMachine()), "foreign": head(elfMachine() ^ 1), "text": []byte(strings.Repeat("text", 20)), "short": []byte("\x7fELF")} {
		for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			must(t, os.MkdirAll(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, library), content, 0o644))
		}
	}
	must(t, os.MkdirAll(dir+"/half", 0o755), os.WriteFile(dir+"/half/libcuda.so.1", head(elfMachine()), 0o644), os.Symlink("whole", dir+"/link"))
	for name, problem := range map[string]string{"whole": "", "link": "", "foreign": "architecture", "text": "architecture", "short": "no library", "half": "libnvidia-ml.so.1", "nowhere": "no such file"} {
		n := &Node{Policy: grant.Policy{Enforcement: grant.Enforcement{Shim: filepath.Join(dir, name)}}}
		got := n.Shim()
		real, _ := filepath.EvalSymlinks(filepath.Join(dir, "whole"))
		if problem == "" && got != (grant.Shim{Dir: real}) || problem != "" && (got.Dir != "" || !strings.Contains(got.Problem, problem)) {
			t.Errorf("%s: %+v, want %q", name, got, problem)
		}
	}
}

// TestWhatLiesOverTheRecordsPlace: the last mount that does, wherever it comes from.
func TestWhatLiesOverTheRecordsPlace(t *testing.T) {
	mount := func(destination, kind string, options ...string) specs.Mount {
		return specs.Mount{Destination: destination, Type: kind, Options: options}
	}
	for name, c := range map[string]struct {
		mounts []specs.Mount
		want   cover
	}{
		"nothing":           {[]specs.Mount{mount("/proc", "proc"), mount("/runner", "bind", "bind"), mount("/run/gpuledger/limits", "bind", "bind"), mount("/run/secrets", "tmpfs")}, cover{}},
		"a tmpfs":           {[]specs.Mount{mount("/run", "tmpfs")}, cover{true, "/run", true}},
		"a volume":          {[]specs.Mount{mount("/run", "bind", "rbind")}, cover{true, "/run", false}},
		"by the other name": {[]specs.Mount{mount("/var/run/", "bind", "bind")}, cover{true, "/var/run/", false}},
		"not clean":         {[]specs.Mount{mount("run/./gpuledger", "none", "bind")}, cover{true, "run/./gpuledger", false}},
		"a bind of a tmpfs": {[]specs.Mount{mount("/run", "tmpfs", "bind")}, cover{true, "/run", false}},
		"the last counts":   {[]specs.Mount{mount("/run", "bind", "bind"), mount("/run", "tmpfs")}, cover{true, "/run", true}},
		"all":               {[]specs.Mount{mount("/", "bind", "bind")}, cover{true, "/", false}},
	} {
		if got := coverOf(c.mounts); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestBetweenTwoSizesTheSmallerHolds, GPU by GPU.
func TestBetweenTwoSizesTheSmallerHolds(t *testing.T) {
	before := []grant.Share{{UUID: "a", Memory: 4}, {UUID: "b", Memory: 4}}
	got := smaller(before, []grant.Share{{UUID: "b", Memory: 6}, {UUID: "a", Memory: 2}})
	if want := []grant.Share{{UUID: "a", Memory: 2}, {UUID: "b", Memory: 4}}; !reflect.DeepEqual(got, want) || before[0].Memory != 4 {
		t.Errorf("got %v of %v", got, before)
	}
}

// TestWhoseTheRoomIs: what has a name is named, and then nobody is said to be without one.
func TestWhoseTheRoomIs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that whoever fills the room is told is not shown")
	}
	dir := t.TempDir()
	ownMounts(t, dir+"/run/limits")
	p, h := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run"}, host.Default()
	n := &Node{Host: h, Policy: p, Ledger: ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})}
	g := grant.Grant{ID: "g-aaaaaaaaaaaa", Owner: grant.Bearer, Mode: grant.Limit, Strength: grant.StrengthLibrary,
		GPUs: []grant.Share{{UUID: "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7", Memory: grant.GiB}}, Created: h.Now().UTC().Truncate(time.Millisecond)}
	must(t, n.Ledger.Update(func(tx *ledger.Tx) error { return errors.Join(tx.Put(g), writeLimits(n, g)) }))
	root, region := p.LimitsRoot(), filepath.Join(p.LimitsDir(g.ID), grant.RegionFile)
	told := func(what string, subjects ...string) {
		t.Helper()
		findings, err := n.SettleLimits()
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
	told("at first")
	for i := range 300 { // more than 64 KiB of names, which no kernel lists, and a third of the room's inodes
		err := unix.Lsetxattr(region, fmt.Sprintf("user.%0250d", i), make([]byte, 10000), 0)
		if errors.Is(err, unix.ENOTSUP) {
			t.Skip("this kernel's tmpfs has no attributes user.*: that whoever sets too many is told is not shown")
		}
		must(t, err)
	}
	told("attributes", p.LimitsDir(g.ID))
	held, err := os.OpenFile(region, os.O_RDWR, 0)
	must(t, err)
	defer held.Close()
	must(t, n.Ledger.Update(func(tx *ledger.Tx) error { return removeGrant(n, tx, g.ID) }))
	told("and of a grant that is over", root)
	must(t, held.Close())
	told("at last")
}

// ownMounts gives the test a mount namespace of its own, which is its thread's, in which the room does not outlast it.
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

// TestARoomThatIsFullIsMadeLarger until there is room for the next: somebody may fill it again in between. What then is no room is an error that says
// what to do.
func TestARoomThatIsFullIsMadeLarger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that a room which is full is made larger is not shown")
	}
	root := filepath.Join(t.TempDir(), "limits")
	ownMounts(t, root)
	n := &Node{}
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
	for _, c := range []struct{ full, grows int }{{0, 0}, {1, 16}, {3, 16 + 64 + 256}, {4, 16 + 64 + 256 + 1024}} {
		must(t, limits.Room(root))
		if err := makeRoom(n, root, full(c.full)); err != nil || tries != c.full+1 {
			t.Errorf("full %d times: %v after %d tries", c.full, err, tries)
		}
		var st unix.Statfs_t
		must(t, unix.Statfs(root, &st), unix.Unmount(root, 0))
		if size := int(st.Blocks) * int(st.Bsize) >> 20; size != 128+c.grows {
			t.Errorf("full %d times: %d MiB", c.full, size)
		}
	}
	region := filepath.Join(root, "g-greedy", grant.RegionFile)
	must(t, limits.Room(root), os.Mkdir(filepath.Dir(region), 0o700), os.WriteFile(region, make([]byte, 1<<20), 0o666))
	if err := makeRoom(n, root, full(5)); !errors.Is(err, unix.ENOSPC) || tries != 5 || !strings.HasSuffix(err.Error(), "; containers of g-greedy have taken the room") {
		t.Errorf("full for ever: %v after %d tries", err, tries)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has, less [2]unix.CapUserData
	must(t, unix.Capget(&header, &has[0]))
	less = has
	less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	must(t, unix.Capset(&header, &less[0]))
	err := makeRoom(n, root, full(5))
	must(t, unix.Capset(&header, &has[0]))
	if !errors.Is(err, fs.ErrPermission) || !errors.Is(err, unix.ENOSPC) || tries != 1 { // Prepare leaves it to the create
		t.Errorf("an agent in a pod: %v after %d tries", err, tries)
	}
	must(t, unix.Unmount(root, 0))
	if err := makeRoom(n, root, full(5)); !errors.Is(err, unix.ENOSPC) || tries != 1 || !strings.Contains(err.Error(), "cannot make "+root+" larger") {
		t.Errorf("no room of its own: %v after %d tries", err, tries)
	}
}
