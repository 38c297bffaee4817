package admission

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// adopting is the container "new" of a pod, without a grant, on a node that trusts its scheduler.
func adopting(allocations ...grant.Allocation) *world {
	w := newWorld()
	w.p.Annotations.Trust = grant.Adopt
	w.r.Container.Pod = grant.Identity{UID: "job", Namespace: "team", Pod: "job-0", Container: "new"}
	for _, a := range allocations {
		a.Source, a.Asks = "annotation:a", true
		w.r.Allocations = append(w.r.Allocations, a)
	}
	whole := w.v
	w.v.Grants, w.v.Whole = nil, &whole
	return w
}

// holds adds a grant that a container of the pod has adopted and uses.
func (w *world) holds(container string, memory grant.Bytes) {
	w.v.Whole.Grants = append(w.v.Whole.Grants, grant.Grant{
		ID: "g-siblingsibli", Owner: grant.PodOwner("job", container), Mode: grant.Limit,
		Source: grant.Adopted,
		GPUs:   []grant.Share{{UUID: "GPU-0", Memory: memory}}, Bindings: []grant.Binding{
			{Container: container}}})
}

func gibs(n grant.Bytes) grant.Bytes { return n * grant.GiB }

// GPU 0 has 8 GiB and 40% of its compute free, GPU 1 has 4 GiB and 10%.
func TestAdopts(t *testing.T) {
	for _, c := range []struct {
		name  string
		w     *world
		want  string // the shares
		extra func(g grant.Grant) bool
	}{
		{"memory on a GPU", adopting(grant.Allocation{GPUs: []string{"0"}, Memory: gibs(8)}), "0:8GiB", nil},
		{"one thing in each annotation", adopting(grant.Allocation{GPUs: []string{"1", "0"}},
			grant.Allocation{Memory: gibs(2)}, grant.Allocation{Compute: 10},
			grant.Allocation{Mode: grant.Limit}),
			"0:1GiB,1:1GiB", func(g grant.Grant) bool { return g.Compute == 10 }},
		{"by UUID", adopting(grant.Allocation{GPUs: []string{"GPU-1"}}, grant.Allocation{Memory: gibs(4)}),
			"1:4GiB", nil},
		{"the same statement twice", adopting(grant.Allocation{GPUs: []string{"GPU-1"}, Memory: gibs(3)},
			grant.Allocation{GPUs: []string{"1"}, Units: 3}), "1:3GiB", nil},
		{"if the scheduler leaves the choice to the node, the fullest that fits",
			adopting(grant.Allocation{Memory: gibs(4)}), "1:4GiB", nil},
		{"gpushare in GiB", adopting(grant.Allocation{GPUs: []string{"0"}, Units: 5, Total: 16, InEnv: true,
			PodUnits: 5}), "0:5GiB", nil},
		{"gpushare in MiB", adopting(grant.Allocation{GPUs: []string{"0"}, Units: 512, Total: 16384,
			InEnv: true, PodUnits: 512}), "0:512MiB", nil},
		{"gpushare's JSON, over two GPUs", adopting(grant.Allocation{GPUs: []string{"0", "1"}, Units: 2}),
			"0:2GiB,1:2GiB", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !Adopts(c.w.r, c.w.v, c.w.p) {
				t.Fatal("Adopts returns false")
			}
			v := c.w.decide()
			if v.Kind != grant.Admit || v.Grant.ID != "" || v.Grant.Owner != "pod:job/new" ||
				v.Grant.Source != grant.Adopted || v.Grant.Mode != grant.Limit ||
				v.Grant.Label != "team/job-0" {
				t.Fatalf("%+v", v)
			}
			if got := labelsOf(v.Grant.GPUs); got != c.want || c.extra != nil && !c.extra(*v.Grant) {
				t.Errorf("%s: %+v, want %s", got, v.Grant, c.want)
			}
			if len(v.Recorded) != 1 || v.Recorded[0] != "adopts "+c.want+" in mode limit from annotation:a" {
				t.Errorf("recorded: %q", v.Recorded)
			}
		})
	}
}

func TestAdoptsTheLastOfAPod(t *testing.T) {
	w := adopting(grant.Allocation{GPUs: []string{"0"}, Units: 2, InEnv: true, PodUnits: 5})
	w.holds("sidecar", gibs(3))
	if v := w.decide(); v.Kind != grant.Admit {
		t.Errorf("%+v", v)
	}
}

