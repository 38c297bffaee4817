package cdi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/cdi"
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// machine is a node in its own directory: two GPUs, the second with two MIG devices, one of which
// has driver capabilities.
type machine struct {
	t     *testing.T
	dir   string
	files cdi.Files
	now   time.Time
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), now: time.Now()}
	m.put("config.toml",
		fmt.Sprintf(
			"state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\nfile = \"x\"\n[cdi]\ndir = "+
				"%q\nhook = "+
				"\"/usr/bin/gpuledger-hook\"\n[audit]\nfile = \"\"\n",
			m.dir+"/state", m.dir+"/run", m.cdiDir()))
	h := host.Default()
	boot, err := h.BootID()
	m.must(err)
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inventory(boot)))
	m.open(h)
	return m
}

// open opens the node with the host's /proc, except for the driver's files there.
func (m *machine) open(h host.Host) {
	h.Now = func() time.Time { return m.now }
	n := node.Open(m.dir+"/config.toml", h)
	m.must(n.Broken)
	n.Host.Proc = m.dir + "/proc" // the ledger uses the real one
	m.put("proc/sys/kernel/random/boot_id", bootID(m.t))
	m.files = cdi.Files{Node: n, Config: m.dir + "/config.toml"}
}

func bootID(t *testing.T) string {
	boot, err := host.Default().BootID()
	if err != nil {
		t.Fatal(err)
	}
	return boot
}

func inventory(boot string) grant.Inventory {
	return grant.Inventory{Version: 1, BootID: boot, Source: "simulated",
		Majors: map[string]int{"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 509}, GPUs: []grant.GPU{
			{UUID: "GPU-a", Index: 0, Minor: 3, Memory: 16 * grant.GiB, Health: grant.Healthy},
			{UUID: "GPU-b", Index: 1, Minor: 1, Memory: 80 * grant.GiB, Health: grant.Healthy,
				MIG: []grant.MIGDevice{
					{UUID: "MIG-b7", Profile: "1g.10gb", Memory: 10 * grant.GiB, GI: 7, Caps: [2]int{66, 67}},
					{UUID: "MIG-b8", Profile: "1g.10gb", Memory: 10 * grant.GiB, GI: 8}}},
		}}
}

func (m *machine) cdiDir() string { return m.dir + "/cdi" }

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) put(name, text string) string {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	m.must(os.MkdirAll(filepath.Dir(path), 0o755))
	m.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// grant makes a grant of GPU 0 and writes its file.
func (m *machine) grant(owner grant.Owner, ttl time.Duration) grant.Reference {
	m.t.Helper()
	_, reference, err := grants.Enter(m.files.Node, admission.Ask{Memory: grant.GiB, Names: []string{"0"},
		Mode: grant.Limit, Owner: owner, TTL: ttl, Source: "test"})
	m.must(err)
	_, err = m.files.Expose(reference)
	m.must(err)
	return reference
}

// generate returns what happened to each file, by its name.
func (m *machine) generate() string {
	m.t.Helper()
	changes, _, err := m.files.Generate()
	m.must(err)
	var lines []string
	for _, c := range changes {
		lines = append(lines, string(c.What)+" "+filepath.Base(c.Path))
	}
	return strings.Join(lines, ", ")
}

// update returns the changes of an update.
func (m *machine) update() string {
	m.t.Helper()
	changes, _, err := m.files.Update()
	m.must(err)
	var all []string
	for _, c := range changes {
		all = append(all, fmt.Sprintf("%s %s", c.What, filepath.Base(c.Path)))
	}
	return strings.Join(all, ", ")
}

// has gives the node these GPUs.
func (m *machine) has(gpus ...grant.GPU) {
	m.t.Helper()
	inv := inventory(bootID(m.t))
	inv.GPUs = gpus
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inv))
}

