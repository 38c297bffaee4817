package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// client loads libraries as a CUDA program does and prints what it got.
const client = `#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		void *lib = dlopen(argv[i], RTLD_NOW);
		const char *(*version)(void) = lib ? (const char *(*)(void))dlsym(lib, "version") : 0;
		printf("%s %s\n", argv[i], version ? version() : "none");
	}
	return 0;
}`

// standIns are stand-ins for a driver's libraries, by file and SONAME.
var standIns = map[string]string{"libcuda.so.999.1": "libcuda.so.1",
	"libnvidia-ml.so.999.1": "libnvidia-ml.so.1", "libnvidia-encode.so.999.1": "libnvidia-encode.so.1"}

// withDriver gives a node a driver root with stand-ins, and takes the inventory again.
func withDriver(t *testing.T, n *rig.Node) {
	t.Helper()
	lib := filepath.Join(n.Dir, "driver/usr/lib64")
	must(t, os.MkdirAll(lib, 0o755))
	must(t, os.MkdirAll(filepath.Join(n.Dir, "driver/usr/bin"), 0o755))
	for file, soname := range standIns {
		source := n.Write("library.c", `const char *version(void) { return "of `+file+`"; }`)
		compile(t, "-shared", "-fPIC", "-Wl,-soname,"+soname, "-o", filepath.Join(lib, file), source)
		must(t, os.Symlink(file, filepath.Join(lib, soname)))
	}
	smi := n.Write("smi.c", "#include <stdio.h>\nint main(void) { return puts(\"smi\") < 0; }")
	compile(t, "-static", "-o", filepath.Join(n.Dir, "driver/usr/bin/nvidia-smi"), smi)
	config := read(t, n.Config)
	n.Write("config.toml", strings.Replace(config, "[inventory]\n", "[inventory]\ndriver_root = \""+n.Dir+
		"/driver\"\n", 1))
	if r := n.CLI("inventory", "refresh"); r.Code != 0 || r.Stderr != "" ||
		!strings.Contains(r.Stdout, "driver 999.1: 4 files below "+n.Dir+"/driver\n") {
		t.Fatalf("%+v", r)
	}
}

func compile(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, out)
	}
}

// dynamic gives a bundle's image this machine's own glibc, as a Debian image has it, and the
// client.
func dynamic(t *testing.T, b *rig.Bundle) {
	t.Helper()
	rootfs := filepath.Join(b.Dir, "rootfs")
	loader, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
	if err != nil {
		t.Skip("this machine has no glibc of amd64: that a program finds the driver's libraries is not shown")
	}
	libc := filepath.Dir(loader)
	image := filepath.Join(rootfs, strings.TrimPrefix(libc, "/usr"))
	must(t, os.MkdirAll(image, 0o755))
	must(t, os.MkdirAll(filepath.Join(rootfs, "lib64"), 0o755))
	for _, name := range []string{filepath.Base(loader), "libc.so.6"} {
		content := read(t, filepath.Join(libc, name))
		must(t, os.WriteFile(filepath.Join(image, name), []byte(content), 0o755))
	}
	must(t, os.Symlink(filepath.Join(strings.TrimPrefix(libc, "/usr"), filepath.Base(loader)),
		filepath.Join(rootfs, "lib64/ld-linux-x86-64.so.2")))
	compile(t, "-o", filepath.Join(rootfs, "bin/client"), b.Node.Write("client.c", client))
}

