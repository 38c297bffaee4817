package test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestHook runs its stories on cgroup v1 and v2, with runc and crun. The wrapper runs only in
// stories that name it.
func TestHook(t *testing.T) {
	stories := []struct {
		name string
		run  func(*testing.T, string)
	}{
		{"gives exactly the grant", hookGivesExactlyTheGrant},
		{"refuses partial edits", hookRefusesPartialEdits},
		{"follows no link of an image", hookFollowsNoLinkOfAnImage},
		{"leaves others alone", hookLeavesOthersAlone},
		{"writes no file of a tenant's choice", hookWritesNoFileOfATenantsChoice},
		{"beside the wrapper", hookBesideTheWrapper},
		{"follows the container", hookFollowsTheContainer},
		{"strips privileged containers", hookStripsPrivileged},
		{"hides nothing from another injector", hookHidesNothingFromAnotherInjector},
		{"adopts", hookAdopts},
		{"keeps the binding of a half-changed container", hookKeepsTheBinding},
		{"lists in the unit what the spec opens", hookListsInTheUnit},
	}
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					for _, s := range stories {
						t.Run(s.name, func(t *testing.T) { s.run(t, runtime) })
					}
				})
			}
		})
	}
}

// exactlyOne is what probe prints in a container that was granted GPU 1.
const exactlyOne = "No such file or directory\nNo such device or address\nNo such device or " +
	"address\nOperation not permitted\n"

func hookGivesExactlyTheGrant(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	for _, stage := range []string{"createRuntime", "prestart"} {
		reference := n.Grant("--memory", "4GiB", "--gpu", "1")
		b := n.Bundle("c-"+stage, with(reference), rig.Env("NVIDIA_VISIBLE_DEVICES=1"),
			rig.Shell(probe), n.HookedAt(stage))
		before := b.Config()
		if got := b.RealRun(); got.Stdout != exactlyOne || got.Code != 0 {
			t.Errorf("%s: opening GPU 0, GPU 1, nvidiactl and a node of its own made for another "+
				"GPU:\n%s%swant:\n%s", stage, got.Stdout, got.Stderr, exactlyOne)
		}
		if !bytes.Equal(b.Config(), before) {
			t.Errorf("%s: the hook changed config.json", stage)
		}
		greedy := n.Bundle("d-"+stage, rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("echo started"),
			n.HookedAt(stage)).RealRun()
		isRefusedByHook(t, greedy, grant.VisibleDevicesAll)
	}
}

// isRefusedByHook: the runtime's create fails, and the engine can show the reason.
func isRefusedByHook(t *testing.T, r rig.Result, code grant.Code) {
	t.Helper()
	if r.Code == 0 || r.Stdout != "" || !strings.Contains(r.Stderr, "gpuledger: refused ("+string(code)+
		"): ") {
		t.Errorf("got %+v, want a refusal for %s", r, code)
	}
}