// engine returns an engine's view: what CDI's own library reads from the directory.
func (m *machine) engine() *cdiapi.Cache {
	m.t.Helper()
	cache, err := cdiapi.NewCache(cdiapi.WithAutoRefresh(false), cdiapi.WithSpecDirs(m.cdiDir()))
	m.must(err)
	m.must(cache.Refresh())
	if errs := cache.GetErrors(); len(errs) > 0 {
		m.t.Errorf("an engine complains: %v", errs)
	}
	return cache
}

func (m *machine) read(path string) (spec cdispec.Spec) {
	m.t.Helper()
	data, err := os.ReadFile(path)
	m.must(err)
	m.must(json.Unmarshal(data, &spec))
	return spec
}

func nodes(edits cdispec.ContainerEdits) string {
	var list []string
	for _, n := range edits.DeviceNodes {
		list = append(list, fmt.Sprintf("%s=%s%d:%d/%s/%o", n.Path, n.Type, n.Major, n.Minor,
			n.Permissions, *n.FileMode))
	}
	return strings.Join(list, " ")
}

func TestEveryGPUHasItsNames(t *testing.T) {
	m := newMachine(t)
	_, notes, err := m.files.Generate()
	m.must(err)
	if len(notes) != 1 ||
		notes[0] != "MIG device MIG-b8 is left out: the driver had no capability for it when the "+
			"inventory was taken" {
		t.Errorf("notes %q", notes)
	}
	want := []string{"gpuledger.dev/gpu=0", "gpuledger.dev/gpu=1", "gpuledger.dev/gpu=1:0",
		"gpuledger.dev/gpu=GPU-a", "gpuledger.dev/gpu=GPU-b", "gpuledger.dev/gpu=MIG-b7"}
	if got := m.engine().ListDevices(); !slices.Equal(got, want) {
		t.Errorf("an engine finds %v, want %v", got, want)
	}
	spec := m.read(m.files.Path())
	if got := nodes(
		spec.ContainerEdits); got != "/dev/nvidiactl=c195:255/rw/666 /dev/nvidia-uvm=c508:0/rw/666 "+
		"/dev/nvidia-uvm-tools=c508:1/rw/666" {
		t.Errorf("all devices have %s", got)
	}
	for _, d := range spec.Devices {
		want := map[string]string{"0": "/dev/nvidia3=c195:3/rw/666", "1": "/dev/nvidia1=c195:1/rw/666",
			"1:0": "/dev/nvidia1=c195:1/rw/666 /dev/nvidia-caps/nvidia-cap66=c509:66/rw/666 " +
				"/dev/nvidia-caps/nvidia-cap67=c509:67/rw/666"}
		want["GPU-a"], want["GPU-b"], want["MIG-b7"] = want["0"], want["1"], want["1:0"]
		if got := nodes(d.ContainerEdits); got != want[d.Name] {
			t.Errorf("%s has %s, want %s", d.Name, got, want[d.Name])
		}
	}
	if !slices.Equal(spec.ContainerEdits.Env, []string{"NVIDIA_VISIBLE_DEVICES=void"}) {
		t.Errorf("environment %v", spec.ContainerEdits.Env)
	}
}

func TestAGrantHasAFileNamedByItsReference(t *testing.T) {
	m := newMachine(t)
	reference := m.grant(grant.Bearer, 0)
	if got, want := m.engine().ListDevices(), []string{"gpuledger.dev/grant=" +
		reference.String()}; !slices.Equal(got, want) {
		t.Errorf("an engine finds %v, want %v", got, want)
	}
	d := m.read(m.files.GrantPath(reference.ID)).Devices[0].ContainerEdits
	if want := []string{"GPULEDGER_GRANT=" + reference.String(),
		"NVIDIA_VISIBLE_DEVICES=GPU-a"}; !slices.Equal(d.Env, want) {
		t.Errorf("environment %v, want %v", d.Env, want)
	}
	if got := nodes(
		d); got != "/dev/nvidia3=c195:3/rw/666 /dev/nvidiactl=c195:255/rw/666 "+
		"/dev/nvidia-uvm=c508:0/rw/666 /dev/nvidia-uvm-tools=c508:1/rw/666" {
		t.Errorf("it brings %s", got)
	}
	info, err := os.Stat(m.files.GrantPath(reference.ID))
	m.must(err)
	if info.Mode() != 0o600 {
		t.Errorf("the file with the secret has mode %v", info.Mode())
	}
}