// TestAProgramFindsTheDriver: in an image without any trace of a driver, by the names that programs
// use. No program of gpuledger or of the image runs at create. What the container did not request
// is missing.
func TestAProgramFindsTheDriver(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB")
	run := func(id string, edits ...rig.Edit) rig.Result {
		b := n.Bundle(id, append([]rig.Edit{rig.Env("GPULEDGER_GRANT=" + reference.String()),
			rig.Shell("/bin/client libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-encode.so.1; " +
				"/usr/bin/nvidia-smi 2>/dev/null || echo no smi")}, edits...)...)
		dynamic(t, b)
		r := b.Run()
		rig.Eventually(t, "the grant is free", func() bool { return n.State(reference.ID) == "free" })
		return r
	}
	const cuda = "libcuda.so.1 of libcuda.so.999.1\nlibcuda.so of libcuda.so.999.1\n"
	for _, c := range []struct{ name, capabilities, want string }{
		{"by default", "", cuda + "libnvidia-ml.so.1 of libnvidia-ml.so.999.1\nlibnvidia-encode.so.1 none\nsmi\n"},
		{"compute alone", "compute", cuda + "libnvidia-ml.so.1 none\nlibnvidia-encode.so.1 none\nno smi\n"},
		{"all", "all", cuda + "libnvidia-ml.so.1 of libnvidia-ml.so.999.1\nlibnvidia-encode.so.1 of libnvidia-encode.so.999.1\nsmi\n"},
		{"unknown words", "nonsense", "libcuda.so.1 none\nlibcuda.so none\nlibnvidia-ml.so.1 none\nlibnvidia-encode.so.1 none\nno smi\n"},
	} {
		edits := []rig.Edit{}
		if c.capabilities != "" {
			edits = append(edits, rig.Env("NVIDIA_DRIVER_CAPABILITIES="+c.capabilities))
		}
		if r := run(strings.ReplaceAll(c.name, " ", "-"), edits...); r.Stdout != c.want || r.Code != 0 {
			t.Errorf("%s: %+v\nwant\n%s", c.name, r, c.want)
		}
	}
}

// TestCDIBringsTheDriver: the file mounts it at the node's paths. The wrapper and the hook, which
// see the image, mount it where the image's programs look.
func TestCDIBringsTheDriver(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB", "--cdi")
	const found, nodes = "libcuda.so.1 of libcuda.so.999.1\n", "/usr/lib64/libcuda.so.1 of libcuda.so.999.1\n"
	run := func(id, want string, run func(*rig.Bundle) rig.Result) {
		b := n.Bundle(id, injected(t, n, "gpuledger.dev/grant="+reference.String()),
			rig.Shell("/bin/client libcuda.so.1 /usr/lib64/libcuda.so.1"))
		dynamic(t, b)
		if r := run(b); r.Stdout != want || r.Code != 0 {
			t.Errorf("%s: %+v, want\n%s", id, r, want)
		}
		rig.Eventually(t, "the grant is free", func() bool { return n.State(reference.ID) == "free" })
	}
	hookThat(t, n, "exit 0")
	run("ungranted", "libcuda.so.1 none\n"+nodes, (*rig.Bundle).RealRun)
	must(t, os.Remove(n.Dir+"/hook"))
	realHook(t, n)
	run("hook", found+nodes, (*rig.Bundle).RealRun)
	run("wrapper", found+nodes, (*rig.Bundle).Run)
}

// TestDriverFilesCannotBeChanged by root of the container, nor run with more rights.
func TestDriverFilesCannotBeChanged(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB")
	b := n.Bundle("c", rig.Env("GPULEDGER_GRANT="+reference.String()), rig.Shell(
		"lib=$(/bin/busybox find / -xdev -name libcuda.so.1); echo x >$lib; /bin/busybox grep libcuda.so.1 "+
			"/proc/self/mountinfo"))
	dynamic(t, b)
	before := read(t, n.Dir+"/driver/usr/lib64/libcuda.so.999.1")
	r := b.Run()
	if !strings.Contains(r.Stderr, "Read-only file system") ||
		!strings.Contains(r.Stdout, " ro,nosuid,nodev,") {
		t.Errorf("%+v", r)
	}
	if read(t, n.Dir+"/driver/usr/lib64/libcuda.so.999.1") != before {
		t.Error("the node's own file was changed")
	}
}

