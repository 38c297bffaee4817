package dra

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

// offers describes the devices of a node as classes see them: "0 gpu-...-limit: limit whole".
func offers(t *testing.T, n *nodeledgertest.SimulatedNode) (lines []string, counters int) {
	t.Helper()
	for _, s := range slicesOf(t, n) {
		counters += len(s.SharedCounters)
		for _, d := range s.Devices {
			line := fmt.Sprintf("%d %s", *d.Attributes["index"].IntValue, *d.Attributes["mode"].StringValue)
			if *d.Attributes["whole"].BoolValue {
				line += " whole"
			}
			if d.AllowMultipleAllocations != nil {
				line += " shared by " + d.Name[strings.LastIndex(d.Name, "-")+1:]
			}
			if why, is := d.Attributes["unshared"]; is {
				line += " not shared: " + *why.StringValue
			}
			for _, taint := range d.Taints {
				line += " " + taint.Key
			}
			lines = append(lines, line)
			checkPolicies(t, d)
		}
	}
	return lines, counters
}

// Counters make the schedulers of Kubernetes 1.36 slow on large clusters. A GPU that can be had
// whole and in one shared mode needs none.
func TestAGPUIsOneDeviceForWholeAndShares(t *testing.T) {
	pool := func(modes string) string { return "[[pool]]\ngpus = [\"0\"]\n" + modes + "\n" }
	both := pool(`modes = ["exclusive", "mps"]`)
	byHand := func(mode grant.Mode) func(n *nodeledgertest.SimulatedNode) {
		return func(n *nodeledgertest.SimulatedNode) { n.Grant(admission.Ask{Memory: grant.GiB, Mode: mode}) }
	}
	for name, c := range map[string]struct {
		config string
		make   func(n *nodeledgertest.SimulatedNode)
		want   []string
	}{
		"whole or in mode limit, if nothing is configured": {"", nil,
			[]string{"0 limit whole shared by limit"}},
		"a pool that lists no modes": {pool(""), nil, []string{"0 limit whole shared by limit"}},
		"a pool of two modes": {pool(`modes = ["exclusive", "timeslice"]`), nil,
			[]string{"0 timeslice whole shared by timeslice"}},
		"of shares only": {pool(`modes = ["limit"]`), nil, []string{"0 limit shared by limit"}},
		"whole only":     {pool(`modes = ["exclusive"]`), nil, []string{"0 exclusive whole"}},
		"with a share that the scheduler does not count": {"", byHand(grant.Limit),
			[]string{"0 limit shared by limit"}},
		"in a mode that the cluster is not offered": {"", byHand(grant.Timeslice), nil},
		"granted whole": {"", func(n *nodeledgertest.SimulatedNode) {
			n.Grant(admission.Ask{Mode: grant.Exclusive})
		}, nil},
		"in use outside the ledger": {"", func(n *nodeledgertest.SimulatedNode) {
			usedOutside(n)
		}, []string{"0 limit shared by limit"}},
		"whole where no share would start": {"[policy]\nminimum_strength = \"library\"\n", nil,
			[]string{"0 exclusive whole shared by limit not shared: weak: none"}},
		"and nothing if it is in use outside the ledger": {"[policy]\nminimum_strength = \"library\"\n",
			func(n *nodeledgertest.SimulatedNode) {
				usedOutside(n)
			}, []string{"0 exclusive whole shared by limit not shared: weak: none gpuledger.dev/outside"}},
		"weak shares beside one": {"[policy]\nminimum_strength = \"library\"\n", byHand(grant.Limit),
			[]string{"0 limit shared by limit gpuledger.dev/weak"}},
		"whole where no MPS daemon is started": {both, nil,
			[]string{"0 exclusive whole shared by mps not shared: unserved: no-nvidia-cuda-mps-control"}},
		"by an MPS daemon": {both, func(n *nodeledgertest.SimulatedNode) { n.HasMPS(); n.Daemon() },
			[]string{"0 mps whole shared by mps"}},
		"unhealthy": {"", func(n *nodeledgertest.SimulatedNode) {
			n.SetGPUs(1, 16*grant.GiB, func(all []simulated.GPUDescription) { all[0].Health = "lost" })
		}, []string{"0 limit whole shared by limit gpuledger.dev/closed"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeledgertest.New(t, 1, 16*grant.GiB, c.config)
			if c.make != nil {
				c.make(n)
			}
			if got, counters := offers(t, n); !slices.Equal(got, c.want) || counters > 0 {
				t.Errorf("got  %q with %d counters\nwant %q with none", got, counters, c.want)
			}
		})
	}
}