func TestAPodsGrantNeedsNoSecret(t *testing.T) {
	m := newMachine(t)
	reference := m.grant("pod:u/train", 0)
	spec := m.read(m.files.GrantPath(reference.ID))
	if d := spec.Devices[0]; d.Name != string(reference.ID) ||
		d.ContainerEdits.Env[0] != "GPULEDGER_GRANT="+string(reference.ID) {
		t.Errorf("%+v", d)
	}
}

// TestEveryFileHasTheContainerChecked: every file has a hook with an environment of its own; one
// without would inherit the container's (CVE-2025-23266).
func TestEveryFileHasTheContainerChecked(t *testing.T) {
	m := newMachine(t)
	reference := m.grant(grant.Bearer, 0)
	m.generate()
	config := "GPULEDGER_CONFIG=" + m.files.Config
	for path, env := range map[string][]string{m.files.Path(): {config},
		m.files.GrantPath(reference.ID): {config, "GPULEDGER_GRANT=" + string(reference.ID)}} {
		spec := m.read(path)
		hooks := spec.ContainerEdits.Hooks
		for _, d := range spec.Devices {
			hooks = append(hooks, d.ContainerEdits.Hooks...)
		}
		if len(hooks) != 1 {
			t.Fatalf("%s has %d hooks", path, len(hooks))
		}
		h := hooks[0]
		if h.HookName != "createRuntime" || h.Path != "/usr/bin/gpuledger-hook" ||
			!slices.Equal(h.Args, []string{"gpuledger-hook", "createRuntime"}) ||
			!slices.Equal(h.Env, env) {
			t.Errorf("%s: hook %+v", path, h)
		}
	}
}

// TestLowestVersion: more engines read a file with an older version. Names that begin with a digit
// need 0.5.0.
func TestLowestVersion(t *testing.T) {
	m := newMachine(t)
	reference := m.grant(grant.Bearer, 0)
	m.generate()
	for path, want := range map[string]string{m.files.Path(): "0.5.0",
		m.files.GrantPath(reference.ID): "0.3.0"} {
		if got := m.read(path).Version; got != want {
			t.Errorf("%s has version %s, want %s", path, got, want)
		}
	}
}

func TestGenerateTwiceChangesNothing(t *testing.T) {
	m := newMachine(t)
	reference := m.grant(grant.Bearer, 0)
	file := filepath.Base(m.files.GrantPath(reference.ID))
	if got, want := m.generate(), "written gpuledger.dev-gpu.json, unchanged "+file; got != want {
		t.Errorf("the first time: %s, want %s", got, want)
	}
	before := inodes(m)
	if got, want := m.generate(), "unchanged gpuledger.dev-gpu.json, unchanged "+file; got != want {
		t.Errorf("the second time: %s, want %s", got, want)
	}
	if after := inodes(m); !slices.Equal(before, after) || len(before) != 2 {
		t.Errorf("files were replaced, or others left behind: %v and %v", before, after)
	}
	m.must(os.Chmod(m.files.GrantPath(reference.ID), 0o644))
	if got := m.generate(); !strings.Contains(got, "written "+file) {
		t.Errorf("a secret that all may read: %s", got)
	}
	m.must(os.WriteFile(m.files.Path(), []byte("{}"), 0o644))
	if got := m.generate(); !strings.Contains(got, "written gpuledger.dev-gpu.json") {
		t.Errorf("a file that another program overwrote: %s", got)
	}
}

func inodes(m *machine) (list []string) {
	entries, err := os.ReadDir(m.cdiDir())
	m.must(err)
	for _, e := range entries {
		info, err := e.Info()
		m.must(err)
		list = append(list, fmt.Sprint(e.Name(), info.Sys().(*syscall.Stat_t).Ino))
	}
	return list
}

