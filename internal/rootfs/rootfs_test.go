package rootfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var libcuda = []Library{{"/usr/lib/x86_64-linux-gnu/libcuda.so", 64},
	{"/usr/lib/x86_64-linux-gnu/libcuda.so.1", 64}}

// The node's own root is a mount, but not a container's. It is not opened, so nothing can be
// written there.
func TestTheNodesRootIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "root")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for _, tree := range []Tree{{Root: "/", Bundle: dir}, {Root: "/", Bundle: "/"},
		{Root: "//.", Bundle: dir}, {Root: link, Bundle: dir}} {
		if root, err := tree.open(); !errors.Is(err, ErrNotOurs) {
			t.Errorf("%+v: %v", tree, err)
			_ = root.Close()
		}
	}
}

// image returns a root file system in a bundle, with a cache; nil: none.
func image(t testing.TB, cache []byte) Tree {
	t.Helper()
	dir := t.TempDir()
	tree := Tree{Root: filepath.Join(dir, "rootfs"), Bundle: dir}
	err := os.MkdirAll(filepath.Join(tree.Root, "etc"), 0o755)
	if err == nil && cache != nil {
		err = os.WriteFile(tree.cache(), cache, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func (t Tree) cache() string { return filepath.Join(t.Root, "etc/ld.so.cache") }

func read(t testing.TB, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// listed returns what this machine's own ldconfig reads from a cache.
func listed(t *testing.T, path string) []string {
	t.Helper()
	ldconfig, err := exec.LookPath("/sbin/ldconfig")
	if err != nil || runtime.GOARCH != "amd64" {
		t.Skip("this machine has no ldconfig of amd64: that glibc reads the cache is not shown here")
	}
	out, err := exec.Command(ldconfig, "-p", "-C", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "=>") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestGlibcReadsIt: after libraries are added to this machine's cache, ldconfig lists them in their
// positions and everything else as before.
func TestGlibcReadsIt(t *testing.T) {
	own, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skip("this machine has no ld.so.cache: that glibc reads the written cache is not shown here")
	}
	before := listed(t, "/etc/ld.so.cache")
	tree := image(t, own)
	if err := tree.Enter(libcuda); err != nil {
		t.Fatal(err)
	}
	after := listed(t, tree.cache())
	ours := slices.DeleteFunc(slices.Clone(after), func(l string) bool { return slices.Contains(before, l) })
	want := []string{"libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1",
		"libcuda.so (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so"}
	if !slices.Equal(ours, want) || len(after) != len(before)+2 {
		t.Errorf("ldconfig lists %d, and %d before; new are %q", len(after), len(before), ours)
	}
	if entries, err := parse(own); err != nil || !slices.IsSortedFunc(entries, compare) {
		t.Errorf("the cache that ldconfig wrote is not in rootfs's order (%v)", err)
	}
}

func TestAMissingCacheIsCreated(t *testing.T) {
	for name, cache := range map[string][]byte{"none": nil, "an empty one": {}} {
		tree := image(t, cache)
		if err := errors.Join(os.Chmod(tree.Root+"/etc", 0o750), os.Chown(tree.Root+"/etc", 7, 8),
			tree.Enter(libcuda)); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(tree.cache(), &st); err != nil || st.Mode != unix.S_IFREG|0o640 ||
			st.Uid != 7 || st.Gid != 8 {
			t.Errorf("%s: %v, %o of %d:%d", name, err, st.Mode, st.Uid, st.Gid)
		}
		if got := len(listed(t, tree.cache())); got != 2 {
			t.Errorf("%s: ldconfig lists %d", name, got)
		}
	}
}

// TestASecondEnterChangesNothing: not even the file's inode.
func TestASecondEnterChangesNothing(t *testing.T) {
	tree := image(t, nil)
	inode := func() uint64 {
		var st unix.Stat_t
		if err := errors.Join(tree.Enter(libcuda), unix.Lstat(tree.cache(), &st)); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	first := inode()
	if second := inode(); second != first {
		t.Errorf("the same was written twice: inode %d became %d", first, second)
	}
	if left, _ := os.ReadDir(tree.Root + "/etc"); len(left) != 1 {
		t.Errorf("left in /etc: %v", left)
	}
}

// TestTheImagesEntriesComeLast: entries of the same name come after the added ones, also those for
// a better processor. Other names and architectures stay.
func TestTheImagesEntriesComeLast(t *testing.T) {
	const old = "/usr/local/cuda/compat/libcuda.so.1"
	flags, known := flagsOf(64)
	if !known {
		t.Skip("the libraries of this architecture have flags that are not known")
	}
	entries := []cacheEntry{{flags, "libcuda.so.1", "/v3/libcuda.so.1", 0, 0, "x86-64-v3"},
		{flags, "libcuda.so.1", "/tls/libcuda.so.1", 0, 1 << 63, ""}, {flags, "libcuda.so.1", old, 0, 0, ""},
		{0x0803, "libcuda.so.1", "/x32/libcuda.so.1", 0, 0, ""}, {flags, "libc.so.6", "/v3/libc.so.6", 0, 0,
			"x86-64-v3"}, {flags, "libc.so.6", "/lib/libc.so.6", 0x30200, 5, ""}}
	slices.SortStableFunc(entries, compare)
	tree := image(t, encode(entries))
	before := read(t, tree.cache())
	if err := tree.Enter(libcuda); err != nil {
		t.Fatal(err)
	}
	got, err := parse([]byte(read(t, tree.cache())))
	var paths []string
	for _, e := range got {
		paths = append(paths, e.path+e.hwcaps)
	}
	want := []string{"/x32/libcuda.so.1", libcuda[1].Path, old, libcuda[0].Path,
		"/v3/libc.so.6x86-64-v3", "/lib/libc.so.6"}
	if err != nil || !slices.Equal(paths, want) {
		t.Errorf("%v: %q", err, paths)
	}
	tree.RemoveMountPoints([]string{libcuda[0].Path, libcuda[1].Path}, 0)
	if got, err = parse([]byte(read(t, tree.cache()))); err != nil || len(got) != 4 ||
		read(t, tree.cache()) == before {
		t.Errorf("after tidying %v: %+v", err, got)
	}
}

// oldCache returns a cache in the format before glibc 2.2, followed by more.
func oldCache(name, path, more string) []byte {
	b := append([]byte(oldMagic), 0, 1, 0, 0, 0)
	b = append(b, 3, 3, 0, 0, 0, 0, 0, 0, byte(len(name)+1), 0, 0, 0)
	if more != "" {
		return append(append(b, make([]byte, (8-len(b)%8)%8)...), more...)
	}
	return append(b, name+"\x00"+path+"\x00"...)
}

func TestFormats(t *testing.T) {
	both := encode([]cacheEntry{{3, "new", "/new", 0, 0, ""}})
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"new": {both, "/new"}, "old": {oldCache("old", "/old", ""), "/old"},
		"both": {oldCache("old", "/old", string(both)), "/new"},
	} {
		if got, err := parse(c.content); err != nil || len(got) != 1 || got[0].path != c.want {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
	}
}

// nested returns a small cache whose texts would be large: each begins within the one before.
func nested() []byte {
	c := encode(make([]cacheEntry, 4000))
	start := len(c)
	c = append(append(c, strings.Repeat("x", 4000)...), 0)
	for i := range 4000 {
		binary.LittleEndian.PutUint32(c[newHeader+newEntry*i+8:], uint32(start+i))
	}
	return c
}

// TestOddCachesStay: caches of an unknown format stay as they are, and so do the targets of links.
func TestOddCachesStay(t *testing.T) {
	good := encode([]cacheEntry{{3, "a", "/a", 0, 0, "v3"}})
	with := func(at int, b ...byte) []byte { c := bytes.Clone(good); copy(c[at:], b); return c }
	for name, content := range map[string][]byte{
		"text": []byte("hello"), "cut in the header": good[:30], "cut in the entries": good[:60],
		"countless entries": with(20, 255, 255, 255, 255), "big-endian": with(28, 3),
		"a name far away": with(52, 255, 255, 255, 255), "a path far away": with(56, 255, 255, 255, 127),
		"an extension far away": with(32, 255, 255, 255, 255), "no extension": with(32, 48),
		"names within names": nested(),
		"an index far away":  with(64, 9), "old and cut": oldCache("a", "/a", "")[:20],
		"old with a name far away": oldCache("a", "/a", "")[:28],
		"of another version":       []byte("glibc-ld.so.cache1.2" + strings.Repeat("\x00", 40)),
	} {
		tree := image(t, content)
		if err := tree.Enter(libcuda); !errors.Is(err, errUnknownFormat) ||
			read(t, tree.cache()) != string(content) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOddPlaces: nothing is written if /etc is not a directory of the image or the cache is not a
// file, and nothing outside of the image.
func TestOddPlaces(t *testing.T) {
	outside := t.TempDir()
	canary := filepath.Join(outside, "ld.so.cache")
	if err := os.WriteFile(canary, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 30)
	link := func(name, target string) func(Tree) error {
		return func(tree Tree) error {
			path := filepath.Join(tree.Root, name)
			return errors.Join(os.RemoveAll(path), os.Symlink(target, path))
		}
	}
	for name, prepare := range map[string]func(Tree) error{
		"/etc is a link": link("etc", outside), "/etc is a link upwards": link("etc", up+outside),
		"/etc is a link inside":        link("etc", "usr"),
		"/etc is a link through /proc": link("etc", "/proc/self/root"+outside),
		"the cache is a link":          link("etc/ld.so.cache", canary),
		"the cache dangles":            link("etc/ld.so.cache", "none"),
		"/etc is a file": func(t Tree) error {
			return errors.Join(os.RemoveAll(t.Root+"/etc"), os.WriteFile(t.Root+"/etc", nil, 0o644))
		},
		"/etc is a pipe": func(t Tree) error {
			return errors.Join(os.RemoveAll(t.Root+"/etc"), unix.Mkfifo(t.Root+"/etc", 0o644))
		},
		"there is no /etc":         func(t Tree) error { return os.RemoveAll(t.Root + "/etc") },
		"the cache is a pipe":      func(t Tree) error { return unix.Mkfifo(t.cache(), 0o644) },
		"the cache is a directory": func(t Tree) error { return os.MkdirAll(t.cache()+"/x", 0o755) },
		"the cache is a device": func(t Tree) error {
			return unix.Mknod(t.cache(), unix.S_IFCHR|0o644, 1<<8|5)
		},
		"the cache is huge": func(t Tree) error {
			return errors.Join(os.WriteFile(t.cache(), nil, 0o644), os.Truncate(t.cache(), 1<<40))
		},
		"the draft is a directory": func(t Tree) error { return os.MkdirAll(t.cache()+"~/x", 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			tree := image(t, nil)
			if err := prepare(tree); err != nil {
				t.Fatal(err)
			}
			if err := tree.Enter(libcuda); err == nil {
				t.Error("it was written")
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) != 1 || read(t, canary) != "" {
				t.Errorf("outside there is %v (%v)", left, err)
			}
		})
	}
	tree := image(t, nil)
	if err := errors.Join(link("etc/ld.so.cache~", canary)(tree), tree.Enter(libcuda)); err != nil ||
		read(t, canary) != "" {
		t.Errorf("a draft that is a link: %v", err)
	}
}

func TestOtherRootsAreNotWritten(t *testing.T) {
	tree := image(t, nil)
	tree.Bundle += "/elsewhere"
	if err := tree.Enter(libcuda); !errors.Is(err, ErrNotOurs) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(tree.cache()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	place := filepath.Join(tree.Root, "etc/empty")
	if err := os.WriteFile(place, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if tree.RemoveMountPoints([]string{"/etc/empty"}, 0); read(t, place) != "" {
		t.Error("it was tidied")
	}
	tree.Root, tree.Bundle = "/proc", "/nowhere" // a mount that is no container's
	if err := tree.Enter(libcuda); err == nil || errors.Is(err, ErrNotOurs) {
		t.Errorf("a mount: got %v", err)
	}
	tree = image(t, nil)
	tree.Mounts = []string{"/etc/"}
	if err := tree.Enter(libcuda); err == nil {
		t.Error("written below a volume")
	}
}

// TestRemoveMountPoints: it removes what a runtime made, and nothing else.
func TestRemoveMountPoints(t *testing.T) {
	tree := image(t, nil)
	tree.Mounts = []string{"/volume"}
	outside := filepath.Join(t.TempDir(), "empty")
	file := func(name, content string) {
		path := filepath.Join(tree.Root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(content), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lib/made", "lib/linked", "volume/empty", "lib/not-ours"} {
		file(name, "")
	}
	file("lib/full", "x")
	if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Symlink(outside, tree.Root+"/lib/out"),
		os.Symlink(filepath.Dir(outside), tree.Root+"/dir"),
		os.Link(tree.Root+"/lib/linked", tree.Root+"/lib/link"), os.Mkdir(tree.Root+
			"/lib/directory", 0o755)); err != nil {
		t.Fatal(err)
	}
	places := []string{"/lib/made", "/lib/linked", "/lib/full", "/volume/empty", "/lib/out", "/dir/empty",
		"/lib/directory", "/nowhere/at/all", "/lib/none", "/../" + outside, "/"}
	names := func() (names []string) {
		_ = filepath.WalkDir(tree.Root, func(path string, d fs.DirEntry, _ error) error {
			names = append(names, path[len(tree.Root):])
			return nil
		})
		return names
	}
	before := names()
	if tree.RemoveMountPoints(places, 1<<62); !slices.Equal(names(), before) {
		t.Errorf("of what was there before the container there is left %q", names())
	}
	tree.RemoveMountPoints(places, 0)
	if want := slices.DeleteFunc(before,
		func(n string) bool { return n == "/lib/made" }); !slices.Equal(names(), want) {
		t.Errorf("left are %q, want %q", names(), want)
	}
	if read(t, outside) != "" {
		t.Error("a file outside was removed")
	}
}

// FuzzCache: any cache is read within its bounds, and a written cache is read with the same
// entries.
func FuzzCache(f *testing.F) {
	f.Add(encode([]cacheEntry{{3, "liba.so.1", "/lib/liba.so.1", 1, 2, ""},
		{3, "liba.so.1", "/lib/v3/liba.so.1", 0, 0, "v3"}}))
	f.Add(oldCache("a", "/a", ""))
	f.Add(oldCache("a", "/a", string(encode([]cacheEntry{{3, "b", "/b", 0, 0, ""}}))))
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := parse(content)
		if err != nil {
			return
		}
		merged := merge(entries, libcuda)
		once := encode(merged)
		again, err := parse(once)
		if err != nil || !slices.Equal(again, merged) {
			t.Fatalf("%v: %+v became %+v", err, merged, again)
		}
		if twice := encode(merge(again, libcuda)); !bytes.Equal(once, twice) {
			t.Fatalf("%q, and merged again %q", once, twice)
		}
	})
}
