package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// drivenNode is a node whose driver's NVML can limit the memory of cgroups (R615), on cgroup v2.
// Its inventory is NVML's.
type drivenNode struct{ *gpuNode }

func newDrivenNode(t *testing.T, s rig.Setup) drivenNode { return nodeOfDriver(t, "615.71.09", s) }

func nodeOfDriver(t *testing.T, version string, s rig.Setup) drivenNode {
	t.Helper()
	rig.Need(t, "gcc")
	if _, err := os.Stat("/lib64/ld-linux-x86-64.so.2"); err != nil {
		t.Skip("this machine has no glibc of amd64: that the driver limits a container is not shown")
	}
	built := standIn(t)
	driver := built + "/driver-" + version
	if _, err := os.Stat(driver + "/usr/bin/nvidia-smi"); err != nil {
		cmd := exec.Command("fakedriver/build.sh", driver)
		cmd.Env = append(os.Environ(), "FAKEDRIVER_VERSION="+version)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if !strings.Contains(s.Config, "[enforcement]") {
		s.Config += "[enforcement]\nshim = \"{shim}\"\n"
	}
	s.Config = strings.ReplaceAll(s.Config, "{shim}", built+"/shim")
	if !strings.Contains(s.Config, "[daemon]") {
		s.Config += "[daemon]\nlisten = \"\"\ninterval = \"50ms\"\n"
	}
	rig.Binary(t, "gpuledger-hook", s.Tags...) // it lies beside the wrapper
	n := drivenNode{&gpuNode{Node: rig.NewNode(t, s), built: built}}
	n.Env = append(n.Env, "FAKEDRIVER_DIR="+n.Dir+"/book")
	must(t, os.Mkdir(n.Dir+"/book", 0o777))
	must(t, os.WriteFile(n.Dir+"/book/devices",
		[]byte("GPU-00000000-fa4e-d41e-0000-000000000001 16384 Stand-in\n"+
			"GPU-00000000-fa4e-d41e-0000-000000000002 16384 Stand-in\ncontext 2\n"), 0o644))
	n.Write("config.toml", strings.Replace(read(t, n.Config), "source = \"simulated\"\n",
		"source = \"nvml\"\ndriver_root = \""+driver+"\"\n", 1))
	n.Must("inventory", "refresh")
	return n
}

// driven starts gpuledgerd and waits until it answers.
func (n drivenNode) driven() *rig.Daemon {
	n.T.Helper()
	d := n.Daemon("--nri", "off")
	n.answers()
	return d
}

func (n drivenNode) answers() {
	n.T.Helper()
	rig.Eventually(n.T, "gpuledgerd answers", func() bool {
		return cgmem.Listens(n.Dir+"/run/limit.sock") == nil
	})
}

// cgroup is the directory of a container's cgroup.
func (n drivenNode) cgroup(id string) string {
	return "/sys/fs/cgroup/gpuledger-" + filepath.Base(n.Dir) + "/" + id
}

// limit is the driver's value for a cgroup, or with a word the one that is set first.
func (n drivenNode) limit(gpu int, id string, word ...string) string {
	n.T.Helper()
	smi, _ := filepath.Glob(n.built + "/driver-615*/usr/bin/nvidia-smi")
	lib, _ := filepath.Glob(n.built + "/driver-615*/usr/lib/*")
	cmd := exec.Command(smi[0], append([]string{"memory-limits", fmt.Sprint(gpu), n.cgroup(id)}, word...)...)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + lib[0], "FAKEDRIVER_DIR=" + n.Dir + "/book"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.T.Fatalf("nvidia-smi: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// hard is the driver's output for a limit of this many MiB.
func hard(mib int) string { return fmt.Sprintf("soft 0 hard %d", mib<<20) }

const lifted = "soft 0 hard 18446744073709551615"

// untouched wants a refused container to have left nothing.
func (n drivenNode) untouched(b *rig.Bundle, r grant.Reference) {
	n.T.Helper()
	n.free(r)
	if _, err := os.Stat(n.cgroup(b.ID)); err == nil {
		n.T.Errorf("the cgroup of %s is left", b.ID)
	}
	if left := n.Grants(); len(left[0].Bindings) > 0 {
		n.T.Errorf("%s is bound: %+v", b.ID, left)
	}
	if b.Init() != 0 {
		n.T.Errorf("%s runs", b.ID)
	}
}

func (n drivenNode) limits() string {
	data, _ := os.ReadFile(n.Dir + "/run/driver-limits.json")
	return string(data)
}

// refused runs a container, which must not start, with this reason.
func (n drivenNode) refused(b *rig.Bundle, r grant.Reference, why string) {
	n.T.Helper()
	got := b.Run()
	if got.Code == 0 || got.Stdout != "" || !strings.Contains(got.Stderr, "limit-unenforceable") ||
		!strings.Contains(got.Stderr, why) {
		n.T.Errorf("%s: %+v, want %s", b.ID, got, why)
	}
	n.untouched(b, r)
}

// TestTheDriversLimits: limits by the driver itself, on cgroup v2, from the create to the end of
// the cgroup.
func TestTheDriversLimits(t *testing.T) {
	if rig.Under(t, rig.V2) {
		return
	}
	rig.Mount(t, "tmpfs", "/sys/bus/pci/devices", "tmpfs", 0, "mode=755") // the stand-in's GPUs are on no bus
	must(t, os.Mkdir("/sys/bus/pci/devices/0000:01:00.0", 0o755),
		os.Mkdir("/sys/bus/pci/devices/0000:02:00.0", 0o755))
	for _, runtime := range []string{"runc", "crun"} {
		t.Run("behind "+runtime, func(t *testing.T) {
			rig.NeedRuntime(t, runtime)
			driverLimits(t, runtime)
		})
	}
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"limits are separate", limitsAreSeparate},
		{"no gpuledgerd, no start", noDaemonNoStart},
		{"the driver refuses", driverRefuses},
		{"drift is repaired", driftIsRepaired},
		{"a grant changes", grantChanges},
		{"a limit outlives gpuledgerd", limitsOutliveTheDaemon},
		{"cleared before the cgroup is removed", clearedBeforeTheCgroup},
		{"cleared after a crash of everything", clearedAfterACrash},
		{"killed while limiting", killedWhileLimiting},
		{"only a create is limited", onlyACreateIsLimited},
		{"the strongest is used", strongestIsTaken},
		{"the hook beside the wrapper", hookBesideADriven},
	} {
		t.Run(c.name, c.test)
	}
}

// driverLimits: each of its GPUs, before anything in it runs, by its grant and nothing else. That
// holds for a static program and one without an environment as well, because the container has no
// file of gpuledger.
func driverLimits(t *testing.T, runtime string) {
	n := newDrivenNode(t, rig.Setup{Runtime: runtime, Config: "[enforcement]\nshim = \"{shim}\"\n"})
	r := n.Grant("--memory", "6GiB", "--gpus", "2")
	if got := n.strengthOf(r); got != "library" {
		t.Errorf("without gpuledgerd a grant has strength %q", got)
	}
	n.driven()
	if got := n.strengthOf(r); got != "driver" {
		t.Errorf("a grant has strength %q", got)
	}
	b := n.holding("c", r, "/bin/gpu total free 3072 3070 1; /bin/gpu-static 3072 3070; exec /bin/busybox "+
		"env -i /bin/gpu 3072 3070")
	if output := b.Explain().Stdout; !strings.Contains(output, "strength driver") {
		t.Error(output)
	}
	if got := b.Create(); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	for gpu := range 2 {
		if got := n.limit(gpu, "c"); got != hard(3072) {
			t.Errorf("before it starts the limit on GPU %d is %s", gpu, got)
		}
	}
	n.wantHook(b)
	for _, out := range []string{n.Must("grants"), n.Must("inspect", "--details"), n.CLI("doctor").Stdout} {
		if !strings.Contains(out, "driver") {
			t.Errorf("driver is not in:\n%s", out)
		}
	}
	b.Delete()
	n.free(r)
	// A context is 2 MiB, which the driver counts; it shows the limit as the GPU's size.
	const want = "GPU 0 total 3072 MiB (0)\nGPU 1 total 3072 MiB (0)\nfree 3070 of 3072 MiB (0)\n3072 MiB: " +
		"2\n3070 MiB: 0\n1 MiB: 2\n3072 MiB: 2\n3070 MiB: 0\n3072 MiB: 2\n3070 MiB: 0\n"
	if got := b.Run(); got.Stdout != want || got.Code != 0 {
		t.Errorf("%+v, want\n%s", got, want)
	}
	n.free(r)
	rig.Eventually(t, "nothing is kept", func() bool { return !strings.Contains(n.limits(), `"c"`) })
	n.CheckSound("after a limit of the driver's")
}

// wantHook wants one hook in the spec, with an environment, and no part of the shim. A container
// that the driver does not limit has no hook.
func (n drivenNode) wantHook(b *rig.Bundle) {
	n.T.Helper()
	var spec specs.Spec
	if err := json.Unmarshal(b.Config(), &spec); err != nil {
		n.T.Fatal(err)
	}
	h := spec.Hooks
	if h == nil || len(h.CreateRuntime) != 1 || len(h.CreateContainer)+len(h.StartContainer)+len(h.Poststart)+
		len(h.Poststop) != 0 {
		n.T.Fatalf("the hooks are %+v", h)
	}
	if one := h.CreateRuntime[0]; len(one.Env) != 1 || one.Env[0] != "GPULEDGER_CONFIG="+n.Config ||
		!slices.Equal(one.Args, []string{"gpuledger-hook", "limit"}) || one.Timeout == nil {
		n.T.Errorf("the hook is %+v", one)
	}
	for _, m := range spec.Mounts {
		if strings.HasPrefix(m.Destination, grant.ShimPlace) || strings.HasPrefix(m.Source, n.built+"/shim") {
			n.T.Errorf("%s is mounted", m.Destination)
		}
	}
}

// limitsAreSeparate: two containers with different limits. An allocation beyond a container's own
// limit fails in it and affects no other. What a tenant writes about limits changes none.
func limitsAreSeparate(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	one, two := n.Grant("--memory", "4GiB", "--gpu", "0"), n.Grant("--memory", "8GiB", "--gpu", "0")
	hostile := rig.Env("CUDA_MPS_PIPE_DIRECTORY=/tmp/x", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=64G",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
		"NVIDIA_GPU_MEMORY_LIMIT=64GiB", "NVIDIA_GPU_MEMORY_REQUEST=64GiB", "GPULEDGER_CONFIG=/nowhere",
		"GPULEDGER_LIMIT=none", "FAKEDRIVER_X=1")
	first, second := n.holding("one", one, "exec /bin/gpu serve", hostile),
		n.holding("two", two, "exec /bin/gpu-static serve")
	start(t, first)
	start(t, second)
	if got := n.limit(0, "one") + n.limit(0, "two") + n.limit(1, "one"); got != hard(4096)+hard(8192)+lifted {
		t.Errorf("the limits are %s", got)
	}
	if a, b, c := ask(t, first, 1, 4096), ask(t, first, 2, 4094), ask(t, first, 3, 1); a != outOfReach ||
		b != had || c != outOfReach {
		t.Errorf("the first: %s %s %s", a, b, c)
	}
	if a, b := ask(t, second, 1, 8192), ask(t, second, 2, 8190); a != outOfReach || b != had {
		t.Errorf("the second: %s %s", a, b)
	}
	for _, entry := range []string{"CUDA_MPS_", "NVIDIA_GPU_MEMORY"} {
		if strings.Contains(string(first.Config()), entry) {
			t.Errorf("%s is left in the spec", entry)
		}
	}
	bare := n.Bundle("bare")
	before := bare.Config()
	start(t, bare)
	if string(before) != string(bare.Config()) {
		t.Error("a container without a GPU has another spec")
	}
}

// noDaemonNoStart: a container that only the driver can limit does not start without gpuledgerd,
// which sets its limit. That is known at the create, or when the hook sends its request.
func noDaemonNoStart(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{Config: "[enforcement]\nshim = \"{shim}\"\nlimit = \"driver\"\n"})
	r := n.Grant("--memory", "4GiB")
	n.refused(n.holding("none", r, "echo started"), r, "gpuledgerd does not answer at "+n.Dir+
		"/run/limit.sock")
	start(t, n.Bundle("bare")) // a container without a GPU needs no daemon

	d := n.driven()
	b, held := n.between("gone", r, "echo started", func() { d.End(syscall.SIGKILL) })
	if held.Code == 0 || !strings.Contains(held.Stderr, "limit-unenforceable") ||
		!strings.Contains(held.Stderr, "gpuledgerd does not answer") {
		t.Errorf("ended between: %+v", held)
	}
	n.untouched(b, r)
	if output := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(output,
		"the driver's memory limit cannot be set") {
		t.Errorf("it is not in the audit log: %s", output)
	}

	n.driven()
	if got := b.Run(); !strings.Contains(got.Stdout, "started") {
		t.Errorf("with gpuledgerd: %+v", got)
	}
}

