package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// Results of libcuda.
const (
	had        = "0"
	outOfReach = "2" // CUDA_ERROR_OUT_OF_MEMORY
)

// standIn is the stand-in driver, the shim and two clients, one of them static, built once beside
// the binaries.
func standIn(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(filepath.Dir(rig.Binary(t, "gpuledger")), "stand-in")
	if _, err := os.Stat(dir + "/gpu-static"); err == nil {
		return dir
	}
	for _, args := range [][]string{
		{"fakedriver/build.sh", dir + "/driver"},
		{"../shim/build.sh", dir + "/shim"},
		{"gcc", "-O1", "-Wall", "-o", dir + "/gpu", "testdata/gpu.c"},
		{"gcc", "-O1", "-w", "-static", "-o", dir + "/gpu-static", "testdata/gpu.c"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return dir
}

// shortPaths puts the test's files in a directory that every user may enter, and with a name short
// enough for a socket's path.
func shortPaths(t *testing.T) {
	t.Helper()
	rig.Mount(t, "tmpfs", "/mnt", "tmpfs", 0, "mode=755")
	t.Setenv("TMPDIR", "/mnt")
}

// gpuNode is a node whose driver keeps a record of its allocations, and on which the shim is
// installed.
type gpuNode struct {
	*rig.Node
	built string
	gpus  []grant.GPU
}

// newGPUNode makes one. In config {shim} is the shim's directory; without an [enforcement] table it
// is the one in use.
func newGPUNode(t *testing.T, s rig.Setup) *gpuNode {
	t.Helper()
	rig.Need(t, "gcc")
	if _, err := os.Stat("/lib64/ld-linux-x86-64.so.2"); err != nil {
		t.Skip("this machine has no glibc of amd64: that a container is held to its memory is not shown")
	}
	built := standIn(t)
	if s.GPUs == 0 {
		s.GPUs = 1 // the stand-in shows every program all of its GPUs
	}
	if !strings.Contains(s.Config, "[enforcement]") {
		s.Config += "[enforcement]\nshim = \"{shim}\"\n"
	}
	s.Config = strings.ReplaceAll(s.Config, "{shim}", built+"/shim")
	n := &gpuNode{Node: rig.NewNode(t, s), built: built}
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[inventory]\n",
		"[inventory]\ndriver_root = \""+built+"/driver\"\n", 1))
	n.Must("inventory", "refresh")
	var inv grant.Inventory
	must(t, json.Unmarshal([]byte(read(t, n.Dir+"/state/inventory.json")), &inv))
	n.gpus = inv.GPUs
	must(t, os.Mkdir(filepath.Join(n.Dir, "book"), 0o777))
	devices := "context 1\n"
	for _, g := range inv.GPUs {
		devices += fmt.Sprintf("%s %d Stand-in\n", g.UUID, g.Memory/grant.MiB)
	}
	must(t, os.WriteFile(filepath.Join(n.Dir, "book/devices"), []byte(devices), 0o644))
	return n
}

// container makes a bundle whose image is of this machine's kind, with the clients, and the
// driver's record.
func (n *gpuNode) container(id string, edits ...rig.Edit) *rig.Bundle {
	t := n.T.(*testing.T)
	t.Helper()
	b := n.Bundle(id, append([]rig.Edit{func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/run/fakedriver", Type: "bind",
			Source: filepath.Join(n.Dir, "book"), Options: []string{"bind", "rw"}})
	}}, edits...)...)
	rootfs := filepath.Join(b.Dir, "rootfs")
	loader, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
	must(t, err)
	libc := filepath.Dir(loader)
	image := strings.TrimPrefix(libc, "/usr")
	must(t, os.MkdirAll(filepath.Join(rootfs, image), 0o755),
		os.MkdirAll(filepath.Join(rootfs, "lib64"), 0o755), os.MkdirAll(filepath.Join(rootfs, "run"), 0o755))
	for _, name := range []string{filepath.Base(loader), "libc.so.6", "libdl.so.2", "libpthread.so.0"} {
		must(t, os.WriteFile(filepath.Join(rootfs, image, name),
			[]byte(read(t, filepath.Join(libc, name))), 0o755))
	}
	must(t, os.Symlink(filepath.Join(image, filepath.Base(loader)),
		filepath.Join(rootfs, "lib64/ld-linux-x86-64.so.2")))
	for _, name := range []string{"gpu", "gpu-static"} {
		must(t, os.WriteFile(filepath.Join(rootfs, "bin", name),
			[]byte(read(t, filepath.Join(n.built, name))), 0o755))
	}
	must(t, os.Chmod(filepath.Join(rootfs, "tmp"), 0o1777))
	return b
}

