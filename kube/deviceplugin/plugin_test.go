package deviceplugin

import (
	"context"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
)

var units1GiB = Memory(grant.GiB, grant.Limit)

func TestAContainersUnitsAreAGrantOnOneGPU(t *testing.T) {
	s := newSite(t, 2, units1GiB, "")
	s.ensure()
	c, r := s.kubelet.registered()
	if r.ResourceName != "gpuledger.dev/gpu-memory" || r.Version != "v1beta1" ||
		!r.Options.GetPreferredAllocationAvailable {
		t.Errorf("registered as %v", r)
	}
	first, _ := s.gets(c, some(0, 3)...)
	second, _ := s.gets(c, some(4, 7)...) // of equal size: only its own reference distinguishes it
	if first.ID == second.ID || first.Owner != grant.Bearer || first.Memory() != 4*grant.GiB ||
		len(first.GPUs) != 1 || first.Mode != grant.Limit {
		t.Errorf("got %+v and %+v", first, second)
	}
	if first.GPUs[0].UUID != second.GPUs[0].UUID {
		t.Errorf("got %s and %s, want both on the fuller GPU", first.GPUs[0].UUID, second.GPUs[0].UUID)
	}
}

func TestTheErrorOfAFullGPUNamesWhatIsFree(t *testing.T) {
	s := newSite(t, 2, units1GiB, "")
	other := s.Grant(admission.Ask{Memory: 12 * grant.GiB, Mode: grant.Limit, Names: []string{"0"}})
	s.Grant(admission.Ask{Memory: 10 * grant.GiB, Mode: grant.Limit, Names: []string{"1"}})
	s.ensure()
	c, _ := s.kubelet.registered()
	_, err := s.allocate(c, some(0, 7)...) // ten units are free, but on no GPU eight
	const want = "gpuledger: refused (no-capacity): cannot grant 8GiB on a GPU in mode limit: " +
		"GPU 0 has 4GiB of 16GiB free (mode limit); GPU 1 has 6GiB of 16GiB free (mode limit)"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), string(other.ID)) {
		t.Errorf("got %v, want %q", err, want)
	}
	if _, err := s.allocate(c, "unit-x"); err == nil ||
		!strings.Contains(err.Error(), `"unit-x" that was never offered`) {
		t.Errorf("got %v", err)
	}
}

func TestTheKubeletGetsWhatIsFree(t *testing.T) {
	s := newSite(t, 2, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	stream, err := c.ListAndWatch(context.Background(), &api.Empty{})
	check(t, err)
	if free, all := healthy(t, stream); free != 32 || all != 32 {
		t.Errorf("%d of %d units are healthy, want all 32", free, all)
	}
	s.gets(c, some(0, 3)...) // the kubelet counts these itself, so the list does not change
	whole := s.Grant(admission.Ask{Mode: grant.Exclusive})
	s.ensure()
	if free, all := healthy(t, stream); free != 16 || all != 32 {
		t.Errorf("%d of %d units are healthy while a GPU is granted whole, want 16", free, all)
	}
	check(t, s.Ledger.Release(whole.ID))
	s.ensure()
	if free, _ := healthy(t, stream); free != 32 {
		t.Errorf("%d units are healthy, want all again", free)
	}
}

// The kubelet subtracts the 12 devices of the containers, not their memory.
func TestAfterTheUnitWasMadeSmallerOnlyWhatIsFreeIsOffered(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	for n := range 3 {
		s.gets(c, some(4*n, 4*n+3)...)
	}
	s.Plugin.Allocator = &Allocator{Ledger: s.Ledger, Resource: Memory(grant.GiB/2, grant.Limit),
		Log: s.Allocator.Log, Now: s.Allocator.Now}
	s.ensure()
	stream, err := c.ListAndWatch(soon(t), &api.Empty{})
	check(t, err)
	if got, want := nextHealthy(t, stream), strings.Join(some(0, 19), " "); got != want {
		t.Errorf("healthy are %s, want the 12 of the containers and 8 for the free 4 GiB: %s", got, want)
	}
}

// TestAGPUThatIsOpenWithoutAGrantIsNotGivenWhole: its node would refuse the grant.
func TestAGPUThatIsOpenWithoutAGrantIsNotGivenWhole(t *testing.T) {
	s := newSite(t, 2, Whole(), "")
	s.Hold(s.UUID(0))
	s.ensure()
	c, _ := s.kubelet.registered()
	stream, err := c.ListAndWatch(context.Background(), &api.Empty{})
	check(t, err)
	if free, all := healthy(t, stream); free != 1 || all != 2 {
		t.Errorf("%d of %d GPUs are healthy, want 1 of 2", free, all)
	}
}

// The kubelet drops a plugin whose list is longer than a message, and says nothing.
func TestMoreUnitsThanTheKubeletTakesAreNotOffered(t *testing.T) {
	s := newSite(t, 5, Memory(grant.MiB, grant.Limit), "")
	const want = "this node has 81920 units of 1MiB, and the kubelet takes at most 65536: set a larger --unit"
	if err := s.Ensure(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if err := s.Registered(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("it is ready or does not say why: %v", err)
	}
}

func TestTheFirstUnitsArePreferred(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	r, err := c.GetPreferredAllocation(context.Background(),
		&api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: []string{"unit-10", "unit-9", "unit-2", "unit-11"},
				MustIncludeDeviceIDs: []string{"unit-11"}, AllocationSize: 3}}})
	check(t, err)
	want := []string{"unit-11", "unit-2", "unit-9"}
	if got := r.ContainerResponses[0].DeviceIDs; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// If a container has two resources, the kubelet adds up the answers of both, and takes a key that