// between runs a container and calls a function after it was admitted and before its limit is
// requested.
func (n drivenNode) between(id string, r grant.Reference, script string,
	do func()) (*rig.Bundle, rig.Result) {
	go_ := n.Dir + "/go-" + id
	edit, waits := n.HeldUntil(go_)
	b := n.holding(id, r, script, edit)
	ended := make(chan rig.Result, 1)
	go func() { ended <- b.Run() }()
	rig.Eventually(n.T, "the create waits", waits)
	do()
	n.Write(filepath.Base(go_), "")
	return b, <-ended
}

// driverRefuses: a limit that the driver does not set, or reports as set without setting it, does
// not count.
func driverRefuses(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	r := n.Grant("--memory", "4GiB")
	for wish, why := range map[string]string{"fail": "cannot set the limit of",
		"ignore": "the driver was asked to limit"} {
		n.Write("book/limits", wish)
		n.refused(n.holding(wish, r, "echo started"), r, why)
	}
	must(t, os.Remove(n.Dir+"/book/limits"))
	// The limit cannot be recorded, as on a full disk: after a crash no program would know that it
	// has to be cleared.
	noted := n.Dir + "/run/driver-limits.json"
	// It is written again when the last limit of those before is taken off.
	rig.Eventually(t, "nothing is kept", func() bool { return !strings.Contains(n.limits(), "cgroup") })
	_ = os.Remove(noted)
	must(t, os.MkdirAll(noted+"/in the way", 0o700))
	n.refused(n.holding("unwritten", r, "echo started"), r, "cannot write down what is to be limited")
	must(t, os.RemoveAll(noted))
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[enforcement]\n",
		"[policy]\nmode = \"report\"\n[enforcement]\n", 1))
	report := n.holding("report", r, "exec /bin/gpu serve")
	n.Write("book/limits", "fail")
	start(t, report) // nothing is enforced, and nothing else is printed
	if got := n.strengthOf(r); got != "none" {
		t.Errorf("in report mode, without a limit, the strength is %s", got)
	}
	report.KillInit()
	report.Delete()
	n.free(r)
	must(t, os.Remove(n.Dir+"/book/limits"))
	if got := n.holding("works", r, "/bin/gpu 4096 4094").Run(); got.Stdout != "4096 MiB: 2\n4094 MiB: 0\n" {
		t.Errorf("%+v", got)
	}
}