// holding is a container of a grant that runs a script.
func (n *gpuNode) holding(id string, r grant.Reference, script string, edits ...rig.Edit) *rig.Bundle {
	n.T.Helper()
	return n.container(id, append([]rig.Edit{rig.Env("GPULEDGER_GRANT=" + r.String()), rig.Shell(script)},
		edits...)...)
}

// used is the memory that a GPU's driver has allocated, in MiB, by the stand-in's own tool and
// without the shim.
func (n *gpuNode) used(index int) int {
	n.T.Helper()
	lib, _ := filepath.Glob(n.built + "/driver/usr/lib/*")
	cmd := exec.Command(n.built + "/driver/usr/bin/nvidia-smi")
	cmd.Env = []string{"LD_LIBRARY_PATH=" + lib[0], "FAKEDRIVER_DIR=" + n.Dir + "/book"}
	out, err := cmd.Output()
	if err != nil {
		n.T.Fatal(err)
	}
	line := strings.Split(string(out), "\n")[index]
	_, rest, _ := strings.Cut(line, ") ")
	mib, _, _ := strings.Cut(rest, "MiB")
	used, err := strconv.Atoi(mib)
	if err != nil {
		n.T.Fatalf("%q: %v", line, err)
	}
	return used
}

// start creates and starts a container that keeps running.
func start(t *testing.T, b *rig.Bundle) {
	t.Helper()
	for _, r := range []rig.Result{b.Create(), b.Start()} {
		if r.Code != 0 {
			t.Fatalf("%s: %+v", b.ID, r)
		}
	}
}

// ask has a serving client allocate, and returns the driver's result.
func ask(t *testing.T, b *rig.Bundle, number, mib int) string {
	t.Helper()
	tmp := filepath.Join(b.Dir, "rootfs/tmp")
	draft := filepath.Join(tmp, "asking")
	must(t, os.WriteFile(draft, []byte(strconv.Itoa(mib)), 0o644),
		os.Rename(draft, fmt.Sprintf("%s/ask.%d", tmp, number)))
	var answer []byte
	rig.Eventually(t, "the program answers", func() (ok bool) {
		content, err := os.ReadFile(fmt.Sprintf("%s/answer.%d", tmp, number))
		answer = content
		return err == nil
	})
	return string(answer)
}

func (n *gpuNode) free(r grant.Reference) {
	n.T.Helper()
	rig.Eventually(n.T, "the grant is free", func() bool { return n.State(r.ID) == "free" })
}

func (n *gpuNode) strengthOf(r grant.Reference) string {
	n.T.Helper()
	var out struct {
		Grants []struct {
			ID       grant.ID
			Strength string
		}
	}
	if err := json.Unmarshal([]byte(n.Must("grants", "--json")), &out); err != nil {
		n.T.Fatal(err)
	}
	for _, g := range out.Grants {
		if g.ID == r.ID {
			return g.Strength
		}
	}
	return ""
}

