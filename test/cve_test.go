package test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// Past CVEs of GPU container tooling, replayed on real containers: images whose directories lead
// out of the root file system (CVE-2024-0132, -0133, -0134, CVE-2025-23359, CVE-2025-23267), images
// that change while the container is created (CVE-2026-24260), and images whose environment affects
// programs on the host (CVE-2025-23266). runc 1.1 and crun 1.8 themselves follow an image's linked
// /dev for the links that they make there, so the comparison is with the runtimes alone.

// TestPastCVEs plays each story with each runtime.
func TestPastCVEs(t *testing.T) {
	layout := rig.V1 // crun 1.8 refuses a machine with both
	if _, err := os.Stat("/sys/fs/cgroup/devices"); err != nil {
		layout = rig.V2
	}
	if rig.Under(t, layout) {
		return
	}
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			rig.NeedRuntime(t, runtime)
			for name, play := range map[string]func(*testing.T, *rig.Node){
				"images that lead out of their root": imagesThatLeadOut,
				"images that change meanwhile":       imagesThatChangeMeanwhile,
				"images whose environment attacks":   imagesWhoseEnvironmentAttacks,
				"mounts that are shared":             sharedMounts,
			} {
				t.Run(name, func(t *testing.T) { play(t, rig.NewNode(t, rig.Setup{Runtime: runtime})) })
			}
		})
	}
}

// canary is a directory of the host that no container may change.
type canary struct{ dir string }

func newCanary(t *testing.T, n *rig.Node) canary {
	t.Helper()
	c := canary{filepath.Join(n.Dir, "canary")}
	must(t, os.MkdirAll(c.dir+"/ld.so.conf.d", 0o755), os.MkdirAll(c.dir+"/lib", 0o755))
	for _, name := range []string{"passwd", "ld.so.cache", "ld.so.conf", "ld.so.conf.d/x.conf",
		"lib/libcuda.so.1"} {
		must(t, os.WriteFile(filepath.Join(c.dir, name), []byte("of the host\n"), 0o644))
	}
	return c
}