// both have from any one of them. The create has to find both grants.
func TestTwoResourcesOfAContainerShowTwoGrants(t *testing.T) {
	s := newSite(t, 2, units1GiB, "")
	whole := &Allocator{Ledger: s.Ledger, Resource: Whole(), Log: s.Allocator.Log, Now: s.Allocator.Now}
	share, err := s.Allocator.Allocate(some(0, 3))
	check(t, err)
	card, err := whole.Allocate([]string{s.UUID(1)})
	check(t, err)
	both := maps.Clone(share.Annotations)
	maps.Copy(both, card.Annotations)
	ids := map[string]bool{}
	for key, value := range both {
		if strings.HasPrefix(key, grant.GivenPrefix) {
			ids[value] = true
		}
		// containerd passes on gpuledger.dev/*, in which "*" stands for no slash
		if passed, err := path.Match("gpuledger.dev/*", key); !passed || err != nil {
			t.Errorf("no engine passes on %s", key)
		}
	}
	if grants := s.Grants(); len(grants) != 2 || len(ids) != 2 || !ids[string(grants[0].ID)] ||
		!ids[string(grants[1].ID)] {
		t.Errorf("%d grants, and the container shows %v", len(grants), ids)
	}
}

func TestWholeGPUs(t *testing.T) {
	s := newSite(t, 3, Whole(), "")
	s.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit, Names: []string{"2"}})
	s.ensure()
	c, r := s.kubelet.registered()
	stream, err := c.ListAndWatch(context.Background(), &api.Empty{})
	check(t, err)
	if free, all := healthy(t, stream); r.ResourceName != "gpuledger.dev/gpu" || free != 2 || all != 3 {
		t.Errorf("%s: %d of %d are healthy, want the 2 without shares", r.ResourceName, free, all)
	}
	g, _ := s.gets(c, s.UUID(0), s.UUID(1))
	if g.Mode != grant.Exclusive || len(g.GPUs) != 2 {
		t.Errorf("got %+v, want two GPUs whole", g)
	}
	if _, err := s.allocate(c, s.UUID(2)); err == nil || !strings.Contains(err.Error(), "mode-conflict") {
		t.Errorf("got %v, want a conflict with the share on that GPU", err)
	}
	s.now = s.now.Add(time.Minute)
	// The kubelet allocates it again: the first container has ended.
	again, _ := s.gets(c, s.UUID(0))
	for _, g := range s.Grants() {
		if g.Source == Source && g.ID != again.ID {
			t.Errorf("%+v is left", g)
		}
	}
}

func TestReallocatedUnitsReleaseTheirGrant(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	old, _ := s.gets(c, some(0, 11)...)
	s.now = s.now.Add(time.Hour)
	anew, _ := s.gets(c, some(0, 7)...) // 4 GiB were free beside the old one
	if all := s.Grants(); len(all) != 1 || all[0].ID != anew.ID || anew.ID == old.ID {
		t.Errorf("got %+v, want the new grant alone", all)
	}
}