// TestAContainerSeesItsGrantAsTheGPU, and gets not a byte more: by dlopen and dlsym, in a static
// program, with an empty environment, and in nvidia-smi. The strength is shown wherever the grant
// is.
func TestAContainerSeesItsGrantAsTheGPU(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	reference := n.Grant("--memory", "4GiB")
	const seen = "GPU 0 total 4096 MiB (0)\nfree 4096 of 4096 MiB (0)\n4097 MiB: 2\n4096 MiB: 0\n1 MiB: " +
		"2\nfree 0 of 4096 MiB (0)\n"
	for name, client := range map[string]string{"dynamic": "/bin/gpu", "static": "/bin/gpu-static",
		"stripped": "exec /bin/busybox env -i /bin/gpu"} {
		b := n.holding(name, reference, client+" total free 4097 4096 1 free")
		if r := b.Explain(); !strings.Contains(r.Stdout, "strength library") {
			t.Errorf("%s: %+v", name, r)
		}
		if r := b.Run(); r.Stdout != seen || r.Code != 0 {
			t.Errorf("%s: %+v, want\n%s", name, r, seen)
		}
		n.free(reference)
	}
	b := n.holding("smi", reference, "/usr/bin/nvidia-smi; sleep 1000")
	start(t, b)
	if got := n.strengthOf(reference); got != "library" {
		t.Errorf("a grant in use has strength %q", got)
	}
	if r := rig.Run(n.Real("exec", "smi", "/usr/bin/nvidia-smi")); !strings.Contains(r.Stdout,
		"MiB / 4096MiB") || strings.Count(r.Stdout, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	if said := n.Must("inspect", "--details"); !strings.Contains(said, "library") {
		t.Error(said)
	}
	b.KillInit()
	b.Delete()
	// the driver's record
	if left, err := os.ReadDir(filepath.Join(b.Dir, "rootfs/run")); err != nil || len(left) > 1 {
		t.Errorf("the root file system has %v in /run: %v", left, err)
	}
}

// TestAWeakerContainerIsExplained: a grant is listed with the strength that the node gives, and a
// container with a weaker one gets the reason.
func TestAWeakerContainerIsExplained(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	granted := n.CLI("grant", "--memory", "1GiB")
	reference, err := grant.ParseReference(strings.TrimSpace(granted.Stdout))
	must(t, err)
	if !strings.Contains(granted.Stderr, "strength library; a container that is privileged or has "+
		"CAP_SYS_ADMIN, or whose image has no C library, has strength none, and `gpuledger grants` says "+
		"why") {
		t.Errorf("the grant: %s", granted.Stderr)
	}
	b := n.Bundle("static", with(reference), rig.Shell("exec sleep 1000")) // busybox, and no C library
	const why = "strength none, not library: the image has no C library"
	if r := b.Explain(); !strings.Contains(r.Stdout, "strength none") || !strings.Contains(r.Stdout, why) {
		t.Errorf("explain: %+v", r)
	}
	start(t, b)
	if r := n.CLI("grants"); !strings.Contains(r.Stderr, "gpuledger: note: grant "+string(reference.ID)+
		", container static: "+why) || strings.Contains(r.Stdout, why) {
		t.Errorf("grants: %+v", r)
	}
	if said := n.Must("grants", "--json"); !strings.Contains(said, `"weaker": "`+why) {
		t.Errorf("grants --json: %s", said)
	}
	if log := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(log, why) {
		t.Errorf("the audit log: %s", log)
	}
	b.KillInit()
	b.Delete()
	n.free(reference)
	full := n.holding("full", reference, "exec sleep 1000")
	start(t, full)
	if r := n.CLI("grants"); r.Stderr != "" {
		t.Errorf("a container that has its grant's strength: %s", r.Stderr)
	}
}

// TestNeighboursKeepTheirMemory: two containers on one GPU, both of which allocate all they can.
func TestNeighboursKeepTheirMemory(t *testing.T) {
	n := newGPUNode(t, rig.Setup{GPUs: 1, Memory: "1024MiB"})
	one, two := n.Grant("--memory", "256MiB"), n.Grant("--memory", "512MiB")
	first, second := n.holding("one", one, "exec /bin/gpu serve"),
		n.holding("two", two, "exec /bin/gpu serve")
	start(t, first)
	start(t, second)
	if a, b := ask(t, first, 1, 257), ask(t, first, 2, 256); a != outOfReach || b != had {
		t.Errorf("the first: %s %s", a, b)
	}
	if a, b, c := ask(t, second, 1, 513), ask(t, second, 2, 512), ask(t, second, 3, 1); a != outOfReach ||
		b != had || c != outOfReach {
		t.Errorf("the second: %s %s %s", a, b, c)
	}
	if used := n.used(0); used < 768 || used > 768+2 { // with a context each
		t.Errorf("the driver has given %d MiB", used)
	}
}

// TestContainersOfAGrantShareItsLimit, and one that is killed holds nothing afterwards.
func TestContainersOfAGrantShareItsLimit(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB", "--owner", "claim:c-1")
	one, two := n.holding("one", reference, "exec /bin/gpu serve"),
		n.holding("two", reference, "exec /bin/gpu serve")
	start(t, one)
	start(t, two)
	if a, b, c := ask(t, one, 1, 700), ask(t, two, 1, 400), ask(t, two, 2, 300); a != had ||
		b != outOfReach || c != had {
		t.Errorf("700: %s, 400 beside it: %s, 300: %s", a, b, c)
	}
	one.KillInit()
	if got := ask(t, two, 3, 700); got != had {
		t.Errorf("after the other is killed: %s", got)
	}
	if got := ask(t, two, 4, 100); got != outOfReach {
		t.Errorf("beyond the grant: %s", got)
	}
}

// TestALimitChangesForARunningProgram: at its next allocation. What it has above a smaller limit
// stays.
func TestALimitChangesForARunningProgram(t *testing.T) {
	n := newGPUNode(t, rig.Setup{GPUs: 1, Memory: "4GiB"})
	reference := n.Grant("--memory", "1GiB")
	b := n.holding("c", reference, "exec /bin/gpu serve")
	start(t, b)
	id := string(reference.ID)
	if a, b := ask(t, b, 1, 1024), ask(t, b, 2, 1); a != had || b != outOfReach {
		t.Errorf("at first: %s %s", a, b)
	}
	n.Must("grant", "--update", id, "--memory", "2GiB")
	if a, b := ask(t, b, 3, 1024), ask(t, b, 4, 1); a != had || b != outOfReach {
		t.Errorf("grown: %s %s", a, b)
	}
	n.Must("grant", "--update", id, "--memory", "512MiB")
	if got := ask(t, b, 5, 1); got != outOfReach {
		t.Errorf("shrunk: %s", got)
	}
	other := n.Grant("--memory", "3GiB")
	if r := n.CLI("grant", "--update", id, "--memory", "2GiB"); r.Code != 5 {
		t.Errorf("beyond what is free: %+v", r)
	}
	if got := ask(t, b, 6, 1); got != outOfReach {
		t.Errorf("after what was refused: %s", got)
	}
	n.Must("release", string(other.ID))
	n.Must("grant", "--update", id, "--memory", "3GiB")
	if a, b := ask(t, b, 7, 1024), ask(t, b, 8, 1); a != had || b != outOfReach {
		t.Errorf("grown again: %s %s", a, b)
	}
	if r := rig.Run(n.Real("exec", "c", "/bin/gpu", "total")); r.Stdout != "GPU 0 total 3072 MiB (0)\n" {
		t.Errorf("%+v", r)
	}
}

// records are the directories of grants' records.
func (n *gpuNode) records() []string {
	entries, _ := os.ReadDir(filepath.Join(n.Dir, "run/limits"))
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestRecordsEndWithTheirGrant: released, drained, adopted or left by a crash.
func TestRecordsEndWithTheirGrant(t *testing.T) {
	n := newGPUNode(t, rig.Setup{Engine: "containerd",
		Config: "[annotations]\ntrust = \"adopt\"\n[enforcement]\nshim = \"{shim}\"\n"})
	reference := n.Grant("--memory", "1GiB")
	if len(n.records()) != 0 {
		t.Errorf("before any container: %v", n.records())
	}
	n.holding("c", reference, "/bin/gpu 1").Run()
	if got := n.records(); !slices.Equal(got, []string{string(reference.ID)}) {
		t.Errorf("a grant that was used: %v", got)
	}
	n.free(reference)
	n.Must("release", string(reference.ID))
	if got := n.records(); len(got) != 0 {
		t.Errorf("after the release: %v", got)
	}

	drained := n.Grant("--memory", "1GiB")
	b := n.holding("d", drained, "exec /bin/gpu serve")
	start(t, b)
	n.Must("release", string(drained.ID))
	if got := n.records(); len(got) != 1 {
		t.Errorf("while its container runs: %v", got)
	}
	if got := ask(t, b, 1, 1025); got != outOfReach {
		t.Errorf("a grant that is draining: %s", got)
	}
	b.Kill()
	rig.Eventually(t, "its container has ended", func() bool { return !rig.Lives(b.Init()) })
	rig.Eventually(t, "the wrapper's delete tidies", func() bool {
		b.Delete()
		return len(n.records()) == 0 ||
			n.State(drained.ID) == ""
	})
	n.Must("check")

	adopted := n.container("a", rig.Identity("11111111-2222-3333-4444-555555555555", "ns", "pod", "a"),
		rig.Annotation("gpuledger.dev/memory", "1GiB"),
		rig.Annotation("gpuledger.dev/memory.a", "1GiB"), rig.Shell("/bin/gpu total 1025"))
	if r := adopted.Run(); r.Stdout != "GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n" {
		t.Errorf("adopted: %+v", r)
	}
	must(t, os.MkdirAll(filepath.Join(n.Dir, "run/limits/g-aaaaaaaaaaaa"), 0o700))
	rig.Eventually(t, "no records are left", func() bool {
		n.Must("check")
		return len(n.records()) == 0
	})
	n.CheckSound("with records that were left")
}

// TestEveryEntryLimits: the wrapper, the hook that injects into a live container, and a grant's CDI
// file, with the hook and without.
func TestEveryEntryLimits(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	const seen = "GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n1024 MiB: 0\n"
	const script = "/bin/gpu total 1025 1024"
	reference := n.Grant("--memory", "1GiB")
	twice := n.holding("wrapper", reference, script)
	hooked := n.holding("hook", reference, script, n.Hooked)
	both := n.holding("both", reference, script, n.Hooked)
	for _, run := range []func() rig.Result{twice.Run, hooked.RealRun, both.Run, twice.Run} {
		if r := run(); r.Stdout != seen || r.Code != 0 {
			t.Errorf("%+v", r)
		}
		n.free(reference)
	}
	first := string(twice.Config())
	twice.Run()
	if string(twice.Config()) != first {
		t.Error("a spec that was edited once is edited again")
	}

	offered := n.Grant("--memory", "1GiB", "--cdi")
	realHook(t, n.Node)
	for name, run := range map[string]func(*rig.Bundle) rig.Result{
		"cdi-hook": (*rig.Bundle).RealRun, "cdi-wrapper": (*rig.Bundle).Run} {
		b := n.container(name, injected(t, n.Node, "gpuledger.dev/grant="+offered.String()),
			rig.Shell(script))
		if r := run(b); r.Stdout != seen || r.Code != 0 {
			t.Errorf("%s: %+v", name, r)
		}
		n.free(offered)
	}
}

// TestAnImagesOwnDriverIsLimited: an image's own driver files come before the node's in
// LD_LIBRARY_PATH, in its cache, or in a mount; the proxies are mounted over each.
func TestAnImagesOwnDriverIsLimited(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB")
	real, err := filepath.Glob(n.built + "/driver/usr/lib/*/libcuda.so.1")
	must(t, err)
	const seen = "GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n"
	for name, c := range map[string]struct {
		dir  string
		edit rig.Edit
		set  string // by the container's first program: its LD_LIBRARY_PATH
	}{
		"by-path":     {"/opt/cuda", rig.Env("LD_LIBRARY_PATH=/opt/none:/opt/cuda"), ""},
		"by-compat":   {"/usr/local/cuda/compat", rig.Env("LD_LIBRARY_PATH=/usr/local/cuda/compat"), ""},
		"by-relative": {"/usr/local/cuda-13.0/compat", rig.Env("LD_LIBRARY_PATH=/usr/local/cuda/compat"), ""},
		"by-NGC": {"/usr/local/cuda-13.0/compat/lib.real",
			rig.Env("LD_LIBRARY_PATH=/usr/local/cuda/compat/lib"), "/usr/local/cuda/compat/lib.real"},
		"by-another-version": {"/usr/local/cuda-12.8/compat", rig.Env(), "/usr/local/cuda-12.8/compat"},
		"by-a-mount": {"/vol", func(s *specs.Spec) {
			s.Process.Env = append(s.Process.Env, "LD_LIBRARY_PATH=/vol")
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/vol/libcuda.so.1", Type: "bind",
				Source: real[0], Options: []string{"bind", "ro"}})
		}, ""},
	} {
		script := "/bin/gpu total 1025"
		if c.set != "" {
			script = "export LD_LIBRARY_PATH=" + c.set + "; " + script
		}
		b := n.holding(name, reference, script, c.edit)
		rootfs := filepath.Join(b.Dir, "rootfs")
		must(t, os.MkdirAll(filepath.Join(rootfs, c.dir), 0o755))
		must(t, os.WriteFile(filepath.Join(rootfs, c.dir, "libcuda.so.999"), []byte(read(t, real[0])), 0o755))
		if name != "by-a-mount" {
			must(t, os.Symlink("libcuda.so.999", filepath.Join(rootfs, c.dir, "libcuda.so.1")))
		}
		if strings.HasPrefix(c.dir, "/usr/local/cuda-") {
			must(t, os.MkdirAll(filepath.Join(rootfs, "usr/local/cuda-13.0"), 0o755),
				os.Symlink("cuda-13.0", filepath.Join(rootfs, "usr/local/cuda")))
		}
		if r := b.Run(); r.Stdout != seen {
			t.Errorf("%s: %+v", name, r)
		}
		n.free(reference)
	}
}