// state is all that could change about it.
func (c canary) state(t *testing.T) []string {
	t.Helper()
	var lines []string
	must(t, filepath.WalkDir(c.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %o %d:%d %d", path, st.Mode, st.Uid, st.Gid, st.Rdev)
		if entry.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x %d", sha256.Sum256(data), st.Mtim.Nano())
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

// beyond lists what is in one state and not in the other.
func beyond(state, before []string) []string {
	return slices.DeleteFunc(slices.Clone(state), func(line string) bool {
		return slices.Contains(before, line)
	})
}

// obstacles are what an image can put at paths that a tool of the host might read or write, by path
// in the root file system.
func obstacles(c canary) map[string]func(root string) error {
	all := map[string]func(string) error{}
	instead := func(name, path string, make func(path string) error) {
		all[name] = func(root string) error {
			path := filepath.Join(root, path)
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			return make(path)
		}
	}
	link := func(target string) func(string) error {
		return func(path string) error { return os.Symlink(target, path) }
	}
	up := strings.Repeat("../", 20)
	for _, dir := range []string{"etc", "dev", "usr", "lib", "proc", "sys", "tmp"} {
		instead("/"+dir+" is a link to the host", dir, link(c.dir))
	}
	for _, dir := range []string{"etc/ld.so.conf.d", "usr/lib/x86_64-linux-gnu",
		"usr/local/cuda/compat", "lib64"} {
		instead("/"+dir+" is a link to the host", dir, link(c.dir+"/ld.so.conf.d"))
	}
	instead("/etc is a link upwards", "etc", link(up+c.dir))
	instead("/usr/lib is a link through /proc", "usr/lib", link("/proc/self/root"+c.dir))
	instead("/dev is a link upwards", "dev", link(up+c.dir))
	for _, file := range []string{"etc/ld.so.cache", "etc/ld.so.conf", "dev/nvidia0", "dev/nvidiactl",
		"usr/lib/libcuda.so.1"} {
		instead("/"+file+" is a link to the host", file, link(c.dir+"/ld.so.cache"))
	}
	for _, path := range []string{"etc", "etc/ld.so.cache", "etc/ld.so.conf.d", "dev"} {
		instead("/"+path+" is a FIFO", path, func(path string) error { return unix.Mkfifo(path, 0o666) })
		instead("/"+path+" is a directory", path, func(path string) error {
			return os.MkdirAll(path+"/deep", 0o755)
		})
		instead("/"+path+" is a huge file", path, func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Truncate(1 << 40)
		})
		instead("/"+path+" is a device", path, func(path string) error {
			return unix.Mknod(path, unix.S_IFCHR|0o666, 1<<8|5)
		})
	}
	return all
}

// started is a create and a start, ended after a minute: a hanging runtime has failed.
func started(t *testing.T, b *rig.Bundle, program func(...string) *exec.Cmd) (ok bool, mounts []string) {
	t.Helper()
	for _, args := range [][]string{{"create", "--bundle", b.Dir, b.ID}, {"start", b.ID}} {
		cmd := program(args...)
		timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		r := rig.Run(cmd)
		if !timer.Stop() {
			t.Errorf("%v hangs", args)
		}
		if r.Code != 0 {
			return false, nil
		}
	}
	return true, mountsOf(t, b)
}

// mountsOf maps a container's mount points to what they show of the host, from its own mount table.
func mountsOf(t *testing.T, b *rig.Bundle) []string {
	t.Helper()
	var mounts []string
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/mountinfo", b.Init()))) {
		fields := strings.Fields(line)
		mounts = append(mounts, fields[3]+" on "+fields[4])
	}
	return mounts
}

// wantNoneOf wants no mount of anything in a directory of the host. The name of a mount point in
// the container proves nothing.
func wantNoneOf(t *testing.T, mounts []string, dir string) {
	t.Helper()
	for _, m := range mounts {
		if what, _, _ := strings.Cut(m, " on "); strings.Contains(what, dir) {
			t.Errorf("the container has %s", m)
		}
	}
}

// imagesThatLeadOut: a container with a grant starts exactly if the bare runtime starts one
// without. Neither the host's files nor the mounts differ between the two.
func imagesThatLeadOut(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "1GiB")
	all := obstacles(canary{filepath.Join(n.Dir, "canary")})
	for name, obstruct := range all {
		t.Run(name, func(t *testing.T) {
			n.T = t
			bare, _ := startOddImage(t, n, "bare", obstruct, n.Real)
			ours, mounts := startOddImage(t, n, "ours", obstruct, n.Wrapper, with(g))
			if ours.starts != bare.starts {
				t.Errorf("it starts: %v, without gpuledger: %v", ours.starts, bare.starts)
			}
			if more := beyond(ours.changed, bare.changed); len(more) > 0 {
				t.Errorf("on the host there are %q, without gpuledger %q", ours.changed, bare.changed)
			}
			wantNoneOf(t, mounts, "/canary")
			if state := n.State(g.ID); state != grant.Free {
				t.Errorf("the grant is %s", state)
			}
		})
	}
}

// oddImageOutcome is the outcome of a container with an odd image.
type oddImageOutcome struct {
	starts  bool
	changed []string
}

func startOddImage(t *testing.T, n *rig.Node, id string, obstruct func(root string) error,
	program func(...string) *exec.Cmd, edits ...rig.Edit) (oddImageOutcome, []string) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(n.Dir, "canary")))
	c := newCanary(t, n)
	b := n.Bundle(id, append(edits, rig.Light)...)
	must(t, obstruct(filepath.Join(b.Dir, "rootfs")))
	before := c.state(t)
	ok, mounts := started(t, b, program)
	v := oddImageOutcome{ok, beyond(c.state(t), before)}
	for _, line := range before {
		if !slices.Contains(c.state(t), line) {
			v.changed = append(v.changed, "gone: "+line)
		}
	}
	b.End()
	must(t, os.RemoveAll(b.Dir))
	return v, mounts
}