// hookRefusesPartialEdits before it changes anything, and leaves the grant free.
func hookRefusesPartialEdits(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	reference := n.Grant("--memory", "4GiB")
	shared := ""
	if r := n.Bundle("neighbour", func(s *specs.Spec) {
		shared = s.Linux.CgroupsPath
	}).RealCreate(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	canary := filepath.Join(n.Dir, "canary")
	must(t, os.Mkdir(canary, 0o755), os.WriteFile(filepath.Join(canary, "file"), []byte("untouched"), 0o600))
	for i, c := range []struct {
		name string
		code grant.Code
		edit rig.Edit
	}{
		{"a user namespace", grant.InjectionImpossible, userNamespace},
		{"other MPS settings", grant.InjectionImpossible,
			rig.Env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=9=1G")},
		{"a tmpfs without devices for /dev", grant.InjectionImpossible,
			func(s *specs.Spec) { s.Mounts[1].Options = append(s.Mounts[1].Options, "nodev") }},
		{"no separate /dev", grant.InjectionImpossible, func(s *specs.Spec) { s.Mounts = s.Mounts[:1] }},
		{"a directory for /dev", grant.InjectionImpossible, func(s *specs.Spec) {
			s.Mounts[1] = specs.Mount{Destination: "/dev", Type: "bind", Source: canary,
				Options: []string{"rbind"}}
			s.Mounts = s.Mounts[:2]
		}},
		{"another's grant", grant.GrantNotFound, rig.Env("GPULEDGER_GRANT=g-abcdefghijkl")},
		{"another injector's hook that acts", grant.InjectionImpossible, func(s *specs.Spec) {
			s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=none") // the driver's files
			s.Hooks.Poststop = append(s.Hooks.Poststop, specs.Hook{
				Path: "/usr/bin/nvidia-container-runtime-hook", Env: []string{"A=B"}})
		}},
		{"a cgroup that is a unit of systemd", grant.InjectionImpossible,
			func(s *specs.Spec) { s.Linux.CgroupsPath += ".scope" }},
		{"a cgroup in which others are", grant.InjectionImpossible, func(s *specs.Spec) {
			s.Linux.CgroupsPath = shared
		}},
		{"a GPU outside its grant", grant.VisibleDevicesOutsideGrant, rig.Env("NVIDIA_VISIBLE_DEVICES=0,1")},
	} {
		b := n.Bundle("c"+string(rune('a'+i)), with(reference), rig.Shell("echo started"), n.Hooked, c.edit)
		r := b.RealRun()
		if strings.Contains(r.Stderr, "cgroup is not empty") { // runc refuses that itself from 1.2 on
			continue
		}
		if isRefusedByHook(t, r, c.code); t.Failed() {
			t.Fatal(c.name)
		}
		wantState(t, n, reference.ID, c.name, grant.Free)
		if lines := strings.Split(strings.TrimSpace(read(t, n.Dir+"/audit.jsonl")),
			"\n"); !strings.Contains(lines[len(lines)-1], `"code":"`+string(c.code)+`"`) {
			t.Errorf("%s: the audit log ends with %s", c.name, lines[len(lines)-1])
		}
	}
	if entries, _ := os.ReadDir(canary); len(entries) != 1 ||
		read(t, filepath.Join(canary, "file")) != "untouched" {
		t.Errorf("the canary is touched: %v", entries)
	}
}

func userNamespace(s *specs.Spec) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	id := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 0, Size: 1000}}
	s.Linux.UIDMappings, s.Linux.GIDMappings = id, id
	s.Mounts = s.Mounts[:2]
}

// hookFollowsNoLinkOfAnImage: wherever an image's /dev leads, nothing of the host changes.
func hookFollowsNoLinkOfAnImage(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	reference := n.Grant("--memory", "4GiB")
	canary, elsewhere := filepath.Join(n.Dir, "canary"), filepath.Join(n.Dir, "elsewhere")
	must(t, os.Mkdir(canary, 0o755), os.Mkdir(elsewhere, 0o777))
	for i, link := range []string{canary, "../../../canary", "../../../../../../../../../../" + canary,
		"/proc/self/cwd/../canary", "/proc/1/root" + canary, "tmp", elsewhere, "dev", "nowhere"} {
		b := n.Bundle("c"+string(rune('a'+i)), with(reference), rig.Shell("echo started"), n.Hooked)
		dev := filepath.Join(b.Dir, "rootfs/dev")
		must(t, os.Remove(dev), os.Symlink(link, dev))
		if r := b.RealRun(); r.Code == 0 || r.Stdout != "" {
			t.Errorf("/dev -> %s: %+v", link, r)
		}
		wantState(t, n, reference.ID, link, grant.Free)
	}
	// runc 1.1.5 itself makes links through such a link; gpuledger would make nodes.
	for _, dir := range []string{canary, elsewhere} {
		if nodes, _ := filepath.Glob(dir + "/nvidia*"); len(nodes) != 0 {
			t.Errorf("%s is touched: %v", dir, nodes)
		}
	}
	if nodes, _ := filepath.Glob("/dev/nvidia*"); len(nodes) > 0 && !realGPU() {
		t.Errorf("the host's /dev has got %v", nodes)
	}
}