// TestATenantCannotRaiseItsLimit, nor harm others by what it may write. The records' file system is
// small, and a region that has filled it is cut back when the next container needs the space.
func TestATenantCannotRaiseItsLimit(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	one, two := n.Grant("--memory", "1GiB"), n.Grant("--memory", "1GiB")
	b := n.holding("greedy", one, "echo x >/run/gpuledger/limits; /bin/busybox rm /run/gpuledger/limits; "+
		"/bin/busybox dd if=/dev/zero of=/run/gpuledger/region bs=1M; echo >/tmp/full; exec /bin/busybox "+
		"sleep 1000")
	r := b.Create()
	if r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	region := filepath.Join(n.Dir, "run/limits", string(one.ID), grant.RegionFile)
	b.Start()
	var st, run syscall.Statfs_t
	rig.Eventually(t, "it has filled what it can, and writes no more", func() bool {
		_, err := os.Stat(filepath.Join(b.Dir, "rootfs/tmp/full"))
		return err == nil
	})
	if must(t, syscall.Statfs(filepath.Dir(region), &st)); st.Bavail != 0 {
		t.Fatalf("it has left %d blocks", st.Bavail)
	}
	must(t, syscall.Statfs(n.Dir+"/run", &run))
	if st.Fsid == run.Fsid {
		t.Fatal("that was the file system of the run directory")
	}
	if r := n.holding("next", two, "/bin/gpu total 1025").Run(); r.Stdout !=
		"GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n" {
		t.Errorf("the next container: %+v", r)
	}
	if info, err := os.Stat(region); err != nil || info.Size() > 1<<20 {
		t.Errorf("the region has %v", info)
	}
	b.KillInit()
	n.free(one)
	if r := n.holding("again", one, "/bin/gpu total 1025").Run(); r.Stdout !=
		"GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n" {
		t.Errorf("its next container: %+v", r)
	}
}