// The kubelet reuses an init container's devices for later containers, in the same admission.
func TestAnInitContainersGrantIsHandedOn(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	init, reference := s.gets(c, some(0, 9)...)
	app, same := s.getsAfter(c, some(0, 9), some(0, 9)...)
	if app.ID != init.ID || same != reference || len(s.Grants()) != 1 {
		t.Errorf("got %s and %s, want one grant for one after the other", init.ID, app.ID)
	}
	// It replaces the last one: a pod needs the larger of both.
	larger, _ := s.getsAfter(c, some(0, 9), some(0, 11)...)
	if larger.ID != init.ID || larger.Memory() != 12*grant.GiB {
		t.Errorf("got %+v, want the same grant with 12 GiB", larger)
	}
	if _, err := s.allocateAfter(c, some(0, 9), some(0, 16)...); err == nil ||
		!strings.Contains(err.Error(), "refused (no-capacity): cannot grant 17GiB on a GPU") {
		t.Errorf("got %v", err)
	}
	beside, _ := s.gets(c, some(12, 13)...)
	if beside.ID == app.ID {
		t.Error("a container of other units has the same grant")
	}
}

func TestAnInitContainersWholeGPUIsHandedOn(t *testing.T) {
	s := newSite(t, 2, Whole(), "")
	s.ensure()
	c, _ := s.kubelet.registered()
	init, _ := s.gets(c, s.UUID(0))
	app, _ := s.getsAfter(c, []string{s.UUID(0)}, s.UUID(0))
	if app.ID != init.ID {
		t.Errorf("got %s and %s, want one grant", init.ID, app.ID)
	}
	defer s.Use(init.ID, grant.Identity{Namespace: "team", Pod: "a"})()
	s.kubelet.has("a", Whole().Name, s.UUID(0))
	s.ensure()
	if _, err := s.allocate(c, s.UUID(0)); err == nil ||
		!strings.Contains(err.Error(), "GPU 0 is taken whole") {
		t.Errorf("got %v, want a GPU in use kept, whatever the kubelet allocates", err)
	}
}

// The reference of an earlier pod is known to its user: a container may have passed it on, guarded
// by gpuledger or not. A pod does not get the amount of another pod either.
func TestNoGrantIsHandedToAnotherPod(t *testing.T) {
	for name, r := range map[string]Resource{"units": units1GiB, "whole GPUs": Whole()} {
		for what, uses := range map[string]bool{"used it": true, "was in use unseen": false} {
			t.Run(name+" of a pod that "+what, func(t *testing.T) {
				s := newSite(t, 1, r, "")
				s.ensure()
				c, _ := s.kubelet.registered()
				had, next, left := some(0, 11), some(0, 3), some(4, 11)
				if r.Unit == 0 {
					had, next, left = []string{s.UUID(0)}, []string{s.UUID(0)}, nil
				}
				first, known := s.gets(c, had...)
				s.now = s.now.Add(time.Second)
				if uses {
					// between two calls of Ensure
					s.Use(first.ID, grant.Identity{Namespace: "team", Pod: "a"})()
				}
				second, reference := s.gets(c, next...)
				if second.ID == first.ID || reference == known {
					t.Error("another pod has the reference of the first one")
				}
				if r.Unit > 0 && second.Memory() != 4*grant.GiB {
					t.Errorf("it requested 4 GiB and has %s", second.Memory())
				}
				if left != nil {
					s.gets(c, left...) // free, as the kubelet counts
				}
				for _, g := range s.Grants() {
					if g.ID == first.ID {
						t.Error("the first one's grant is left")
					}
				}
			})
		}
	}
}

// If a pod's init container needed more than its others, the next pod gets some devices while the
// grant still exists.
func TestAnInitContainersGrantStaysInItsPod(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	first, _ := s.gets(c, some(0, 5)...)
	s.getsAfter(c, some(0, 5), some(4, 5)...)
	init, _ := s.gets(c, some(0, 2)...) // of the next pod
	app, _ := s.getsAfter(c, some(0, 2), some(0, 5)...)
	if init.ID == first.ID || app.ID != init.ID || app.Memory() != 6*grant.GiB {
		t.Errorf("first %s, then %s and %s with %s: want the next pod to have its own grant", first.ID,
			init.ID, app.ID, app.Memory())
	}
}

