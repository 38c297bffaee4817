package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// cuda is a container that uses CUDA, in an image with a C library.
var cuda = grant.Request{Layout: grant.Layout{Lib64: "/img/lib"}, Capabilities: []grant.Capability{
	grant.Compute}, CanSetDriverLimit: true}

// TestWhyNothingLimits tests the text of each reason for which the node's shim, or its driver,
// cannot limit memory.
func TestWhyNothingLimits(t *testing.T) {
	limited := func(backend grant.LimitBackend) grant.Policy {
		return grant.Policy{Enforcement: grant.Enforcement{Limit: backend}}
	}
	with := func(change func(*grant.Inventory)) grant.Inventory {
		inv := limiting()
		inv.Driver.Files = slices.Clone(inv.Driver.Files)
		change(&inv)
		return inv
	}
	without := func(bits int) func(*grant.Inventory) {
		return func(inv *grant.Inventory) {
			inv.Driver.Files = slices.DeleteFunc(inv.Driver.Files, func(f grant.DriverFile) bool {
				return f.Bits == bits && f.Capability == grant.Compute
			})
		}
	}
	const noCUDA = "no libcuda.so.1 was found below inventory.driver_root"
	for _, c := range []struct {
		name string
		gpus int
		inv  grant.Inventory
		p    grant.Policy
		want string
	}{
		{"nothing", 1, limiting(), grant.Policy{}, ""},
		{"as many GPUs as its records have places", 16, limiting(), grant.Policy{}, ""},
		{"more GPUs", 17, limiting(), grant.Policy{}, "the shim limits at most 16 GPUs"},
		{"the policy", 1, limiting(), limited(grant.DriverBackend), `enforcement.limit is "driver"`},
		{"the policy wants it", 1, limiting(), limited(grant.LibraryBackend), ""},
		{"not installed", 1, with(func(inv *grant.Inventory) { inv.Shim = grant.Shim{} }), grant.Policy{}, "the shim is not installed"},
		{"broken", 1, with(func(inv *grant.Inventory) { inv.Shim = grant.Shim{Problem: "for another machine"} }), grant.Policy{}, "for another machine"},
		{"no driver", 1, with(func(inv *grant.Inventory) { inv.Driver.Files = nil }), grant.Policy{}, noCUDA},
		{"the driver's 32-bit library alone", 1, with(without(64)), grant.Policy{}, noCUDA},
		{"the driver's 64-bit library alone", 1, with(without(32)), grant.Policy{}, ""},
		{"libcuda by another name first", 1, with(func(inv *grant.Inventory) { inv.Driver.Files[0].Names = []string{"libcuda.so.9", "libcuda.so.1"} }), grant.Policy{}, ""},
	} {
		if got := WhyNoShimLimit(c.gpus, c.inv, c.p); got != c.want {
			t.Errorf("the shim, %s: %q, want %q", c.name, got, c.want)
		}
	}
	claim, mig := limitGrant, limitGrant
	claim.Owner, mig.GPUs = "claim:c", []grant.Share{{UUID: "GPU-0"}, {UUID: "MIG-0"}}
	for _, c := range []struct {
		name  string
		grant grant.Grant
		inv   grant.Inventory
		p     grant.Policy
		want  string
	}{
		{"nothing", limitGrant, limiting(), grant.Policy{}, ""},
		{"the policy", limitGrant, limiting(), limited(grant.LibraryBackend), `enforcement.limit is "library"`},
		{"the policy wants it", limitGrant, limiting(), limited(grant.DriverBackend), ""},
		{"the driver was not asked", limitGrant, shimmed(), grant.Policy{}, "this driver is not known to limit memory (`gpuledger inventory refresh` asks it)"},
		{"an old one", limitGrant, with(func(inv *grant.Inventory) { inv.Driver.MemoryLimits = "driver 580 does not" }), grant.Policy{}, "driver 580 does not"},
		{"no gpuledgerd", limitGrant, with(func(inv *grant.Inventory) { inv.Limiter.Problem = "it does not answer" }), grant.Policy{}, "it does not answer"},
		{"a claim", claim, limiting(), grant.Policy{}, "the containers of a claim share one limit, and the driver limits each by itself"},
		{"a MIG device", mig, limiting(), grant.Policy{}, "the driver limits no MIG device"},
	} {
		if got := WhyNoDriverLimit(c.grant, c.inv, c.p); got != c.want {
			t.Errorf("the driver, %s: %q, want %q", c.name, got, c.want)
		}
	}
	exclusive := limitGrant
	exclusive.Mode = grant.Exclusive
	if got := Strength(exclusive, limiting(), grant.Policy{}); got != grant.StrengthNone {
		t.Errorf("an exclusive grant on a node that limits has strength %s", got)
	}
}