// hookWritesNoFileOfATenantsChoice: crun opens what run.oci.hooks.stderr names for its hooks, as
// root on the node. A refusal repeats the tenant's words, and reaches the engine all the same.
func hookWritesNoFileOfATenantsChoice(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	reference := n.Grant("--memory", "1GiB")
	fifo := filepath.Join(n.Dir, "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	reader, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0)
	must(t, err)
	defer reader.Close()
	preload := n.Write("ld.so.preload", "/lib/usual.so\n")
	for i, file := range []string{preload, n.Dir + "/absent", fifo, "/dev/null"} {
		b := n.Bundle("c"+string(rune('a'+i)), with(reference),
			rig.Env("NVIDIA_VISIBLE_DEVICES=1 /tmp/evil.so x"), n.Hooked,
			rig.Annotation("run.oci.hooks.stderr", file), rig.Annotation("run.oci.hooks.stdout", file),
			rig.Shell("echo started"))
		isRefusedByHook(t, b.RealRun(), grant.VisibleDevicesOutsideGrant)
		plain := n.Bundle("p"+string(rune('a'+i)), n.Hooked, rig.Annotation("run.oci.hooks.stderr", file),
			rig.Shell("echo started")).RealRun()
		if plain.Code != 0 || plain.Stdout != "started\n" {
			t.Errorf("a container without a GPU: %+v", plain)
		}
	}
	if got := read(t, preload); got != "/lib/usual.so\n" {
		t.Errorf("the hook wrote %q", got)
	}
	if got, _ := os.ReadFile(n.Dir + "/absent"); len(got) > 0 {
		t.Errorf("the hook wrote %q", got)
	}
	if count, _ := unix.Read(int(reader.Fd()), make([]byte, 1)); count > 0 {
		t.Error("the hook wrote into the FIFO")
	}
	if log := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(log,
		`"recorded":["node-root by annotation:run.oci.hooks.stderr"`) {
		t.Errorf("the audit log lacks what the runtime writes as root: %s", log)
	}
}

func realGPU() bool {
	_, err := os.Stat("/proc/driver/nvidia/version")
	return err == nil
}

// inventoryOfItself prints everything by which a hook could have changed a container.
const inventoryOfItself = `cat /proc/self/mountinfo | busybox sed 's/^[0-9]* [0-9]* [0-9:]* //' | busybox sed 's/,size=[0-9a-z]*//'; busybox ls -l /dev | busybox sed 's/ [A-Z][a-z][a-z] .* / /'
cat /sys/fs/cgroup/devices/*/*/devices.list 2>&1; busybox env; for node in null zero full random tty nvidia0 nvidiactl; do busybox head -c0 /dev/$node 2>&1; done`

// hookLeavesOthersAlone: a container that reaches no GPU is as it is without the hook, whatever is
// broken.
func hookLeavesOthersAlone(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	b := n.Bundle("c", rig.Shell("alias cat='busybox cat'; PATH=/bin; "+
		strings.ReplaceAll(inventoryOfItself, "cat ", "busybox cat ")))
	want := b.RealRun()
	if want.Code != 0 && want.Stdout == "" {
		t.Fatalf("%+v", want)
	}
	for _, c := range []struct {
		name    string
		breakIt func() // one after another
	}{
		{"nothing broken", func() {}},
		{"a log that cannot be written", func() { must(t, os.Mkdir(n.Dir+"/audit.jsonl", 0o700)) }},
		{"an inventory that is garbage", func() { n.Write("state/inventory.json", "{") }},
		{"a ledger that cannot be", func() {
			must(t, os.RemoveAll(n.Dir+"/state"), os.RemoveAll(n.Dir+"/run"))
			n.Write("state", "")
			n.Write("run", "")
		}},
		{"a broken configuration", func() { n.Write("config.toml", "nonsense = 1\n") }},
		{"no configuration", func() { must(t, os.Remove(n.Config)) }},
	} {
		c.breakIt()
		hooked := n.Bundle("c", rig.Shell("alias cat='busybox cat'; PATH=/bin; "+
			strings.ReplaceAll(inventoryOfItself, "cat ", "busybox cat ")),
			n.HookedAt("prestart", "createRuntime", "poststop"))
		before := hooked.Config()
		got := hooked.RealRun()
		if got.Stdout != want.Stdout || got.Code != want.Code || got.Stderr != want.Stderr {
			t.Errorf("with %s:\n%+v\nwant\n%+v", c.name, got, want)
		}
		if !bytes.Equal(hooked.Config(), before) {
			t.Errorf("with %s: config.json is changed", c.name)
		}
	}
}

// hookBesideTheWrapper: what the wrapper has bound and edited is complete, and stays as it is.
func hookBesideTheWrapper(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	reference := n.Grant("--memory", "4GiB", "--gpu", "1")
	b := n.Bundle("c", with(reference), n.HookedAt("createRuntime", "createRuntime", "prestart", "poststop"))
	if r := b.Create(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	g := n.Grants()[0]
	if len(g.Bindings) != 1 || g.Bindings[0].PID != b.Init() || g.State != grant.Bound {
		t.Errorf("%+v", g)
	}
	if lines := strings.Count(read(t, n.Dir+"/audit.jsonl"), `"verdict":"admit"`); lines != 1 {
		t.Errorf("%d admissions are recorded of one container", lines)
	}
	isRefusedByHook(t, n.Bundle("d", with(reference), n.Hooked).RealCreate(), grant.GrantInUse)
	if r := b.Delete(); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	wantState(t, n, reference.ID, "after the delete", grant.Free)
}

// hookFollowsTheContainer from its create to its end, and its poststop tidies.
func hookFollowsTheContainer(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	reference := n.Grant("--memory", "4GiB")
	// a second call has the same result
	b := n.Bundle("c", with(reference), n.HookedAt("prestart", "createRuntime", "createRuntime", "poststop"))
	if r := b.RealCreate(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	g := n.Grants()[0]
	if len(g.Bindings) != 1 || g.Bindings[0].PID != b.Init() || g.Bindings[0].Container != "c" {
		t.Errorf("created: %+v", g)
	}
	isRefusedByHook(t, n.Bundle("d", with(reference), n.Hooked).RealCreate(), grant.GrantInUse)
	must(t, n.Real("start", "c").Run())
	wantState(t, n, reference.ID, "running", grant.Bound)
	open := func() string {
		return rig.Run(n.Real("exec", "c", "/bin/busybox", "head", "-c0", "/dev/nvidia0")).Stderr
	}
	if got := open(); !strings.Contains(got, "No such device or address") {
		t.Errorf("a process that joins opens the granted GPU: %s", got)
	}
	update := n.Real("update", "--resources", "-", "c")
	update.Stdin = strings.NewReader("{}")
	if r := rig.Run(update); r.Code != 0 {
		t.Errorf("update: %+v", r)
	}
	if got := open(); !strings.Contains(got, "No such device or address") {
		t.Errorf("after an update: %s", got)
	}
	b.KillInit()
	wantState(t, n, reference.ID, "dead, not deleted", grant.Free)
	if r := b.RealDelete(); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	if left, _ := os.ReadDir(n.Dir + "/run/bindings"); len(left) != 0 {
		t.Errorf("after poststop bindings are left: %v", left)
	}
	bare := n.Bundle("bare", with(reference), n.HookedAt("createRuntime")) // nothing tidies
	for _, time := range []string{"first", "again", "and again"} {
		if r := bare.RealCreate(); r.Code != 0 {
			t.Errorf("%s: %+v", time, r)
		}
		bare.End()
	}
	if r := b.RealCreate(); r.Code != 0 {
		t.Errorf("once more: %+v", r)
	}
	b.End()
	wantState(t, n, reference.ID, "at the end", grant.Free)
}

// privilegedProbe lists the nodes of GPUs, and opens those in the image and what else it needs.
const privilegedProbe = `open() { /bin/busybox head -c0 "$1" 2>&1 | /bin/busybox sed "s/.*: //"; }
/bin/busybox ls /dev/nvidia[0-9c]* /dev/fuse 2>/dev/null
for node in /tmp/gpu0 /tmp/gpu1 /tmp/control /tmp/other /dev/null; do open $node; done; echo end`

// carriesNodes puts nodes of GPUs into an image.
func carriesNodes(t *testing.T, b *rig.Bundle) *rig.Bundle {
	for name, device := range map[string]uint64{"gpu0": unix.Mkdev(195, 0), "gpu1": unix.Mkdev(195, 1),
		"control": unix.Mkdev(195, 255), "other": unix.Mkdev(60, 1)} {
		must(t, unix.Mknod(filepath.Join(b.Dir, "rootfs/tmp", name), unix.S_IFCHR|0o666, int(device)))
	}
	return b
}

func allDevices(s *specs.Spec) {
	rig.Privileged(s)
	for path, minor := range map[string]int64{"/dev/nvidia0": 0, "/dev/nvidia1": 1, "/dev/nvidiactl": 255} {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
			Path: path, Type: "c", Major: 195, Minor: minor})
	}
	s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
		Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229})
	slices.SortFunc(s.Linux.Devices, func(a, b specs.LinuxDevice) int {
		return strings.Compare(a.Path, b.Path)
	})
}