func TestGenerateRemovesFilesOfReleasedGrants(t *testing.T) {
	m := newMachine(t)
	kept, released, expired := m.grant(grant.Bearer, 0), m.grant(grant.Bearer,
		0), m.grant(grant.Bearer, time.Hour)
	forged := m.put("cdi/gpuledger.dev-grant_g-aaaaaaaaaaaa.json", "{}")
	swapped := m.files.GrantPath("g-bbbbbbbbbbbb")
	m.must(os.Link(m.files.GrantPath(kept.ID), swapped))
	others := []string{m.put("cdi/nvidia.yaml", "x"), m.put("cdi/gpuledger.dev-grant_other.json", "x"),
		m.put("cdi/gpuledger.dev-grant_g-cccccccccccc.json.bak", "x")}
	_, err := grants.Release(m.files.Node, released.ID, false)
	m.must(err)
	m.now = m.now.Add(2 * time.Hour)
	m.generate()
	for path, want := range map[string]bool{m.files.GrantPath(kept.ID): true,
		m.files.GrantPath(released.ID): false, m.files.GrantPath(expired.ID): false,
		forged: false, swapped: false,
		others[0]: true, others[1]: true, others[2]: true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", filepath.Base(path), err == nil, want)
		}
	}
}

// TestGenerateFollowsTheNode: after a reload of the driver's modules, an old device number opens
// nothing or something else.
func TestGenerateFollowsTheNode(t *testing.T) {
	m := newMachine(t)
	reference := m.grant(grant.Bearer, 0)
	m.generate()
	inv := inventory(bootID(t))
	inv.Majors["nvidia-uvm"] = 511
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inv))
	if devices, err := m.files.List(); err != nil ||
		slices.ContainsFunc(devices, func(d cdi.ListedDevice) bool { return d.State != cdi.Stale }) {
		t.Errorf("%v: %+v are current", err, devices)
	}
	m.generate()
	after := m.read(m.files.GrantPath(reference.ID)).Devices[0]
	if !strings.Contains(nodes(after.ContainerEdits), "/dev/nvidia-uvm=c511:0") ||
		after.Name != reference.String() {
		t.Errorf("the grant's file has %+v", after)
	}
	inv.GPUs = []grant.GPU{}
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inv))
	changes, notes, err := m.files.Generate()
	m.must(err)
	if changes[0].What != cdi.Removed || len(notes) != 1 ||
		!strings.Contains(notes[0], "is not there any more") {
		t.Errorf("without GPUs: %v, %q", changes, notes)
	}
	m.engine()
}

// TestDriverFilesAreMounted: they are mounted at their paths on the node, because the image is
// unknown when a CDI file is written.
func TestDriverFilesAreMounted(t *testing.T) {
	m := newMachine(t)
	inv := inventory(bootID(t))
	inv.Driver = grant.Driver{Version: "580.142", Root: "/run/driver", Files: []grant.DriverFile{
		{Path: "/usr/lib/libcuda.so.580.142", Kind: grant.FileLibrary, Capability: grant.Compute,
			Target: "/usr/lib", Names: []string{"libcuda.so", "libcuda.so.1"}, Bits: 64},
		{Path: "/usr/bin/nvidia-smi", Kind: grant.FileBinary, Capability: grant.Utility,
			Target: "/usr/bin/nvidia-smi"}}}
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inv))
	reference := m.grant(grant.Bearer, 0)
	m.generate()
	const want = "/run/driver/usr/lib/libcuda.so.580.142 /usr/lib/libcuda.so [ro nosuid nodev bind], " +
		"/run/driver/usr/lib/libcuda.so.580.142 /usr/lib/libcuda.so.1 [ro nosuid nodev bind], " +
		"/run/driver/usr/bin/nvidia-smi /usr/bin/nvidia-smi [ro nosuid nodev bind]"
	for name, edits := range map[string]cdispec.ContainerEdits{"GPUs": m.read(m.files.Path()).ContainerEdits,
		"a grant": m.read(m.files.GrantPath(reference.ID)).Devices[0].ContainerEdits} {
		var got []string
		for _, mount := range edits.Mounts {
			got = append(got, fmt.Sprint(mount.HostPath, " ", mount.ContainerPath, " ", mount.Options))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s mount %s", name, strings.Join(got, ", "))
		}
	}
	m.engine()
}

