package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/watch"
	"github.com/gpuledger/gpuledger/test/rig"
)

// lives are the ways in which a container ends, and the effect on its grant. No daemon runs: each
// program reads the state from the kernel.
var lives = map[string]func(t *testing.T, n *rig.Node){
	"init killed":                               initKilled,
	"deleted and created again":                 sameIDAgain,
	"runtime killed in its create":              runtimeKilledInCreate,
	"runtime killed at any moment":              runtimeKilledAnywhere,
	"runtime fails":                             runtimeFails,
	"wrapper killed":                            wrapperKilled,
	"zombie":                                    zombieCreator,
	"reboot":                                    reboot,
	"child outlives init":                       childOutlivesInit,
	"seen from another pid namespace":           seenFromElsewhere,
	"two containers of one claim":               claimIsShared,
	"others in its cgroup before it":            othersInItsCgroup,
	"others in its cgroup after it":             othersOutliveIt,
	"released while in use":                     releasedWhileInUse,
	"released by force":                         releasedByForce,
	"id of a container that is being created":   idTakenInCreate,
	"id of a container that runs":               idTakenByRunning,
	"container without a GPU under a bound one": plainContainerBesideABinding,
	"id taken over by a container without GPU":  idReusedWithoutGPU,
	"default root of the runtime":               defaultRoot,
	"first thread ended, others running":        firstThreadGone,
	"seen from another time namespace":          seenFromAnotherTime,
}

func TestABindingLivesAsLongAsItsContainer(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					for name, story := range lives {
						t.Run(name, func(t *testing.T) {
							story(t, rig.NewNode(t, rig.Setup{Runtime: runtime, Tags: []string{"failpoint"}}))
						})
					}
				})
			}
		})
	}
}

// with is the edit that makes a container refer to the grant.
func with(reference grant.Reference) rig.Edit {
	return rig.Annotation("gpuledger.dev/grant", reference.String())
}

// starts creates and starts a container that must come up.
func starts(t *testing.T, b *rig.Bundle) *rig.Bundle {
	t.Helper()
	if r := b.Create(); r.Code != 0 {
		t.Fatalf("create %s: %+v", b.ID, r)
	}
	if r := b.Start(); r.Code != 0 {
		t.Fatalf("start %s: %+v", b.ID, r)
	}
	return b
}

// isRefused wants a create that is refused for a reason.
func isRefused(t *testing.T, r rig.Result, code grant.Code) {
	t.Helper()
	if r.Code != 1 || !strings.Contains(r.Stderr, "refused ("+string(code)+")") {
		t.Errorf("got %+v, want a refusal for %s", r, code)
	}
}

// wantState waits a little: the kernel removes a killed process from its cgroup only after it has
// become a zombie.
func wantState(t *testing.T, n *rig.Node, id grant.ID, when string, want grant.State) {
	t.Helper()
	what := fmt.Sprintf("%s: the grant is %q", when, want)
	rig.Eventually(t, what, func() bool { return n.State(id) == want })
}

// holdsNothing waits as wantState does.
func holdsNothing(t *testing.T, n *rig.Node) {
	t.Helper()
	rig.Eventually(t, "nothing is granted", func() bool { return len(n.Grants()) == 0 })
}

func becomesFree(t *testing.T, n *rig.Node, id grant.ID) {
	t.Helper()
	rig.Eventually(t, "the grant is free", func() bool { return n.State(id) == grant.Free })
}

// Attempt 0 has exited and was not deleted, as with an engine that starts attempt 1 first.
func initKilled(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	first := starts(t, n.Bundle("attempt-0", with(g)))
	wantState(t, n, g.ID, "running", grant.Bound)
	first.KillInit()
	wantState(t, n, g.ID, "killed", grant.Free)
	if r := rig.Run(n.Real("state", first.ID)); r.Code != 0 {
		t.Errorf("the real runtime has forgotten attempt 0, so this proves little: %+v", r)
	}
	starts(t, n.Bundle("attempt-1", with(g)))
	wantState(t, n, g.ID, "attempt 1 runs", grant.Bound)
	if r := first.Delete(); r.Code != 0 {
		t.Errorf("delete of attempt 0: %+v", r)
	}
	wantState(t, n, g.ID, "attempt 0 is deleted beside it", grant.Bound)
	n.CheckSound("at the end")
}