// TestATenantStopsNoOtherStart: the file with which it fills the others' space may have no name
// there, because its grant was released and its container still has the file open. The file system
// is enlarged, and a check prints how to find that container.
func TestATenantStopsNoOtherStart(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	one, two, three := n.Grant("--memory", "1GiB"), n.Grant("--memory", "1GiB"), n.Grant("--memory", "1GiB")
	b := n.holding("greedy", one, "until [ -e /tmp/go ]; do /bin/busybox sleep 0.05; done; /bin/busybox dd "+
		"if=/dev/zero of=/run/gpuledger/region bs=1M; echo >/tmp/full; exec /bin/busybox sleep 1000")
	if r := b.Create(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	b.Start()
	n.Must("release", "--force", string(one.ID))
	n.CheckSound("when a grant was taken from its container")
	tmp := filepath.Join(b.Dir, "rootfs/tmp")
	must(t, os.WriteFile(tmp+"/go", nil, 0o644))
	rig.Eventually(t, "it has filled what it can", func() bool {
		_, err := os.Stat(tmp + "/full")
		return err == nil
	})
	for id, reference := range map[string]grant.Reference{"next": two, "after": three} {
		if r := n.holding(id, reference, "/bin/gpu total 1025").Run(); r.Stdout !=
			"GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n" {
			t.Errorf("%s: %+v", id, r)
		}
	}
	n.free(two)
	n.free(three)
	n.Must("release", string(two.ID), string(three.ID)) // nothing has a name there any more
	const way = `grep -l 'region//deleted' /proc/[0-9]*/mountinfo`
	for _, command := range []string{"check", "doctor"} {
		if r := n.CLI(command); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, n.Dir+"/run/limits: ") ||
			!strings.Contains(r.Stdout+r.Stderr, "fills the room with it: 12") ||
			!strings.Contains(r.Stdout+r.Stderr, way) {
			t.Errorf("%s: %+v", command, r)
		}
	}
	if found := rig.Run(exec.Command("sh", "-c", way)).Stdout; !strings.Contains("\n"+found,
		fmt.Sprintf("\n/proc/%d/mountinfo\n", b.Init())) {
		t.Errorf("the container's process is %d, found was %q", b.Init(), found)
	}
	b.KillInit()
	b.Delete()
	n.CheckSound("without that container")
}