// whole makes an allocation of a GPU's shared device to a claim for the whole GPU. The claim names
// an amount if one is given.
func (s site) whole(uid string, gpu int, consumed, named string) *resourceapi.ResourceClaim {
	c := claim(uid, s.result("gpu", gpu, grant.Limit, consumed, "0"))
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClass,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: DriverName, Parameters: runtime.RawExtension{Raw: []byte(
				`{"apiVersion":"gpuledger.dev/v1","kind":"GrantConfig","mode":"exclusive"}`)}}}}}
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: "exclusive." + DriverName}
	if named != "" {
		request.Capacity = &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{memory: resource.MustParse(named)}}
	}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: request}}
	return c
}

func TestAClaimForAWholeGPUThatOthersCouldShare(t *testing.T) {
	s := newSite(t, 2)
	c := s.whole("u-1", 0, "16Gi", "")
	name := s.has(t, c)
	if g := s.Grants()[0]; g.Mode != grant.Exclusive || !g.Has(s.UUID(0)) {
		t.Errorf("got %+v, want the whole GPU", g)
	}
	if again := s.has(t, c); again != name || len(s.Grants()) != 1 {
		t.Errorf("prepared again: %q with the grants %v, want %q", again, s.Grants(), name)
	}
	r := s.prepares(t, claim("u-2", s.result("gpu", 0, grant.Limit, "1Gi", "0")))
	if r.Err == nil || !strings.Contains(r.Err.Error(), "mode-conflict") {
		t.Errorf("a share of it: %v, want it refused", r.Err)
	}
	r = s.prepares(t, s.whole("u-3", 1, "4Gi", "4Gi"))
	if r.Err == nil || !strings.Contains(r.Err.Error(), `leaves all but 4Gi to others`) ||
		!strings.Contains(r.Err.Error(), `memory.compareTo(quantity("40Gi")) >= 0`) {
		t.Errorf("with an amount: %v, want it refused with what to write", r.Err)
	}
	sub := s.whole("u-4", 1, "4Gi", "")
	sub.Status.Allocation.Devices.Results[0].Request = "gpu/small"
	sub.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu",
		FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "small",
			Capacity: s.whole("", 1, "4Gi", "4Gi").Spec.Devices.Requests[0].Exactly.Capacity}}}}
	if r := s.prepares(t, sub); r.Err == nil || !strings.Contains(r.Err.Error(), "leaves all but 4Gi") {
		t.Errorf("with an amount in a subrequest: %v, want it refused", r.Err)
	}
	s.has(t, s.whole("u-5", 1, "16Gi", "16Gi")) // all of it, by its amount
	s.unprepares(t, "u-1")
	s.unprepares(t, "u-5")
	if grants := s.Grants(); len(grants) > 0 {
		t.Errorf("given up: got %+v", grants)
	}
}

// A share's class has its own mode, and a claim cannot turn it into the whole GPU.
func TestAShareIsNotMadeWhole(t *testing.T) {
	s := newSite(t, 1)
	c := s.whole("u", 0, "4Gi", "")
	c.Status.Allocation.Devices.Config = append([]resourceapi.DeviceAllocationConfiguration{
		*c.Status.Allocation.Devices.Config[0].DeepCopy()}, c.Status.Allocation.Devices.Config...)
	c.Status.Allocation.Devices.Config[0].Opaque.Parameters.Raw = []byte(
		`{"apiVersion":"gpuledger.dev/v1","kind":"GrantConfig","mode":"limit"}`)
	if r := s.prepares(t, c); r.Err == nil || !strings.Contains(r.Err.Error(), "disagree") {
		t.Errorf("got %v, want it refused", r.Err)
	}
}