// allCharacterDevices is what an engine writes for --device-cgroup-rule="c *:* rwm".
func allCharacterDevices(s *specs.Spec) {
	s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"},
		{Allow: true, Type: "c", Access: "rwm"}}
}

// hookStripsPrivileged: in strip mode a privileged container loses the GPUs, all of them or those
// outside its grant, and nothing else.
func hookStripsPrivileged(t *testing.T, runtime string) {
	const denied, allowed = "Operation not permitted\n", "No such device or address\n"
	n := rig.NewNode(t, rig.Setup{Runtime: runtime, Config: "[policy]\nprivileged = \"strip\"\n"})
	r := carriesNodes(t, n.Bundle("none", allDevices, rig.Shell(privilegedProbe), n.Hooked)).RealRun()
	if want := "/dev/fuse\n" + denied + denied + denied + allowed + "end\n"; r.Stdout != want {
		t.Errorf("without a grant: got\n%s%s\nwant\n%s", r.Stdout, r.Stderr, want)
	}
	// A rule for all character devices goes, and what is no GPU stays open.
	r = carriesNodes(t, n.Bundle("wide", allDevices, allCharacterDevices, rig.Shell(privilegedProbe),
		n.Hooked)).RealRun()
	if want := "/dev/fuse\n" + denied + denied + denied + allowed + "end\n"; r.Stdout != want {
		t.Errorf("with a rule for all character devices: got\n%s%s\nwant\n%s", r.Stdout, r.Stderr, want)
	}
	reference := n.Grant("--memory", "4GiB", "--gpu", "1")
	r = carriesNodes(t, n.Bundle("one", allDevices, with(reference), rig.Shell(privilegedProbe),
		n.Hooked)).RealRun()
	if want := "/dev/fuse\n/dev/nvidia1\n/dev/nvidiactl\n" + denied + allowed + allowed + allowed +
		"end\n"; r.Stdout != want {
		t.Errorf("with a grant of GPU 1: got\n%s%s\nwant\n%s", r.Stdout, r.Stderr, want)
	}
}