// TestALeaseOfATenantDelaysNoOther: root of a container owns the file of its limits, as the node's
// root does, and may have the kernel delay each open for writing: 45 s each time, with the ledger
// locked. gpuledger does not wait for that. The lease keeps only the tenant's own file from being
// changed.
func TestALeaseOfATenantDelaysNoOther(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	hostile, other := n.Grant("--memory", "2GiB"), n.Grant("--memory", "2GiB")
	b := n.holding("hostile", hostile, "exec /bin/gpu lease serve > /tmp/said")
	start(t, b)
	rig.Eventually(t, "it has a lease", func() bool {
		said, _ := os.ReadFile(filepath.Join(b.Dir, "rootfs/tmp/said"))
		return string(said) == "lease: 0\n"
	})
	if r := n.CLI("check"); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, string(hostile.ID)) ||
		!strings.Contains(r.Stdout+r.Stderr, "a process in a container holds a lease on it") {
		t.Errorf("check: %+v", r)
	}
	if r := n.CLI("grant", "--update", string(hostile.ID), "--memory", "1GiB"); r.Code != 1 ||
		!strings.Contains(r.Stderr, "holds a lease on it") {
		t.Errorf("a change that cannot be: %+v", r)
	}
	if g := n.Grants()[slices.IndexFunc(n.Grants(), func(g rig.Listed) bool {
		return g.ID == hostile.ID
	})]; g.GPUs[0].Memory != 2*grant.GiB {
		t.Errorf("the ledger has %s", g.GPUs[0].Memory)
	}
	n.Must("grant", "--update", string(other.ID), "--memory", "1GiB")
	if r := n.holding("other", other, "/bin/gpu 1025 1024").Run(); r.Stdout != "1025 MiB: 2\n1024 MiB: 0\n" {
		t.Errorf("another container: %+v", r)
	}
	if got := ask(t, b, 1, 2049); got != outOfReach {
		t.Errorf("beyond its grant the driver returns %s", got)
	}
	b.KillInit()
	b.Delete()
	n.free(hostile)
	n.CheckSound("after the lease")
	n.Must("grant", "--update", string(hostile.ID), "--memory", "1GiB")
}