// imagesThatChangeMeanwhile: a neighbour on a shared volume exchanges a directory and a link to the
// host's as fast as it can while containers are created. The host's files stay as they are, and no
// container has a mount of them.
func imagesThatChangeMeanwhile(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "1GiB")
	c := newCanary(t, n)
	b := n.Bundle("racing", with(g), rig.Light)
	config := b.Config()
	root := filepath.Join(b.Dir, "rootfs")
	places := []string{"etc", "usr/lib", "usr/local/cuda/compat", "lib64", "var/run"}
	for _, place := range places {
		must(t, os.MkdirAll(filepath.Join(root, place), 0o755),
			os.MkdirAll(filepath.Dir(filepath.Join(root, "links", place)), 0o755),
			os.Symlink(c.dir, filepath.Join(root, "links", place)))
	}
	before := c.state(t)
	stop, exchanges := make(chan struct{}), make(chan int)
	go func() {
		count := 0
		for {
			select {
			case <-stop:
				exchanges <- count
				return
			default:
			}
			place := places[count%len(places)]
			if unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, place), unix.AT_FDCWD,
				filepath.Join(root, "links", place), unix.RENAME_EXCHANGE) == nil {
				count++
			}
		}
	}()
	starts := 0
	rounds := 30
	if torture(0) > 0 { // the fix of CVE-2024-0132 was incomplete, which a thousand rounds would have shown
		rounds = max(1000, torture(0))
	}
	for range rounds {
		b.WriteConfig(config)
		ok, mounts := started(t, b, n.Wrapper)
		if ok {
			starts++
		}
		wantNoneOf(t, mounts, "/canary")
		b.End()
	}
	close(stop)
	count := <-exchanges
	if count == 0 || starts == 0 {
		t.Fatalf("%d exchanges, %d containers", count, starts)
	}
	if after := c.state(t); !slices.Equal(after, before) {
		t.Errorf("the host has %q, had %q", beyond(after, before), beyond(before, after))
	}
	t.Logf("%d containers, %d exchanges", starts, count)
}

// evilLibrary leaves a mark on the host when a process of the host loads it. A container has no
// such path.
const evilLibrary = `#include <fcntl.h>
unsigned la_version(unsigned v) { return v; }
void gconv_init(void) {}
__attribute__((constructor)) static void mark(void) { open(MARK, O_CREAT | O_WRONLY, 0600); }
`

// imagesWhoseEnvironmentAttacks: no program that gpuledger runs, or has a runtime run, obeys the
// image's environment, whether the container has a GPU or not. The edited spec has no hook that
// would.
func imagesWhoseEnvironmentAttacks(t *testing.T, n *rig.Node) {
	rig.Need(t, "gcc")
	mark := filepath.Join(n.Dir, "mark")
	library := filepath.Join(n.Dir, "x.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", library, fmt.Sprintf("-DMARK=%q", mark),
		n.Write("x.c", evilLibrary)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	marked := func() bool { return os.Remove(mark) == nil }
	control := exec.Command("/bin/true")
	control.Env = []string{"LD_PRELOAD=" + library}
	if must(t, control.Run()); !marked() {
		t.Fatal("the library leaves no mark where it is loaded: this test could not fail")
	}
	evil := "#!/bin/sh\n: >" + mark + "\n"
	for name, edit := range map[string][]rig.Edit{
		"without a GPU": nil, "with a grant": {with(n.Grant("--memory", "1GiB"))},
		"privileged, with a grant": {rig.Privileged, with(n.Grant("--memory", "1GiB"))},
		"refused":                  {rig.Env("NVIDIA_VISIBLE_DEVICES=all")},
	} {
		t.Run(name, func(t *testing.T) {
			n.T = t
			b := n.Bundle("attack", edit...)
			root := filepath.Join(b.Dir, "rootfs")
			copyTo(t, library, root+"/x.so")
			must(t, os.MkdirAll(root+"/evil", 0o755))
			for _, program := range []string{"runc", "crun", "gpuledger", "gpuledger-hook", "ldconfig",
				"nvidia-smi", "sh", "true"} {
				must(t, os.WriteFile(root+"/evil/"+program, []byte(evil), 0o755))
			}
			rules := "[policy]\nmode = \"report\"\n"
			must(t, os.WriteFile(root+"/evil/config.toml", []byte(rules), 0o644))
			var spec specs.Spec
			must(t, json.Unmarshal(b.Config(), &spec))
			// a path of the host is valid for what runs there
			in := func(path string) string { return root + path }
			spec.Process.Env = append(spec.Process.Env, "LD_PRELOAD=/proc/self/cwd/x.so:/x.so:"+in("/x.so"),
				"LD_AUDIT="+in("/x.so"), "LD_LIBRARY_PATH=/:"+root,
				"GCONV_PATH="+root, "GODEBUG=execerrdot=0", "GOTRACEBACK=crash", "GOCOVERDIR="+root,
				"PATH=/evil:"+in("/evil"), "BASH_ENV="+in("/evil/sh"), "ENV="+in("/evil/sh"),
				"GPULEDGER_CONFIG="+in("/evil/config.toml"), "GPULEDGER_FAILPOINT=node/bound",
				"XDG_RUNTIME_DIR="+root, "TMPDIR="+root)
			b.WriteSpec(spec)
			ok, _ := started(t, b, n.Wrapper)
			if want := name != "refused"; ok != want {
				t.Errorf("it starts: %v", ok)
			}
			wantHooksWithEnvironment(t, b.Config())
			_ = rig.Run(n.Wrapper("update", "--pids-limit", "40", b.ID))
			_ = rig.Run(n.Wrapper("exec", b.ID, "/bin/busybox", "true"))
			_ = rig.Run(n.Wrapper("delete", "--force", b.ID))
			b.End()
			if marked() {
				t.Error("something on the host obeyed the image's environment")
			}
			must(t, os.RemoveAll(b.Dir))
		})
	}
}

// wantHooksWithEnvironment wants every hook of a spec to have an environment: runc 1.1 and crun
// pass the container's to a hook that has none.
func wantHooksWithEnvironment(t *testing.T, config []byte) {
	t.Helper()
	var spec specs.Spec
	must(t, json.Unmarshal(config, &spec))
	if spec.Hooks == nil {
		return
	}
	h := spec.Hooks
	//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
	for _, hook := range slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer,
		h.Poststart, h.Poststop) {
		if len(hook.Env) == 0 || !filepath.IsAbs(hook.Path) {
			t.Errorf("a hook without an environment, or without a whole path: %+v", hook)
		}
	}
}