// driftIsRepaired, and reported in the audit log, in the metrics and by the manager.
func driftIsRepaired(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{Config: shows("127.0.0.1:0")})
	d := n.driven()
	r := n.Grant("--memory", "4GiB")
	b := n.holding("c", r, "exec /bin/gpu serve")
	start(t, b)
	for i, word := range []string{"9000", "max"} {
		n.limit(0, "c", word)
		rig.Eventually(t, "the limit is put right", func() bool { return n.limit(0, "c") == hard(4096) })
		for _, action := range []string{"found", "over"} {
			rig.Eventually(t, "it is reported: "+action, func() bool {
				return len(findings(t, n.Node, action, "limit-changed")) == i+1
			})
		}
	}
	if f := findings(t, n.Node, "found", "limit-changed"); !strings.Contains(fmt.Sprint(f),
		"another program has changed it; it is set again") {
		t.Errorf("%+v", f)
	}
	siteOf(t, d).eventually("/metrics", `gpuledger_findings_total{kind="limit-changed"} 2`,
		`strength="driver"} 1`)
	if got := ask(t, b, 1, 4096); got != outOfReach {
		t.Errorf("beyond it: %s", got)
	}
}

// grantChanges: at once, in both directions. If the driver cannot be called, the grant stays as it
// was.
func grantChanges(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	d := n.driven()
	r := n.Grant("--memory", "8GiB", "--gpus", "2")
	b := n.holding("c", r, "exec /bin/gpu serve")
	start(t, b)
	update := func(memory string) rig.Result {
		return n.CLI("grant", "--update", string(r.ID), "--memory", memory)
	}
	for _, c := range []struct {
		memory string
		mib    int
	}{{"4GiB", 2048}, {"12GiB", 6144}} {
		if got := update(c.memory); got.Code != 0 || n.limit(0, "c") != hard(c.mib) ||
			n.limit(1, "c") != hard(c.mib) {
			t.Errorf("%s: %+v, %s", c.memory, got, n.limit(0, "c"))
		}
	}
	if a, b := ask(t, b, 1, 6144), ask(t, b, 2, 6142); a != outOfReach || b != had {
		t.Errorf("grown: %s %s", a, b)
	}
	n.Write("book/limits", "fail")
	if got := update("4GiB"); got.Code == 0 || n.Grants()[0].GPUs[0].Memory != 6*grant.GiB {
		t.Errorf("the driver refuses: %+v, %+v", got, n.Grants())
	}
	must(t, os.Remove(n.Dir+"/book/limits"))
	d.End(syscall.SIGKILL)
	if got := update("4GiB"); got.Code == 0 || !strings.Contains(got.Stderr, "gpuledgerd does not answer") ||
		n.Grants()[0].GPUs[0].Memory != 6*grant.GiB {
		t.Errorf("without gpuledgerd: %+v, %+v", got, n.Grants())
	}
	if n.limit(0, "c") != hard(6144) {
		t.Errorf("the limit is %s", n.limit(0, "c"))
	}
}

