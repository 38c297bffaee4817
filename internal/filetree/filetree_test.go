package filetree

import (
	"os"
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
