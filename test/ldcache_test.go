package test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/test/rig"
)

// shape is how an image arranges its libraries, with this machine's own glibc.
type shape struct {
	dirs   []string // the loader's
	loader string   // where programs search for it
	cache  string   // what the loader opens; as long as the usual path
	conf   string   // /etc/ld.so.conf
	bare   bool     // neither shell nor ldconfig
	musl   bool     // Alpine's loader is there too
}

const usualCache = "/etc/ld.so.cache"

var shapes = map[string]shape{
	"debian":     {[]string{"/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib/", "/usr/lib/"}, "/lib64/ld-linux-x86-64.so.2", usualCache, "", false, false},
	"rhel":       {[]string{"/lib64/", "/usr/lib64/", "/lib/", "/usr/lib/"}, "/lib64/ld-linux-x86-64.so.2", usualCache, "/lib64\n", false, false},
	"distroless": {[]string{"/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib/", "/usr/lib/"}, "/lib64/ld-linux-x86-64.so.2", usualCache, "", true, false},
	"nixos":      {[]string{"/nix/store/glibc/lib/", "/nix/store/other/lib/", "/nix/", "/nix/lib/"}, "/nix/store/glibc/lib/ld-linux-x86-64.so.2", "/nix/ld.so.cache", "", false, false},
	"alpine":     {[]string{"/usr/glibc-compat/lib/", "/usr/local/lib/", "/lib/", "/usr/lib/"}, "/lib64/ld-linux-x86-64.so.2", usualCache, "/usr/glibc-compat/lib\n", false, true},
}

// make builds the image into a bundle's root file system: a loader with other directories is this
// machine's with other bytes.
func (s shape) make(t *testing.T, b *rig.Bundle) {
	t.Helper()
	rootfs := filepath.Join(b.Dir, "rootfs")
	own, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
	if err != nil {
		t.Skip("this machine has no glibc of amd64: that a program finds the driver's libraries is not shown")
	}
	write := func(path, content string) {
		must(t, os.MkdirAll(filepath.Dir(rootfs+path), 0o755))
		must(t, os.WriteFile(rootfs+path, []byte(content), 0o755))
	}
	home := strings.TrimSuffix(s.dirs[0], "/")
	write(home+"/libc.so.6", read(t, filepath.Join(filepath.Dir(own), "libc.so.6")))
	write(home+"/ld.so", s.loaderOf(t, read(t, own)))
	if s.loader != home+"/ld.so" {
		must(t, os.MkdirAll(filepath.Dir(rootfs+s.loader), 0o755))
		must(t, os.Symlink(home+"/ld.so", rootfs+s.loader))
	}
	compile(t, "-Wl,--dynamic-linker="+s.loader, "-o", rootfs+"/client", b.Node.Write("client.c", client))
	if s.musl {
		write("/lib/ld-musl-x86_64.so.1", "musl")
	}
	if s.bare {
		must(t, os.RemoveAll(rootfs+"/bin"))
		return
	}
	write("/etc/ld.so.conf", s.conf)
	if s.cache == usualCache {
		write("/sbin/ldconfig", read(t, "/sbin/ldconfig"))
	}
}

// loaderOf puts this shape's directories and its cache at the paths of Debian's.
func (s shape) loaderOf(t *testing.T, loader string) string {
	t.Helper()
	// before the names; the compiler has put some into the code, too, so they stay, and slashes
	// fill up
	var lengths []byte
	dirs := slices.Clone(s.dirs)
	usual := shapes["debian"].dirs
	for i, d := range usual {
		lengths = binary.LittleEndian.AppendUint64(lengths, uint64(len(d)))
		dirs[i] += strings.Repeat("/", len(d)-len(dirs[i]))
	}
	for old, other := range map[string]string{
		string(lengths) + strings.Join(usual, "\x00") + "\x00": string(lengths) + strings.Join(dirs, "\x00") + "\x00",
		"\x00" + usualCache + "\x00":                           "\x00" + s.cache + "\x00",
	} {
		if strings.Count(loader, old) != 1 || len(old) != len(other) {
			t.Skip("this machine's loader is not built as Debian's is: images of other layouts cannot be " +
				"made from it")
		}
		loader = strings.Replace(loader, old, other, 1)
	}
	return loader
}