// TestImagesThatTakeNoDriverFiles: a static image gets none and starts; links of an image are
// followed within it.
func TestImagesThatTakeNoDriverFiles(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB")
	static := n.Bundle("static", rig.Env("GPULEDGER_GRANT="+reference.String()), rig.Shell("echo started"))
	if r := static.Run(); r.Stdout != "started\n" || strings.Contains(string(static.Config()), "libcuda") {
		t.Errorf("%+v", r)
	}
	canary := filepath.Join(n.Dir, "canary")
	must(t, os.MkdirAll(canary, 0o755))
	rig.Eventually(t, "the grant is free", func() bool { return n.State(reference.ID) == "free" })
	hostile := n.Bundle("hostile", rig.Env("GPULEDGER_GRANT="+reference.String()), rig.Shell("echo started"))
	dynamic(t, hostile)
	rootfs := filepath.Join(hostile.Dir, "rootfs")
	must(t, os.RemoveAll(filepath.Join(rootfs, "lib")))
	must(t, os.Symlink(canary, filepath.Join(rootfs, "lib")))
	hostile.Run()
	if left, err := os.ReadDir(canary); err != nil || len(left) > 0 {
		t.Errorf("%v: a link of the image's led to the node: %v", err, left)
	}
}

// TestAReadOnlyRootFileSystem: if the runtime itself cannot make a mount point, gpuledger refuses
// the container with its own sentence, before the runtime fails. If the mount points exist, as with
// an engine's read-only flag, it starts.
func TestAReadOnlyRootFileSystem(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB")
	start := func(id string, prepare func(rootfs string)) rig.Result {
		b := n.Bundle(id, rig.Env("GPULEDGER_GRANT="+reference.String()),
			rig.Shell("/bin/client libcuda.so.1"), func(s *specs.Spec) { s.Root.Readonly = true })
		dynamic(t, b)
		rootfs := filepath.Join(b.Dir, "rootfs")
		prepare(rootfs)
		r := b.Run()
		_ = syscall.Unmount(rootfs, syscall.MNT_DETACH)
		return r
	}
	seal := func(rootfs string) {
		must(t, syscall.Mount(rootfs, rootfs, "", syscall.MS_BIND, ""))
		must(t, syscall.Mount("", rootfs, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	}
	r := start("sealed", seal)
	wantRefused(t, r, "injection-impossible")
	if !strings.Contains(r.Stderr, "is read-only and has no /") {
		t.Errorf("%+v", r)
	}
	const cuda = "libcuda.so.1 of libcuda.so.999.1\n"
	if r := start("by-flag", func(string) {}); r.Stdout != cuda {
		t.Errorf("read-only for the container alone: %+v", r)
	}
	rig.Eventually(t, "the grant is free", func() bool { return n.State(reference.ID) == "free" })
	if r := start("prepared", func(rootfs string) {
		for _, place := range []string{"usr/bin/nvidia-smi", "lib/x86_64-linux-gnu/libcuda.so",
			"lib/x86_64-linux-gnu/libcuda.so.1", "lib/x86_64-linux-gnu/libnvidia-ml.so",
			"lib/x86_64-linux-gnu/libnvidia-ml.so.1"} {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(rootfs, place)), 0o755))
			must(t, os.WriteFile(filepath.Join(rootfs, place), nil, 0o644))
		}
		seal(rootfs)
	}); r.Stdout != cuda {
		t.Errorf("with the places made before: %+v", r)
	}
}

// nodesOfTheDriver gives the test a /dev with the nodes that a driver makes: in a user namespace
// runtimes mount the host's.
func nodesOfTheDriver(t *testing.T, inv grant.Inventory) {
	t.Helper()
	dev := t.TempDir()
	rig.Mount(t, "dev", dev, "tmpfs", 0, "mode=755")
	must(t, os.Mkdir(dev+"/pts", 0o755), os.Mkdir(dev+"/shm", 0o777))
	mknod := func(name string, major, minor int) {
		must(t, syscall.Mknod(dev+"/"+name, syscall.S_IFCHR|0o666,
			int(unix.Mkdev(uint32(major), uint32(minor)))), os.Chmod(dev+"/"+name, 0o666))
	}
	for name, minor := range map[string]int{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		mknod(name, 1, minor)
	}
	mknod("tty", 5, 0)
	mknod("ptmx", 5, 2)
	for _, g := range inv.GPUs {
		mknod(fmt.Sprintf("nvidia%d", g.Minor), 195, g.Minor)
	}
	mknod("nvidiactl", 195, 255)
	mknod("nvidia-uvm", inv.Majors["nvidia-uvm"], 0)
	mknod("nvidia-uvm-tools", inv.Majors["nvidia-uvm"], 1)
	rig.Mount(t, "/dev/pts", dev+"/pts", "", syscall.MS_BIND, "")
	rig.Mount(t, dev, "/dev", "", syscall.MS_BIND, "")
}