func sameIDAgain(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	for range 3 {
		b := starts(t, n.Bundle("c", with(g)))
		wantState(t, n, g.ID, "running", grant.Bound)
		if r := b.Delete(); r.Code != 0 {
			t.Fatalf("delete: %+v", r)
		}
		wantState(t, n, g.ID, "deleted", grant.Free)
	}
	n.CheckSound("at the end")
}

func runtimeKilledInCreate(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	held, waits := n.HeldUntil(filepath.Join(n.Dir, "go"))
	b := n.Bundle("half", with(g), held)
	cmd := n.Wrapper("create", "--bundle", b.Dir, b.ID)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, "the create waits", waits)
	wantState(t, n, g.ID, "being created", grant.Bound)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	n.Write("go", "") // the hook may end; what it waited for has ended
	if dirs, _ := filepath.Glob(filepath.Join(n.Root, "half")); len(dirs) == 0 {
		t.Error("the killed runtime left no state directory, so this proves little")
	}
	becomesFree(t, n, g.ID)
	starts(t, n.Bundle("whole", with(g)))
	n.CheckSound("at the end")
}

// An engine deletes what it has created. What the kernel still shows stays bound until then.
func runtimeKilledAnywhere(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	kills, created, remains := torture(20), 0, 0
	random := rig.Random(t, "kills")
	for i := range kills {
		b := n.Bundle(fmt.Sprintf("c%d", i), with(g), rig.Light)
		cmd := n.Wrapper("create", "--bundle", b.Dir, b.ID)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(60 * time.Millisecond))))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		rig.Eventually(t, "the grant is bound to a container that is there, or free", func() bool {
			// a killed crun can leave a child that it has not reported
			there := b.Init() != 0 || len(b.Processes()) > 0
			return (n.State(g.ID) == grant.Bound) == there &&
				there == (b.Init() != 0 || len(b.Processes()) > 0)
		})
		if b.Init() != 0 {
			created++
			b.End()
		} else if dirs, _ := filepath.Glob(filepath.Join(n.Root, b.ID)); len(dirs) > 0 {
			remains++
		}
		for _, pid := range b.Processes() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		becomesFree(t, n, g.ID)
		next := n.Bundle("next", with(g), rig.Light)
		if r := next.Create(); r.Code != 0 {
			t.Fatalf("kill %d: the next container: %+v", i, r)
		}
		next.End()
	}
	t.Logf("%d kills: %d containers were created all the same, %d left a state directory and no container",
		kills, created, remains)
	n.CheckSound("at the end")
}

func runtimeFails(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	bad := n.Bundle("bad", with(g), func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Type: "bind", Source: "/does/not/exist",
			Options: []string{"bind"}})
	})
	if r := bad.Create(); r.Code == 0 || strings.Contains(r.Stderr, "gpuledger: refused") {
		t.Fatalf("a create that the real runtime should fail: %+v", r)
	}
	wantState(t, n, g.ID, "the real runtime has failed", grant.Free)
	starts(t, n.Bundle("good", with(g)))
}

func wrapperKilled(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	for _, point := range []string{"node/bound", "runtime/admitted", "runtime/edited"} {
		b := n.Bundle("c", with(g))
		if r := b.On(n.Dying(point)).Create(); !r.Killed() {
			t.Fatalf("%s: %+v, want it killed", point, r)
		}
		wantState(t, n, g.ID, "killed at "+point, grant.Free)
		starts(t, b).End() // the same id from the same bundle, which may be edited already
	}
	n.CheckSound("at the end")
}

