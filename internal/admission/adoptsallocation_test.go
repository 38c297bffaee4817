package admission

import (
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// entry is a grant in the ledger of the container's pod or of another: adopted, in use, in mode
// limit, with 3 GiB of GPU 0.
func entry(owner grant.Owner, change func(*grant.Grant)) func(*world) {
	return func(w *world) {
		g := grant.Grant{ID: "g-entryentryen", Owner: owner, Mode: grant.Limit, Source: grant.Adopted,
			GPUs:     []grant.Share{{UUID: "GPU-0", Memory: 3 * grant.GiB}},
			Bindings: []grant.Binding{{Container: "c"}}}
		if change != nil {
			change(&g)
		}
		w.v.Whole.Grants = []grant.Grant{g}
	}
}

// TestAdoptionsInWholeVerdicts tests what is adopted, and that a refused container adopts nothing.
func TestAdoptionsInWholeVerdicts(t *testing.T) {
	const (
		new0 = `says: container "new" `
		gets = "env: NVIDIA_VISIBLE_DEVICES=GPU-0\nnodes: nvidia0 nvidiactl nvidia-uvm " +
			"nvidia-uvm-tools\nrules: c 195:0 rw, c 195:255 rw, c 508:0 rw, c 508:1 rw"
		adopted = "recorded: adopts 0:1GiB in mode limit from annotation:a"
	)
	a := func(change func(*grant.Allocation)) grant.Allocation {
		a := grant.Allocation{GPUs: []string{"0"}, Memory: grant.GiB}
		if change != nil {
			change(&a)
		}
		return a
	}
	inEnv := func(units, pod int) grant.Allocation {
		return grant.Allocation{GPUs: []string{"0"}, Units: units, InEnv: true, PodUnits: pod}
	}
	ended := func(g *grant.Grant) { g.Bindings = nil }
	marked := func(w *world) { w.r.MustAdopt = "annotation:gpuledger.dev/grant" }
	mps := func(a *grant.Allocation) { a.Mode = grant.MPS }
	var (
		admitted = lines("admit of  none", gets, adopted)
		fits     = lines("admit of  none", gets, "recorded: adopts 0:2GiB in mode limit from annotation:a")
	)
	for _, c := range []struct {
		name        string
		allocations []grant.Allocation
		with        func(*world)
		want        string
	}{
		{"as the scheduler states it", []grant.Allocation{a(nil)}, nil, admitted},
		{"it owns a grant that has ended", []grant.Allocation{a(nil)}, entry("pod:job/new", ended), admitted},
		{"it owns a grant that the view missed, the ledger's first", []grant.Allocation{a(nil)},
			entry("pod:job/new", nil),
			lines("refuse grant-in-use none", new0+"holds grant g-entryentryen, which a container "+
				"uses already", `finds: grant-in-use grant "g-entryentryen"`)},
		{"it owns a grant: it uses that one", []grant.Allocation{
			a(func(a *grant.Allocation) { a.Memory = 4 * grant.GiB })}, func(w *world) {
			w.v.Whole.Grants[0].Owner = "pod:job/new"
			w.v.Grants = w.v.Whole.Grants[:1]
		}, lines("admit of g-podpodpodpod library", gets)},
		{"it names a grant: that one", []grant.Allocation{
			a(func(a *grant.Allocation) { a.GPUs, a.Memory = []string{"0", "1"}, 8*grant.GiB })},
			func(w *world) {
				w.v.Grants = w.v.Whole.Grants
				w.bearer()
			}, lines("admit of g-bearerbearer library", "env: NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1",
				"nodes: nvidia0 nvidia3 nvidiactl nvidia-uvm nvidia-uvm-tools",
				"rules: c 195:0 rw, c 195:3 rw, c 195:255 rw, c 508:0 rw, c 508:1 rw")},
		{"it names a grant that is none", []grant.Allocation{a(nil)},
			func(w *world) { w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: "g-nonenonenone"}) },
			lines("refuse grant-not-found none", new0+
				"refers to a grant by GPULEDGER_GRANT, but the ledger has no grant with that id and secret",
				`finds: grant-not-found env:GPULEDGER_GRANT "g-nonenonenone"`,
				`finds: grant-not-found annotation:a ""`)},
		{"beside a statement that cannot be read", []grant.Allocation{a(nil), {Malformed: "what?"}}, nil,
			lines("refuse annotation-malformed none", new0+
				"carries annotation a, which cannot be read: what?",
				`finds: annotation-malformed annotation:a "what?"`)},
		{"beside a statement that cannot be read, the others are not judged",
			[]grant.Allocation{inEnv(6, 5), {Malformed: "what?"}}, nil,
			lines("refuse annotation-malformed none", new0+
				"carries annotation a, which cannot be read: what?",
				`finds: annotation-malformed annotation:a "what?"`)},
		{"without an inventory", []grant.Allocation{a(nil)}, func(w *world) {
			w.problem(grant.InventoryMissing)
		},
			lines("refuse inventory-missing none", "says: the node cannot tell",
				`finds: inventory-missing node "the node cannot tell"`)},
		{"two that disagree", []grant.Allocation{a(nil), {GPUs: []string{"1"}}}, nil,
			lines("refuse annotation-mismatch none", new0+
				"carries annotation a (GPUs [1]), which disagrees with its other references",
				`finds: annotation-mismatch annotation:a "GPUs [1]"`)},
		{"a statement about the pod comes first", []grant.Allocation{
			{Mode: grant.Limit}, a(nil)}, func(w *world) {
			w.r.Allocations[0].Asks, w.r.Allocations[0].Source = false, "annotation:pod"
		}, admitted},

		// what cannot be a grant
		{"a GPU that is not there", []grant.Allocation{
			a(func(a *grant.Allocation) { a.GPUs = []string{"7"} })}, nil,
			lines("refuse annotation-mismatch none", new0+
				"is allocated GPUs that this node does not have, by annotation a",
				`finds: annotation-mismatch annotation:a "7"`,
				`recorded: adopts nothing: cannot grant: this node has no GPU "7"; it has 0, 1`)},
		{"a GPU that is not there, of which a part in the environment is within the pod's",
			[]grant.Allocation{{GPUs: []string{"7"}, Units: 2, Total: 16, InEnv: true, PodUnits: 5}},
			entry("pod:job/sidecar", nil),
			lines("refuse annotation-mismatch none", new0+
				"is allocated GPUs that this node does not have, by annotation a",
				`finds: annotation-mismatch annotation:a "7"`,
				`recorded: adopts nothing: cannot grant: this node has no GPU "7"; it has 0, 1`)},
		{"no size", []grant.Allocation{{GPUs: []string{"0"}}}, nil,
			lines("refuse annotation-malformed none", new0+
				"is allocated by annotation a what can be no grant: mode limit needs an amount of "+
				"memory, as 4GiB", `finds: annotation-malformed annotation:a "0MiB over 1"`,
				"recorded: adopts nothing: cannot grant: mode limit needs an amount of memory, as 4GiB")},
		{"a part of no GPU that is named", []grant.Allocation{{Units: 4}}, nil,
			lines("refuse annotation-malformed none", new0+
				"is allocated by annotation a what can be no grant: mode limit needs an amount of "+
				"memory, as 4GiB", `finds: annotation-malformed annotation:a "0MiB over 1"`,
				"recorded: adopts nothing: cannot grant: mode limit needs an amount of memory, as 4GiB")},
		{"a part in the environment of no GPU that is named",
			[]grant.Allocation{{Units: 4, InEnv: true, PodUnits: 4}}, nil,
			lines("refuse annotation-malformed none", new0+
				"is allocated by annotation a what can be no grant: mode limit needs an amount of "+
				"memory, as 4GiB", `finds: annotation-malformed annotation:a "0MiB over 1"`,
				"recorded: adopts nothing: cannot grant: mode limit needs an amount of memory, as 4GiB")},
		{"a MIG device on a node without", []grant.Allocation{{Memory: 4 * grant.GiB, Mode: grant.MIG}}, nil,
			lines("refuse no-capacity none", new0+
				"is allocated 4GiB over 1 GPU(s) by annotation a, but there is not as much free",
				`finds: no-capacity annotation:a "4GiB over 1"`,
				"recorded: adopts nothing: refused (no-capacity): cannot grant a MIG device of 4GiB in "+
					"mode mig: MIG devices on this node: 0")},
		{"mode mps on a node without", []grant.Allocation{a(mps)}, func(w *world) { w.v.Whole.Grants = nil },
			lines("refuse mps-not-ready none", new0+
				"is allocated a GPU in mode mps by annotation a, and this node cannot run MPS",
				`finds: mps-not-ready annotation:a "1GiB over 1"`,
				"recorded: adopts nothing: refused (mps-not-ready): cannot grant in mode mps: this node "+
					"cannot run MPS, because the driver's files in the inventory have no "+
					"nvidia-cuda-mps-control")},

		// the mark of the device plugin
		{"it must adopt, and does", []grant.Allocation{a(nil)}, marked, admitted},
		{"it must adopt, and there is no room", []grant.Allocation{
			a(func(a *grant.Allocation) { a.Memory = 9 * grant.GiB })}, marked,
			lines("refuse no-capacity none", new0+
				"is allocated 9GiB over 1 GPU(s) by annotation a, but there is not as much free",
				`finds: no-capacity annotation:a "9GiB over 1"`,
				"recorded: adopts nothing: refused (no-capacity): cannot grant 9GiB on a GPU in mode "+
					"limit: GPU 0 has 8GiB of 16GiB free")},
		{"it must adopt, and nothing is allocated", nil, marked,
			lines("refuse grant-not-found none", new0+"must adopt the GPU that a scheduler allocates to "+
				"it (annotation gpuledger.dev/grant: adopt), and no "+
				"annotation of its pod allocates one to it",
				`finds: grant-not-found annotation:gpuledger.dev/grant "adopt"`)},
		{"it must adopt, and the node adopts nothing", []grant.Allocation{a(nil)}, func(w *world) {
			marked(w)
			w.p.Annotations.Trust = grant.Verify
		}, lines("refuse grant-not-found none", new0+"must adopt the GPU that a scheduler allocates to "+
			"it (annotation gpuledger.dev/grant: adopt), and this node adopts none",
			`finds: grant-not-found annotation:gpuledger.dev/grant "adopt"`,
			`finds: grant-not-found annotation:a ""`)},

		// the sum of a pod's containers
		{"with a pod's other container: all of the pod's", []grant.Allocation{inEnv(2, 5)},
			entry("pod:job/sidecar", nil), fits},
		{"with a pod's other container: more than the pod's", []grant.Allocation{inEnv(3, 5)},
			entry("pod:job/sidecar", nil),
			lines("refuse annotation-mismatch none",
				new0+"asks by its environment for 3GiB, which with its pod's other containers is 6GiB, more "+
					"than the pod's 5GiB", `finds: annotation-mismatch annotation:a "3GiB"`)},
		{"beside what another pod has adopted", []grant.Allocation{inEnv(2, 2)}, entry("pod:other/sidecar",
			nil), fits},
		{"beside what the pod was granted otherwise", []grant.Allocation{inEnv(2, 2)},
			entry("pod:job/sidecar", func(g *grant.Grant) { g.Source = "cli" }), fits},
		{"beside what the pod had adopted, which has ended", []grant.Allocation{inEnv(2, 2)},
			entry("pod:job/sidecar", ended), fits},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := adopting(c.allocations...)
			if c.with != nil {
				c.with(w)
			}
			if got := written(w.decide()); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if v := w.decide(); v.Kind == grant.Admit && v.Grant.ID != "" && Adopts(w.r, w.v, w.p) {
				t.Error("Adopts returns that it could adopt one")
			}
		})
	}
}