// limitsOutliveTheDaemon: one daemon is killed between setting the limit and the start, and the
// next one takes over its limits.
func limitsOutliveTheDaemon(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	d := n.driven()
	r := n.Grant("--memory", "4GiB")
	b := n.holding("c", r, "exec /bin/gpu serve")
	if got := b.Create(); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	d.End(syscall.SIGKILL)
	if got := b.Start(); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	if a, c := ask(t, b, 1, 4096), n.limit(0, "c"); a != outOfReach || c != hard(4096) {
		t.Errorf("without gpuledgerd: %s %s", a, c)
	}
	n.driven()
	n.limit(0, "c", "max")
	rig.Eventually(t, "the next one puts it right", func() bool { return n.limit(0, "c") == hard(4096) })
	if got := n.strengthOf(r); got != "driver" {
		t.Errorf("strength %s", got)
	}
}

// clearedBeforeTheCgroup: when the real runtime gets the delete, the driver has no limit of the
// container any more.
func clearedBeforeTheCgroup(t *testing.T) {
	// it does nothing unasked
	n := newDrivenNode(t, rig.Setup{Config: "[daemon]\nlisten = \"\"\ninterval = \"1h\"\n"})
	real, err := exec.LookPath("runc")
	must(t, err)
	smi, _ := filepath.Glob(n.built + "/driver-615*/usr/bin/nvidia-smi")
	lib, _ := filepath.Glob(n.built + "/driver-615*/usr/lib/*")
	must(t, os.Mkdir(n.Dir+"/bin", 0o755))
	must(t, os.WriteFile(n.Dir+"/bin/runc", []byte(fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' delete '*) "+
		"LD_LIBRARY_PATH=%s FAKEDRIVER_DIR=%s/book %s memory-limits 0 %s >%s/at-delete ;; esac\nexec "+
		"%s \"$@\"\n",
		lib[0], n.Dir, smi[0], n.cgroup("c"), n.Dir, real)), 0o755))
	n.Write("config.toml", strings.Replace(read(t, n.Config), `path = ["runc"]`, `path = ["`+n.Dir+
		`/bin/runc"]`, 1))
	n.driven()
	r := n.Grant("--memory", "4GiB")
	b := n.holding("c", r, "exec /bin/gpu serve")
	// A delete waits for gpuledgerd for 100 ms at most, which may be too short on a busy machine:
	// one of several has to succeed.
	rig.Eventually(t, "it is cleared at the delete", func() bool {
		start(t, b)
		b.KillInit()
		n.free(r)
		if got := n.limit(0, "c"); got != hard(4096) {
			t.Fatalf("before the delete: %s", got)
		}
		if got := b.Delete(); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
		return strings.TrimSpace(read(t, n.Dir+"/at-delete")) == lifted
	})
	if _, err := os.Stat(n.cgroup("c")); err == nil {
		t.Error("the cgroup is left")
	}
}