func zombieCreator(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	b := n.Bundle("c", with(g))
	cmd := n.Dying("node/bound").Wrapper("create", "--bundle", b.Dir, b.ID)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	rig.Eventually(t, "the wrapper is a zombie", func() bool { return rig.IsZombie(cmd.Process.Pid) })
	if !strings.Contains(strings.Join(n.Files(), "\n"), "run/bindings/") {
		t.Error("the wrapper recorded no binding before it died, so this proves nothing")
	}
	wantState(t, n, g.ID, "its creator is a zombie", grant.Free)
	starts(t, n.Bundle("d", with(g)))
}

func reboot(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB", "--label", "kept")
	starts(t, n.Bundle("before", with(g)))
	n.Reboot()
	wantState(t, n, g.ID, "after the boot", grant.Free)
	isRefused(t, n.Bundle("too-early", with(g)).Create(), grant.InventoryStale)
	n.Must("inventory", "refresh")
	starts(t, n.Bundle("after", with(g)))
	wantState(t, n, g.ID, "after the boot, in use again", grant.Bound)
	n.CheckSound("at the end")
}

func childOutlivesInit(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	// The child leaves init's session, as a daemon does; only the cgroup still shows that it
	// belongs to the container.
	b := starts(t, n.Bundle("c", with(g), rig.NodePIDs,
		rig.Shell("/bin/busybox setsid /bin/busybox sleep 1000 </dev/null >/dev/null 2>&1 & exec "+
			"/bin/busybox sleep 1000")))
	init := b.Init()
	rig.Eventually(t, "the child runs", func() bool { return len(b.Processes()) == 2 })
	b.KillInit()
	// which has ended before the kernel takes it out of its cgroup
	rig.Eventually(t, "init has left the cgroup", func() bool {
		return !slices.Contains(b.Processes(), init)
	})
	wantState(t, n, g.ID, "init has ended, its child has not", grant.Bound)
	isRefused(t, n.Bundle("d", with(g)).Create(), grant.GrantInUse)
	for _, pid := range b.Processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	becomesFree(t, n, g.ID)
	starts(t, n.Bundle("d", with(g)))
}

// Pids mean nothing in another pid namespace. A binding with an unknown state is never free, and is
// not removed.
func seenFromElsewhere(t *testing.T, n *rig.Node) {
	rig.Need(t, "unshare")
	cli, wrapper := rig.Binary(t, "gpuledger", n.Tags...), rig.Binary(t, "gpuledger-runtime", n.Tags...)
	g := n.Grant("--memory", "4GiB")
	starts(t, n.Bundle("c", with(g)))
	if r := rig.Run(n.Elsewhere(cli, "grants", "--json")); !strings.Contains(r.Stdout, `"state": "unknown"`) {
		t.Errorf("grants from elsewhere: %+v, want the state unknown", r)
	}
	other := n.Bundle("d", with(g))
	isRefused(t, rig.Run(n.Elsewhere(wrapper, "--root", n.Root, "create", "--bundle", other.Dir, other.ID)),
		grant.GrantInUse)
	for _, args := range [][]string{{"check"}, {"grant", "--memory", "1GiB"}} {
		if r := rig.Run(n.Elsewhere(cli, args...)); r.Code != 0 {
			t.Errorf("%v from elsewhere: %+v", args, r)
		}
	}
	wantState(t, n, g.ID, "after it was tidied from elsewhere", grant.Bound)
	if r := rig.Run(n.Elsewhere(cli, "release", string(g.ID))); r.Code != 0 ||
		!strings.Contains(r.Stdout, "draining") {
		t.Errorf("release from elsewhere: %+v, want it draining", r)
	}
	wantState(t, n, g.ID, "released from elsewhere", grant.Draining)
}