func TestNoFileWithoutTheReference(t *testing.T) {
	m := newMachine(t)
	reference := m.grant(grant.Bearer, 0)
	m.must(m.files.Forget(reference.ID))
	m.must(m.files.Forget(reference.ID)) // the second time there is none
	for name, r := range map[string]grant.Reference{
		"no secret": {ID: reference.ID}, "another secret": {
			ID: reference.ID, Secret: strings.Repeat("0", 32)},
		"no such grant": {ID: "g-zzzzzzzzzzzz", Secret: reference.Secret},
	} {
		var notFound *grant.NotFoundError
		if _, err := m.files.Expose(r); !errors.As(err, &notFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, _ := os.ReadDir(m.cdiDir()); len(entries) > 0 {
		t.Errorf("files are there: %v", entries)
	}
	if _, err := m.files.Expose(reference); err != nil {
		t.Errorf("with it: %v", err)
	}
}

func TestADirectoryWritableByOthersIsRefused(t *testing.T) {
	m := newMachine(t)
	m.must(os.MkdirAll(m.cdiDir(), 0o755))
	m.must(os.Chmod(m.cdiDir(), 0o775))
	if _, _, err := m.files.Generate(); err == nil ||
		!strings.Contains(err.Error(), "others than root may write into "+m.cdiDir()) {
		t.Errorf("got %v", err)
	}
	m.must(os.Remove(m.cdiDir()))
	m.must(os.WriteFile(m.cdiDir(), nil, 0o600))
	if _, _, err := m.files.Generate(); err == nil ||
		!strings.HasPrefix(err.Error(), "cannot write CDI files: ") {
		t.Errorf("a file in its place: %v", err)
	}
}

func TestList(t *testing.T) {
	m := newMachine(t)
	if devices, err := m.files.List(); err != nil || len(devices) != 0 {
		t.Errorf("before anything: %v, %v", devices, err)
	}
	bearer, pod := m.grant(grant.Bearer, 0), m.grant("pod:u/train", time.Hour)
	m.generate()
	m.now = m.now.Add(2 * time.Hour)
	devices, err := m.files.List()
	m.must(err)
	var got []string
	for _, d := range devices {
		if strings.Contains(fmt.Sprint(d), bearer.Secret) {
			t.Error("a list shows the secret")
		}
		got = append(got, fmt.Sprintf("%s %v %v %s", d.Name, d.Secret, d.GPUs, d.State))
	}
	for _, want := range []string{"gpuledger.dev/gpu=0 false [GPU-a] current",
		"gpuledger.dev/gpu=GPU-a false [GPU-a] current", "gpuledger.dev/gpu=1:0 false [MIG-b7] current",
		"gpuledger.dev/grant=" + string(bearer.ID) + " true [GPU-a] current", "gpuledger.dev/grant=" +
			string(pod.ID) + " false [GPU-a] stale"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not listed; got\n%s", want, strings.Join(got, "\n"))
		}
	}
	if len(got) != 8 {
		t.Errorf("%d devices, want 8", len(got))
	}
}

// TestExistingFilesAreUpdated: existing files follow changes of the node, and a node without files
// gets none.
func TestExistingFilesAreUpdated(t *testing.T) {
	m := newMachine(t)
	bearer, pod := m.grant(grant.Bearer, 0), m.grant("pod:u/train", time.Hour)
	m.must(m.files.Forget(bearer.ID))
	m.must(m.files.Forget(pod.ID))
	if got := m.update(); got != "" {
		t.Errorf("without a file: %s", got)
	}
	if _, err := os.Stat(m.files.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of the GPUs is there: %v", err)
	}
	for _, r := range []grant.Reference{bearer, pod} {
		if _, err := m.files.Expose(r); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.update(); got != "" { // the file of the GPUs was never generated
		t.Errorf("with files of grants: %s", got)
	}
	m.generate()
	inv := inventory(bootID(t))
	inv.Majors["nvidia-uvm"] = 400
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inv))
	m.now = m.now.Add(2 * time.Hour)
	want := []string{"written gpuledger.dev-gpu.json", "written gpuledger.dev-grant_" + string(bearer.ID) +
		".json", "removed gpuledger.dev-grant_" + string(pod.ID) + ".json"}
	got := strings.Split(m.update(), ", ")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("after another major and an hour: %q, want %q", got, want)
	}
	if got := m.update(); got != "" {
		t.Errorf("again: %s", got)
	}
}