// TestALimitThatThePolicyRequires tests that it is enforced, or that the refusal says what is
// missing.
func TestALimitThatThePolicyRequires(t *testing.T) {
	const hint = "an administrator sees with `gpuledger doctor` what the node lacks, or sets " +
		"enforcement.limit = \"auto\""
	utility, late := cuda, cuda
	utility.Capabilities, late.CanSetDriverLimit = []grant.Capability{grant.Utility}, false
	old := limiting()
	old.Driver.MemoryLimits = "driver 580 does not limit memory"
	for _, c := range []struct {
		name    string
		request grant.Request
		inv     grant.Inventory
		backend grant.LimitBackend
		want    string // the reason of the refusal, or the strength
	}{
		{"by the shim", cuda, limiting(), grant.LibraryBackend, "library limited"},
		{"by the driver", cuda, limiting(), grant.DriverBackend, "driver driven"},
		{"by the shim, in a container without libcuda", utility, limiting(), grant.LibraryBackend, "it does not get the driver's libraries, by its image or by NVIDIA_DRIVER_CAPABILITIES"},
		{"by the shim, which is not there", cuda, installed, grant.LibraryBackend, "the shim is not installed"},
		{"by the driver, too late", late, limiting(), grant.DriverBackend, "it is not created by gpuledger-runtime, or is restored from a checkpoint: only a create has the driver's limit set"},
		{"by the driver, which cannot, and too late", late, old, grant.DriverBackend, "driver 580 does not limit memory"},
	} {
		inv := c.inv
		inv.GPUs = limiting().GPUs
		v := ofLimit(c.request, limitGrant, inv, grant.Policy{
			Enforcement: grant.Enforcement{Limit: c.backend}})
		got := strings.TrimPrefix(strings.SplitN(written(v), "\n", 2)[0], "admit of g-abcdefghijkl ")
		if v.Kind == grant.Refused {
			got = strings.TrimPrefix(v.Message,
				`container "" cannot be held to the memory of its grant g-abcdefghijkl: `)
		}
		if got != c.want || v.Kind == grant.Refused && (v.Hint != hint || len(v.Details) != 1) {
			t.Errorf("%s: %s, want %s; hint %q, details %v", c.name, got, c.want, v.Hint, v.Details)
		}
	}
}