func claimIsShared(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB", "--owner", "claim:7a1c0000-0000-4000-8000-000000000001")
	first, second := starts(t, n.Bundle("a", with(g))), starts(t, n.Bundle("b", with(g)))
	if all := n.Grants(); len(all) != 1 || len(all[0].Bindings) != 2 {
		t.Errorf("got %+v, want one grant with two bindings", all)
	}
	first.End()
	wantState(t, n, g.ID, "one of two has ended", grant.Bound)
	second.KillInit()
	wantState(t, n, g.ID, "both have ended", grant.Free)
}

func releasedWhileInUse(t *testing.T, n *rig.Node) {
	g := n.Grant("--mode", "exclusive", "--gpu", "0")
	b := starts(t, n.Bundle("c", with(g)))
	n.Must("release", string(g.ID))
	wantState(t, n, g.ID, "released", grant.Draining)
	if r := n.CLI("grant", "--memory", "1GiB", "--gpu", "0"); r.Code != 5 {
		t.Errorf("a grant on a GPU that drains: %+v, want status 5", r)
	}
	isRefused(t, n.Bundle("d", with(g)).Create(), grant.GrantExpired)
	b.KillInit()
	wantState(t, n, g.ID, "its container has ended", "")
	n.Must("grant", "--mode", "exclusive", "--gpu", "0")
	isRefused(t, n.Bundle("d", with(g)).Create(), grant.GrantNotFound)
	n.CheckSound("at the end")
}

func releasedByForce(t *testing.T, n *rig.Node) {
	g := n.Grant("--mode", "exclusive", "--gpu", "0")
	starts(t, n.Bundle("c", with(g)))
	if out := n.Must("release", "--force", string(g.ID)); !strings.Contains(out,
		`container c still reaches its GPUs`) {
		t.Errorf("release --force prints %q, want that the container still reaches the GPU", out)
	}
	wantState(t, n, g.ID, "released by force", "")
	n.Must("grant", "--mode", "exclusive", "--gpu", "0")
	n.CheckSound("at the end")
}

// If the second create replaced the first one's binding, the first container's grant would look
// free.
func idTakenInCreate(t *testing.T, n *rig.Node) {
	mine, other := n.Grant("--memory", "4GiB"), n.Grant("--memory", "4GiB")
	held, waits := n.HeldUntil(filepath.Join(n.Dir, "go"))
	b := n.Bundle("c", with(mine), held)
	cmd := n.Wrapper("create", "--bundle", b.Dir, "c")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, "the create waits", waits)
	second := n.Bundle("second", with(other))
	isRefused(t, rig.Run(n.Wrapper("create", "--bundle", second.Dir, "c")), grant.GrantInUse)
	n.Write("go", "")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	wantState(t, n, mine.ID, "created", grant.Bound)
	wantState(t, n, other.ID, "refused", grant.Free)
}

func idTakenByRunning(t *testing.T, n *rig.Node) {
	mine, other := n.Grant("--memory", "4GiB"), n.Grant("--memory", "4GiB")
	starts(t, n.Bundle("c", with(mine)))
	second := n.Bundle("second", with(other))
	if r := rig.Run(n.Wrapper("create", "--bundle", second.Dir, "c")); r.Code == 0 {
		t.Errorf("a second container of the id: %+v", r)
	}
	wantState(t, n, mine.ID, "running", grant.Bound)
	wantState(t, n, other.ID, "refused", grant.Free)
}

// The real runtime refuses the id; a container that requests no GPU does not affect the binding.
func plainContainerBesideABinding(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	starts(t, n.Bundle("c", with(g)))
	plain := n.Bundle("plain")
	if r := rig.Run(n.Wrapper("create", "--bundle", plain.Dir, "c")); r.Code == 0 ||
		strings.Contains(r.Stderr, "gpuledger:") {
		t.Errorf("a second container of the id: %+v, want the real runtime's own refusal", r)
	}
	wantState(t, n, g.ID, "after it", grant.Bound)
}