// When the kubelet starts a pod's containers, the pod's admission is over.
func TestAUsedGrantIsNotHandedOn(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	init, known := s.gets(c, some(0, 3)...)
	s.Use(init.ID, grant.Identity{Namespace: "team", Pod: "a"})()
	if app, reference := s.getsAfter(c, some(0, 3), some(0, 3)...); app.ID == init.ID || reference == known {
		t.Error("a grant that was used is handed on")
	}
}

// With some topology manager policies the kubelet takes whole GPUs of a NUMA node, and its
// preference call is only about the missing ones. The GPUs that it takes need not be an init
// container's.
func TestWholeGPUsAfterAPreferenceCall(t *testing.T) {
	s := newSite(t, 2, Whole(), "")
	s.ensure()
	c, _ := s.kubelet.registered()
	both := []string{s.UUID(0), s.UUID(1)}
	_, known := s.gets(c, both...)
	if r, err := s.allocateAfter(c, both[:1], both...); err == nil &&
		r.Envs[grant.ReferenceEnv] == known.String() {
		t.Error("another pod has the reference of the first one")
	}
}

func TestNothingIsHandedOnWithoutPreferenceCalls(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	first, _ := s.getsAfter(c, some(0, 3), some(0, 3)...)
	if second, _ := s.getsAfter(c, some(0, 3), some(0, 3)...); second.ID == first.ID {
		t.Error("a grant is handed on to a container that may be another pod's")
	}
}

// A kubelet that was killed between its preference call and its Allocate has admitted nothing. The
// next kubelet continues from its checkpoint.
func TestAPreferenceCallEndsWithItsKubelet(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	init, _ := s.gets(c, some(0, 3)...)
	_, err := c.GetPreferredAllocation(context.Background(),
		&api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: some(4, 15), AllocationSize: 1}}})
	check(t, err)
	s.kubelet.server.Stop()
	s.kubelet = startKubelet(t)
	s.ensure()
	c, _ = s.kubelet.registered()
	if app, _ := s.getsAfter(c, some(0, 3), some(0, 3)...); app.ID != init.ID {
		t.Error("an init container's grant is not handed on")
	}
}

func TestRunningContainersNeverShareAGrant(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	init, _ := s.gets(c, some(0, 7)...)
	a, _ := s.getsAfter(c, some(0, 7), some(0, 3)...)
	b, _ := s.getsAfter(c, some(4, 7), some(4, 7)...)
	if a.ID != init.ID || b.ID == a.ID {
		t.Errorf("got init %s, a %s, b %s: want a after init, and b apart", init.ID, a.ID, b.ID)
	}
}

func TestGrantsOfDeletedPodsAreReclaimed(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	listed, _ := s.gets(c, some(0, 1)...)
	used, _ := s.gets(c, some(2, 3)...)
	never, _ := s.gets(c, some(4, 5)...)
	foreign := s.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit})
	s.kubelet.has("a", units1GiB.Name, some(0, 1)...)
	// Its init container has units, which the kubelet does not list.
	s.kubelet.has("b", "vendor.example/thing", some(0, 9)...)
	end := s.Use(used.ID, grant.Identity{Namespace: "team", Pod: "b", Container: "init"})
	are := func(want ...grant.Grant) {
		t.Helper()
		s.ensure()
		all := s.Grants()
		for _, g := range want {
			if !slices.ContainsFunc(all, func(o grant.Grant) bool { return o.ID == g.ID }) {
				t.Errorf("%s (%s) was released", g.ID, g.Label)
			}
		}
		if len(all) != len(want) {
			t.Errorf("got %d grants, want %d", len(all), len(want))
		}
	}
	are(listed, used, never, foreign)
	s.now = s.now.Add(settled)
	are(listed, used, never, foreign)
	end()
	are(listed, used, never, foreign) // its pod exists and may start it again
	s.kubelet.forgets()
	s.kubelet.has("a", units1GiB.Name, some(0, 1)...)
	are(listed, never, foreign)
	s.now = s.now.Add(2 * time.Hour)
	are(listed, foreign)
	s.kubelet.forgets()
	are(foreign)
}