// clearedAfterACrash: the next program finds what has to be cleared, and only when no process is in
// the cgroup.
func clearedAfterACrash(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	d := n.driven()
	r, other := n.Grant("--memory", "4GiB"), n.Grant("--memory", "4GiB")
	b, stays := n.holding("c", r, "exec /bin/gpu serve"), n.holding("stays", other, "exec /bin/gpu serve")
	start(t, b)
	start(t, stays)
	d.End(syscall.SIGKILL)
	b.KillInit() // no program deletes it
	n.Must("release", "--force", string(other.ID))
	n.Must("check")
	if got := n.limit(0, "c"); got != hard(4096) {
		t.Errorf("before: %s", got)
	}
	n.driven()
	rig.Eventually(t, "the limit of the dead is taken off", func() bool { return n.limit(0, "c") == lifted })
	n.free(r)
	if got := n.limit(0, "stays"); got != hard(4096) {
		t.Errorf("one whose grant was released by force has the limit %s", got)
	}
	stays.KillInit()
	rig.Eventually(t, "nothing is kept", func() bool { return !strings.Contains(n.limits(), "cgroup") })
}

// drivenPoints are dangerous lines that only a node with the driver's limits passes.
// killedWhileLimiting kills at each of them.
var drivenPoints = []string{"node/driven-put", "limiter/recorded", "limiter/set", "limiter/cleared",
	"node/driven-lowered"}