func TestDoesNotAdopt(t *testing.T) {
	onZero := func(memory grant.Bytes) *world {
		return adopting(grant.Allocation{GPUs: []string{"0"}, Memory: memory})
	}
	change := func(w *world, f func(w *world)) *world { f(w); return w }
	inEnv := func(units, pod int) *world {
		return adopting(grant.Allocation{GPUs: []string{"0"}, Units: units, InEnv: true, PodUnits: pod})
	}
	for _, c := range []struct {
		name    string
		w       *world
		code    grant.Code
		message string
	}{
		{"more than is free", onZero(gibs(9)), grant.NoCapacity,
			`container "new" is allocated 9GiB over 1 GPU(s) by annotation a, but there is not as much free`},
		{"more than the GPU has", onZero(gibs(900)), grant.NoCapacity, "not as much free"},
		{"more compute than is free", adopting(grant.Allocation{
			GPUs: []string{"0"}, Memory: gibs(1), Compute: 41}), grant.NoCapacity, "not as much free"},
		{"the reserve", change(onZero(gibs(8)), func(w *world) { w.p.Rules.Reserve = grant.Size(grant.MiB) }),
			grant.NoCapacity, "not as much free"},
		{"what is used outside the ledger", change(onZero(gibs(8)), func(w *world) {
			w.v.Whole.Outside = map[string]grant.Bytes{"GPU-0": grant.MiB}
		}), grant.NoCapacity, "not as much free"},
		{"a GPU that a damaged entry closes", change(onZero(gibs(1)),
			func(w *world) {
				w.v.Whole.Damaged = []grant.Damage{{ID: "g-brokenbroken", GPUs: []string{"GPU-0"}}}
			}), grant.NoCapacity, "not as much free"},
		{"one mode beside another", adopting(grant.Allocation{GPUs: []string{"0"}, Mode: grant.Exclusive}),
			grant.ModeConflict, `is allocated 1 whole GPU(s) by annotation a, but a GPU is in another mode`},
		{"a pool for other modes", change(onZero(gibs(1)), func(w *world) {
			w.p.Pools = []grant.Pool{{GPUs: []string{"0-1"}, Modes: []grant.Mode{grant.Timeslice}}}
		}), grant.ModeConflict, "another mode"},
		{"a GPU in two pools", change(onZero(gibs(1)), func(w *world) {
			w.p.Pools = []grant.Pool{{GPUs: []string{"0"}}, {GPUs: []string{"0"}}}
		}), grant.ConfigInvalid, "two pools"},
		{"a GPU that is not there", adopting(grant.Allocation{GPUs: []string{"7"}, Memory: gibs(1)}),
			grant.AnnotationMismatch, "GPUs that this node does not have"},
		{"no size", adopting(grant.Allocation{GPUs: []string{"0"}}), grant.AnnotationMalformed,
			"needs an amount of memory"},
		{"a size that does not divide", adopting(grant.Allocation{
			GPUs: []string{"0", "1"}, Memory: grant.MiB}), grant.AnnotationMalformed,
			"does not divide evenly"},
		{"GPUs that disagree", adopting(grant.Allocation{GPUs: []string{"0"}, Memory: gibs(1)},
			grant.Allocation{GPUs: []string{"1"}}), grant.AnnotationMismatch,
			"disagrees with its other references"},
		{"sizes that disagree", adopting(grant.Allocation{GPUs: []string{"0"}, Memory: gibs(1)},
			grant.Allocation{Units: 2}), grant.AnnotationMismatch, "disagrees with its other references"},
		{"compute that disagrees", adopting(grant.Allocation{Memory: gibs(1), Compute: 5},
			grant.Allocation{Compute: 6}), grant.AnnotationMismatch, "disagrees with its other references"},
		{"modes that disagree", adopting(grant.Allocation{Memory: gibs(1), Mode: grant.Limit},
			grant.Allocation{Mode: grant.Timeslice}), grant.AnnotationMismatch,
			"disagrees with its other references"},
		{"one that cannot be read", adopting(grant.Allocation{Memory: gibs(1)},
			grant.Allocation{Malformed: "what?"}), grant.AnnotationMalformed, "cannot be read: what?"},
		{"no identity", change(onZero(gibs(1)), func(w *world) { w.r.Container.Pod = grant.Identity{} }),
			grant.GrantNotFound, "its engine proves no pod and container, so no grant can be " +
				"adopted for it"},
		{"an identity without a UID", change(onZero(gibs(1)), func(w *world) { w.r.Container.Pod.UID = "" }),
			grant.GrantNotFound, "proves no pod and container"},
		{"an identity that is no name", change(onZero(gibs(1)), func(w *world) {
			w.r.Container.Pod.UID = "../x"
		}), grant.GrantNotFound, "proves no pod and container"},
		{"a grant of its own that the view missed", change(onZero(gibs(1)),
			func(w *world) { w.holds("new", gibs(1)) }), grant.GrantInUse, "g-siblingsibli"},
		{"a size in the environment beyond the pod's", inEnv(6, 5), grant.AnnotationMismatch,
			"asks by its environment for 6GiB, which with its pod's other containers is 6GiB, more than " +
				"the pod's 5GiB"},
		{"a size in the environment beyond what the pod's others leave",
			change(inEnv(3, 5), func(w *world) { w.holds("sidecar", gibs(3)) }), grant.AnnotationMismatch,
			"is 6GiB, more than the pod's 5GiB"},
		{"a size in the environment that nothing bounds", inEnv(1, 0), grant.AnnotationMismatch,
			"no readable annotation that bounds it"},
		{"a reference, that opens nothing", change(onZero(gibs(1)), func(w *world) {
			w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: "g-nonenonenone"})
		}), grant.GrantNotFound, "no grant with that id"},
		{"mode mps where the node has no MPS", change(onZero(gibs(1)),
			func(w *world) { w.r.Allocations[0].Mode, w.v.Whole.Grants = grant.MPS, nil }), grant.MPSNotReady,
			"is allocated a GPU in mode mps by annotation a, and this node cannot run MPS"},
		{"without trust", change(onZero(gibs(1)), func(w *world) { w.p.Annotations.Trust = grant.Verify }),
			grant.GrantNotFound, "says by annotation"},
		{"more of the node than was allocated", change(onZero(gibs(1)),
			func(w *world) { w.hit(env("0,1", "0", "1")) }), grant.VisibleDevicesOutsideGrant,
			"which are not all in its grant (to be adopted)"},
		{"without an inventory", change(onZero(gibs(1)), func(w *world) {
			w.problem(grant.InventoryMissing)
		}), grant.InventoryMissing, "the node cannot tell"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := c.w.decide()
			if v.Kind != grant.Refused || v.Code != c.code || !strings.Contains(v.Message, c.message) {
				t.Errorf("%s %s: %s\nwant %s: %s", v.Kind, v.Code, v.Message, c.code, c.message)
			}
			for _, secret := range []string{"otherother", "bearerbearer", "claimclaim", "stranger",
				"free on", "brokenbroken"} {
				if strings.Contains(v.Message+v.Hint, secret) {
					t.Errorf("the tenant's text names %s: %s %s", secret, v.Message, v.Hint)
				}
			}
		})
	}
}