// A process of a deleted pod may remain, or its end may be unknown. The kubelet counts its devices
// as free: it would send pods, and each would be refused.
func TestGPUsInUseByEndedPodsAreNotOffered(t *testing.T) {
	for name, r := range map[string]Resource{"units": units1GiB, "whole GPUs": Whole()} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 2, r, "")
			s.ensure()
			c, _ := s.kubelet.registered()
			stream, err := c.ListAndWatch(soon(t), &api.Empty{})
			check(t, err)
			all := nextHealthy(t, stream)
			ids, rest := some(0, 11), strings.Join(some(0, 19), " ") // 20 GiB are free
			if r.Unit == 0 {
				ids, rest = []string{s.UUID(0)}, s.UUID(1)
			}
			g, _ := s.gets(c, ids...)
			before := s.Plugin.changed
			end := s.Use(g.ID, grant.Identity{Namespace: "team", Pod: "a"})
			s.kubelet.has("a", r.Name, ids...)
			s.ensure()
			s.now = s.now.Add(settled)
			s.ensure()
			s.ensure()
			if s.Plugin.changed != before {
				t.Error("the devices of a pod that is there are not offered any more")
			}
			s.kubelet.forgets()
			s.ensure()
			s.ensure()
			if got := nextHealthy(t, stream); got != rest {
				t.Errorf("healthy are %s, want %s", got, rest)
			}
			s.kubelet.server.Stop()
			s.kubelet = startKubelet(t)
			s.ensure() // the new one lists no pods yet
			s.ensure()
			c, _ = s.kubelet.registered()
			stream, err = c.ListAndWatch(soon(t), &api.Empty{})
			check(t, err)
			if got := nextHealthy(t, stream); got != rest {
				t.Errorf("a new kubelet gets %s, want %s", got, rest)
			}
			s.now = s.now.Add(settled)
			if r.Unit > 0 { // the kubelet gives some of them to another pod
				s.gets(c, some(0, 3)...)
				s.kubelet.has("b", r.Name, some(0, 3)...)
				s.ensure()
				s.ensure()
				s.Plugin.mu.Lock()
				n := 0
				for _, d := range s.Plugin.devices {
					if d.Health == api.Healthy {
						n++
					}
				}
				s.Plugin.mu.Unlock()
				if n != 20 {
					t.Errorf("%d are healthy, want the 4 of another pod and 16 that are free", n)
				}
				s.kubelet.forgets()
				s.kubelet.has("b", r.Name, some(0, 3)...)
			}
			end()
			s.ensure()
			s.ensure()
			if slices.ContainsFunc(s.Grants(), func(o grant.Grant) bool { return o.ID == g.ID }) {
				t.Error("its grant is left")
			}
			if got := nextHealthy(t, stream); got != all {
				t.Errorf("healthy are %s, want all again", got)
			}
		})
	}
}

