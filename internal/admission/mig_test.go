package admission

import (
	"errors"
	"slices"
	"strings"
	"testing"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// partitioned is a node with two H100 in MIG devices and one whole GPU. The driver shows no
// capability of the last MIG device.
func partitioned() grant.Inventory {
	mig := func(uuid, profile string, gib grant.Bytes, gi, ci, first int) grant.MIGDevice {
		return grant.MIGDevice{UUID: uuid, Profile: profile, Memory: gib * grant.GiB, GI: gi, CI: ci,
			Caps: [2]int{first, first + 1 + ci}}
	}
	inv := inventory(3)
	inv.Majors = map[string]int{"nvidia": 195, "nvidia-uvm": 508, "nvidia-caps": 509}
	for i := range inv.GPUs[:2] {
		inv.GPUs[i].Memory = 80 * grant.GiB
	}
	for i, pci := range []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"} {
		inv.GPUs[i].PCI = pci
	}
	inv.GPUs[0].MIG = []grant.MIGDevice{mig("MIG-a", "1g.10gb", 10, 7, 0, 66),
		mig("MIG-b", "1g.10gb", 10, 8, 0, 75), mig("MIG-c", "3g.40gb", 40, 1, 0, 12)}
	inv.GPUs[1].MIG = []grant.MIGDevice{mig("MIG-d", "1c.3g.40gb", 40, 2, 0, 156),
		mig("MIG-e", "1c.3g.40gb", 40, 2, 1, 156), mig("MIG-f", "1g.10gb", 10, 9, 0, 219),
		{UUID: "MIG-g", Profile: "1g.10gb", Memory: 10 * grant.GiB, GI: 10}}
	return inv
}

func heldMIG(id grant.ID, owner grant.Owner, uuids ...string) grant.Grant {
	g := grant.Grant{ID: id, Owner: owner, Mode: grant.MIG, Strength: grant.StrengthHardware}
	for _, uuid := range uuids {
		d, found := partitioned().Device(uuid)
		if !found {
			panic(uuid)
		}
		g.GPUs = append(g.GPUs, grant.Share{UUID: uuid, Index: d.GPU.Index, Memory: d.Memory(),
			Profile: d.MIG.Profile})
	}
	return g
}