// The delete of a running container leaves its binding for the next program that reads it. It must
// not become valid again with another container of the id.
func idReusedWithoutGPU(t *testing.T, n *rig.Node) {
	g := n.Grant("--memory", "4GiB")
	if r := starts(t, n.Bundle("c", with(g))).Delete(); r.Code != 0 {
		t.Fatalf("delete: %+v", r)
	}
	starts(t, n.Bundle("c"))
	wantState(t, n, g.ID, "a container of the same id runs without it", grant.Free)
}

// Podman passes no --root. The runtime then chooses the directory of the state: crun follows
// XDG_RUNTIME_DIR, for root too, runc does not.
func defaultRoot(t *testing.T, n *rig.Node) {
	n.HideRun()
	wrapper := rig.Binary(t, "gpuledger-runtime", n.Tags...)
	for _, dir := range []string{"", n.Dir} {
		n.Env = []string{"XDG_RUNTIME_DIR=" + dir}
		g := n.Grant("--memory", "4GiB")
		b := n.Bundle("c", with(g))
		if r := rig.Run(n.Command(wrapper, "create", "--bundle", b.Dir, b.ID)); r.Code != 0 {
			t.Fatalf("create: %+v", r)
		}
		wantState(t, n, g.ID, fmt.Sprintf("created with XDG_RUNTIME_DIR=%q", dir), grant.Bound)
		if r := rig.Run(n.Command(n.Runtime, "delete", "--force", b.ID)); r.Code != 0 {
			t.Fatalf("delete: %+v", r)
		}
		becomesFree(t, n, g.ID)
	}
}

// In another time namespace processes seem to have started at another time.
func seenFromAnotherTime(t *testing.T, n *rig.Node) {
	rig.Need(t, "unshare")
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		t.Skip("this kernel has no time namespaces")
	}
	g := n.Grant("--memory", "4GiB")
	starts(t, n.Bundle("c", with(g)))
	r := rig.Run(n.Command("unshare", "--time", "--boottime", "100000", "--fork",
		rig.Binary(t, "gpuledger", n.Tags...), "grants", "--json"))
	if !strings.Contains(r.Stdout, `"state": "unknown"`) {
		t.Errorf("grants in another time: %+v, want the state unknown", r)
	}
}

// othersInItsCgroup would have its device rules, and so its GPUs. A cgroup without processes is
// like no cgroup.
func othersInItsCgroup(t *testing.T, n *rig.Node) {
	reference := n.Grant("--memory", "1GiB")
	b := n.Bundle("c", with(reference), rig.Light)
	first := n.Bundle("first", rig.Light, func(s *specs.Spec) {
		s.Linux.CgroupsPath = filepath.Dir(s.Linux.CgroupsPath) + "/c"
	})
	starts(t, first)
	r := b.Create()
	wantRefused(t, r, "injection-impossible")
	if !strings.Contains(r.Stderr, "would share the cgroup") {
		t.Errorf("%+v", r)
	}
	wantState(t, n, reference.ID, "refused", grant.Free)
	first.End()
	inCgroup(t, b, 0)
	starts(t, b)
	wantState(t, n, reference.ID, "in a cgroup that was left behind", grant.Bound)
	b.End()
	wantState(t, n, reference.ID, "at the end", grant.Free)
}

// othersOutliveIt: a process in its cgroup has its GPUs, though the runtime has forgotten the
// container.
func othersOutliveIt(t *testing.T, n *rig.Node) {
	reference := n.Grant("--memory", "1GiB")
	b := n.Bundle("c", with(reference), rig.Light)
	starts(t, b)
	outsider := exec.Command("sleep", "1000")
	must(t, outsider.Start())
	t.Cleanup(func() { _ = outsider.Process.Kill(); _ = outsider.Wait() })
	inCgroup(t, b, outsider.Process.Pid)
	b.KillInit()
	must(t, os.RemoveAll(filepath.Join(n.Root, b.ID)))
	wantState(t, n, reference.ID, "the container forgotten, another process in its cgroup", grant.Bound)
	wantRefused(t, n.Bundle("next", with(reference), rig.Light).Create(), "grant-in-use")
	must(t, outsider.Process.Kill())
	_ = outsider.Wait()
	becomesFree(t, n, reference.ID)
	b.End()
}