// Units name no GPU. If a GPU was removed, a restarted kubelet must still see the units that
// containers have.
func TestUnitsInUseStayWhenAGPUIsRemoved(t *testing.T) {
	s := newSite(t, 2, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	stream, err := c.ListAndWatch(soon(t), &api.Empty{})
	check(t, err)
	nextHealthy(t, stream)
	s.gets(c, some(0, 7)...)
	s.gets(c, some(20, 23)...)
	s.SetGPUs(1, 16*grant.GiB, func([]simulated.GPUDescription) {})
	s.ensure()
	want := strings.Join(append(some(0, 11), some(20, 23)...), " ")
	if got := nextHealthy(t, stream); got != want {
		t.Errorf("healthy are %s, want what containers have, and the 4 that are free: %s", got, want)
	}
	s.SetGPUs(2, 16*grant.GiB, func([]simulated.GPUDescription) {})
	s.ensure()
	nextHealthy(t, stream)
	on, _ := s.gets(c, some(24, 31)...)
	if on.GPUs[0].UUID != s.UUID(1) {
		t.Fatalf("want it on the second GPU, not %+v", on)
	}
	s.SetGPUs(1, 16*grant.GiB, func([]simulated.GPUDescription) {})
	s.ensure()
	want = strings.Join(append(some(0, 11), some(20, 31)...), " ")
	if got := nextHealthy(t, stream); got != want {
		t.Errorf("healthy are %s, want those of the removed GPU, too: %s", got, want)
	}
}

// Other pods may get the devices that an init container left over, or that an ended pod had. Such
// an allocation releases no grant of a running or starting container.
func TestOtherPodsUnitsReleaseNoHandedOnGrant(t *testing.T) {
	s := newSite(t, 2, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	s.gets(c, some(0, 7)...)
	waits, _ := s.getsAfter(c, some(0, 7), some(0, 3)...)
	s.now = s.now.Add(2 * admissionTime)
	s.gets(c, some(4, 7)...)
	if !slices.ContainsFunc(s.Grants(), func(g grant.Grant) bool { return g.ID == waits.ID }) {
		t.Error("the grant of a container that waits for its image has ended with other units")
	}
	s.kubelet.has("a", units1GiB.Name, some(0, 3)...)
	defer s.Use(waits.ID, grant.Identity{Namespace: "team", Pod: "a", Container: "main"})()
	// Another process, which knows only the labels.
	s.Plugin.Allocator = &Allocator{Ledger: s.Ledger, Resource: units1GiB, Log: s.Allocator.Log,
		Now: s.Allocator.Now}
	s.now = s.now.Add(2 * admissionTime)
	s.gets(c, some(6, 9)...)
	for _, g := range s.Grants() {
		if g.ID == waits.ID && g.Draining {
			t.Error("a grant in use is released: its container could not be started again")
		}
	}
}

// A restarted plugin has not seen which container used which grant. The kubelet's checkpoint has
// the references of containers.
func TestGrantsThatNoPodHasAreReclaimed(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.Plugin.Cgroups = "cgroup"
	check(t, os.MkdirAll("cgroup/kubepods/burstable/poduid-there", 0o700))
	s.ensure()
	c, _ := s.kubelet.registered()
	there, r1 := s.gets(c, some(0, 1)...)
	past, r2 := s.gets(c, some(2, 3)...)
	lost, _ := s.gets(c, some(4, 5)...)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"uid-there": r1, "uid-past": r2})
	are := func(when string, want ...grant.Grant) {
		t.Helper()
		s.ensure()
		all := s.Grants()
		for _, g := range want {
			if !slices.ContainsFunc(all, func(o grant.Grant) bool { return o.ID == g.ID }) {
				t.Errorf("%s: %s (%s) was released", when, g.ID, g.Label)
			}
		}
		if len(all) != len(want) {
			t.Errorf("%s: got %d grants, want %d", when, len(all), len(want))
		}
	}
	are("at once", there, past, lost)
	s.later(settled + time.Second)
	check(t, os.Rename(checkpointFile, "away"))
	are("without a checkpoint", there, past, lost)
	s.kubelet.writes("vendor.example/thing", nil)
	are("in one of a kubelet that does not know the plugin", there, past, lost)
	check(t, os.WriteFile(checkpointFile,
		[]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"","AllocResp":"AA=="}],"RegisteredDevices":{"`+
			units1GiB.Name+`":[]}}}`),
		0o600))
	are("in one that cannot be read", there, past, lost)
	check(t, os.Rename("away", checkpointFile))
	are("after a minute", there, past)
	s.now = s.now.Add(unstarted)
	check(t, os.Rename("cgroup", "nowhere"))
	are("without a look at the pods", there, past)
	check(t, os.Rename("nowhere", "cgroup"))
	s.Plugin.lister = nil // as after a start of the plugin or the node
	are("after a long time without a watch", there, past)
	s.now = s.now.Add(unstarted)
	are("when the kubelet may still begin", there, past)
	s.now = s.now.Add(time.Second)
	are("when a pod had time to begin", there)
	s.now = s.now.Add(2 * unseen)
	// An init container's grant: after a boot it starts again with the same answer.
	are("hours later, while its pod is there", there)
	s.Plugin.Cgroups = "nowhere"
	are("and where the plugin cannot look at the pods", there)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"uid-past": r2})
	are("when the kubelet has forgotten it")
}