// killedWhileLimiting: if a program dies before the limit is set, the container does not start. If
// a program dies while a grant changes, the next pass sets the driver's limit to the ledger's.
func killedWhileLimiting(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{Tags: []string{"failpoint"}})
	dying := func(point string) drivenNode {
		there := *n.gpuNode
		there.Node = n.Dying(point)
		return drivenNode{&there}
	}
	r := n.Grant("--memory", "4GiB")
	b := n.holding("c", r, "exec /bin/gpu serve")
	for _, point := range drivenPoints[1:3] {
		dead := dying(point).driven()
		if got := b.Create(); got.Code == 0 || !strings.Contains(got.Stderr, "it has hung up") {
			t.Errorf("%s: %+v", point, got)
		}
		n.untouched(b, r)
		dead.End(syscall.SIGKILL)
		d := n.driven()
		rig.Eventually(t, "nothing is kept", func() bool { return !strings.Contains(n.limits(), "cgroup") })
		d.End(syscall.SIGKILL)
	}
	d := n.driven()
	killed := n.holding("hook", r, "echo started")
	d.Signal(syscall.SIGSTOP) // so that the hook waits
	ended := make(chan rig.Result, 1)
	go func() { ended <- killed.Create() }()
	killHook(t, n.Dir)
	if got := <-ended; got.Code == 0 {
		t.Errorf("without its hook: %+v", got)
	}
	d.Signal(syscall.SIGCONT)
	n.untouched(killed, r)

	start(t, b)
	if got := dying(drivenPoints[4]).CLI("grant", "--update", string(r.ID), "--memory",
		"2GiB"); !got.Killed() || n.Grants()[0].GPUs[0].Memory != 4*grant.GiB {
		t.Errorf("before the ledger has it: %+v, %+v", got, n.Grants())
	}
	rig.Eventually(t, "the driver has the ledger's limit", func() bool {
		return n.limit(0, "c") == hard(4096)
	})
	if got := dying(drivenPoints[0]).CLI("grant", "--update", string(r.ID), "--memory",
		"2GiB"); !got.Killed() {
		t.Errorf("%+v", got)
	}
	rig.Eventually(t, "the driver has the ledger's limit", func() bool {
		return n.limit(0, "c") == fmt.Sprintf("soft 0 hard %d", n.Grants()[0].GPUs[0].Memory)
	})
	if n.Grants()[0].GPUs[0].Memory != 2*grant.GiB {
		t.Errorf("%+v", n.Grants())
	}
	if f := findings(t, n.Node, "found", "limit-changed"); len(f) > 0 {
		t.Errorf("gpuledgerd's own change is reported as drift: %+v", f)
	}
	d.End(syscall.SIGKILL)
	d = dying(drivenPoints[3]).Daemon("--nri", "off")
	b.KillInit()
	rig.Eventually(t, "it is cleared", func() bool { return n.limit(0, "c") == lifted })
	rig.Eventually(t, "it has died then", func() bool { return !rig.Lives(d.PID()) })
	d.End(syscall.SIGKILL)
	n.driven()
	rig.Eventually(t, "nothing is kept", func() bool { return !strings.Contains(n.limits(), "cgroup") })
}