// Older drivers published a device for each mode, and claims outlive an update. So do those of an
// older configuration.
func TestWholeGPUsThatTheSchedulerDoesNotCount(t *testing.T) {
	const limit, exclusive = "0 limit whole shared by limit", "0 exclusive whole"
	s := newSite(t, 1)
	for name, c := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		config string
		want   []string
	}{
		"it counts all of the device for all claims": {s.whole("u", 0, "16Gi", ""), "",
			[]string{limit}},
		"not an older driver's device": {claim("u", s.result("gpu", 0, grant.Exclusive)), "",
			nil},
		"not if more became free, such as a reserve": {s.whole("u", 0, "15Gi", ""), "", nil},
		"not if the device now has another mode": {s.whole("u", 0, "16Gi", ""),
			"[[pool]]\ngpus = [\"0\"]\nmodes = [\"exclusive\", \"timeslice\"]\n", nil},
		"nor if it is now had whole only": {s.whole("u", 0, "16Gi", ""),
			"[[pool]]\ngpus = [\"0\"]\nmodes = [\"exclusive\"]\n", nil},
		"but by the counter, if there are several shared modes now": {s.whole("u", 0, "16Gi", ""),
			"[[pool]]\ngpus = [\"0\"]\nmodes = [\"exclusive\", \"timeslice\", \"limit\"]\n",
			[]string{exclusive, "0 timeslice shared by timeslice", "0 limit shared by limit"}},
		"and a whole device": {claim("u", s.result("gpu", 0, grant.Exclusive)),
			"[[pool]]\ngpus = [\"0\"]\nmodes = [\"exclusive\"]\n", []string{exclusive}},
	} {
		t.Run(name, func(t *testing.T) {
			s, to := newSite(t, 1), &recorder{}
			s.has(t, c.claim)
			configure(s.SimulatedNode, c.config)
			offered := func(claims Allocations) (lines []string) {
				t.Helper()
				p, err := s.Read()
				if err != nil {
					t.Fatal(err)
				}
				list, err := Slices(p, claims)
				if err != nil {
					t.Fatal(err)
				}
				for _, slice := range list {
					for _, d := range slice.Devices {
						line := "0 " + *d.Attributes["mode"].StringValue
						if *d.Attributes["whole"].BoolValue {
							line += " whole"
						}
						if d.AllowMultipleAllocations != nil {
							line += " shared by " + d.Name[strings.LastIndex(d.Name, "-")+1:]
						}
						lines = append(lines, line)
					}
				}
				return lines
			}
			if got := offered(s.pods.consumed); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if c.config == "" && len(offered(nothingKnown)) > 0 {
				t.Error("before the API has said what the claim has, the GPU is offered")
			}
			s.unprepares(t, "u")
			if err := s.Publish(context.Background(), to); err != nil {
				t.Fatal(err)
			}
			if n := len(to.all[0].Pools[pool].Slices[0].Devices); n == 0 {
				t.Error("given up: the GPU is not offered")
			}
		})
	}
}

// A claim for a whole GPU is no change of what is published, or each would be a write to the API.
func TestAWholeGPUIsNotPublishedAgain(t *testing.T) {
	s, to := newSite(t, 1), &recorder{}
	for range 2 {
		for _, step := range []func(){func() {}, func() { s.has(t, s.whole("u", 0, "16Gi", "")) },
			func() {
				if _, err := s.follower().retie(); err != nil { // as Follow does
					t.Fatal(err)
				}
			}, func() { s.unprepares(t, "u") }} {
			step()
			if err := s.Publish(context.Background(), to); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(to.all) != 1 {
		t.Errorf("published %d times, want once", len(to.all))
	}
}

// Follow may read the ledger after a claim was learned, and before its grant is entered. Then the
// claim must stay known, or its GPU would not be offered until the claim is watched.
func TestAClaimThatIsBeingPreparedStaysKnown(t *testing.T) {
	s := newSite(t, 1)
	held, err := s.follower().retie()
	if err != nil {
		t.Fatal(err)
	}
	s.has(t, s.whole("u", 0, "16Gi", ""))
	s.pods.keep(held)
	list, err := Slices(contentOf(t, s.Driver), s.pods.consumed)
	if err != nil || len(list[0].Devices) != 1 {
		t.Errorf("published %v (%v), want the GPU", list, err)
	}
	s.pods.keep(nil)
	s.pods.keep(nil)
	if _, known := s.pods.known("u"); known {
		t.Error("given up: the claim stays known")
	}
}

// Also where grants are not tied to pods, what a claim for a whole GPU has must stay known.
func TestClaimsForWholeGPUsAreFollowed(t *testing.T) {
	s := newSite(t, 2)
	text, err := os.ReadFile(s.Config)
	if err == nil {
		err = os.WriteFile(s.Config, append([]byte("engine = \"none\"\n"), text...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.has(t, s.whole("u-whole", 0, "16Gi", ""))
	s.has(t, claim("u-share", s.result("gpu", 1, grant.Limit, "1Gi", "0")))
	held, err := s.follower().retie()
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	if _, is := held[types.UID("u-whole")]; !is || len(held) != 1 || p.CanTie() {
		t.Errorf("follows %v, want the claim for a whole GPU; grants can be tied: %v", held, p.CanTie())
	}
}

// usedOutside makes a program use a GiB of the first GPU outside the ledger.
func usedOutside(n *nodeledgertest.SimulatedNode) {
	n.T.Helper()
	if err := n.Open().Ledger.SetFound(ledger.Found{
		Outside: map[string]grant.Bytes{n.UUID(0): grant.GiB}}); err != nil {
		n.T.Fatal(err)
	}
}
