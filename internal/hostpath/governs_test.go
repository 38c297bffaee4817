package hostpath

import (
	"os"
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestAGuardThatALinkMoved: an engine's directory is often a link to another disk. The real
// directory counts.
func TestAGuardThatALinkMoved(t *testing.T) {
	s := newScene(t)
	was := slices.Clone(guards)
	t.Cleanup(func() { guards = was })
	moved := s.Mkdir("disk/docker")
	guards = append(guards, guard{path: s.Link("disk/docker", "docker"), write: true, moves: true},
		guard{path: s.Link("disk/none", "none"), write: true, moves: true},
		guard{path: s.Link("disk/other", "other"), write: true})
	paths := New(s.node)
	root := &Access{Rooted: true, Bundle: s.Path("bundle"), Write: true}
	for path, want := range map[string]bool{
		moved:                 true,
		s.Mkdir("disk/other"): false, // administrators move no such one
		s.Path("disk/none"):   false, // and nothing is there
	} {
		if got := paths.Governs(paths.Resolve(path), root); got != want {
			t.Errorf("%s governs the node: %v", path, got)
		}
	}
}

// TestDefaultDirectories: while the file that names others is broken, the default directories of
// the ledger are guarded, too.
func TestDefaultDirectories(t *testing.T) {
	for _, broken := range []bool{false, true} {
		s := newScene(t)
		usual := s.Tmpfs(s.Path("usual"))
		if broken {
			s.node.Policy.DefaultDirs = []string{usual}
		}
		paths := New(s.node)
		at := paths.Resolve(usual)
		root := &Access{Rooted: true, Bundle: s.Path("bundle"), Write: true}
		anchored := slices.Contains(paths.anchorPositions(), position{at.Dev, at.Mount})
		if paths.InLedger(usual+"/x") != broken || paths.Governs(at, root) != broken || anchored != broken {
			t.Errorf("broken: %v: in the ledger: %v, governs: %v, its file system is looked at: %v", broken,
				paths.InLedger(usual+"/x"), paths.Governs(at, root), anchored)
		}
		s.Unmount()
	}
}

// TestOwnGuards: what of this node's own programs and files is somewhere.
func TestOwnGuards(t *testing.T) {
	s := newScene(t)
	t.Setenv("PATH", s.Dir)
	program := s.Touch("runc")
	s.Must(os.Chmod(program, 0o755))
	for name, c := range map[string]struct {
		runtimes []string
		config   string
		want     []guard
	}{
		"a runtime by its name": {[]string{"runc"}, "", []guard{{path: program, write: true}}},
		"one that is not there": {[]string{"crun"}, "", nil},
		"no configuration":      {nil, "", nil},
		"one behind a link": {nil, s.Link("runc", "config"),
			[]guard{{path: s.Path("config"), write: true}, {path: program, write: true},
				{path: s.Path("cluster.toml"), write: true}}},
	} {
		node := s.node
		node.Config = c.config
		node.Policy = &grant.Policy{Runtime: grant.Runtime{Path: c.runtimes}}
		if got := New(node).ownGuards(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestWhomAFileIsOpenTo: to root, and to the groups that it belongs to.
func TestWhomAFileIsOpenTo(t *testing.T) {
	s := newScene(t)
	paths := New(s.node)
	paths.Known["/usr/bin/runc"] = Place{Exists: true,
		ResolvedFile: host.ResolvedFile{Path: "/usr/bin/runc", GID: 7}}
	// is not there
	paths.Known["/usr/bin/crun"] = Place{ResolvedFile: host.ResolvedFile{Path: "/usr/bin/crun"}}
	for _, c := range []struct {
		name, path string
		by         Access
		want       bool
	}{
		{"root", "/usr/bin/runc", Access{Rooted: true, GID: 9}, true},
		{"the file's group", "/usr/bin/runc", Access{GID: 7}, true},
		{"a user with the group besides", "/usr/bin/runc", Access{GID: 9, Groups: []uint32{8, 7}}, true},
		{"another group", "/usr/bin/runc", Access{GID: 9}, false},
		{"root, what is not there", "/usr/bin/crun", Access{Rooted: true}, true},
		{"the group 0, what is not there", "/usr/bin/crun", Access{}, false},
	} {
		if got := paths.Lets(c.path, &c.by); got != c.want {
			t.Errorf("%s: %s is open: %v", c.name, c.path, got)
		}
		if got := paths.GovernsByName(c.path, &c.by); got != c.want {
			t.Errorf("%s: %s governs the node: %v", c.name, c.path, got)
		}
	}
}

// TestReadOnlyAtTheTop: a recursive mount that is read-only at its top leaves other file systems
// below writable.
func TestReadOnlyAtTheTop(t *testing.T) {
	const pattern = "/proc/sys/kernel/core_pattern"
	if _, err := os.Stat(pattern); err != nil {
		t.Skip("misses /proc")
	}
	s := newScene(t)
	paths := New(s.node)
	root := paths.Resolve("/")
	for _, c := range []struct {
		name              string
		write, writeBelow bool
		want              bool
	}{
		{"all of it writable", true, true, true},
		{"its top alone, and it is writable", true, false, true},
		{"read-only at its top", false, true, true},
		{"read-only all the way down", false, false, false},
	} {
		a := &Access{Rooted: true, Write: c.write, WriteBelow: c.writeBelow}
		if got := paths.touches(&guard{path: pattern, write: true}, &root, a); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		if got := paths.writes(&root, pattern, a); got != c.want {
			t.Errorf("%s: writes %v", c.name, got)
		}
	}
	// A guard to which a link leads out of the mount is not written to by the mount.
	guard := guard{path: s.Link(pattern, "guard"), write: true}
	at := paths.Resolve(s.Dir)
	if paths.touches(&guard, &at, &Access{Rooted: true, WriteBelow: true}) {
		t.Error("a link out of a mount that is read-only at its top is written to")
	}
}