// TestImagesOfAllShapes: in each a program finds the driver by the names that programs use, and
// without LD_LIBRARY_PATH. A program that reads the cache finds it there, also after the image's
// own ldconfig has run. No program ran for it.
func TestImagesOfAllShapes(t *testing.T) {
	rig.Need(t, "gcc", "/sbin/ldconfig")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	const found = "libcuda.so.1 of libcuda.so.999.1\nlibnvidia-ml.so.1 of libnvidia-ml.so.999.1\n"
	const client, list = "/client libcuda.so.1 libnvidia-ml.so.1",
		"/sbin/ldconfig -p | /bin/busybox grep -E 'libcuda.so.1|libnvidia-ml.so.1'"
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) {
			n.T = t
			reference := n.Grant("--memory", "1GiB")
			b := n.Bundle(name, with(reference), rig.Shell(client+"; "+list+
				"; /sbin/ldconfig 2>/dev/null && echo done; "+list+"; "+client))
			s.make(t, b)
			inCache := ""
			for _, lib := range []string{"libnvidia-ml.so.1", "libcuda.so.1"} {
				inCache += fmt.Sprintf("\t%s (libc6,x86-64) => %s%s\n", lib, s.dirs[0], lib)
			}
			want := found + inCache + "done\n" + inCache + found
			if s.bare || s.cache != usualCache {
				want = found
				b.WriteSpec(edited(t, b, func(s *specs.Spec) { s.Process.Args = strings.Fields(client) }))
			}
			if r := b.Run(); r.Stdout != want || r.Code != 0 {
				t.Errorf("%+v, want\n%s", r, want)
			}
			if spec := edited(t, b, func(*specs.Spec) {}); spec.Hooks != nil {
				t.Errorf("it has hooks: %+v", spec.Hooks)
			}
			_, err := os.Lstat(filepath.Join(b.Dir, "rootfs", usualCache))
			if asks := s.cache == usualCache; asks != (err == nil) {
				t.Errorf("the loader reads the cache: %v; it has one: %v", asks, err)
			}
		})
	}
}

// edited is a bundle's spec with a change.
func edited(t *testing.T, b *rig.Bundle, edit rig.Edit) (spec specs.Spec) {
	t.Helper()
	must(t, json.Unmarshal(b.Config(), &spec))
	edit(&spec)
	return spec
}

// oldDriver gives an image an old libcuda.so.1, which its cache names.
func oldDriver(t *testing.T, b *rig.Bundle) {
	t.Helper()
	rootfs := filepath.Join(b.Dir, "rootfs")
	must(t, os.MkdirAll(rootfs+"/opt/old", 0o755), os.MkdirAll(rootfs+"/etc", 0o755))
	compile(t, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", rootfs+"/opt/old/libcuda.so.1",
		b.Node.Write("old.c", `const char *version(void) { return "of the image"; }`))
	must(t, os.WriteFile(rootfs+"/etc/ld.so.conf", []byte("/opt/old\n"), 0o644))
	if out, err := exec.Command("/sbin/ldconfig", "-r", rootfs).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestAnImagesOwnDriverDoesNotWin: its cache names an old one. Without a grant the image's driver
// is found again, after a delete and without one.
func TestAnImagesOwnDriverDoesNotWin(t *testing.T) {
	rig.Need(t, "gcc", "/sbin/ldconfig")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "1GiB")
	b := n.Bundle("old", with(reference), rig.Shell("/client libcuda.so.1"))
	shapes["debian"].make(t, b)
	oldDriver(t, b)
	rootfs := filepath.Join(b.Dir, "rootfs")
	before, files := read(t, rootfs+usualCache), filesOf(t, rootfs)
	inFile := edited(t, b, rig.Shell("/client libcuda.so.1 >/tmp/out"))
	plain := edited(t, b, func(s *specs.Spec) { s.Annotations = nil })
	want := func(when, version string, r rig.Result) {
		t.Helper()
		if r.Stdout != "libcuda.so.1 of "+version+"\n" || r.Code != 0 {
			t.Errorf("%s: %+v", when, r)
		}
	}
	want("before", "the image", rig.Run(n.Real("run", "--bundle", b.Dir, "before")))
	b.WriteSpec(inFile)
	for _, args := range [][]string{{"create", "--bundle", b.Dir, b.ID}, {"start", b.ID}} {
		if r := rig.Run(n.Wrapper(args...)); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	rig.Eventually(t, "it has ended", func() bool {
		return strings.Contains(rig.Run(n.Real("state", b.ID)).Stdout, `"stopped"`)
	})
	want("with the grant", "libcuda.so.999.1", rig.Result{Stdout: read(t, rootfs+"/tmp/out")})
	must(t, os.Remove(rootfs+"/tmp/out"))
	if read(t, rootfs+usualCache) == before {
		t.Error("the cache is as it was: this test shows nothing")
	}
	if r := b.Delete(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if after := filesOf(t, rootfs); !slices.Equal(after, files) {
		t.Errorf("left in the image: %q; removed: %q", beyond(after, files), beyond(files, after))
	}
	if after := rig.Run(exec.Command("/sbin/ldconfig", "-p", "-C",
		rootfs+usualCache)); strings.Contains(after.Stdout, "nvidia") ||
		!strings.Contains(after.Stdout, "/opt/old/libcuda.so.1") {
		t.Errorf("%+v", after)
	}
	b.WriteSpec(plain)
	want("after", "the image", b.Run())
}

// filesOf lists an image's files by name. The directories that a runtime made stay.
func filesOf(t *testing.T, rootfs string) (names []string) {
	t.Helper()
	must(t, filepath.WalkDir(rootfs, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names = append(names, strings.TrimPrefix(path, rootfs))
		}
		return err
	}))
	return names
}