// TestUserNamespaces: root of the container has no rights on the node. If it owns its image it gets
// the driver. If the directories belong to the node's root, gpuledger refuses the container with
// its own sentence, before the runtime fails.
func TestUserNamespaces(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	nodesOfTheDriver(t, snapshot(t, n))
	reference := n.Grant("--memory", "4GiB", "--gpu", "1")
	const root = "/mnt" // the test's own directory is closed to other users, and root of the container is one
	bundle := func(id string, owner int) *rig.Bundle {
		b := n.Bundle(id, with(reference), userNamespace,
			rig.Shell("/bin/client libcuda.so.1; ls /dev | grep nvidia; cat </dev/nvidia1"),
			func(s *specs.Spec) {
				ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
				s.Linux.UIDMappings, s.Linux.GIDMappings, s.Root.Path = ids, ids, root
			})
		dynamic(t, b)
		must(t, filepath.WalkDir(b.Dir+"/rootfs", func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, owner, owner))
		}))
		rig.Mount(t, b.Dir+"/rootfs", root, "", syscall.MS_BIND, "")
		return b
	}
	r := bundle("own", 100000).Run()
	if want :=
		"libcuda.so.1 of libcuda.so.999.1\nnvidia-uvm\nnvidia-uvm-tools\nnvidia1\nnvidiactl\n"; r.Stdout !=
		want || !strings.Contains(r.Stderr, "No such device or address") {
		t.Errorf("%+v, want\n%s", r, want)
	}
	becomesFree(t, n, reference.ID)
	r = bundle("roots", 0).Run()
	wantRefused(t, r, "injection-impossible")
	if !strings.Contains(r.Stderr, "belongs to users who are not in its user namespace and has no /") {
		t.Errorf("%+v", r)
	}
	wantState(t, n, reference.ID, "nothing started", grant.Free)
}

// TestExplainListsTheDriverFiles and changes nothing; creating the same bundle twice changes it
// once.
func TestExplainListsTheDriverFiles(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB")
	b := n.Bundle("c", rig.Env("GPULEDGER_GRANT="+reference.String()), rig.Shell("/bin/client libcuda.so.1"))
	dynamic(t, b)
	before := string(b.Config())
	r := b.Explain("--json")
	if !strings.Contains(r.Stdout, `/libcuda.so.1"`) ||
		!strings.Contains(r.Stdout, n.Dir+"/driver/usr/lib64/libcuda.so.999.1") ||
		string(b.Config()) != before {
		t.Errorf("%+v", r)
	}
	first := b.Run()
	edited := string(b.Config())
	rig.Eventually(t, "the grant is free", func() bool { return n.State(reference.ID) == "free" })
	second := b.Run()
	if first != second || first.Stdout != "libcuda.so.1 of libcuda.so.999.1\n" ||
		string(b.Config()) != edited || edited == before {
		t.Errorf("first %+v, second %+v, the spec\n%s\nand then\n%s", first, second, edited, b.Config())
	}
}

// TestAMissingImage is an error for a container with a grant. A container without one is refused
// for what is wrong with its spec.
func TestAMissingImage(t *testing.T) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB")
	nowhere := func(s *specs.Spec) { s.Root.Path = "nowhere" }
	wantRefused(t, n.Bundle("holder", rig.Env("GPULEDGER_GRANT="+reference.String()), nowhere).Create(),
		"injection-impossible")
	wantRefused(t, n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), nowhere).Create(),
		"visible-devices-all")
	if state := n.State(reference.ID); state != "free" {
		t.Errorf("the grant is %s", state)
	}
}