// hookKeepsTheBinding: a container that is not refused, because the policy is not enforced, has
// what the hook gave it before it failed. So no other container gets its grant.
func hookKeepsTheBinding(t *testing.T, runtime string) {
	rig.Need(t, "gcc")
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	withDriver(t, n)
	reference := n.Grant("--memory", "4GiB", "--gpu", "1")
	enforced := read(t, n.Config)
	for i, c := range []struct {
		name, gpu1 string
		edit       rig.Edit
		fill       func(rootfs string)
		want       grant.State
	}{
		{"it fails at its mounts", "No such device or address", func(*specs.Spec) {}, func(rootfs string) {
			must(t, os.MkdirAll(rootfs+"/usr/bin/nvidia-smi", 0o755))
		}, grant.Bound},
		{"it has not begun", "No such file or directory", userNamespace, func(string) {}, grant.Free},
	} {
		for _, mode := range []string{"enforce", "report"} {
			n.Write("config.toml", enforced+"[policy]\nmode = \""+mode+"\"\n")
			b := n.Bundle(fmt.Sprint(mode, i), with(reference), n.Hooked, c.edit)
			dynamic(t, b)
			c.fill(filepath.Join(b.Dir, "rootfs"))
			r := b.RealCreate()
			if mode == "enforce" {
				isRefusedByHook(t, r, grant.InjectionImpossible)
				wantState(t, n, reference.ID, c.name, grant.Free)
				continue
			}
			if r.Code != 0 {
				t.Fatalf("%s: %+v", c.name, r)
			}
			wantState(t, n, reference.ID, c.name, c.want)
			must(t, n.Real("start", b.ID).Run())
			got := rig.Run(n.Real("exec", b.ID, "/bin/busybox", "head", "-c0", "/dev/nvidia1"))
			if !strings.Contains(got.Stderr, c.gpu1) {
				t.Errorf("%s: the container opens its GPU: %+v", c.name, got)
			}
			log := lines(t, n)
			if last := log[len(log)-1]; last.Verdict != "refuse" || last.Mode != "report" ||
				last.Code != "injection-impossible" {
				t.Errorf("%s: recorded is %+v", c.name, last)
			}
			b.RealDelete()
			wantState(t, n, reference.ID, c.name+", at its end", grant.Free)
		}
	}
}