// The audit log names the holders, and the tenant's text does not.
func TestWhyNothingIsAdoptedIsRecorded(t *testing.T) {
	v := adopting(grant.Allocation{GPUs: []string{"0"}, Memory: gibs(9)}).decide()
	if len(v.Recorded) != 1 || !strings.Contains(v.Recorded[0], "GPU 0 has 8GiB of 16GiB free") {
		t.Errorf("%q", v.Recorded)
	}
}

// Without an identity nothing is adopted. Where containers may ask, docs/asking.md has no condition
// that the node adopts nothing.
func TestContainersWithoutAPodAskBesideAdoption(t *testing.T) {
	stated := grant.Allocation{Own: true, Memory: gibs(1)}
	for _, c := range []struct {
		name    string
		engines []grant.Engine
		setup   func(*world)
		want    string // the code, or the source of the grant
	}{
		{"its engine's containers may ask", []grant.Engine{grant.Podman}, func(*world) {}, grant.Asked},
		{"those of another engine may", []grant.Engine{grant.Docker}, func(*world) {},
			string(grant.AskNotAllowed)},
		{"none may", nil, func(*world) {}, string(grant.GrantNotFound)},
		{"it must adopt", []grant.Engine{grant.Podman},
			func(w *world) { w.r.MustAdopt = "annotation:gpuledger.dev/grant" }, string(grant.GrantNotFound)},
		{"another scheduler's words", []grant.Engine{grant.Podman},
			func(w *world) { w.r.Allocations[0].Own = false }, string(grant.GrantNotFound)},
		{"a pod's container adopts", []grant.Engine{grant.Containerd}, func(w *world) {
			w.r.Container.Engine = grant.Containerd
			w.r.Container.Pod = grant.Identity{UID: "job", Namespace: "team", Pod: "job-0", Container: "new"}
		}, grant.Adopted},
	} {
		w := adopting(stated)
		w.r.Container.Engine, w.r.Container.Pod = grant.Podman, grant.Identity{}
		w.p.Asks = grant.Asks{Engines: c.engines, Modes: []grant.Mode{grant.Limit}, Mode: grant.Limit,
			MaxGPUs: 1, Total: 100}
		c.setup(w)
		v := w.decide()
		got := string(v.Code)
		if v.Kind == grant.Admit {
			got = v.Grant.Source
		}
		if got != c.want {
			t.Errorf("%s: got %s %q, want %q: %s", c.name, v.Kind, got, c.want, v.Message)
		}
	}
}

func TestSandboxesAndOtherContainersAdoptNothing(t *testing.T) {
	sandbox := adopting(grant.Allocation{Memory: gibs(1)})
	sandbox.r.Sandbox = true
	other := adopting(grant.Allocation{Memory: gibs(1)})
	other.r.Allocations[0].Asks = false
	for _, w := range []*world{sandbox, other} {
		if v := w.decide(); Adopts(w.r, w.v, w.p) || v.Kind != grant.Pass {
			t.Errorf("%+v", v)
		}
	}
}