// TestALiveContainersFilesStay: a delete that the real runtime refuses removes nothing.
func TestALiveContainersFilesStay(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	b := n.Bundle("live", with(n.Grant("--memory", "1GiB")))
	shapes["debian"].make(t, b)
	if created, started := b.Create(), b.Start(); created.Code != 0 || started.Code != 0 {
		t.Fatalf("%+v, %+v", created, started)
	}
	if r := rig.Run(n.Wrapper("delete", b.ID)); r.Code == 0 {
		t.Fatalf("%+v", r)
	}
	if r := rig.Run(n.Wrapper("exec", b.ID, "/client", "libcuda.so.1")); r.Stdout !=
		"libcuda.so.1 of libcuda.so.999.1\n" {
		t.Errorf("%+v", r)
	}
}

// TestAnOddEtcPreventsNoStart: the container starts and has its driver, and the log names what it
// lacks.
func TestAnOddEtcPreventsNoStart(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	c := newCanary(t, n)
	before := c.state(t)
	for name, obstruct := range map[string]func(etc string) error{
		"a link":        func(etc string) error { return errors.Join(os.RemoveAll(etc), os.Symlink(c.dir, etc)) },
		"a linked file": func(etc string) error { return os.Symlink(c.dir+"/ld.so.cache", etc+"/ld.so.cache") },
		"a directory":   func(etc string) error { return os.Mkdir(etc+"/ld.so.cache", 0o755) },
		"odd":           func(etc string) error { return os.WriteFile(etc+"/ld.so.cache", []byte("odd"), 0o644) },
	} {
		reference := n.Grant("--memory", "1GiB")
		b := n.Bundle(strings.ReplaceAll(name, " ", "-"), with(reference), rig.Shell("/client libcuda.so.1"))
		shapes["debian"].make(t, b)
		must(t, obstruct(filepath.Join(b.Dir, "rootfs/etc")))
		if r := b.Run(); r.Stdout != "libcuda.so.1 of libcuda.so.999.1\n" || r.Code != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		n.Must("release", string(reference.ID))
	}
	if after := c.state(t); !slices.Equal(after, before) {
		t.Errorf("the host has %q, had %q", beyond(after, before), beyond(before, after))
	}
	if log := read(t, n.Dir+"/audit.jsonl"); strings.Count(log, "ld.so.cache lists no driver: ") != 4 {
		t.Errorf("the log has\n%s", log)
	}
}

// TestEtcThatChangesMeanwhile: a neighbour on the same volume exchanges /etc and a link to the
// host's as fast as it can.
func TestEtcThatChangesMeanwhile(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	c := newCanary(t, n)
	b := n.Bundle("racing", with(n.Grant("--memory", "1GiB")), rig.Light)
	shapes["debian"].make(t, b)
	config, root := b.Config(), filepath.Join(b.Dir, "rootfs")
	must(t, os.Symlink(c.dir, root+"/link"))
	before := c.state(t)
	stop, exchanges := make(chan struct{}), make(chan int)
	go func() {
		for count := 0; ; {
			select {
			case <-stop:
				exchanges <- count
				return
			default:
			}
			if unix.Renameat2(unix.AT_FDCWD, root+"/etc", unix.AT_FDCWD, root+"/link",
				unix.RENAME_EXCHANGE) == nil {
				count++
			}
		}
	}()
	starts, written := 0, 0
	for range max(30, torture(0)) {
		b.WriteConfig(config)
		if ok, mounts := started(t, b, n.Wrapper); ok {
			starts++
			wantNoneOf(t, mounts, "/canary")
		}
		b.End()
		for _, etc := range []string{"/etc", "/link"} { // one of the two is the directory
			fd, err := unix.Open(root+etc, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
			if err != nil {
				continue
			}
			if unix.Unlinkat(fd, "ld.so.cache", 0) == nil {
				written++
			}
			must(t, unix.Close(fd))
		}
	}
	close(stop)
	if count := <-exchanges; count == 0 || starts == 0 || written == 0 {
		t.Fatalf("%d exchanges, %d containers, %d caches", count, starts, written)
	}
	if after := c.state(t); !slices.Equal(after, before) {
		t.Errorf("the host has %q, had %q", beyond(after, before), beyond(before, after))
	}
	t.Logf("%d containers, %d caches", starts, written)
}