// killHook kills the hook of a create of this node, once it runs.
func killHook(t *testing.T, dir string) {
	t.Helper()
	rig.Eventually(t, "the hook waits", func() bool {
		processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range processes {
			words, _ := os.ReadFile(path)
			env, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
			if strings.HasPrefix(string(words), "gpuledger-hook\x00limit") &&
				strings.Contains(string(env), dir) {
				var pid int
				_, _ = fmt.Sscan(filepath.Base(filepath.Dir(path)), &pid)
				return syscall.Kill(pid, syscall.SIGKILL) == nil
			}
		}
		return false
	})
}

// onlyACreateIsLimited: gpuledgerd goes by the ledger and the kernel. A request that names a
// running container cannot limit it again, nor another's cgroup, and only root can use the socket.
func onlyACreateIsLimited(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	r := n.Grant("--memory", "4GiB")
	b := n.holding("c", r, "exec /bin/gpu serve")
	start(t, b)
	socket := n.Dir + "/run/limit.sock"
	for what, request := range map[string]cgmem.Call{
		"its own process":      {Op: cgmem.Set, RuntimeRoot: n.Root, Container: "c", PID: b.Init()},
		"another's":            {Op: cgmem.Set, RuntimeRoot: n.Root, Container: "c", PID: os.Getpid()},
		"unknown":              {Op: cgmem.Set, RuntimeRoot: n.Root, Container: "c"},
		"another container":    {Op: cgmem.Set, RuntimeRoot: n.Root, Container: "d", PID: b.Init()},
		"another root":         {Op: cgmem.Set, RuntimeRoot: "/", Container: "c", PID: b.Init()},
		"nothing":              {},
		"an unknown operation": {Op: "lift", RuntimeRoot: n.Root, Container: "c"},
		"an unknown grant":     {Op: cgmem.Apply, Grant: "g-abcdefghijkl"},
	} {
		if err := cgmem.Ask(socket, request, time.Minute); err == nil {
			t.Errorf("%s: it is done", what)
		}
	}
	if err := cgmem.Ask(socket, cgmem.Call{Op: cgmem.Clear, RuntimeRoot: n.Root, Container: "c"},
		time.Minute); err != nil || n.limit(0, "c") != hard(4096) {
		t.Errorf("a container that runs is cleared (%v): %s", err, n.limit(0, "c"))
	}
	tenant := n.holding("tenant", n.Grant("--memory", "1GiB"), "echo started", func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/limit.sock", Type: "bind", Source: socket,
			Options: []string{"bind"}})
	})
	if got := tenant.Run(); got.Code == 0 || !strings.Contains(got.Stderr, "gpu-socket") {
		t.Errorf("a container with the socket: %+v", got)
	}
	for path, mode := range map[string]os.FileMode{socket: 0o600, n.Dir + "/run": 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
}