// firstThreadGone: the container's only process has ended its first thread, and holds the GPU by
// another one. The kernel then reports the root of each hierarchy of version 1 for it. The spec
// names no cgroup, and the runtime's state cannot be read.
func firstThreadGone(t *testing.T, n *rig.Node) {
	g := n.Grant("--mode", "exclusive", "--gpu", "0")
	b := n.Bundle("first-thread-gone", with(g), rig.Light, runsTenant(t, "thread", "wait"),
		func(s *specs.Spec) { s.Linux.CgroupsPath = "" })
	if r := b.Create(); r.Code != 0 {
		t.Fatalf("create: %+v", r)
	}
	state, away, pid := filepath.Join(n.Root, b.ID), filepath.Join(n.Dir, "away"), b.Init()
	if r := b.Start(); pid <= 1 || r.Code != 0 {
		t.Fatalf("start of process %d: %+v", pid, r)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	rig.Eventually(t, "the first thread has ended", func() bool { return rig.IsZombie(pid) })
	p, _, err := host.Default().Process(pid)
	must(t, err)
	lines, err := host.Default().Cgroups(pid, 1<<20)
	must(t, err)
	if !strings.Contains(string(lines), b.ID) {
		t.Errorf("its cgroups are\n%s", lines)
	}
	var census watch.ProcessTable
	census.Host = host.Default()
	person, err := census.Read(pid)
	if must(t, err); !strings.Contains(person.Cgroup, b.ID) || !watch.IsIn(host.Default(), p, person.Cgroup) {
		t.Errorf("to the watch it is in %q", person.Cgroup)
	}
	must(t, os.Rename(state, away))
	if got := n.State(g.ID); got != grant.Unknown && got != grant.Bound {
		t.Errorf("with the runtime's state out of sight: the grant is %q", got)
	}
	wantRefused(t, n.Bundle("next", with(g), rig.Light).Create(), "grant-in-use")
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	rig.Eventually(t, "its other threads have ended", func() bool { return len(threadsOf(pid)) < 2 })
	becomesFree(t, n, g.ID)
	must(t, os.Rename(away, state))
	b.Delete()
}

func threadsOf(pid int) []os.DirEntry {
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return threads
}

// inCgroup makes the container's cgroup in each hierarchy that has its device rules, and puts a
// process there, 0 for none.
func inCgroup(t *testing.T, b *rig.Bundle, pid int) {
	t.Helper()
	var spec specs.Spec
	must(t, json.Unmarshal(b.Config(), &spec))
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/devices"); err == nil {
		root += "/devices"
	}
	dir := filepath.Join(root, spec.Linux.CgroupsPath)
	must(t, os.MkdirAll(dir, 0o755))
	if pid != 0 {
		must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644))
	}
}

// TestALeftBindingIsNotTheNextContainers: a container has ended without a delete, and another one
// of its id starts without a GPU while the ledger is busy. The grant of the first is free.
func TestALeftBindingIsNotTheNextContainers(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	g := n.Grant("--memory", "1GiB")
	starts(t, n.Bundle("c", with(g), rig.Light)).End()
	lock, err := os.OpenFile(n.Dir+"/run/lock", os.O_RDWR, 0)
	must(t, err, flock(lock))
	time.AfterFunc(500*time.Millisecond, func() { lock.Close() })
	starts(t, n.Bundle("c", rig.Light))
	wantState(t, n, g.ID, "another container of the id runs", grant.Free)
}