// TestWhyAContainersLimitIsWeaker tests that the reason is about the container, whatever else the
// node lacks.
func TestWhyAContainersLimitIsWeaker(t *testing.T) {
	late, utility, unseen := cuda, cuda, cuda
	late.CanSetDriverLimit = false
	utility.Capabilities, utility.Layout, utility.CanSetDriverLimit = []grant.Capability{grant.Utility},
		grant.Layout{Unseen: true}, false
	unseen.Layout, unseen.CanSetDriverLimit = grant.Layout{Unseen: true}, false
	noShim := limiting()
	noShim.Shim = grant.Shim{}
	const tooLate = "it is not created by gpuledger-runtime, or is restored from a checkpoint: only a " +
		"create has the driver's limit set"
	const noCompute = "NVIDIA_DRIVER_CAPABILITIES does not ask for compute, so the container gets neither " +
		"the driver's libcuda nor the one that would hold it"
	for _, c := range []struct {
		name    string
		request grant.Request
		inv     grant.Inventory
		want    string
	}{
		{"by the driver", cuda, limiting(), ""},
		{"by the shim, too late for the driver's limit", late, limiting(), "strength library, not driver: " + tooLate},
		{"by nothing, too late and without a shim", late, noShim, "strength none, not driver: " + tooLate},
		{"by the shim, as the node gives", late, shimmed(), ""},
		{"by the shim, in an image that was not read", unseen, shimmed(), ""},
		{"by nothing, in an image that was not read, without compute", utility, shimmed(), "strength none, not library: " + noCompute},
	} {
		if v := ofLimit(c.request, limitGrant, c.inv, grant.Policy{}); v.Kind != grant.Admit ||
			v.Weaker != c.want {
			t.Errorf("%s: %s (%s), %q, want %q", c.name, v.Kind, v.Message, v.Weaker, c.want)
		}
	}
}

