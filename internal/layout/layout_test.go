package layout_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/layout"
)

func TestMain(m *testing.M) {
	if runtime.GOARCH != "amd64" {
		fmt.Println(
			"SKIP: the images of these tests are of amd64: the loaders of other architectures are not tested")
		return
	}
	os.Exit(m.Run())
}

// image maps names to contents; "-> x" is a link, "dir" a directory.
type image map[string]string

func (i image) make(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range i {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if target, found := strings.CutPrefix(content, "-> "); err == nil && found {
			err = os.Symlink(target, path)
		} else if err == nil && content == "dir" {
			err = os.MkdirAll(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// glibc returns a loader with these system directories among other strings, as glibc's build writes
// them.
func glibc(dirs ...string) string {
	text := "\x7fELF....\x00/etc/ld.so.cache\x00/proc/\x00glibc-hwcaps/\x00"
	for _, d := range dirs {
		text += d + "/\x00"
	}
	return text + "LD_LIBRARY_PATH\x00"
}

const loader64, loader32 = "lib64/ld-linux-x86-64.so.2", "lib/ld-linux.so.2"

// program returns an executable that names a loader; "": none.
func program(loader string) string {
	var b bytes.Buffer
	h := elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Phoff: 64, Phentsize: 56, Phnum: 2}
	_ = binary.Write(&b, binary.LittleEndian, h)
	kind := uint32(elf.PT_INTERP)
	if loader == "" {
		kind = uint32(elf.PT_NOTE)
	}
	_ = binary.Write(&b, binary.LittleEndian, []elf.Prog64{{Type: uint32(elf.PT_LOAD)},
		{Type: kind, Off: 64 + 2*56, Filesz: uint64(len(loader) + 1)}})
	return b.String() + loader + "\x00"
}

var debianDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"}

func TestImages(t *testing.T) {
	const nix = "/nix/store/abc-glibc-2.40/lib"
	for name, c := range map[string]struct {
		image  image
		args   []string
		mounts []string
		want   grant.Layout
	}{
		"Debian": {image{"lib": "-> usr/lib", "lib64": "-> usr/lib64",
			"usr/lib64/ld-linux-x86-64.so.2":                "-> /lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
			"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": glibc(debianDirs...)}, nil, nil,
			grant.Layout{Lib64: "/usr/lib/x86_64-linux-gnu"}},
		"Debian before /usr was merged": {image{loader64: "-> /lib/x86_64-linux-gnu/ld-2.24.so",
			"lib/x86_64-linux-gnu/ld-2.24.so": glibc(debianDirs...), "usr/lib/x86_64-linux-gnu": "dir"}, nil,
			nil,
			grant.Layout{Lib64: "/lib/x86_64-linux-gnu"}},
		"Debian with 32-bit programs": {image{loader64: glibc(debianDirs...), "lib/x86_64-linux-gnu": "dir",
			loader32: glibc("/lib/i386-linux-gnu", "/lib"), "lib/i386-linux-gnu": "dir"}, nil, nil,
			grant.Layout{Lib64: "/lib/x86_64-linux-gnu", Lib32: "/lib/i386-linux-gnu"}},
		"RHEL": {image{"lib64": "-> usr/lib64",
			"usr/lib64/ld-linux-x86-64.so.2": glibc("/lib64", "/usr/lib64")}, nil, nil,
			grant.Layout{Lib64: "/usr/lib64"}},
		"a first directory that is not": {
			image{loader64: glibc("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
				"usr/lib/x86_64-linux-gnu": "dir"}, nil, nil, grant.Layout{
				Lib64: "/usr/lib/x86_64-linux-gnu"}},
		"Alpine": {image{"lib/ld-musl-x86_64.so.1": "musl", "usr/lib": "dir"}, nil,
			nil, grant.Layout{Lib64: "/lib"}},
		"Alpine with a configured path": {image{"lib/ld-musl-x86_64.so.1": "musl",
			"etc/ld-musl-x86_64.path": "/nowhere\n/opt/lib:/lib\n", "opt/lib": "dir"}, nil, nil,
			grant.Layout{Lib64: "/opt/lib"}},
		"Alpine with glibc beside it": {image{"lib/ld-musl-x86_64.so.1": "musl",
			loader64:                     "-> /usr/glibc-compat/lib/ld.so",
			"usr/glibc-compat/lib/ld.so": glibc("/usr/glibc-compat/lib")}, nil, nil,
			grant.Layout{Lib64: "/usr/glibc-compat/lib"}},
		"Alpine with gcompat": {image{"lib/ld-musl-x86_64.so.1": "musl",
			loader64: "a stub without directories"}, nil, nil, grant.Layout{Lib64: "/lib"}},
		"NixOS, by the program's loader": {image{nix + "/ld-linux-x86-64.so.2": glibc(nix),
			"bin/app": "-> /nix/store/def/app", "nix/store/def/app": program(nix + "/ld-linux-x86-64.so.2")},
			[]string{"/bin/app"}, nil, grant.Layout{Lib64: nix}},
		"the same, called by name": {image{nix + "/ld-linux-x86-64.so.2": glibc(nix),
			"bin/app": program(nix + "/ld-linux-x86-64.so.2")}, []string{"app"}, nil,
			grant.Layout{Lib64: nix}},
		"distroless": {image{loader64: "-> ../lib/x86_64-linux-gnu/ld.so",
			"lib/x86_64-linux-gnu/ld.so": glibc(debianDirs...),
			"app":                        program("/lib64/ld-linux-x86-64.so.2")}, []string{"/app"}, nil,
			grant.Layout{Lib64: "/lib/x86_64-linux-gnu"}},
		"a static program alone": {image{"app": program("")}, []string{"/app"}, nil, grant.Layout{}},
		"nothing":                {image{}, []string{"/app"}, nil, grant.Layout{}},
		"a script": {image{"app": "#!/bin/sh\n"}, []string{"/app"},
			nil, grant.Layout{}},
		"a volume over the first": {image{loader64: glibc(debianDirs...),
			"lib/x86_64-linux-gnu": "dir", "usr/lib": "dir"}, nil, []string{"/lib/x86_64-linux-gnu/"},
			grant.Layout{Lib64: "/lib"}},
		"a volume over all": {image{loader64: glibc("/lib/a"), "lib/a": "dir"},
			nil, []string{"/proc", "lib"}, grant.Layout{}},
		"a volume that only begins alike": {image{loader64: glibc("/lib/a"), "lib/a": "dir"},
			nil, []string{"/lib/a/b", "/li", "/lib/ab"}, grant.Layout{Lib64: "/lib/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := layout.Of(layout.Image{Root: c.image.make(t), Args: c.args, Path: "/usr/bin:/bin",
				Mounts: c.mounts})
			asks := got.Cache
			if got.Cache = false; asks != (got.Lib64 != "" && !strings.HasPrefix(name, "Alpine") ||
				name == "Alpine with glibc beside it") {
				t.Errorf("its loader asks ld.so.cache: %v", asks)
			}
			if got != c.want {
				t.Errorf("got %+v; want %+v", got, c.want)
			}
		})
	}
}

// TestThisMachinesOwnLoader: what a real loader reports about itself comes first in what is read
// from its file.
func TestThisMachinesOwnLoader(t *testing.T) {
	real, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
	if err != nil {
		t.Skip("this machine has no glibc: no real loader is read here")
	}
	content, err := os.ReadFile(real)
	if err != nil {
		t.Fatal(err)
	}
	i := image{loader64: string(content)}
	for _, dir := range []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"} {
		i[dir+"/x"] = "x"
	}
	got := layout.Of(layout.Image{Root: i.make(t)})
	if got.Lib64 != filepath.Dir(real) && got.Lib64 != strings.TrimPrefix(filepath.Dir(real), "/usr") {
		t.Errorf("got %+v; the loader itself lies in %s", got, filepath.Dir(real))
	}
}

// TestHostileImages: nothing outside of the image is found, nothing blocks, and no result is a path
// that a mount must not have.
func TestHostileImages(t *testing.T) {
	outside := t.TempDir()
	if err := os.MkdirAll(filepath.Join(outside, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "ld.so"), []byte(glibc("/lib")), 0o644); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40)
	deep := strings.Repeat("/d", 600)
	for name, i := range map[string]image{
		"a loader outside, by an absolute link":    {loader64: "-> " + outside + "/ld.so", "lib/x": "x"},
		"a loader outside, by ..":                  {loader64: "-> " + up + outside + "/ld.so", "lib/x": "x"},
		"a loader through /proc":                   {"proc/self/root": "-> /", loader64: "-> /proc/self/root" + outside + "/ld.so", "lib/x": "x"},
		"a directory outside":                      {loader64: glibc("/out/lib"), "out": "-> " + outside},
		"a directory outside, by ..":               {loader64: glibc("/out/lib"), "out": "-> " + up + outside},
		"a circle":                                 {loader64: "-> ld-linux-x86-64.so.2", "bin/app": "-> app"},
		"a directory for a loader":                 {loader64 + "/x": "x"},
		"directories that lead to the root":        {loader64: "\x00/lib/../\x00"},
		"directories with odd letters":             {loader64: "\x00/lib/\n/\x00/lib/ x/\x00", "lib/\n/x": "x", "lib/ x/x": "x"},
		"directories without an end":               {loader64: "\x00/lib" + strings.Repeat("/lib", 5000)},
		"directories that are too long":            {loader64: "\x00/lib" + deep + "/\x00"},
		"a file for a directory":                   {loader64: glibc("/lib/file"), "lib/file": "x"},
		"a program whose loader's name has no end": {"bin/app": program("/lib/ld")[:64+2*56] + strings.Repeat("/lib", 10)},
		"a program cut off":                        {"bin/app": program("/lib/ld")[:100]},
		"a program of countless segments":          {"bin/app": strings.Replace(program("/lib/ld"), "\x38\x00\x02\x00", "\x38\x00\xff\xff", 1)},
		"a program whose loader is no path":        {"bin/app": program("lib/ld.so"), "lib/ld.so": glibc("/lib")},
	} {
		t.Run(name, func(t *testing.T) {
			got := layout.Of(layout.Image{Root: i.make(t), Args: []string{"app"}, Path: "/bin"})
			if got != (grant.Layout{}) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestAPipeIsNotOpened(t *testing.T) {
	root := image{"bin/x": "x", "lib64/x": "x"}.make(t)
	for _, name := range []string{loader64, "bin/app"} {
		if err := unix.Mkfifo(filepath.Join(root, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if got := layout.Of(layout.Image{Root: root, Args: []string{"app"},
		Path: "/bin"}); got != (grant.Layout{}) {
		t.Errorf("got %+v", got)
	}
}

// TestNamed: what is outside of the image is not listed, and of much only a part.
func TestNamed(t *testing.T) {
	outside := image{"cuda-out/x": "x"}.make(t)
	root := image{"usr/local/cuda-13.0/x": "x", "usr/local/cuda-12.8/x": "x",
		"usr/local/cuda": "-> cuda-13.0", "usr/local/bin/x": "x",
		"linked": "-> /usr/local", "out": "-> " + outside, "file": "x",
		"up": "-> " + strings.Repeat("../", 40) + outside}.make(t)
	for i := range 200 {
		if err := os.MkdirAll(fmt.Sprintf("%s/many/cuda-%03d", root, i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	i := layout.Image{Root: root}
	for dir, want := range map[string]string{
		"/usr/local": "[/usr/local/cuda-12.8 /usr/local/cuda-13.0]",
		"/linked":    "[/linked/cuda-12.8 /linked/cuda-13.0]",
		"/out":       "[]", "/up": "[]", "/file": "[]", "/none": "[]",
	} {
		if got := fmt.Sprint(layout.Named(i, dir, "cuda-")); got != want {
			t.Errorf("%s: got %s, want %s", dir, got, want)
		}
	}
	if got := layout.Named(i, "/many", "cuda-"); len(got) != 16 {
		t.Errorf("of 200 it lists %d", len(got))
	}
	if got := layout.Named(layout.Image{Root: root + "/none"}, "/", "cuda-"); got != nil {
		t.Errorf("got %q", got)
	}
}

func TestNoRoot(t *testing.T) {
	none := layout.Image{Root: filepath.Join(t.TempDir(), "none")}
	if got := layout.Of(none); got != (grant.Layout{Problem: "open " + none.Root +
		": no such file or directory"}) {
		t.Errorf("got %+v", got)
	}
	if _, _, err := layout.Unmakeable(none, []string{"/x"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestUnmakeable: the root of a user namespace has root's rights where the namespace maps owner and
// group, and a normal user's elsewhere. A path that exists need not be made.
func TestUnmakeable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, for directories of other users")
	}
	root := image{"lib/there": "x", "link": "-> lib", "open/x": "x", "sealed/x": "x", "grouped/x": "x",
		"own/x": "x", "out": "-> /etc"}.make(t)
	for dir, own := range map[string]struct {
		uid, gid int
		mode     os.FileMode
	}{"lib": {100000, 100000, 0o555}, "open": {0, 0, 0o777}, "sealed": {0, 0, 0o755}, "grouped": {0, 100000,
		0o775}, "own": {100000, 0, 0o755}, ".": {0, 0, 0o755}} {
		if err := errors.Join(os.Chown(filepath.Join(root, dir), own.uid, own.gid),
			os.Chmod(filepath.Join(root, dir), own.mode)); err != nil {
			t.Fatal(err)
		}
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	user := layout.Image{Root: root, UIDs: ids, GIDs: ids}
	for _, c := range []struct {
		name  string
		image layout.Image
		place string
		want  string
	}{
		{"the node's users", layout.Image{Root: root}, "/sealed/new", ""},
		{"there already", user, "/sealed/x", ""},
		{"its own directory, whatever its mode", user, "/lib/new", ""},
		{"through a link", user, "/link/new", ""},
		{"a directory to be made in its own", user, "/lib/deep/er/new", ""},
		{"writable by all", user, "/open/new", ""},
		{"of its root's group", user, "/grouped/new", ""},
		{"of its root, in a group it does not know", user, "/own/new", ""},
		{"another's", user, "/sealed/new", "belongs to users who are not in its user namespace"},
		{"a directory to be made in another's", user, "/none/deep/new",
			"belongs to users who are not in its user namespace"},
		{"a link out of the image, which leads nowhere in it", user, "/out/new",
			"belongs to users who are not in its user namespace"},
		{"the node's root among its users", layout.Image{
			Root: root, UIDs: append(ids, specs.LinuxIDMapping{ContainerID: 65536, HostID: 0, Size: 1}),
			GIDs: append(ids, specs.LinuxIDMapping{ContainerID: 65536, HostID: 0,
				Size: 1})}, "/sealed/new", ""},
	} {
		place, why, err := layout.Unmakeable(c.image, []string{"/lib/there", c.place})
		if err != nil || why != c.want || (place == c.place) != (c.want != "") {
			t.Errorf("%s: %q %q %v, want %q", c.name, place, why, err, c.want)
		}
	}
}

// FuzzLoader: for any loader file, the result has only directories of the image.
func FuzzLoader(f *testing.F) {
	f.Add([]byte(glibc(debianDirs...)))
	f.Add([]byte("\x00/lib/../../\x00"))
	f.Add([]byte(program("/lib64/ld-linux-x86-64.so.2")))
	root := image{"lib/x/y": "x", loader64: "x", "bin/app": "x"}.make(f)
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, name := range []string{loader64, "bin/app"} {
			if err := os.WriteFile(filepath.Join(root, name), content, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		got := layout.Of(layout.Image{Root: root, Args: []string{"app"}, Path: "/bin"})
		info, err := os.Stat(filepath.Join(root, got.Lib64))
		if got.Lib64 != "" && (err != nil || !info.IsDir() || !filepath.IsAbs(got.Lib64) ||
			filepath.Clean(got.Lib64) != got.Lib64) {
			t.Errorf("got %q", got.Lib64)
		}
	})
}
