package hostpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

// TestADirectoryOnceSeenIsLookedAtByNames: a path in it has the same real path as before.
func TestADirectoryOnceSeenIsLookedAtByNames(t *testing.T) {
	s := newScene(t)
	s.Mkdir("data/deep")
	s.Touch("data/file")
	s.Link("data", "link")
	s.Link("deep", "data/deeper")
	paths := New(s.node)
	paths.Resolve(s.Path("data/file"))
	paths.Resolve(s.Path("link/file"))
	paths.Resolve(s.Path("none/file"))
	plain := func(dir string) bool { return paths.plain[s.Path(dir)+"/"] }
	if !plain("data") || plain("link") || plain("none") {
		t.Errorf("without a link on the way are %v", paths.plain)
	}
	for path, want := range map[string]string{"data/deep": "data/deep", "data/.": "data", "data/": "data",
		"data/..": "", "data/deeper": "data/deep", "link/deep": "data/deep", "link/": "data",
		"data/none": "data/none"} {
		got := paths.Resolve(s.Dir + "/" + path)
		if got.Path != filepath.Join(s.Dir, want) || got.Exists != (path != "data/none") {
			t.Errorf("%s leads to %+v, want %s", path, got, want)
		}
	}
	if p := paths.Resolve("/proc/self/cwd"); !p.Shifting {
		t.Errorf("%+v", p)
	}
	own := fmt.Sprintf("/proc/%d/status", os.Getpid())
	if p := paths.Resolve("/proc/self/status"); p.Shifting || !p.Exists || p.Path != own {
		t.Errorf("%+v", p)
	}
}

// TestAWorkingDirectoryWithTheNameOfItsLink: in a file system that is mounted nowhere, or in
// another mount namespace, a directory can have any path, that of a link of /proc, too.
func TestAWorkingDirectoryWithTheNameOfItsLink(t *testing.T) {
	hostpathtest.OwnMounts(t)
	s := newScene(t)
	link := s.Path("again/thread-self/cwd") // procfs is mounted there, so its links are
	s.Mount("tmpfs", s.Path("detached"), "tmpfs")
	s.Touch("detached/file")
	named := s.Mkdir("detached" + link)
	s.Must(errors.Join(os.WriteFile(named+"/file", nil, 0o600), unix.Chdir(named), // of this thread
		unix.Unmount(s.Path("detached"), unix.MNT_DETACH)))
	s.ForgetMounts()
	s.Mount("/proc", s.Path("again"), "")
	paths := New(s.node)
	for range 2 {
		if p := paths.Resolve(link + "/file"); p.Path != link+"/file" || !p.Shifting {
			t.Errorf("%+v, want the path of the link, shifting", p)
		}
		clear(paths.Known)
	}
	s.Unmount()
}

// TestWhatWasSeenHolds for a container: it is not looked up a second time.
func TestWhatWasSeenHolds(t *testing.T) {
	s := newScene(t)
	paths := New(s.node)
	paths.Known["/x"] = Place{ResolvedFile: host.ResolvedFile{Path: "/elsewhere"}}
	table := newMountTable(nil)
	paths.mounts, paths.lent, paths.own = table, []uint64{7}, []guard{{path: "/g"}}
	paths.positions["/x"] = position{device: 7}
	paths.elsewhere[pathQuestion{path: "/x"}] = []Alias{{Inside: true}}
	paths.ledger, paths.anchored = []string{"/ledger"}, []position{{device: 7}}
	mounts, err := paths.readMounts()
	known, _ := paths.Elsewhere(Place{ResolvedFile: host.ResolvedFile{Path: "/x"}}, false, false)
	if len(known) != 1 || paths.position("/x").device != 7 {
		t.Error("it looks anew for other places")
	}
	if !paths.InLedger("/ledger/x") || len(paths.anchorPositions()) != 1 {
		t.Error("it looks anew for the node's directories")
	}
	paths.plain[s.Path("link")+"/"] = true
	s.Link(s.Path("bundle"), "link")
	s.Touch("bundle/file")
	if got := paths.Resolve(s.Path("link/file")).Path; got != s.Path("link/file") {
		t.Errorf("it walks a directory anew: %s", got)
	}
	if paths.Resolve("/x").Path != "/elsewhere" || mounts != table || err != nil ||
		paths.lentDevices()[0] != 7 || paths.ownGuards()[0].path != "/g" {
		t.Error("it looks anew")
	}
}