func TestPlaceMIGDevices(t *testing.T) {
	mig := func(more func(*Ask)) Ask {
		a := Ask{Mode: grant.MIG, Owner: grant.Bearer}
		more(&a)
		return a
	}
	profile := func(p string, n int) Ask { return mig(func(a *Ask) { a.Profile, a.GPUs = p, n }) }
	named := func(names ...string) Ask { return mig(func(a *Ask) { a.Names = names }) }
	memory := func(b grant.Bytes) Ask { return mig(func(a *Ask) { a.Memory = b }) }
	// from before it was partitioned
	whole := held("g-wholewholewh", grant.Bearer, grant.Limit, 0, grant.GiB, 0)
	for _, c := range []struct {
		name   string
		ask    Ask
		grants []grant.Grant
		want   string // UUIDs, or the beginning of the error
	}{
		{"by profile", profile("1g.10gb", 0), nil, "MIG-a"},
		{"by profile, the first taken", profile("1g.10gb", 0),
			[]grant.Grant{heldMIG("g-a", grant.Bearer, "MIG-a")}, "MIG-b"},
		{"by profile, binpacked to the fuller GPU", profile("1g.10gb", 0),
			[]grant.Grant{heldMIG("g-a", grant.Bearer, "MIG-d")}, "MIG-f"},
		{"by profile, spread to the emptier", mig(func(a *Ask) {
			a.Profile, a.Place = "1g.10gb", grant.Spread
		}), []grant.Grant{heldMIG("g-a", grant.Bearer, "MIG-c")}, "MIG-f"},
		{"spread away from the owner's others", mig(func(a *Ask) {
			a.Profile, a.Place, a.Owner = "1g.10gb", grant.Spread, "pod:u/b"
		}), []grant.Grant{
			heldMIG("g-a", "pod:u/a", "MIG-c"), heldMIG("g-b", grant.Bearer, "MIG-d", "MIG-e")}, "MIG-f"},
		{"several at once", profile("1g.10gb", 3), nil, "MIG-a MIG-b MIG-f"},
		{"more than there are", profile("1g.10gb", 8), nil,
			"no-capacity: cannot grant 8 times a MIG device 1g.10gb in mode mig: MIG devices on " +
				"this node: 7"},
		{"one too many", profile("1g.10gb", 4), nil,
			"no-capacity: cannot grant 4 times a MIG device 1g.10gb in mode mig: GPU 0:2 is a 3g.40gb; "},
		{"by size: the smallest that is large enough", memory(8 * grant.GiB), nil, "MIG-a"},
		{"by size: exactly as large", memory(10 * grant.GiB), nil, "MIG-a"},
		{"by size, spread: the smallest that is large enough",
			mig(func(a *Ask) { a.Memory, a.Place = 8*grant.GiB, grant.Spread }), nil, "MIG-a"},
		{"by size: a larger one", memory(11 * grant.GiB), nil, "MIG-c"},
		{"by size: none is so large", memory(41 * grant.GiB), nil,
			"no-capacity: cannot grant a MIG device of 41GiB in mode mig: GPU 0:0 has 10GiB; "},
		{"by UUID", named("MIG-c"), nil, "MIG-c"},
		{"by place", named("1:1", "0:0"), nil, "MIG-a MIG-e"},
		{"by UUID, which is held", named("MIG-c"), []grant.Grant{heldMIG("g-c", grant.Bearer, "MIG-c")},
			"no-capacity: cannot grant a MIG device in mode mig: GPU 0:2 is held by g-c (mig, 40GiB)"},
		{"twice by two names", named("0:0", "MIG-a"), nil, `usage: cannot grant: GPU "MIG-a" is named twice`},
		{"one that is not there", named("0:3"), nil,
			`not found: cannot grant: this node has no GPU "0:3"; it has 0, 0:0, 0:1, 0:2, 1, `},
		{"a partitioned GPU", named("0"), nil,
			"mode-conflict: cannot grant a MIG device in mode mig: GPU 0 is partitioned; mode mig grants " +
				"its MIG devices, 0:0 to 0:2"},
		{"a whole GPU", named("2"), nil, "mode-conflict: cannot grant a MIG device in mode mig: GPU 2 is " +
			"not partitioned; "},
		{"in another mode", asked(grant.GiB, func(a *Ask) { a.Names = []string{"0:0"} }), nil,
			"mode-conflict: cannot grant 1GiB on a GPU in mode limit: GPU 0:0 is a MIG device, which mode " +
				"mig alone grants"},
		{"limit takes the whole GPU that is left", asked(grant.GiB, nil), nil, "GPU-2"},
		{"limit on a partitioned GPU", asked(grant.GiB, func(a *Ask) { a.Names = []string{"0"} }), nil,
			"no-capacity: cannot grant 1GiB on a GPU in mode limit: GPU 0 is partitioned (mode mig)"},
		{"limit on a partitioned GPU that is held", asked(grant.GiB, func(a *Ask) {
			a.Names = []string{"0"}
		}), []grant.Grant{heldMIG("g-c", grant.Bearer, "MIG-c")},
			"mode-conflict: cannot grant 1GiB on a GPU in mode limit: GPU 0 is in mode mig, held by g-c " +
				"(mig, 40GiB)"},
		{"of a GPU that is granted as a whole", named("0:0"), []grant.Grant{whole},
			"mode-conflict: cannot grant a MIG device in mode mig: GPU 0:0 is in mode limit, held by " +
				"g-wholewholewh"},
		{"beside a GPU that is granted as a whole", profile("1g.10gb", 0), []grant.Grant{whole}, "MIG-f"},
		{"without a capability", named("MIG-g"), nil,
			"no-capacity: cannot grant a MIG device in mode mig: GPU 1:3 has no capability that the " +
				"driver reports"},
		{"nothing specified", mig(func(*Ask) {}), nil,
			"usage: cannot grant: mode mig needs a profile, as 1g.10gb, "},
		{"with compute", mig(func(a *Ask) { a.Profile, a.Compute = "1g.10gb", 10 }), nil,
			"usage: cannot grant: a MIG device has compute of its own; "},
		{"a profile in another mode", asked(grant.GiB, func(a *Ask) { a.Profile = "1g.10gb" }), nil,
			"usage: cannot grant: a profile is a MIG device's, and mode limit grants none; "},
	} {
		shares, err := Place(c.ask, "", grant.View{Now: now, Grants: c.grants}, partitioned(), grant.Policy{})
		got := placed(shares, err)
		if err == nil {
			var uuids []string
			for _, s := range shares {
				uuids = append(uuids, s.UUID)
				if d, _ := partitioned().Device(s.UUID); c.ask.Mode == grant.MIG &&
					(s.Memory != d.Memory() || s.Profile != d.MIG.Profile || s.Index != d.GPU.Index) {
					t.Errorf("%s: the share %+v is not %+v", c.name, s, d.MIG)
				}
			}
			got = strings.Join(uuids, " ")
		}
		if got != c.want && !(err != nil && strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: got  %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestAPartitionedGPUStaysInModeMIG: the hint of a refusal does not promise that a release ends the
// mode.
func TestAPartitionedGPUStaysInModeMIG(t *testing.T) {
	ask := asked(grant.GiB, func(a *Ask) { a.Names = []string{"0"} })
	v := grant.View{Now: now, Grants: []grant.Grant{heldMIG("g-c", grant.Bearer, "MIG-c")}}
	_, err := Place(ask, "", v, partitioned(), grant.Policy{})
	var r *grant.Refusal
	if !errors.As(err, &r) || !strings.Contains(r.Hint, "in mode mig as long as it is partitioned") {
		t.Errorf("got %#v", err)
	}
}

// TestMIGDevicesOfASickGPU tests that they take no grants, and that a damaged entry closes all that
// it may name.
func TestMIGDevicesOfASickGPU(t *testing.T) {
	inv := partitioned()
	inv.GPUs[0].Health = "it has fallen off the PCI bus"
	v := grant.View{Now: now, Damaged: []grant.Damage{{ID: "g-damaged", GPUs: []string{"MIG-f"}}}}
	_, err := Place(Ask{Mode: grant.MIG, Owner: grant.Bearer, Profile: "1g.10gb"}, "", v, inv, grant.Policy{})
	for _, want := range []string{"GPU 0:0 is unhealthy: it has fallen off the PCI bus",
		"GPU 1:2 is closed: the ledger's entry g-damaged is damaged"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	free, err := Free(v, inv, grant.Policy{})
	if err != nil || free["MIG-a"] != 0 || free["MIG-f"] != 0 || free["MIG-d"] != 40*grant.GiB ||
		free["GPU-0"] != 0 || free["GPU-2"] != 16*grant.GiB {
		t.Errorf("free is %v, %v", free, err)
	}
}

// mig is a container with a reference to a grant of these MIG devices.
func mig(uuids ...string) *world {
	w := newWorld()
	g := heldMIG(bearerGrant, grant.Bearer, uuids...)
	g.Secret = grant.SecretHash(secret)
	w.inv, w.v.Grants = partitioned(), []grant.Grant{g}
	w.r.Devices.Majors[509] = grant.ClassCaps
	w.bearer()
	return w
}

func paths(nodes []*cdispec.DeviceNode) string {
	var list []string
	for _, n := range nodes {
		list = append(list, strings.TrimPrefix(n.Path, "/dev/"))
	}
	return strings.Join(list, " ")
}

// TestAMIGGrantGives tests that a grant gives the node of its GPU and the two nodes of its
// instances, each once and with a rule, and no others.
func TestAMIGGrantGives(t *testing.T) {
	const control = " nvidiactl nvidia-uvm nvidia-uvm-tools"
	const dir, beside = "/proc/driver/nvidia/gpus/0000:0", "/proc/driver/nvidia/capabilities/gpu"
	for _, c := range []struct{ name, nodes, visible, masked string }{
		{"MIG-a", "nvidia0 nvidia-caps/nvidia-cap66 nvidia-caps/nvidia-cap67" + control, "MIG-a",
			dir + "2:00.0 " + dir + "3:00.0 " + beside + "0/mig/gi1 " + beside + "0/mig/gi8"},
		{"MIG-a MIG-b", "nvidia0 nvidia-caps/nvidia-cap66 nvidia-caps/nvidia-cap67 " +
			"nvidia-caps/nvidia-cap75 nvidia-caps/nvidia-cap76" + control, "MIG-a,MIG-b",
			dir + "2:00.0 " + dir + "3:00.0 " + beside + "0/mig/gi1"},
		{"MIG-d", "nvidia1 nvidia-caps/nvidia-cap156 nvidia-caps/nvidia-cap157" + control, "MIG-d",
			dir + "1:00.0 " + dir + "3:00.0 " + beside + "1/mig/gi10 " + beside + "1/mig/gi2/ci1 " + beside +
				"1/mig/gi9"},
		{"MIG-d MIG-e", "nvidia1 nvidia-caps/nvidia-cap156 nvidia-caps/nvidia-cap157 " +
			"nvidia-caps/nvidia-cap158" + control, "MIG-d,MIG-e",
			dir + "1:00.0 " + dir + "3:00.0 " + beside + "1/mig/gi10 " + beside + "1/mig/gi9"},
		{"MIG-c MIG-f", "nvidia0 nvidia-caps/nvidia-cap12 nvidia-caps/nvidia-cap13 nvidia1 " +
			"nvidia-caps/nvidia-cap219 nvidia-caps/nvidia-cap220" + control, "MIG-c,MIG-f",
			dir + "3:00.0 " + beside + "0/mig/gi7 " + beside + "0/mig/gi8 " + beside + "1/mig/gi10 " +
				beside + "1/mig/gi2"},
	} {
		v := mig(strings.Fields(c.name)...).decide()
		if v.Kind != grant.Admit || v.Strength != grant.StrengthHardware ||
			paths(v.Edits.DeviceNodes) != c.nodes || v.Edits.Env[0] != "NVIDIA_VISIBLE_DEVICES="+c.visible {
			t.Errorf("%s: %s (%s), strength %s, nodes %s\nwant %s, env %v", c.name, v.Kind, v.Message,
				v.Strength, paths(v.Edits.DeviceNodes), c.nodes, v.Edits.Env)
		}
		if got := strings.Join(v.Masked, " "); got != c.masked {
			t.Errorf("%s: masked\n%s\nwant\n%s", c.name, got, c.masked)
		}
		if len(v.Rules) != len(v.Edits.DeviceNodes) ||
			!slices.ContainsFunc(v.Rules, func(r grant.DeviceRule) bool {
				return r.Major == 509 && r.Allow
			}) {
			t.Errorf("%s: rules %v", c.name, v.Rules)
		}
	}
}

// TestAMIGGrantCovers tests that a grant covers what belongs to its own devices, whatever put it
// into the spec.
func TestAMIGGrantCovers(t *testing.T) {
	for _, c := range []struct {
		name string
		hit  grant.Hit
		code grant.Code // "": covered
	}{
		{"its GPU instance", node(grant.ClassCaps, 66), ""},
		{"its compute instance", node(grant.ClassCaps, 67), ""},
		{"its card", node(grant.ClassGPU, 0), ""},
		{"its neighbour's instance", node(grant.ClassCaps, 75), grant.GPUDeviceNode},
		{"the capability to partition GPUs", node(grant.ClassCaps, 1), grant.GPUDeviceNode},
		{"the capability to watch all", node(grant.ClassCaps, 2), grant.GPUDeviceNode},
		{"minor 0, which a device without capability has", node(grant.ClassCaps, 0), grant.GPUDeviceNode},
		{"another card", node(grant.ClassGPU, 1), grant.GPUDeviceNode},
		{"by UUID", env("MIG-a", "MIG-a"), ""},
		{"by place", env("0:0", "0:0"), ""},
		{"all", all, ""},
		{"its neighbour by UUID", env("MIG-b", "MIG-b"), grant.VisibleDevicesOutsideGrant},
		{"its neighbour by place", env("0:1", "0:1"), grant.VisibleDevicesOutsideGrant},
		{"its card, whole", env("0", "0"), grant.VisibleDevicesOutsideGrant},
		{"one that is not there", env("0:9", "0:9"), grant.VisibleDevicesOutsideGrant},
		{"our CDI name", cdiGPU("0:0"), ""},
		{"our CDI name of its neighbour", cdiGPU("0:1"), grant.CDIDeviceOutsideGrant},
		{"what makes an injector give the right to partition", migEnv, ""},
	} {
		w := mig("MIG-a")
		w.hit(c.hit)
		if v := w.decide(); v.Code != c.code || (v.Kind == grant.Admit) != (c.code == "") {
			t.Errorf("%s: %s %s (%s), want %q", c.name, v.Kind, v.Code, v.Message, c.code)
		}
	}
}

// TestAMIGGrantWhoseDeviceChanged tests a grant in the ledger after the node has changed.
func TestAMIGGrantWhoseDeviceChanged(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*grant.Inventory)
		want   string
	}{
		"destroyed":        {func(inv *grant.Inventory) { inv.GPUs[0].MIG = inv.GPUs[0].MIG[1:] }, "holds a grant of MIG-a, which is not there any more"},
		"without its node": {func(inv *grant.Inventory) { inv.GPUs[0].MIG[0].Caps = [2]int{} }, "which has no capability that the driver reports"},
		"a sick card":      {func(inv *grant.Inventory) { inv.GPUs[0].Health = "is lost" }, "which is lost"},
	} {
		w := mig("MIG-a")
		c.change(&w.inv)
		if v := w.decide(); v.Code != grant.GPUUnhealthy || !strings.Contains(v.Message, c.want) {
			t.Errorf("%s: %s %s: %s", name, v.Kind, v.Code, v.Message)
		}
	}
	w := newWorld() // a whole GPU, which was partitioned later
	w.bearer()
	w.inv.GPUs[0].MIG = partitioned().GPUs[0].MIG
	if v := w.decide(); v.Code != grant.GPUUnhealthy ||
		!strings.Contains(v.Message, "which is partitioned into MIG devices") {
		t.Errorf("a partitioned GPU: %s %s: %s", v.Kind, v.Code, v.Message)
	}
}

// TestAnAllocationOfAMIGDevice tests that an allocation must name the granted device, and that its
// size must fit into the device.
func TestAnAllocationOfAMIGDevice(t *testing.T) {
	for _, c := range []struct {
		name       string
		allocation grant.Allocation
		code       grant.Code
	}{
		{"its UUID", grant.Allocation{GPUs: []string{"MIG-a"}}, ""},
		{"its place", grant.Allocation{GPUs: []string{"0:0"}}, ""},
		{"its mode", grant.Allocation{Mode: grant.MIG}, ""},
		{"less than it has", grant.Allocation{Memory: 8 * grant.GiB}, ""},
		{"more than it has", grant.Allocation{Memory: 11 * grant.GiB}, grant.AnnotationMismatch},
		{"its neighbour", grant.Allocation{GPUs: []string{"0:1"}}, grant.AnnotationMismatch},
		{"another mode", grant.Allocation{Mode: grant.Limit}, grant.AnnotationMismatch},
	} {
		w := mig("MIG-a")
		c.allocation.Source, c.allocation.Asks = "annotation:gpuledger.dev/x", true
		w.r.Allocations = append(w.r.Allocations, c.allocation)
		if v := w.decide(); v.Code != c.code {
			t.Errorf("%s: %s %s (%s), want %q", c.name, v.Kind, v.Code, v.Message, c.code)
		}
	}
}

// TestAPrivilegedContainerWithAMIGDevice tests that it keeps its own nodes, with strength none.
func TestAPrivilegedContainerWithAMIGDevice(t *testing.T) {
	w := mig("MIG-a")
	w.r.Privileged, w.r.AllDevices = true, true
	w.hit(blamed(grant.Hit{Vector: "rule:0", Cover: grant.CoverNarrow}))
	own, other := blamed(node(grant.ClassCaps, 66)), blamed(node(grant.ClassCaps, 75))
	own.Removal.Name, other.Removal.Name = "/dev/own", "/dev/other"
	w.hit(own)
	w.hit(other)
	v := w.decide()
	if v.Kind != grant.Admit || v.Strength != grant.StrengthNone || !v.Narrow || len(v.Removed) != 1 ||
		v.Removed[0].Name != "/dev/other" {
		t.Errorf("%+v", v)
	}
	for _, r := range v.Rules {
		if r.Type == 'c' && r.Major == 509 && r.Minor != 66 && r.Minor != 67 {
			t.Errorf("a rule for other capabilities: %+v", r)
		}
	}
}

// TestAMIGDeviceIsGrantedWhole tests that the reserve of a GPU and its use outside the ledger do
// not count against its MIG devices.
func TestAMIGDeviceIsGrantedWhole(t *testing.T) {
	v, p := grant.View{Now: now, Outside: map[string]grant.Bytes{"GPU-0": 3 * grant.GiB}},
		grant.Policy{Rules: grant.Rules{Reserve: grant.Size(grant.GiB)}}
	shares, err := Place(Ask{Mode: grant.MIG, Owner: grant.Bearer, Names: []string{"MIG-a"}},
		"", v, partitioned(), p)
	if err != nil || len(shares) != 1 || shares[0].Memory != 10*grant.GiB {
		t.Errorf("got %v, %v", shares, err)
	}
}

// TestAMIGDeviceThatIsUsedWithoutAGrant: it is not granted, and no container starts with a grant of
// it. That holds for the compute instances of one GPU instance together, which share their memory.
func TestAMIGDeviceThatIsUsedWithoutAGrant(t *testing.T) {
	for name, c := range map[string]struct {
		view grant.View
		want string
	}{
		"by a process of the node": {grant.View{Outside: map[string]grant.Bytes{"MIG-a": grant.MiB}},
			"has 1MiB in use outside the ledger"},
		"by a container": {grant.View{Held: map[string]bool{"MIG-a": true}}, "is held by a container"},
		"its GPU is open in a container": {grant.View{Held: map[string]bool{"GPU-0": true}},
			"is held by a container"},
	} {
		c.view.Now = now
		for _, device := range []string{"MIG-a", "MIG-b"} {
			_, err := Place(Ask{Mode: grant.MIG, Owner: grant.Bearer, Names: []string{device}}, "", c.view,
				partitioned(), grant.Policy{})
			if free := device != "MIG-a" && !c.view.Held["GPU-0"]; free != (err == nil) || !free &&
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %s: %v", name, device, err)
			}
		}
		if c.view.Held == nil || c.view.Held["GPU-0"] {
			continue
		}
		for device, want := range map[string]grant.VerdictKind{"MIG-a": grant.Refused, "MIG-b": grant.Admit} {
			w := mig(device)
			w.v.Held = c.view.Held
			if v := w.decide(); v.Kind != want || want == grant.Refused && v.Code != grant.GrantInUse {
				t.Errorf("%s: a create with %s: %s %s", name, device, v.Kind, v.Code)
			}
		}
	}
}

// TestComputeInstancesShareMemory: MIG-d and MIG-e are of one GPU instance.
func TestComputeInstancesShareMemory(t *testing.T) {
	for name, v := range map[string]grant.View{
		"used": {Now: now, Outside: map[string]grant.Bytes{"MIG-d": 30 * grant.GiB}},
		"held": {Now: now, Held: map[string]bool{"MIG-d": true}},
	} {
		free, err := Free(v, partitioned(), grant.Policy{})
		if err != nil || free["MIG-d"] != 0 || free["MIG-e"] != 0 || free["MIG-a"] != 10*grant.GiB {
			t.Errorf("%s: free is %v, %v", name, free, err)
		}
		if _, err := Place(Ask{Mode: grant.MIG, Owner: grant.Bearer, Names: []string{"MIG-e"}}, "", v,
			partitioned(), grant.Policy{}); err == nil {
			t.Errorf("%s: MIG-e is granted", name)
		}
		w := mig("MIG-e")
		w.v.Held = v.Held
		if d := w.decide(); (d.Kind == grant.Refused) != (v.Held != nil) {
			t.Errorf("%s: a create with MIG-e: %s %s", name, d.Kind, d.Code)
		}
	}
}

// TestADamagedEntryOfAGPU tests that it closes the MIG devices into which the GPU was partitioned
// later.
func TestADamagedEntryOfAGPU(t *testing.T) {
	v := grant.View{Now: now, Damaged: []grant.Damage{{ID: "g-damaged", GPUs: []string{"GPU-0"}}}}
	free, err := Free(v, partitioned(), grant.Policy{})
	if _, open := free["MIG-a"]; err != nil || open || free["MIG-d"] != 40*grant.GiB {
		t.Errorf("free is %v, %v", free, err)
	}
}

// TestMIGDevicesInWholeVerdicts tests the devices next to a granted one, and what a device that
// cannot be used does not cover.
func TestMIGDevicesInWholeVerdicts(t *testing.T) {
	const (
		env     = "env: NVIDIA_VISIBLE_DEVICES="
		control = " nvidiactl nvidia-uvm nvidia-uvm-tools"
		may     = ", c 195:255 rw, c 508:0 rw, c 508:1 rw"
		dir     = "masked: /proc/driver/nvidia/gpus/0000:0"
		beside  = "masked: /proc/driver/nvidia/capabilities/gpu"
	)
	for _, c := range []struct {
		name string
		w    *world
		with func(*world)
		want string
	}{
		{"its neighbours on another card have the same instances", mig("MIG-c"),
			func(w *world) { w.inv.GPUs[1].MIG[2].GI, w.inv.GPUs[1].MIG[3].GI = 1, 7 },
			lines("admit of g-bearerbearer hardware", env+"MIG-c",
				"nodes: nvidia0 nvidia-caps/nvidia-cap12 nvidia-caps/nvidia-cap13"+control,
				"rules: c 195:0 rw, c 509:12 rw, c 509:13 rw"+may,
				dir+"2:00.0", dir+"3:00.0", beside+"0/mig/gi7", beside+"0/mig/gi8")},
		{"one on each card, where both have the same instances", mig("MIG-c", "MIG-d"),
			func(w *world) { w.inv.GPUs[0].MIG[1].GI, w.inv.GPUs[1].MIG[2].GI = 2, 1 },
			lines("admit of g-bearerbearer hardware", env+"MIG-c,MIG-d",
				"nodes: nvidia0 nvidia-caps/nvidia-cap12 nvidia-caps/nvidia-cap13 nvidia1 "+
					"nvidia-caps/nvidia-cap156 nvidia-caps/nvidia-cap157"+control,
				"rules: c 195:0 rw, c 509:12 rw, c 509:13 rw, c 195:1 rw, c 509:156 rw, c 509:157 rw"+may,
				dir+"3:00.0", beside+"0/mig/gi2", beside+"0/mig/gi7", beside+"1/mig/gi1", beside+"1/mig/gi10",
				beside+"1/mig/gi2/ci1")},
		{"beside a whole GPU, in an entry that another program wrote", mig("MIG-a"), func(w *world) {
			w.v.Grants[0].GPUs = append(w.v.Grants[0].GPUs, grant.Share{
				UUID: "GPU-2", Index: 2, Memory: grant.GiB})
		}, lines("admit of g-bearerbearer hardware", env+"MIG-a,GPU-2",
			"nodes: nvidia0 nvidia-caps/nvidia-cap66 nvidia-caps/nvidia-cap67 nvidia2"+control,
			"rules: c 195:0 rw, c 509:66 rw, c 509:67 rw, c 195:2 rw"+may, dir+"2:00.0", beside+"0/mig/gi1",
			beside+"0/mig/gi8")},
		{"where the driver has no major for its capabilities", mig("MIG-a"),
			func(w *world) { delete(w.inv.Majors, "nvidia-caps") },
			lines("admit of g-bearerbearer hardware", env+"MIG-a", "nodes: nvidia0"+control,
				"rules: c 195:0 rw"+may, dir+"2:00.0", dir+"3:00.0", beside+"0/mig/gi1", beside+"0/mig/gi8")},
		{"one without a capability, and a node with the minor 0", mig("MIG-g"),
			func(w *world) { w.hit(node(grant.ClassCaps, 0)) },
			lines("refuse gpu-unhealthy of g-bearerbearer none",
				`says: container "c1" holds a grant of MIG-g, which has no capability that the `+
					`driver reports`,
				`finds: gpu-unhealthy MIG-g "has no capability that the driver reports"`,
				`finds: gpu-device-node device:/dev/x "c nvidia-caps:0"`)},
		{"its card's render node", mig("MIG-a"), func(w *world) {
			w.inv.GPUs[0].Render = []string{"/dev/dri/renderD128"}
			w.hit(node(grant.ClassDRM, 128))
		}, lines("refuse gpu-device-node of g-bearerbearer none",
			`says: container "c1" brings the GPU device /dev/x (c drm:128), which is not in its grant `+
				`g-bearerbearer`, `finds: gpu-device-node device:/dev/x "c drm:128"`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.with(c.w)
			if got := written(c.w.decide()); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