// TestAnAdoptedGrantsRecords tests that the records are mounted from the directory of the id that
// the grant will have. In the verdict it has none yet.
func TestAnAdoptedGrantsRecords(t *testing.T) {
	w := adopting(grant.Allocation{GPUs: []string{"0"}, Memory: grant.GiB})
	w.r.Layout, w.r.Capabilities = cuda.Layout, cuda.Capabilities
	w.inv.Driver, w.inv.Shim, w.p.RunDir, w.v.Fresh = shimmed().Driver, shimmed().Shim,
		"/run/g", "g-freshfreshfr"
	v := w.decide()
	if places := places(v.Edits.Mounts); v.Kind != grant.Admit || v.Grant.ID != "" || !v.Limited ||
		places[len(places)-1] != "/run/g/limits/g-freshfreshfr/region /run/gpuledger/region" {
		t.Errorf("%s", written(v))
	}
}

// TestStrengthOfAMode tests the strength that a mode has without facts about the node.
func TestStrengthOfAMode(t *testing.T) {
	want := map[grant.Mode]grant.Strength{grant.Exclusive: grant.StrengthNone,
		grant.Timeslice: grant.StrengthNone, grant.Limit: grant.StrengthNone, grant.MPS: grant.StrengthServer,
		grant.MIG: grant.StrengthHardware}
	for _, mode := range grant.Modes {
		if got := StrengthOf(mode); got != want[mode] {
			t.Errorf("%s: %q, want %q", mode, got, want[mode])
		}
	}
}
