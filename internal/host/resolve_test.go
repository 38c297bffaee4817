package host

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLook: a path without links and one with links lead to the same target.
func TestResolve(t *testing.T) {
	dir := t.TempDir()
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "a/b/file")
	for _, err := range []error{os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o640),
		os.Symlink("a", dir+"/link"), os.Symlink("/nowhere", dir+"/dangling")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := real + "/a/b/file"
	for _, path := range []string{file, dir + "//a/./b//file", dir + "/a/b/../b/file", dir + "/link/b/file",
		dir + "/link/../a/b/file", "/proc/self/root" + file} {
		got, err := Resolve(path)
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil {
			t.Fatal(err)
		}
		if err != nil || got.Path != want || got.Mode != st.Mode || got.GID != st.Gid ||
			got.Dev != uint64(st.Dev) || got.IsDir() || got.Shifting != (path[:5] == "/proc") {
			t.Errorf("%s: %+v (%v), want %s", path, got, err, want)
		}
	}
	if got, err := ResolveLinkless(want); err != nil || got.Path != want || got.Mode&0o777 != 0o640 {
		t.Errorf("in a plain directory: %+v (%v)", got, err)
	}
	for _, path := range []string{real + "/link", real + "/dangling", real + "/none"} {
		if got, err := ResolveLinkless(path); err == nil || got != (ResolvedFile{}) {
			t.Errorf("in a plain directory, %s: %+v (%v)", path, got, err)
		}
	}
	if got, err := Resolve(dir + "/a/"); err != nil || got.Path != real+"/a" || !got.IsDir() {
		t.Errorf("a directory: %+v (%v)", got, err)
	}
	t.Chdir(dir)
	if got, err := Resolve("link/b/file"); err != nil || got.Path != want {
		t.Errorf("a relative path: %+v (%v)", got, err)
	}
	for path, leads := range map[string]string{dir + "/none/../x": "", file + "/../x": "",
		dir + "/none//x/": dir + "/none/x", file + "/": file, file + "/x": file + "/x", dir +
			"/dangling": "", dir + "/link/none": ""} {
		if got, err := Resolve(path); err == nil || got != (ResolvedFile{Path: leads}) {
			t.Errorf("%s: %+v (%v), want %q", path, got, err, leads)
		}
	}
}