// TestMountsOverTheRecordsDirectory: a container whose mounts cover it is refused with a sentence;
// a tmpfs there does no harm.
func TestMountsOverTheRecordsDirectory(t *testing.T) {
	n := newGPUNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB")
	mount := func(destination, kind, source string, options ...string) rig.Edit {
		return func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: destination, Type: kind,
				Source: source, Options: options})
		}
	}
	volume := filepath.Join(n.Dir, "volume")
	must(t, os.MkdirAll(volume, 0o755))
	for _, place := range []string{"/run", "/var/run", "/run/gpuledger"} {
		b := n.holding("volume"+strings.ReplaceAll(place, "/", "-"), reference, "echo started",
			mount(place, "bind", volume, "bind"))
		wantRefused(t, b.Run(), "injection-impossible")
	}
	if left, _ := os.ReadDir(volume); len(left) > 0 || n.State(reference.ID) != "free" {
		t.Errorf("the volume has %v, the grant is %s", left, n.State(reference.ID))
	}
	b := n.container("tmpfs", mount("/run", "tmpfs", "tmpfs", "noexec", "mode=755"),
		rig.Env("GPULEDGER_GRANT="+reference.String()), rig.Shell("/bin/gpu total"))
	b.WriteSpec(driverRecordLast(t, b))
	if r := b.Run(); r.Stdout != "GPU 0 total 1024 MiB (0)\n" {
		t.Errorf("with a tmpfs at /run: %+v", r)
	}
}

// driverRecordLast moves the mount of the driver's record behind the others.
func driverRecordLast(t *testing.T, b *rig.Bundle) specs.Spec {
	t.Helper()
	var spec specs.Spec
	must(t, json.Unmarshal(b.Config(), &spec))
	i := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/run/fakedriver" })
	book := spec.Mounts[i]
	spec.Mounts = append(slices.Delete(spec.Mounts, i, i+1), book)
	return spec
}

// TestStrengthNoneIsReported without the shim, in an image that can load nothing, and for a
// container that can undo the limit. A policy that requires more refuses.
func TestStrengthNoneIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		edit   rig.Edit
		code   string
		wants  string
	}{
		"the shim":                 {"limit = \"auto\"\nshim = \"{shim}\"", nil, "", "library"},
		"wanted and there":         {"limit = \"library\"\nshim = \"{shim}\"", nil, "", "library"},
		"no shim":                  {"shim = \"/nowhere\"", nil, "", "none"},
		"no shim but wanted":       {"limit = \"library\"\nshim = \"/nowhere\"", nil, "limit-unenforceable", "none"},
		"the driver's, not built":  {"limit = \"driver\"\nshim = \"{shim}\"", nil, "limit-unenforceable", "none"},
		"strong enough":            {"shim = \"{shim}\"\n[policy]\nminimum_strength = \"library\"", nil, "", "library"},
		"too weak":                 {"shim = \"/nowhere\"\n[policy]\nminimum_strength = \"library\"", nil, "limit-unenforceable", "none"},
		"privileged":               {"shim = \"{shim}\"", rig.Privileged, "", "none"},
		"privileged, and too weak": {"shim = \"{shim}\"\n[policy]\nminimum_strength = \"library\"", rig.Privileged, "limit-unenforceable", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newGPUNode(t, rig.Setup{Config: "[enforcement]\n" + c.config + "\n"})
			reference := n.Grant("--memory", "1GiB")
			edits := []rig.Edit{}
			if c.edit != nil {
				edits = append(edits, c.edit)
			}
			b := n.holding("c", reference, "exec /bin/busybox sleep 1000", edits...)
			r := b.Create()
			if c.code != "" {
				wantRefused(t, r, c.code)
				return
			}
			if r.Code != 0 || n.strengthOf(reference) != c.wants {
				t.Errorf("%+v, strength %s", r, n.strengthOf(reference))
			}
			if mounted := strings.Contains(string(b.Config()),
				"/run/gpuledger/limits"); mounted != (c.wants == "library" || c.edit != nil) {
				t.Errorf("the shim is mounted: %t", mounted)
			}
		})
	}
}

