package filetree

import (
	"os"
	"slices"
	"testing"
)

func TestResolveStaysInTheRoot(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/real", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/real/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"/abs": "/real/file", "/up": "../../../real/file",
		"/dir": "real", "/twice": "dir/file", "/loop": "loop", "/gone": "/nowhere/x"} {
		if err := os.Symlink(target, root+link); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"/abs": "/real/file", "/up": "/real/file", "/dir/file": "/real/file", "/twice": "/real/file",
		"/gone":              "/nowhere/x",
		"/dir/../real/./new": "/real/new", "/": "/",
	} {
		if got, err := (System{Root: root}).Resolve(name); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"/loop", "relative"} {
		if got, err := (System{Root: root}).Resolve(name); err == nil {
			t.Errorf("%s: got %s, want an error", name, got)
		}
	}
}

// TestProgramsAreNamedOnce: on most systems /bin and /sbin are links.
func TestProgramsAreNamedOnce(t *testing.T) {
	s := System{Root: t.TempDir()}
	for _, dir := range []string{"/usr/local/bin", "/usr/sbin", "/usr/bin"} {
		if err := os.MkdirAll(s.Root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/usr/local/bin/x", "/usr/bin/x", "/usr/bin/y"} {
		if err := os.WriteFile(s.Root+path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"/bin": "usr/bin", "/sbin": "/usr/sbin",
		"/usr/sbin/x": "../bin/x", "/usr/sbin/y": "/nowhere"} {
		if err := os.Symlink(target, s.Root+link); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string][]string{"x": {"/usr/local/bin/x", "/usr/bin/x"}, "y": {"/usr/bin/y"},
		"z": nil, "/bin/x": {"/usr/bin/x"}} {
		if got := s.Programs(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestSameAll compares also what Same leaves to administrators.
func TestSameAll(t *testing.T) {
	c := FileContent{Kind: Regular, SHA256: "a", Mode: 0o644, UID: 1, GID: 2, ACL: []byte("x")}
	for name, change := range map[string]func(*FileContent){
		"mode": func(c *FileContent) { c.Mode = 0o600 }, "user": func(c *FileContent) { c.UID++ },
		"group": func(c *FileContent) { c.GID++ }, "ACL": func(c *FileContent) { c.ACL = nil },
	} {
		o := c
		if change(&o); !c.Same(o) || c.SameAll(o) || !c.SameAll(c) {
			t.Errorf("another %s: %+v", name, o)
		}
	}
}