func copyTo(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.WriteFile(to, []byte(read(t, from)), 0o755))
}

// sharedMounts: a root file system whose mounts are shared with the host leaves none there, or none
// that the bare runtime does not leave (NVIDIA Container Toolkit 1.18.0-rc.2).
func sharedMounts(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "1GiB")
	shared := filepath.Join(n.Dir, "bundles")
	must(t, os.MkdirAll(shared, 0o755))
	rig.Mount(t, shared, shared, "", syscall.MS_BIND, "")
	must(t, syscall.Mount("", shared, "", syscall.MS_SHARED, ""))
	for _, propagation := range []string{"shared", "rshared", "slave", "rslave", "private", "unbindable"} {
		t.Run(propagation, func(t *testing.T) {
			n.T = t
			left := func(id string, program func(...string) *exec.Cmd, edits ...rig.Edit) (bool, []string) {
				b := n.Bundle(id, append(edits, rig.Light, func(s *specs.Spec) {
					s.Linux.RootfsPropagation = propagation
				})...)
				before := strings.Split(read(t, "/proc/self/mountinfo"), "\n")
				ok, _ := started(t, b, program)
				during := beyond(strings.Split(read(t, "/proc/self/mountinfo"), "\n"), before)
				b.End()
				after := beyond(strings.Split(read(t, "/proc/self/mountinfo"), "\n"), before)
				for i := range during {
					during[i] = strings.ReplaceAll(strings.Join(strings.Fields(during[i])[3:5], " on "), id,
						"ID")
				}
				if len(after) > 0 {
					t.Errorf("%s leaves %q", id, after)
				}
				return ok, during
			}
			bareStarts, bare := left("bare", n.Real)
			oursStarts, ours := left("ours", n.Wrapper, with(g))
			if oursStarts != bareStarts {
				t.Errorf("it starts: %v, without gpuledger: %v", oursStarts, bareStarts)
			}
			if more := beyond(ours, bare); len(more) > 0 {
				t.Errorf("while it runs the host has %q more than without gpuledger", more)
			}
		})
	}
}