// TestNRILimits: the proxies are mounted at the node's paths of the driver. An image with its own
// libcuda, which the create could not see, does not start.
func TestNRILimits(t *testing.T) {
	shortPaths(t)
	n := newGPUNode(t, rig.Setup{Engine: "containerd",
		Config: "[daemon]\nlisten = \"\"\ninterval = \"50ms\"\n[enforcement]\nshim = \"{shim}\"\n"})
	e := n.NRI()
	n.Daemon()
	e.Connected()
	reference := n.Grant("--memory", "1GiB")
	b := n.container("c", holding(reference),
		rig.Shell("/bin/gpu total 1025 >/tmp/draft; /bin/busybox mv /tmp/draft /tmp/said; exec "+
			"/bin/busybox sleep 1000"))
	made := func(b *rig.Bundle) {
		t.Helper()
		must(t, e.Create(b))
		if r := b.RealCreate(); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	made(b)
	must(t, e.Begin(b))
	if r := rig.Run(n.Real("start", "c")); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	said := filepath.Join(b.Dir, "rootfs/tmp/said")
	rig.Eventually(t, "the program is done", func() bool { _, err := os.Stat(said); return err == nil })
	if got := read(t, said); got != "GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n" {
		t.Errorf("it prints %q", got)
	}
	if got := n.strengthOf(reference); got != "library" {
		t.Errorf("the grant has strength %q", got)
	}
	b.End()
	must(t, e.Remove("c"))
	n.free(reference)

	own := n.container("own", holding(reference), rig.Env("LD_LIBRARY_PATH=/opt"))
	must(t, os.MkdirAll(filepath.Join(own.Dir, "rootfs/opt"), 0o755),
		os.WriteFile(filepath.Join(own.Dir, "rootfs/opt/libcuda.so.1"), []byte("a library"), 0o755))
	made(own)
	if err := e.Begin(own); err == nil || !strings.Contains(err.Error(), "injection-impossible") ||
		!strings.Contains(err.Error(), "/opt/libcuda.so.1") {
		t.Errorf("an image with its own libcuda: %v", err)
	}
}

// limitPoints are dangerous lines that only a node with the shim passes.
// TestACrashLeavesNoWrongLimit kills at each of them.
var limitPoints = []string{"node/limited", "node/limit-lowered", "node/grant-changed"}

// TestACrashLeavesNoWrongLimit: if a program dies while a grant changes, the containers have less
// than they may have, never more; the next reconcile of the ledger repairs it. If it dies before
// the binding, nothing is taken.
func TestACrashLeavesNoWrongLimit(t *testing.T) {
	n := newGPUNode(t, rig.Setup{Tags: []string{"failpoint"}, Memory: "8GiB"})
	reference := n.Grant("--memory", "2GiB")
	b := n.holding("c", reference, "exec /bin/gpu serve")
	killed := func(point string, at func(*rig.Node) rig.Result) {
		t.Helper()
		if r := at(n.Dying(point)); r.Code != 128+int(syscall.SIGKILL) {
			t.Fatalf("%s: %+v", point, r)
		}
	}
	update := func(memory string) func(*rig.Node) rig.Result {
		return func(n *rig.Node) rig.Result {
			return n.CLI("grant", "--update", string(reference.ID), "--memory", memory)
		}
	}
	killed(limitPoints[0], func(n *rig.Node) rig.Result { return b.On(n).Create() })
	rig.Eventually(t, "nothing is taken", func() bool { return n.State(reference.ID) == "free" })
	b.RealDelete() // of what the runtime never made
	start(t, b)
	killed(limitPoints[1], update("1GiB"))
	if got := ask(t, b, 1, 1025); got != outOfReach {
		t.Errorf("after it was lowered: %s", got)
	}
	n.CheckSound("after a limit was lowered and the grant was not")
	if a, b := ask(t, b, 2, 2048), ask(t, b, 3, 1); a != had || b != outOfReach {
		t.Errorf("put right: %s %s", a, b)
	}
	killed(limitPoints[2], update("3GiB"))
	if got := ask(t, b, 4, 1); got != outOfReach {
		t.Errorf("before the limit was raised: %s", got)
	}
	n.Must("check")
	if a, b := ask(t, b, 5, 1024), ask(t, b, 6, 1); a != had || b != outOfReach {
		t.Errorf("put right: %s %s", a, b)
	}
}

// TestAUserNamespaceHasItsLimit: the records are below directories that only the node's root owns,
// and the container's root is another user. By each runtime: what one opens before it enters the
// namespace the other may open in it. (TestAUserNamespaceWithoutDeviceRules has crun, which needs
// other cgroups.)
func TestAUserNamespaceHasItsLimit(t *testing.T) { limitedInAUserNamespace(t, "runc") }

func limitedInAUserNamespace(t *testing.T, runtime string) {
	shortPaths(t)
	n := newGPUNode(t, rig.Setup{Runtime: runtime})
	nodesOfTheDriver(t, snapshot(t, n.Node))
	reference := n.Grant("--memory", "1GiB")
	must(t, os.Chmod(n.Dir, 0o755)) // so that it finds its own root file system
	b := n.holding("c", reference, "/bin/gpu total 1025", userNamespace, func(s *specs.Spec) {
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
		s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/run/fakedriver", Type: "bind",
			Source: n.Dir + "/book", Options: []string{"bind", "rw"}})
	})
	must(t, filepath.WalkDir(b.Dir+"/rootfs", func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 100000, 100000))
	}), os.Chmod(n.Dir+"/book", 0o777))
	if r := b.Run(); r.Stdout != "GPU 0 total 1024 MiB (0)\n1025 MiB: 2\n" {
		t.Errorf("%+v", r)
	}
}