// strongestIsTaken: the strongest way is used, and minimum_strength refuses weaker ones.
func strongestIsTaken(t *testing.T) {
	const minimum = "[enforcement]\nshim = \"{shim}\"\n"
	old := nodeOfDriver(t, "580.65.06", rig.Setup{Config: minimum})
	old.Daemon("--nri", "off")
	r := old.Grant("--memory", "4GiB")
	if output := old.holding("c", r, "true").Explain().Stdout; !strings.Contains(output, "strength library") {
		t.Errorf("driver 580: %s", output)
	}
	if output := old.CLI("doctor").Stdout; !strings.Contains(output,
		"not by the driver: driver 580.65.06 does not limit memory, 615 and newer do") {
		t.Errorf("driver 580: %s", output)
	}
	old.Write("config.toml", strings.Replace(read(t, old.Config), "[enforcement]\n",
		"[policy]\nminimum_strength = \"driver\"\n[enforcement]\n", 1))
	old.refused(old.holding("weak", r, "echo started"), r, "limit-unenforceable")

	n := newDrivenNode(t, rig.Setup{Config: minimum})
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[enforcement]\n",
		"[policy]\nminimum_strength = \"driver\"\n[enforcement]\n", 1))
	r = n.Grant("--memory", "4GiB")
	n.refused(n.holding("none", r, "echo started"), r, "limit-unenforceable")
	if output := n.CLI("doctor").Stdout; !strings.Contains(output,
		"not by the driver: gpuledgerd does not answer") {
		t.Errorf("without gpuledgerd: %s", output)
	}
	n.driven()
	if got := n.holding("c", r, "echo started").Run(); got.Stdout != "started\n" {
		t.Errorf("strong enough: %+v", got)
	}
	claim := n.Grant("--memory", "4GiB", "--owner", "claim:c-1")
	if got := n.holding("claim", claim, "echo started").Run(); got.Code == 0 ||
		!strings.Contains(got.Stderr, "limit-unenforceable") {
		t.Errorf("a claim's: %+v", got)
	}
	n.Write("config.toml", strings.Replace(read(t, n.Config), "minimum_strength = \"driver\"",
		"minimum_strength = \"library\"", 1))
	if output := n.holding("shared", claim, "true").Explain().Stdout; !strings.Contains(output,
		"strength library") {
		t.Errorf("a claim's: %s", output)
	}
}

// hookBesideADriven: an engine that also has gpuledger's hook in its hooks directory sees a
// container that the driver limits, and the hook finds nothing to change. Without the wrapper, the
// hook uses the shim, or prints that the driver's limit cannot be set.
func hookBesideADriven(t *testing.T) {
	n := newDrivenNode(t, rig.Setup{})
	n.driven()
	r := n.Grant("--memory", "4GiB")
	b := n.holding("c", r, "/bin/gpu 4096 4094", n.Hooked)
	for range 2 { // of a bundle that is used again
		if got := b.Run(); got.Stdout != "4096 MiB: 2\n4094 MiB: 0\n" {
			t.Errorf("%+v", got)
		}
		n.free(r)
	}
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[enforcement]\n",
		"[enforcement]\nlimit = \"driver\"\n", 1))
	alone := n.holding("alone", r, "echo started", n.Hooked)
	if got := alone.RealRun(); got.Code == 0 || !strings.Contains(got.Stderr,
		"it is not created by gpuledger-runtime") {
		t.Errorf("the hook alone: %+v", got)
	}
}