// TestAnImagesOwnLibraries tests that a limited container gets proxies in place of its own
// libraries, if there is a proxy for them.
func TestAnImagesOwnLibraries(t *testing.T) {
	r := cuda
	r.Own = []grant.OwnLibrary{{Place: "/opt/libcuda.so.1", Name: "libcuda.so.1"},
		{Place: "/opt/libnvidia-ptx.so.1", Name: "libnvidia-ptx.so.1"}}
	timeslice := limitGrant
	timeslice.Mode = grant.Timeslice
	for name, c := range map[string]struct {
		grant grant.Grant
		want  string
	}{
		"limited":     {limitGrant, "/shim/libcuda.so.1 /opt/libcuda.so.1"},
		"not limited": {timeslice, ""},
	} {
		got := slices.DeleteFunc(places(ofLimit(r, c.grant, shimmed(), grant.Policy{}).Edits.Mounts),
			func(m string) bool { return !strings.Contains(m, " /opt/") })
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTextsOfSharesOfCompute tests the text why a share cannot be enforced, and the strength of one
// that can.
func TestTextsOfSharesOfCompute(t *testing.T) {
	throttle := grant.Policy{Enforcement: grant.Enforcement{Compute: grant.ThrottleShare}}
	stronger := func(p grant.Policy, s grant.Strength) grant.Policy { p.Rules.MinimumStrength = s; return p }
	able := shimmed()
	able.Shim.Throttle = true
	shared := limitGrant
	shared.Compute = 30
	const notEnforced = "in mode limit nothing keeps a container to its share of compute, and "
	for _, c := range []struct {
		name string
		p    grant.Policy
		want string
	}{
		{"counted", grant.Policy{}, ""},
		{"counted, but strength is wanted", stronger(grant.Policy{}, grant.StrengthServer), notEnforced + `policy.minimum_strength is "server"`},
		{"refused, and strength is wanted", stronger(grant.Policy{Enforcement: grant.Enforcement{Compute: grant.RefuseShare}}, grant.StrengthServer), notEnforced + `enforcement.compute is "refuse"`},
		{"throttled", throttle, ""},
		{"throttled, which is strong enough", stronger(throttle, grant.StrengthLibrary), ""},
		{"throttled, but more strength is wanted", stronger(throttle, grant.StrengthServer), `a throttle of launches has strength library, and policy.minimum_strength is "server"`},
	} {
		if got := WhyNoComputeShare(shared, able, c.p); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	bare := installed
	bare.GPUs = able.GPUs
	v := ofLimit(grant.Request{}, shared, bare, throttle) // neither a shim nor a C library
	if want := `container "" holds grant g-abcdefghijkl with 30% of the compute, which cannot be kept: ` +
		`launches cannot be throttled: the shim is not installed`; v.Message != want {
		t.Errorf("without a shim: %s", written(v))
	}
	shared.Bindings = []grant.Binding{{Strength: grant.StrengthLibrary, Throttled: true}}
	if got := ComputeStrength(shared, installed, throttle); got != grant.StrengthLibrary {
		t.Errorf("a container that is throttled still is, on a node that could throttle no other: %q", got)
	}
}

// TestMPSInWholeVerdicts tests what a client of MPS gets, and which containers are refused.
func TestMPSInWholeVerdicts(t *testing.T) {
	const ready = "container \"c1\" holds a grant in mode mps, and its MPS daemon cannot take it " +
		"as a client: "
	for name, c := range map[string]struct {
		change func(*world, *grant.Grant)
		want   string // the message of the refusal, or the settings
	}{
		"a share of the compute": {func(*world, *grant.Grant) {},
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 server"},
		"no share: all of it": {func(_ *world, g *grant.Grant) { g.Compute = 0 },
			"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 server"},
		"no share, of a daemon that gives less": {func(w *world, g *grant.Grant) {
			g.Compute, w.v.MPS[0].Threads = 0, 99
		},
			ready + "the daemon gives 99% of the compute, and the grant has 100%"},
		"root, of a user's daemon": {func(w *world, _ *grant.Grant) { w.v.MPS[0].UID = 1000 },
			ready + "the daemon serves user 1000, and the container's user is 0 on the node"},
		"an unknown user, of root's daemon": {func(w *world, _ *grant.Grant) { w.r.UID = -1 },
			ready + "the daemon serves user 0, and the container's user is mapped to no user of the node"},
		"with the shim in it, too": {func(w *world, _ *grant.Grant) {
			w.r.Layout, w.r.Capabilities, w.inv.Driver, w.inv.Shim = cuda.Layout, cuda.Capabilities,
				shimmed().Driver, shimmed().Shim
		}, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 server limited"},
		"something else in its pipe's place": {func(w *world, _ *grant.Grant) {
			w.hit(grant.Hit{Vector: "mount:" + grant.PipeInContainer, Value: "/elsewhere",
				Code: grant.GPUSocket, Cover: grant.CoverNever})
		}, `container "c1" reaches a directory of gpuledger or of an MPS daemon: /elsewhere ` +
			`(mount /tmp/nvidia-mps)`},
	} {
		w, g := mpsWorld()
		c.change(w, g)
		v := w.decide()
		got := v.Message
		if v.Kind == grant.Admit {
			got = v.Edits.Env[0] + strings.TrimPrefix(strings.SplitN(written(v), "\n", 2)[0],
				"admit of g-bearerbearer")
		}
		if got != c.want {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
}

// TestDRMNodesByTheirPaths tests that a DRM node without a number is given to no container and
// covers no node of a spec.
func TestDRMNodesByTheirPaths(t *testing.T) {
	w := desk(grant.Exclusive, grant.Graphics)
	w.inv.GPUs[0].Links = nil
	w.inv.GPUs[0].Render = []string{"/dev/dri/card0", "/dev/dri/card", "/dev/dri/renderD129",
		"/dev/dri/renderD190"}
	want := "nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools dri/card0 dri/renderD129 dri/renderD190 " +
		"nvidia-modeset"
	if got := paths(w.decide().Edits.DeviceNodes); got != want {
		t.Errorf("nodes %s\nwant  %s", got, want)
	}
	for minor, code := range map[int]grant.Code{0: "", 129: "", 190: "", 19: grant.GPUDeviceNode} {
		w.r.Hits = []grant.Hit{node(grant.ClassDRM, minor)}
		if v := w.decide(); v.Code != code {
			t.Errorf("minor %d: %s %s", minor, v.Kind, v.Code)
		}
	}
	w.inv.GPUs[0].Render = []string{"/dev/dri/card"}
	w.r.Hits = []grant.Hit{node(grant.ClassDRM, 0)}
	if v := w.decide(); v.Code != grant.GPUDeviceNode {
		t.Errorf("a node without a number covers minor 0: %s %s", v.Kind, v.Code)
	}
}

// TestAJudgePlansTheFilesOnce tests that files are planned once, and also if the first container
// wants what the zero value wants.
func TestAJudgePlansTheFilesOnce(t *testing.T) {
	w := adopting(grant.Allocation{GPUs: []string{"0"}, Memory: grant.GiB})
	w.inv.Driver = installed.Driver
	j := new(Judge)
	first, second := j.Decide(w.r, w.v, w.inv, w.p), j.Decide(w.r, w.v, w.inv, w.p)
	if got := fmt.Sprint(places(first.Edits.Mounts)); got != "[/fw/gsp.bin /lib/firmware/nvidia/9/gsp.bin]" {
		t.Errorf("an image without a C library gets %s", got)
	}
	if first.Edits.Mounts[0] != second.Edits.Mounts[0] {
		t.Error("they are planned twice")
	}
}

// TestAGPUInTwoPools tests that every function that adds up the node's GPUs returns the error.
func TestAGPUInTwoPools(t *testing.T) {
	p := grant.Policy{Pools: []grant.Pool{{GPUs: []string{"0"}}, {GPUs: []string{"0-1"}}}}
	seats, ofSeats := Seats(grant.View{}, inventory(2), p)
	free, ofFree := Free(grant.View{}, inventory(2), p)
	for _, err := range []error{ofSeats, ofFree} {
		var refusal *grant.Refusal
		if !errors.As(err, &refusal) || refusal.Code != grant.ConfigInvalid {
			t.Errorf("got %v", err)
		}
	}
	if seats != nil || free != nil {
		t.Errorf("got %v and %v beside an error", seats, free)
	}
}

// TestAskingForAGPUInTwoPools tests that the mistake is not said as if the container had asked for
// it.
func TestAskingForAGPUInTwoPools(t *testing.T) {
	w := adopting(grant.Allocation{Own: true, Memory: gibs(1)})
	w.r.Container.Engine, w.r.Container.Pod = grant.Podman, grant.Identity{}
	w.p.Asks = grant.Asks{Engines: []grant.Engine{grant.Podman}, Modes: []grant.Mode{grant.Limit},
		Mode: grant.Limit, MaxGPUs: 1, Total: 100}
	w.p.Pools = []grant.Pool{{GPUs: []string{"0"}}, {GPUs: []string{"GPU-0"}}}
	v := w.decide()
	if v.Code != grant.ConfigInvalid || v.Message != "GPU 0 is in two pools" ||
		v.Hint != "correct [[pool]] in the configuration" {
		t.Errorf("%s %q, hint %q", v.Code, v.Message, v.Hint)
	}
}

// TestWhoHoldsTheRest is in the hint of what cannot be granted now, and not in the message, which
// is recorded and shown.
func TestWhoHoldsTheRest(t *testing.T) {
	w := adopting(grant.Allocation{Own: true, Memory: gibs(1)})
	w.r.Container.Engine, w.r.Container.Pod = grant.Podman, grant.Identity{}
	w.p.Asks = grant.Asks{Engines: []grant.Engine{grant.Podman}, Modes: []grant.Mode{grant.Limit},
		Mode: grant.Limit, MaxGPUs: 1, Total: 100}
	w.v.Whole.Grants = nil
	for i := range w.inv.GPUs {
		g := held("g-aaaaaaaaaaaa", grant.Bearer, grant.Limit, 0, w.inv.GPUs[i].Memory, i)
		g.Label = "secret-label"
		w.v.Whole.Grants = append(w.v.Whole.Grants, g)
	}
	v := w.decide()
	if v.Code != grant.NoCapacity || !strings.Contains(v.Hint, "held: secret-label 0:") {
		t.Errorf("%s %q, hint %q", v.Code, v.Message, v.Hint)
	}
	if v.Hint = ""; strings.Contains(fmt.Sprint(v), "secret-label") {
		t.Errorf("%+v", v)
	}
	w.p.Asks.Total = 1 // no release makes room for it
	if v = w.decide(); v.Code != grant.NoCapacity || v.Hint != hintNeverAsked {
		t.Errorf("more than may ever be asked for: %s %q, hint %q", v.Code, v.Message, v.Hint)
	}
}

// TestHintsToAContainerThatAsks: the hint names what helps. Where no other grant is in the way, it
// does not advise to wait for the end of one.
func TestHintsToAContainerThatAsks(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*world)
		code grant.Code
		hint string
	}{
		"no GPU": {func(w *world) { w.inv.GPUs = nil }, grant.NoCapacity,
			"`gpuledger inventory refresh` looks again"},
		"a damaged entry": {func(w *world) { w.v.Whole.Damaged = []grant.Damage{{ID: "g-zzzzzzzzzzzz"}} },
			grant.NoCapacity,
			"`gpuledger check` says which entries of the ledger close GPUs, and what to do"},
		"no MPS": {func(w *world) {
			w.p.Asks.Mode, w.p.Asks.Modes, w.v.Whole.Grants = grant.MPS, []grant.Mode{grant.MPS}, nil
		}, grant.MPSNotReady, "install what the driver lacks and run `gpuledger inventory refresh`, " +
			"or grant in another mode (--mode limit)"},
		"GPUs in another mode": {func(w *world) {
			w.p.Asks.Mode, w.p.Asks.Modes = grant.MPS, []grant.Mode{grant.MPS}
			w.v.Whole.Grants = []grant.Grant{
				held("g-aaaaaaaaaaaa", grant.Bearer, grant.Limit, 0, gibs(1), 0, 1)}
		}, grant.ModeConflict, "held: g-aaaaaaaaaaaa 0:1GiB, 1:1GiB; " + hintMode},
		"another mode than it may": {func(w *world) { w.p.Asks.Modes = nil }, grant.AskNotAllowed, hintAsks},
		"a GPU that is not there": {func(w *world) { w.r.Allocations[0].GPUs = []string{"GPU-99"} },
			grant.AnnotationMismatch, "correct it"},
	} {
		w := adopting(grant.Allocation{Own: true, Memory: gibs(1)})
		w.r.Container.Engine, w.r.Container.Pod = grant.Podman, grant.Identity{}
		w.p.Asks = grant.Asks{Engines: []grant.Engine{grant.Podman}, Modes: []grant.Mode{grant.Limit},
			Mode: grant.Limit, MaxGPUs: 1, Total: 100}
		c.set(w)
		v := w.decide()
		if v.Code != c.code || v.Hint != c.hint || strings.Contains(v.Message, "for this") ||
			strings.Contains(v.Message, "for in") {
			t.Errorf("%s: %s %q, hint %q, want %s and %q", name, v.Code, v.Message, v.Hint, c.code, c.hint)
		}
	}
}

// TestModesOfSeats tests the modes in which a grant of some size can be made, whatever is free.
func TestModesOfSeats(t *testing.T) {
	inv := partitioned()
	v := grant.View{Now: now, Grants: []grant.Grant{heldMIG("g-m", grant.Bearer, "MIG-b"),
		held("g-l", grant.Bearer, grant.Limit, 0, grant.GiB, 2)}}
	inv.GPUs = append(inv.GPUs, inventory(6).GPUs[3:]...)
	v.Grants = append(v.Grants, held("g-e", grant.Bearer, grant.Exclusive, 0, 16*grant.GiB, 3))
	v.Outside = map[string]grant.Bytes{"GPU-5": grant.GiB}
	want := map[string]string{"GPU-0": "[]", "MIG-a": "[mig]", "MIG-b": "[]", "MIG-g": "[mig]",
		"GPU-2": "[limit]", "GPU-3": "[]", "GPU-4": "[exclusive timeslice limit mps]",
		"GPU-5": "[exclusive timeslice limit mps]"}
	seats, err := Seats(v, inv, grant.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range seats {
		if modes, known := want[s.UUID()]; known && fmt.Sprint(s.Modes) != modes {
			t.Errorf("%s: %v, want %s", s.UUID(), s.Modes, modes)
		}
	}
}