func TestHookRefusesPrivileged(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	isRefusedByHook(t, n.Bundle("c", allDevices, rig.Shell("echo started"), n.Hooked).RealRun(),
		grant.PrivilegedGPU)
}

// hookAdopts what a trusted scheduler wrote, once, with and without the wrapper before it.
func hookAdopts(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Runtime: runtime, Config: adopts})
	b := n.Bundle("c", inPod("train"), allocated("train", "1", "4GiB"), rig.Shell(probe), n.Hooked)
	if got := b.RealRun(); got.Stdout != exactlyOne {
		t.Errorf("%+v", got)
	}
	b = n.Bundle("d", inPod("train"), allocated("train", "1", "4GiB"), n.Hooked)
	for name, create := range map[string]func() rig.Result{
		"hook": b.RealCreate, "wrapper and hook": b.Create} {
		if r := create(); r.Code != 0 {
			t.Fatalf("%s: %+v", name, r)
		}
		if all := n.Grants(); len(all) != 1 || len(all[0].Bindings) != 1 ||
			all[0].Bindings[0].PID != b.Init() {
			t.Errorf("%s: %+v", name, all)
		}
		b.End()
		b = n.Bundle("d", inPod("train"), allocated("train", "1", "4GiB"), n.Hooked)
	}
	n.CheckSound("at the end")
}

// TestHooksOfTwoContainersWithOneGrant: both hooks run at once, and one container starts.
func TestHooksOfTwoContainersWithOneGrant(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "4GiB")
	for round := range torture(20) {
		rivals := []*rig.Bundle{n.Bundle("a", with(reference), rig.Light, n.Hooked),
			n.Bundle("b", with(reference), rig.Light, n.Hooked)}
		results := atOnce(2, func(i int) rig.Result { return rivals[i].RealCreate() })
		winner := slices.IndexFunc(results, func(r rig.Result) bool { return r.Code == 0 })
		if winner < 0 || results[1-winner].Code == 0 {
			t.Fatalf("round %d: %+v, want exactly one to start", round, results)
		}
		isRefusedByHook(t, results[1-winner], grant.GrantInUse)
		rivals[winner].End()
		rivals[1-winner].End()
	}
	n.CheckSound("at the end")
}

// TestHookArgv: an unknown stage fails, and poststop never does.
func TestHookArgv(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	for _, c := range []struct {
		args, stdin string
		code        int
	}{
		{"", "", 2}, {"createContainer", "", 2}, {"startContainer", "{}", 2}, {"poststart", "{}", 2},
		{"createruntime", "{}", 2}, {"createRuntime x", "{}", 2},
		{"createRuntime", "", 1}, {"createRuntime", "{}", 1},
		{"createRuntime", `{"id":"../x","bundle":"/b","pid":1}`, 1}, {"prestart", `[]`, 1},
		{"prestart", `{"id":"x","bundle":"b"}`, 1},
		{"createRuntime", `{"id":"x","bundle":"/nowhere","pid":1}`, 1},
		{"createRuntime", strings.Repeat("[", 1<<20), 1},
		{"poststop", "", 0}, {"poststop", "{{", 0}, {"poststop", `{"id":"../x","bundle":"/b"}`, 0},
		{"poststop", `{"id":"x","bundle":"/b","pid":0}`, 0},
		{"precreate", "", 1}, {"precreate", "{", 1}, {"--help", "", 0},
	} {
		cmd := n.Command(rig.Binary(t, "gpuledger-hook"), strings.Fields(c.args)...)
		cmd.Stdin = strings.NewReader(c.stdin)
		r := rig.RunHook(cmd)
		silent := r.Stdout == "" || c.args == "--help"
		if r.Code != c.code || !silent || c.code == 1 && (strings.Count(r.Stderr, "\n") != 1 ||
			!strings.HasPrefix(r.Stderr, "gpuledger: ")) || c.code == 0 && r.Stderr != "" {
			t.Errorf("%q < %.40q: %+v, want status %d", c.args, c.stdin, r, c.code)
		}
	}
}