// TestNamesOutliveAMomentWithoutGPUs: they are there again with the GPUs.
func TestNamesOutliveAMomentWithoutGPUs(t *testing.T) {
	m := newMachine(t)
	m.files.Node.Policy.Asks.Engines = []grant.Engine{grant.Podman}
	all := inventory(bootID(t)).GPUs
	m.generate()
	for name, gpus := range map[string][]grant.GPU{"no GPU": {}, "no GPU without MIG devices": all[1:]} {
		m.has(gpus...)
		m.update()
		m.has(all...)
		m.update()
		for _, device := range []string{"gpuledger.dev/gpu=0", "gpuledger.dev/ask=1GiB"} {
			if m.engine().GetDevice(device) == nil {
				t.Errorf("%s for a moment: an engine does not find %s", name, device)
			}
		}
	}
}

// TestTheFileOfSizesIsUpdated: also if it is the only one, and there are no GPUs.
func TestTheFileOfSizesIsUpdated(t *testing.T) {
	m := newMachine(t)
	asks := &m.files.Node.Policy.Asks
	asks.Engines = []grant.Engine{grant.Podman}
	m.generate()
	m.must(os.Remove(m.files.Path()))
	asks.MaxMemory = grant.Size(2 * grant.GiB)
	if got := m.update(); got != "written gpuledger.dev-ask.json" {
		t.Errorf("after another policy: %q", got)
	}
	asks.MaxMemory = grant.Size(grant.MiB)
	if got := m.update(); got != "removed gpuledger.dev-ask.json" {
		t.Errorf("when no size may be asked for: %q", got)
	}
	asks.MaxMemory = 0
	m.generate()
	m.must(os.Remove(m.files.Path()))
	m.has()
	asks.Engines = nil
	if got := m.update(); got != "removed gpuledger.dev-ask.json" {
		t.Errorf("when no engine's containers may ask: %q", got)
	}
}

// TestAnOlderPlanIsNotKept: another process has written a file by an older inventory since it was
// planned here.
func TestAnOlderPlanIsNotKept(t *testing.T) {
	m := newMachine(t)
	m.generate()
	inv := inventory(bootID(t))
	inv.Majors["nvidia-uvm"] = 400
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inv))
	plans := 0
	changes, notes, err := m.files.GenerateWhile(func() {
		if plans++; plans == 1 {
			m.must(os.Remove(m.files.Path()))
			m.must(os.WriteFile(m.files.Path(), []byte("older"), 0o644))
		}
	})
	text, _ := os.ReadFile(m.files.Path())
	if err != nil || plans != 2 || len(notes) != 2 || notes[1] != "a note" || len(changes) != 1 ||
		changes[0].What != cdi.Written || !strings.Contains(string(text), "400") {
		t.Errorf("%d plans, %v, %q, %v; the file has %.80s", plans, changes, notes, err, text)
	}
}

func TestNothingIsWrittenFromAStaleInventory(t *testing.T) {
	m := newMachine(t)
	m.must(gpu.Write(gpu.Path(m.dir+"/state"), inventory("another boot")))
	var refusal *grant.Refusal
	if _, _, err := m.files.Generate(); !errors.As(err, &refusal) || refusal.Code != grant.InventoryStale {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(m.files.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is there: %v", err)
	}
}