// A restarted kubelet lists no pods, or only static ones, until the API server has sent it the
// others.
func TestNothingIsReclaimedBeforeTheKubeletKnowsPods(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.Plugin.Self = "team/agent"
	s.ensure()
	c, _ := s.kubelet.registered()
	g, _ := s.gets(c, some(0, 3)...)
	crash := s.Use(g.ID, grant.Identity{Namespace: "team", Pod: "a", Container: "main"})
	s.kubelet.has("agent", "vendor.example/thing")
	s.kubelet.has("a", units1GiB.Name, some(0, 3)...)
	s.ensure()
	s.now = s.now.Add(settled)
	s.ensure()
	crash() // the container will be restarted
	is := func(there bool, when string) {
		t.Helper()
		s.ensure()
		if n := len(s.Grants()); (n == 1) != there {
			t.Errorf("%s: %d grants", when, n)
		}
	}
	is(true, "its pod is listed")
	s.kubelet.server.Stop()
	s.kubelet = startKubelet(t)
	is(true, "the kubelet has just started")
	s.now = s.now.Add(settled)
	is(true, "the kubelet does not list the agent itself")
	s.kubelet.has("agent", "vendor.example/thing")
	s.kubelet.has("a", units1GiB.Name, some(0, 3)...)
	is(true, "the kubelet knows its pods")
	s.kubelet.forgets()
	s.kubelet.has("agent", "vendor.example/thing")
	is(false, "the pod is gone")
}

// A plugin outside a pod cannot find out whether the kubelet knows all of its pods. If the API
// server is away, a restarted one lists none.
func TestAPodWithACgroupKeepsItsGrant(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.Plugin.Cgroups = "cgroup"
	const pod = "cgroup/kubepods/burstable/poduid-a"
	check(t, os.MkdirAll(pod, 0o700))
	s.ensure()
	c, _ := s.kubelet.registered()
	g, r := s.gets(c, some(0, 3)...)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"uid-a": r})
	crash := s.Use(g.ID, grant.Identity{Namespace: "team", Pod: "a", Container: "main"})
	s.kubelet.has("a", units1GiB.Name, some(0, 3)...)
	s.ensure()
	crash() // the container will be restarted
	s.kubelet.server.Stop()
	s.kubelet = startKubelet(t)
	s.ensure()
	s.later(settled + time.Second)
	s.ensure()
	if n := len(s.Grants()); n != 1 {
		t.Errorf("%d grants, want that of the pod that the kubelet does not list yet", n)
	}
	check(t, os.Remove(pod))
	s.ensure()
	if n := len(s.Grants()); n != 0 {
		t.Errorf("%d grants are left without the pod's cgroup", n)
	}
}

// After a boot without an API server the kubelet starts only static pods. A plugin outside a pod
// draws no conclusions until another pod has a cgroup.
func TestAfterABootTheAPIServersPodsAreAwaited(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.Plugin.Cgroups = "cgroup"
	check(t, os.MkdirAll("cgroup/kubepods/burstable/pod5a3c1c0fbb6f1e5ad4b3ac0f0be2c1d4", 0o700))
	s.ensure()
	c, _ := s.kubelet.registered()
	_, r := s.gets(c, some(0, 3)...)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"uid-a": r})
	is := func(there bool, when string) {
		t.Helper()
		s.ensure()
		if n := len(s.Grants()); (n == 1) != there {
			t.Errorf("%s: %d grants", when, n)
		}
	}
	is(true, "at once")
	s.now = s.now.Add(2 * unstarted)
	is(true, "without an API server")
	check(t, os.Mkdir("cgroup/kubepods/pod0b9f3a6e-6d0c-4d53-9b8e-1f1f4f6f7a11", 0o700))
	is(true, "once a pod of the API server's begins")
	s.now = s.now.Add(unstarted)
	is(true, "while the others may still begin")
	s.now = s.now.Add(time.Second)
	is(false, "when the pod had time to begin")
}

// A kubelet without an API server has static pods only, and lists the devices of these.
func TestGrantsOfStaticPodsAreReclaimed(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.Plugin.Cgroups = "cgroup"
	const uid = "5a3c1c0fbb6f1e5ad4b3ac0f0be2c1d4"
	check(t, os.MkdirAll("cgroup/kubepods/burstable/pod"+uid, 0o700))
	s.ensure()
	c, _ := s.kubelet.registered()
	_, r := s.gets(c, some(0, 3)...)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{uid: r})
	s.kubelet.has("static-node", units1GiB.Name, some(0, 3)...)
	s.ensure()
	s.kubelet.forgets()
	check(t, os.Remove("cgroup/kubepods/burstable/pod"+uid))
	s.later(unstarted + time.Second)
	s.ensure()
	if n := len(s.Grants()); n != 0 {
		t.Errorf("%d grants of a static pod that is gone", n)
	}
}