// TestHookPrecreate is Podman's stage: config.json in, config.json out, nothing bound.
func TestHookPrecreate(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "podman"})
	reference := n.Grant("--memory", "4GiB", "--gpu", "1")
	precreate := func(b *rig.Bundle) rig.Result {
		cmd := n.Command(rig.Binary(t, "gpuledger-hook"), "precreate")
		cmd.Stdin = bytes.NewReader(b.Config())
		return rig.RunHook(cmd)
	}
	plain := n.Bundle("plain")
	if r := precreate(plain); r.Code != 0 || r.Stdout != string(plain.Config()) {
		t.Errorf("a container without GPU: %+v", r)
	}
	r := precreate(n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all")))
	wantOrderly(t, r.Stderr)
	if r.Code != 1 || r.Stdout != "" || !strings.HasPrefix(r.Stderr,
		"gpuledger: refused (visible-devices-all): ") {
		t.Errorf("%+v", r)
	}
	b := n.Bundle("c", with(reference), rig.Shell(probe), n.Hooked)
	if r = precreate(b); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	wantState(t, n, reference.ID, "after precreate", grant.Free)
	b.WriteConfig([]byte(r.Stdout))
	if again := precreate(b); again.Stdout != r.Stdout {
		t.Errorf("the second time it changes more:\n%s\n%s", r.Stdout, again.Stdout)
	}
	if got := b.RealRun(); got.Stdout != exactlyOne {
		t.Errorf("%+v", got)
	}
}

// TestHookClearsItsEnvironment: variables that change what a program does have no effect here.
func TestHookClearsItsEnvironment(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	marker := n.Dir + "/marker"
	cmd := exec.Command(rig.Binary(t, "gpuledger-hook"), "precreate")
	cmd.Env = []string{"GPULEDGER_CONFIG=" + n.Config, "LD_PRELOAD=" + marker, "LD_AUDIT=" + marker,
		"GODEBUG=gctrace=1,inittrace=1", "PATH=" + n.Dir, "HOME=" + marker, "TMPDIR=" + marker,
		"XDG_RUNTIME_DIR=" + marker}
	b := n.Bundle("c", with(n.Grant("--memory", "1GiB")))
	cmd.Stdin = bytes.NewReader(b.Config())
	if r := rig.RunHook(cmd); r.Code != 0 || !strings.Contains(r.Stdout, "/dev/nvidia0") {
		t.Errorf("%+v", r)
	}
}

// TestLiveBindings: a hook binds a container once, and only for the create that it is part of.
func TestLiveBindings(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "4GiB")
	b := n.Bundle("c", with(reference))
	guard := node.Open(n.Config, host.Default())
	self, parent, err := guard.Host.Process(os.Getpid())
	must(t, err)
	other, _, err := guard.Host.Process(parent)
	must(t, err)
	ask := func(unknown error, creators ...grant.Process) node.Create {
		container := grant.Container{Engine: grant.NoEngine, RuntimeRoot: n.Root, ID: "c", Bundle: b.Dir}
		return node.Create{Caller: request.Caller{Container: container}, Config: b.Config(),
			Live: &node.Live{Creators: creators, Unknown: unknown}}
	}
	if d := guard.JudgeBeforeCreate(ask(nil, self)); d.Kind != grant.Admit || d.Bound ||
		n.State(reference.ID) != grant.Free {
		t.Errorf("foreseen: %+v", d.Verdict)
	}
	if d := guard.Admit(ask(errors.New("who knows"))); d.Kind != grant.Refused || d.Bound ||
		!strings.Contains(d.Message, "who knows") {
		t.Errorf("its creator is unknown: %+v", d.Verdict)
	}
	if d := guard.Admit(ask(nil, self, other)); d.Kind != grant.Admit || !d.Bound || d.Known {
		t.Errorf("first: %+v", d)
	}
	if d := guard.Admit(ask(nil, self, other)); d.Kind != grant.Admit || d.Bound || !d.Known {
		t.Errorf("again: %+v", d)
	}
	if d := guard.Admit(ask(nil, grant.Process{PID: 1 << 22, Start: 1}, self)); d.Kind != grant.Admit ||
		d.Bound || !d.Known {
		t.Errorf("by a child of the creator, as crun's: %+v", d)
	}
	if d := guard.Admit(ask(nil, other)); d.Code != grant.GrantInUse || d.Bound {
		t.Errorf("by another process: %+v", d)
	}
	must(t, guard.Unbind(grant.Container{RuntimeRoot: n.Root, ID: "c"}))
	wantState(t, n, reference.ID, "at the end", grant.Free)
}
