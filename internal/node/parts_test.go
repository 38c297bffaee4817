package node

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/request"
)

func TestTextIsCutBetweenCharacters(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{strings.Repeat("x", maxText), strings.Repeat("x", maxText)},
		{strings.Repeat("x", maxText+1), strings.Repeat("x", maxText-3) + "..."},
		{strings.Repeat("ü", maxText), strings.Repeat("ü", (maxText-3)/2) + "..."},
		{"a\xff", "a?"},
	} {
		if got := cut(c.text, maxText); got != c.want {
			t.Errorf("%.20q of %d bytes: %d bytes, want %d", c.text, len(c.text), len(got), len(c.want))
		}
	}
}

func TestADirectoryByTwoSpellings(t *testing.T) {
	for _, c := range []struct {
		path, clean string
		want        bool
	}{{"/usr/lib64/", "/usr/lib64", true}, {"/usr//lib64/", "/usr/lib64", true},
		{"/usr/lib64x/", "/usr/lib64", false}, {"/usr/lib64/", "", false}, {"/", "", false}} {
		if got := isDirectory(c.path, c.clean); got != c.want {
			t.Errorf("%s is %s: %v", c.path, c.clean, got)
		}
	}
}

// TestLastMountOverTheRecords: the last mount over the directory, by /run or /var/run.
func TestLastMountOverTheRecords(t *testing.T) {
	mount := func(destination, kind string, options ...string) specs.Mount {
		return specs.Mount{Destination: destination, Type: kind, Options: options}
	}
	for name, c := range map[string]struct {
		mounts []specs.Mount
		want   cover
	}{
		"nothing":                  {[]specs.Mount{mount("/data", "bind", "rbind"), mount(grant.ShimPlace+"x", "bind", "bind")}, cover{}},
		"its root":                 {[]specs.Mount{mount("/", "bind", "bind")}, cover{true, "/", false}},
		"the place":                {[]specs.Mount{mount(grant.ShimPlace, "bind", "rbind")}, cover{true, grant.ShimPlace, false}},
		"a parent":                 {[]specs.Mount{mount("/run", "bind", "rbind")}, cover{true, "/run", false}},
		"a parent by its old path": {[]specs.Mount{mount("/var/run", "bind", "rbind")}, cover{true, "/var/run", false}},
		"another file system":      {[]specs.Mount{mount("/run", "bind", "rbind"), mount("run", "tmpfs", "mode=755")}, cover{true, "run", true}},
		"a bind mount of the type": {[]specs.Mount{mount("/run", "tmpfs", "bind")}, cover{true, "/run", false}},
		"a recursive one":          {[]specs.Mount{mount("/run", "tmpfs", "rbind")}, cover{true, "/run", false}},
		"below it":                 {[]specs.Mount{mount(grant.ShimPlace+"/driver", "bind", "bind")}, cover{}},
	} {
		if got := coverOf(c.mounts); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	limited := Decision{Verdict: grant.Verdict{Kind: grant.Admit, Limited: true}}
	free, pass := limited, limited
	free.Limited, pass.Kind = false, grant.Pass
	for name, c := range map[string]struct {
		d    Decision
		over cover
		want bool
	}{
		"covered": {limited, cover{true, "/run", false}, true}, "not covered": {limited, cover{}, false},
		"by its own":      {limited, cover{true, "/run", true}, false},
		"without a limit": {free, cover{true, "/run", false}, false},
		"without a grant": {pass, cover{true, "/run", false}, false},
	} {
		if refused := refuseCovered(&createFacts{cover: c.over}, c.d); (refused != nil) != c.want ||
			c.want && refused.Code != grant.InjectionImpossible {
			t.Errorf("%s: %+v", name, refused)
		}
	}
}

// TestGpuledgersRules differ from an engine's by the one for all block devices.
func TestGpuledgersRules(t *testing.T) {
	n := int64(8)
	for name, c := range map[string]struct {
		rule request.CgroupRule
		want bool
	}{
		"all disks":  {request.CgroupRule{Allow: true, Type: "b"}, true},
		"denied":     {request.CgroupRule{Type: "b"}, false},
		"all others": {request.CgroupRule{Allow: true, Type: "c"}, false},
		"everything": {request.CgroupRule{Allow: true}, false},
		"of a major": {request.CgroupRule{Allow: true, Type: "b", Major: &n}, false},
		"of a minor": {request.CgroupRule{Allow: true, Type: "b", Minor: &n}, false},
	} {
		spec := request.Spec{Linux: &request.Linux{Resources: &request.Resources{
			Devices: []request.CgroupRule{{}, c.rule}}}}
		if confined(spec) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
	if confined(request.Spec{}) || confined(request.Spec{Linux: &request.Linux{}}) {
		t.Error("a spec without rules has gpuledger's")
	}
}

func TestAPodsSumBesideItsEnvironment(t *testing.T) {
	for units, want := range map[string]int{"": 0, "x": 0, "0": 0, "-1": 0, "1": 1,
		"1073741824": 1 << 30, "1073741825": 0} {
		r := grant.Request{Allocations: []grant.Allocation{
			{Source: gpushareSource}, {Source: "annotation:other"}}}
		addPodUnits(&r, map[string]string{gpusharePod: units})
		if a := r.Allocations; !a[0].InEnv || a[0].PodUnits != want || a[1].InEnv || a[1].PodUnits != 0 {
			t.Errorf("%q: %+v", units, a)
		}
	}
}

func TestCgroupNamesWithAContainersID(t *testing.T) {
	for _, c := range []struct {
		path, id string
		want     bool
	}{
		{"", "c", true}, {"/pods/c", "c", true}, {"/pods/x", "c", false}, {"/pods/c/x", "c", false},
		{"/pods/xc", "c", false}, {"/pods/cri-containerd-c", "c", true}, {"a.slice:docker-c", "c", true},
		{"a.slice:docker:c", "c", true}, {":runc:c", "c", true}, {"/s/libpod-payload-c", "c", true},
		{"/a.slice/docker-c.scope", "c", true},
		// names that consist of more than one id
		{"/pods/work-c", "c", false}, {"/pods/work-c", "work-c", true}, {"a.slice:docker:work-c", "c", false},
		{"a.slice:docker-work:c", "c", false}, {"a.slice:docker-work:c", "work-c", true},
		{"/pods/docker-c", "docker-c", false}, {"", "docker-c", false},
		{"/s/libpod-payload-c", "payload-c", false},
		{"a.slice:other:c", "c", false}, {"/a/docker:c", "c", false},
	} {
		f := &createFacts{request: grant.Request{Cgroup: c.path}}
		f.Container.ID = c.id
		if f.namesItself() != c.want {
			t.Errorf("%s of %s: %v", c.path, c.id, !c.want)
		}
	}
}

// TestStrengthOfACreatedContainer: it needs the records of its own grant, and the proxies over
// every library that its programs could find. The last mount over a path counts.
func TestStrengthOfACreatedContainer(t *testing.T) {
	const id, shim, own = grant.ID("g-aaaaaaaaaaaa"), "/opt/shim", "/usr/lib/libcuda.so.1"
	p := grant.Policy{RunDir: "/run/gpuledger"}
	bind := func(source, destination string) specs.Mount {
		return specs.Mount{Source: source, Destination: destination, Type: "bind", Options: []string{"bind"}}
	}
	var records []specs.Mount
	for _, m := range p.RecordMounts(id) {
		records = append(records, bind(m.HostPath, m.ContainerPath))
	}
	whole := append(slices.Clip(records), bind(shim+"/libcuda.so.1", own))
	with := func(more ...specs.Mount) []specs.Mount { return append(slices.Clip(whole), more...) }
	for name, c := range map[string]struct {
		mounts    []specs.Mount
		throttled bool
		unseen    bool
		runs      bool
		want      string
	}{
		"all is there":                          {mounts: whole},
		"nothing":                               {want: "its memory limit at " + records[0].Destination},
		"no limits":                             {mounts: whole[1:], want: "its memory limit at " + records[0].Destination},
		"no region":                             {mounts: append(slices.Clip(whole[:1]), whole[2:]...), want: "its memory limit at " + records[1].Destination},
		"the records of another grant":          {mounts: with(bind("/x/limits", records[0].Destination)), want: "its memory limit at " + records[0].Destination},
		"another grant's below its own":         {mounts: append([]specs.Mount{bind("/x/limits", records[0].Destination)}, whole...)},
		"the same by another spelling":          {mounts: with(bind("/x/limits", "run/./gpuledger/limits")), want: "its memory limit at " + records[0].Destination},
		"its own libcuda over the proxy":        {mounts: with(bind("/usr/lib/libcuda.so.1", own)), want: "the limiting " + own},
		"another's libcuda elsewhere":           {mounts: with(bind("/x/libnvidia-ml.so.1", "/lib/libnvidia-ml.so.1")), want: "the limiting /lib/libnvidia-ml.so.1"},
		"the real one where the proxy wants it": {mounts: with(bind("/usr/lib/libcuda.so.1", grant.ShimPlace+"/driver/libcuda.so.1"))},
		"another library":                       {mounts: with(bind("/x/libc.so.6", "/lib/libc.so.6"))},
		"throttled":                             {mounts: append(slices.Clip(records), bind(shim+"/"+grant.ThrottleLibrary, own)), throttled: true},
		"throttled by what limits alone":        {mounts: whole, throttled: true, want: "the throttling " + own},
		"throttled, by NVML's proxy":            {mounts: append(slices.Clip(records), bind(shim+"/"+grant.ThrottleLibrary, own), bind(shim+"/libnvidia-ml.so.1", "/lib/libnvidia-ml.so.1")), throttled: true},
		"throttled, the real one in its place":  {mounts: append(slices.Clip(records), bind(shim+"/"+grant.ThrottleLibrary, own), bind("/usr/lib/libcuda.so.1", grant.ShimPlace+"/driver/libcuda.so.1")), throttled: true},
		"the image's own is not covered":        {mounts: records, want: "one over its image's own " + own},
		"an image that is not seen":             {mounts: records, unseen: true},
		"it runs, its image's own not covered":  {mounts: records, runs: true, want: "one over its image's own " + own},
	} {
		spec, err := json.Marshal(specs.Spec{Mounts: c.mounts})
		if err != nil {
			t.Fatal(err)
		}
		f := &createFacts{Create: Create{Config: spec, Running: c.runs}, policy: p,
			gpu: gpuFacts{snapshot: snapshot{inventory: grant.Inventory{Shim: grant.Shim{Dir: shim}}},
				own: []grant.OwnLibrary{{Place: own, Name: "libcuda.so.1"}}}}
		if f.image.Root = "/rootfs"; c.unseen {
			f.image.Root = ""
		}
		d := Decision{Verdict: grant.Verdict{Kind: grant.Admit, Limited: true, Throttled: c.throttled,
			Grant: &grant.Grant{ID: id}}}
		if got := unheld(f, d); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if f.Config = []byte("{"); unheld(f, d) != "its memory limit" {
			t.Errorf("%s: a spec that cannot be read holds it", name)
		}
	}
}

// TestDevicesOfASimulatedNode: its snapshot lists them, next to what the machine has. On other
// nodes the snapshot does not count.
func TestDevicesOfASimulatedNode(t *testing.T) {
	inv := grant.Inventory{Majors: map[string]int{"nvidia-sim": 4242},
		GPUs: []grant.GPU{{UUID: "GPU-0", Render: []string{
			"/dev/dri/renderD4321", "/dev/dri/card77", "/dev/dri/renderDx"}}}}
	none := grant.Inventory{}
	for name, c := range map[string]struct {
		source string
		inv    grant.Inventory
		want   bool
	}{"simulated": {string(grant.Simulated), inv, true}, "simulated, empty": {
		string(grant.Simulated), none, false}, "real": {"", inv, false}} {
		n := &Node{Host: host.Default()}
		if c.source != "" {
			n.Policy.Inventory.Source = grant.Simulated
		}
		f := n.finder(func() (grant.Inventory, *grant.Problem) { return c.inv, nil })
		majors, err := f.Majors()
		_, simulated := majors["nvidia-sim"]
		minors, errDRM := f.DRM()
		if err != nil || errDRM != nil || simulated != c.want || minors[4321] != c.want || minors[77] {
			t.Errorf("%s: majors %v (%v), minors %v (%v)", name, majors, err, minors, errDRM)
		}
		if got := f.Cards(); got != (len(c.inv.GPUs) > 0) && !n.Host.HasNVIDIA() {
			t.Errorf("%s: it has cards: %v", name, got)
		}
		n.Host.Proc = t.TempDir()
		if _, err := n.finder(func() (grant.Inventory, *grant.Problem) {
			return c.inv, nil
		}).Majors(); err == nil {
			t.Errorf("%s: majors that cannot be read are reported", name)
		}
	}
}

// TestFactsSuffice: a decision that needs more than was read is not made with the ledger locked.
func TestFactsSuffice(t *testing.T) {
	asks := grant.Request{Hits: []grant.Hit{{}}}
	read := gpuFacts{gathered: true}
	read.inventory.Shim.Dir = "/shim"
	searched := read
	searched.libraries = true
	limited := grant.View{Grants: []grant.Grant{{Mode: grant.Limit}}}
	shared := grant.View{Grants: []grant.Grant{{Mode: grant.Timeslice}}}
	for name, c := range map[string]struct {
		f    createFacts
		view grant.View
		want bool
	}{
		"no GPU is requested":         {createFacts{}, limited, true},
		"the inventory was not read":  {createFacts{request: asks}, shared, false},
		"it was read":                 {createFacts{request: asks, gpu: read}, shared, true},
		"libraries were not searched": {createFacts{request: asks, gpu: read}, limited, false},
		"they were":                   {createFacts{request: asks, gpu: searched}, limited, true},
		"there is no shim":            {createFacts{request: asks, gpu: gpuFacts{gathered: true}}, limited, true},
	} {
		if got := c.f.suffice(c.view); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestADriverWhosePackagesWereReplaced: the loaded module needs the files of before, which cannot
// be mounted any more. A container that was created has them.
func TestADriverWhosePackagesWereReplaced(t *testing.T) {
	root := t.TempDir()
	library := root + "/libcuda.so.535.171"
	if err := os.WriteFile(library, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := &Node{Host: host.Default()}
	n.Policy.Inventory.Source = grant.NVML
	var f createFacts
	f.request.Hits = []grant.Hit{{}} // it asks
	f.gpu.gathered = true
	f.gpu.inventory.Driver = grant.Driver{Version: "535.171", Root: root, Files: []grant.DriverFile{
		{Path: "/lib32.so", Kind: grant.FileLibrary, Bits: 32, Names: []string{"libcuda.so.1"}},
		{Path: "/libcuda.so.535.171", Kind: grant.FileLibrary, Bits: 64, Names: []string{"libcuda.so.1"}}}}
	says := func() string {
		if v := withProblem(n, &f, grant.View{}); len(v.Problems) > 0 {
			return string(v.Problems[0].Code) + ": " + v.Problems[0].Message
		}
		return ""
	}
	if got := says(); got != "" {
		t.Errorf("with its files: %s", got)
	}
	if err := os.Remove(library); err != nil {
		t.Fatal(err)
	}
	if got, want := says(), "inventory-stale: the driver's files were replaced or removed: "+library+
		" is gone, and driver 535.171 is loaded"; got != want {
		t.Errorf("after an upgrade: %q, want %q", got, want)
	}
	f.Live = &Live{}
	if got := says(); !strings.HasPrefix(got, "inventory-stale: ") {
		t.Errorf("in a hook, which injects them: %q", got)
	}
	f.Live, f.AnyRoot = nil, true // JudgeCreated
	if got := says(); got != "" {
		t.Errorf("a container that was created: %s", got)
	}
	f.AnyRoot, n.Policy.Inventory.Source = false, grant.Simulated
	if got := says(); got != "" {
		t.Errorf("a simulated node: %s", got)
	}
}
