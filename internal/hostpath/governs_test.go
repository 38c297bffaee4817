package hostpath

import (
	"os"
	"slices"
	"testing"
)

// TestAGuardThatALinkMoved: an engine's directory is often a link to another disk. The real
// directory counts.
func TestAGuardThatALinkMoved(t *testing.T) {
	s := newScene(t)
	was := slices.Clone(guards)
	t.Cleanup(func() { guards = was })
	moved := s.mkdir("disk/docker")
	guards = append(guards, guard{path: s.link("disk/docker", "docker"), write: true, moves: true},
		guard{path: s.link("disk/none", "none"), write: true, moves: true},
		guard{path: s.link("disk/other", "other"), write: true})
	paths := New(s.node)
	root := &Access{Rooted: true, Bundle: s.path("bundle"), Write: true}
	for path, want := range map[string]bool{
		moved:                 true,
		s.mkdir("disk/other"): false, // administrators move no such one
		s.path("disk/none"):   false, // and nothing is there
	} {
		if got := paths.Governs(paths.Look(path), root); got != want {
			t.Errorf("%s governs the node: %v", path, got)
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
	root := paths.Look("/")
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
	guard := guard{path: s.link(pattern, "guard"), write: true}
	at := paths.Look(s.dir)
	if paths.touches(&guard, &at, &Access{Rooted: true, WriteBelow: true}) {
		t.Error("a link out of a mount that is read-only at its top is written to")
	}
}