// TestWhatIsNotThereIsLookedForOnce: each prefix of a path that is looked at costs allocations.
func TestWhatIsNotThereIsLookedForOnce(t *testing.T) {
	s := newScene(t)
	for name, c := range map[string]struct {
		path string
		most float64
	}{
		"a name":            {s.Path("none"), 7},
		"a link to nothing": {s.Link("none", "link"), 100},
	} {
		paths := New(s.node)
		if n := testing.AllocsPerRun(3, func() {
			clear(paths.Known)
			paths.Resolve(c.path)
		}); n > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, n, c.most)
		}
	}
}

// TestWhatAppearsMeanwhile: the kernel did not follow a path to its end, and a second look does.
func TestWhatAppearsMeanwhile(t *testing.T) {
	s := newScene(t)
	dir, err := host.Resolve(s.Dir)
	s.Must(err)
	// another process has made it between the looks
	if there, name, rest := parting(s.Dir); there != dir || name != "" || rest != "" {
		t.Errorf("%s stops existing at %+v, %q, %q", s.Dir, there, name, rest)
	}
	last := "."
	for i := range maxLinks + 1 { // one more than the kernel follows
		name := fmt.Sprintf("link%d", i)
		s.Link(last, name)
		last = name
	}
	if got := New(s.node).Resolve(s.Path(last)); got.Exists || got.ResolvedFile != dir {
		t.Errorf("behind too many links is %+v, want %+v", got, dir)
	}
}

// TestAnErrorThatHidesAPath: the path is as it reads, and the error is told.
func TestAnErrorThatHidesAPath(t *testing.T) {
	s := newScene(t)
	var limit unix.Rlimit
	paths := New(s.node)
	s.Must(errors.Join(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit),
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max})))
	p := paths.Resolve(s.Dir + "/.")
	s.Must(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if p.Exists || !errors.Is(p.Err, unix.EMFILE) || p.Path != s.Dir {
		t.Errorf("without a descriptor to look by: %+v", p)
	}
}

// TestWhichErrorsSayThatNothingIsThere: behind any other there may be a GPU.
func TestWhichErrorsSayThatNothingIsThere(t *testing.T) {
	for _, err := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EACCES,
		unix.ESTALE, unix.ENOTCONN, unix.EINVAL} {
		if !isAbsent(err) {
			t.Errorf("%v: something may be there", err)
		}
	}
	for _, err := range []error{unix.EIO, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR, unix.EPERM} {
		if isAbsent(err) {
			t.Errorf("%v: nothing is there", err)
		}
	}
}

// TestPathsBelowDirectories: a name that only begins alike is not below.
func TestPathsBelowDirectories(t *testing.T) {
	for _, c := range []struct {
		path, dir, below string
		within           bool
	}{
		{"/a", "/a", "", true}, {"/a/b/c", "/a", "b/c", true}, {"/a/b", "/a/", "b", true},
		{"/a/b", "/", "a/b", true}, {"/", "/", "", true}, {"/ab", "/a", "", false}, {"/", "/a", "", false},
	} {
		if Within(c.path, c.dir) != c.within {
			t.Errorf("%s is within %s: %v", c.path, c.dir, !c.within)
		}
		if !c.within {
			continue
		}
		if got := Below(c.path, c.dir); got != c.below {
			t.Errorf("%s has %q below %s, want %q", c.path, got, c.dir, c.below)
		}
		if got := Join(filepath.Clean(c.dir), c.below); got != c.path {
			t.Errorf("%s and %s are %s, want %s", c.dir, c.below, got, c.path)
		}
	}
}