// The kubelet removes the cgroup of an ended pod only after its volumes, which can take for ever.
func TestAPodThatIsListedNoMoreHasNoUseForItsGrant(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.Plugin.Cgroups = "cgroup"
	check(t, os.MkdirAll("cgroup/kubepods/burstable/poduid-a", 0o700))
	s.ensure()
	c, _ := s.kubelet.registered()
	g, r := s.gets(c, some(0, 3)...)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"uid-a": r})
	end := s.Use(g.ID, grant.Identity{Namespace: "team", Pod: "a", Container: "main"})
	s.kubelet.has("a", units1GiB.Name, some(0, 3)...)
	s.ensure()
	end()
	s.later(settled + time.Second)
	s.ensure()
	if n := len(s.Grants()); n != 1 {
		t.Errorf("%d grants, want that of the pod that the kubelet lists", n)
	}
	s.kubelet.forgets()
	s.ensure()
	if n := len(s.Grants()); n != 0 {
		t.Errorf("%d grants are left while the pod's volumes are unmounted", n)
	}
}

func TestAPluginRegistersOnceThereIsAnInventory(t *testing.T) {
	s := newSite(t, 2, units1GiB, "")
	path := s.SimulatedNode.Dir + "/state/inventory.json"
	check(t, os.Rename(path, path+".away"))
	if err := s.Ensure(context.Background()); err == nil || len(s.kubelet.requests) > 0 {
		t.Errorf("got %v and %d registrations, want an error and none", err, len(s.kubelet.requests))
	}
	check(t, os.Rename(path+".away", path))
	s.ensure()
	c, _ := s.kubelet.registered()
	stream, err := c.ListAndWatch(context.Background(), &api.Empty{})
	check(t, err)
	if free, all := healthy(t, stream); free != 32 || all != 32 {
		t.Errorf("%d of %d units are healthy, want all 32", free, all)
	}
}

func TestARestartedKubeletIsRegisteredWithAgain(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	s.kubelet.registered()
	s.ensure() // the plugin registers once with the same kubelet
	s.kubelet.server.Stop()
	s.ensure() // no kubelet: nothing to do, and no error
	s.kubelet = startKubelet(t)
	s.ensure()
	c, _ := s.kubelet.registered()
	s.gets(c, some(0, 0)...)
	if len(s.kubelet.requests) != 0 {
		t.Errorf("registered %d times more than once", len(s.kubelet.requests))
	}
	s.Plugin.Stop()
	if _, err := os.Stat(s.path()); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// During an update the old pod may still wait for a call when the new one serves.
func TestAnEndedPluginLeavesTheSocketOfTheNext(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	s.kubelet.registered()
	next := &Plugin{Dir: ".", PodResources: "kubelet.sock", Allocator: s.Allocator}
	t.Cleanup(next.Stop)
	check(t, next.Ensure(t.Context()))
	s.Plugin.Stop()
	c, _ := s.kubelet.registered()
	s.gets(c, some(0, 0)...)
	next.Stop()
	if _, err := os.Stat(s.path()); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestGpushareNames(t *testing.T) {
	s := newSite(t, 2, GPUShare(grant.Limit), "")
	s.ensure()
	c, r := s.kubelet.registered()
	response, err := s.allocate(c, some(0, 4)...)
	check(t, err)
	for name, want := range map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "0",
		"ALIYUN_COM_GPU_MEM_CONTAINER": "5",
		"ALIYUN_COM_GPU_MEM_DEV":       "16"} {
		if got := response.Envs[name]; got != want || r.ResourceName != "aliyun.com/gpu-mem" {
			t.Errorf("%s: %s is %q, want %q", r.ResourceName, name, got, want)
		}
	}
}

func TestRanges(t *testing.T) {
	for text, list := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "0-1,5,7-8": {0, 1, 5, 7, 8}} {
		if got := ranges(list); got != text || !slices.Equal(numbers(text), list) {
			t.Errorf("%v is written %q and read %v, want %q", list, got, numbers(text), text)
		}
	}
	for _, text := range []string{"", "x", "3-1", "-1", "0-99999999999", "0-9999999999999999999999"} {
		if got := numbers(text); len(got) > 0 {
			t.Errorf("%q is read as %d numbers", text, len(got))
		}
	}
}
