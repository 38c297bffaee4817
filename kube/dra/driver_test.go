package dra

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

const pool = "node-1"

// site is a node's driver with a real ledger and a fake API.
type site struct {
	*nodeledgertest.SimulatedNode
	*Driver
}

func newSite(t *testing.T, gpus int) site {
	n := nodeledgertest.New(t, gpus, 16*grant.GiB, "")
	n.References, n.Batch = n.Dir+"/references", &nodeledger.Batch{}
	d := &Driver{Ledger: n.Ledger, Node: pool, Client: fake.NewClientset(),
		Log: slog.New(slog.DiscardHandler)}
	d.chosen.Store(&choice{})
	return site{n, d}
}

// result returns one device of a claim's allocation.
func (s site) result(request string, gpu int, mode grant.Mode,
	amounts ...string) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Driver: DriverName, Pool: pool, Request: request,
		Device: strings.ToLower(s.UUID(gpu)) + "-" + string(mode)}
	for i, name := range []resourceapi.QualifiedName{memory, compute}[:len(amounts)] {
		if r.ConsumedCapacity == nil {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		r.ConsumedCapacity[name] = resource.MustParse(amounts[i])
	}
	return r
}

func claim(uid string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim-" + uid,
		UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{ReservedFor: reservedFor("pod-of-" + uid),
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: results}}}}
}

// reservedFor returns references to pods with these UIDs.
func reservedFor(uids ...string) (list []resourceapi.ResourceClaimConsumerReference) {
	for _, uid := range uids {
		list = append(list, resourceapi.ResourceClaimConsumerReference{
			Resource: "pods", Name: "name-of-" + uid,
			UID: types.UID(uid)})
	}
	return list
}

func (s site) prepares(t *testing.T, c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	t.Helper()
	results, err := s.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{c})
	if err != nil || len(results) != 1 {
		t.Fatalf("got %v, %v", results, err)
	}
	return results[c.UID]
}

// has prepares a claim without an error and returns its CDI name.
func (s site) has(t *testing.T, c *resourceapi.ResourceClaim) string {
	t.Helper()
	r := s.prepares(t, c)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	var names []string
	for _, d := range r.Devices {
		names = append(names, d.CDIDeviceIDs...)
	}
	if len(names) != 1 {
		t.Fatalf("got the CDI names %v of %v, want one for all devices", names, r.Devices)
	}
	return names[0]
}

func (s site) unprepares(t *testing.T, uid string) {
	t.Helper()
	results, err := s.UnprepareResourceClaims(context.Background(),
		[]kubeletplugin.NamespacedObject{{UID: types.UID(uid)}})
	if e, prepared := results[types.UID(uid)]; err != nil || e != nil || !prepared {
		t.Fatalf("got %v, %v", results, err)
	}
}

func (s site) cdiFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(s.Dir + "/cdi")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestAClaimHasAGrantUntilItIsUnprepared(t *testing.T) {
	s := newSite(t, 2)
	c := claim("u-1", s.result("gpu", 1, grant.Limit, "4Gi", "30"))
	name := s.has(t, c)
	grants := s.Grants()
	if len(grants) != 1 {
		t.Fatalf("got %v, want one grant", grants)
	}
	g := grants[0]
	if g.Owner != "claim:u-1" || g.Mode != grant.Limit || g.Memory() != 4*grant.GiB || g.Compute != 30 ||
		!g.Has(s.UUID(1)) || g.Label != "team/claim-u-1" || g.Source != Source {
		t.Errorf("got %+v", g)
	}
	reference, err := grant.ParseReference(strings.TrimPrefix(name, "gpuledger.dev/grant="))
	if err != nil || !reference.Opens(g.Secret) {
		t.Errorf("%q does not open the grant: %v", name, err)
	}
	if again := s.has(t, c); again != name || len(s.Grants()) != 1 {
		t.Errorf("prepared again: got %q and %v, want the same", again, s.Grants())
	}
	s.unprepares(t, "u-1")
	s.unprepares(t, "u-1")
	if grants, files := s.Grants(), s.cdiFiles(t); len(grants) > 0 || files > 0 {
		t.Errorf("given up: got %v and %d CDI files", grants, files)
	}
}

// The kubelet adds the names of a claim that is prepared again to those from before the boot. All
// of them must exist.
func TestAClaimKeepsItsNameOverABoot(t *testing.T) {
	s := newSite(t, 1)
	c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	before := s.has(t, c)
	if err := os.RemoveAll(s.Dir + "/cdi"); err != nil { // a boot empties /run
		t.Fatal(err)
	}
	if after := s.has(t, c); after != before || s.cdiFiles(t) != 1 {
		t.Errorf("got %q and %d CDI files, want %q again", after, s.cdiFiles(t), before)
	}
	s.unprepares(t, "u-1")
	if kept, err := os.ReadDir(s.Dir + "/references"); err != nil || len(kept) > 0 {
		t.Errorf("given up: %v is kept (%v)", kept, err)
	}
	s.has(t, c)
	g := s.Grants()[0]
	if _, err := grants.Release(s.Open(), g.ID, false); err != nil { // by the administrator
		t.Fatal(err)
	}
	if err := s.Driver.Reclaim(context.Background()); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadDir(s.Dir + "/references"); err != nil || len(kept) > 0 || s.cdiFiles(t) > 0 {
		t.Errorf("released by hand: %v is kept (%v), and %d CDI files", kept, err, s.cdiFiles(t))
	}
}

// An administrator's change to a claim's grant stays until the claim is unprepared. It changes
// neither the claim's name nor a running container.
func TestAChangedGrantOfAClaimIsKept(t *testing.T) {
	for name, change := range map[string]grants.Change{"more memory": {Memory: new(6 * grant.GiB)},
		"less": {Memory: new(grant.GiB)}, "no share of compute": {Compute: new(0)}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 1)
			c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "30"))
			before := s.has(t, c)
			changed, err := grants.Update(s.Driver.Ledger.Open(), s.Grants()[0].ID, change)
			if err != nil {
				t.Fatal(err)
			}
			still := func(when string) {
				after := s.has(t, c)
				if g := s.Grants()[0]; after != before || g.Memory() != changed.Memory() ||
					g.Compute != changed.Compute {
					t.Errorf("prepared again %s: %q with %s and %d%%, want %q with %s and %d%%",
						when, after, g.Memory(),
						g.Compute, before, changed.Memory(), changed.Compute)
				}
			}
			still("after a boot")
			defer s.Use(changed.ID, grant.Identity{})()
			still("while a container uses it")
		})
	}
}

// An administrator can repair an entry, for example from a backup. The kubelet still has the
// claim's old name then.
func TestARepairedEntryKeepsItsName(t *testing.T) {
	s := newSite(t, 1)
	c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	before := s.has(t, c)
	s.Client = fake.NewClientset(c)
	entry := s.Dir + "/state/grants/" + string(s.Grants()[0].ID) + ".json"
	whole, err := os.ReadFile(entry)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{[]byte("{"), whole} {
		if err := os.WriteFile(entry, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Driver.Reclaim(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if s.cdiFiles(t) != 1 {
		t.Error("the CDI file of a grant whose entry was damaged for a while was removed")
	}
	if err := os.RemoveAll(s.Dir + "/cdi"); err != nil {
		t.Fatal(err)
	}
	if after := s.has(t, c); after != before {
		t.Errorf("got %q, want %q again", after, before)
	}
}

// An update starts the new driver before it stops the old one. While one of them handles a claim
// the other prepares none.
func TestTwoDriversLockClaims(t *testing.T) {
	s := newSite(t, 1)
	c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	s.has(t, c)
	client, asked := fake.NewClientset(), 0
	client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		f, err := os.Open(s.Driver.Ledger.References + ".lock")
		if err != nil {
			t.Error(err)
			return true, c, nil
		}
		defer f.Close()
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err,
			syscall.EWOULDBLOCK) {
			t.Errorf("got %v, want another driver to wait meanwhile", err)
		}
		return true, c, nil
	})
	s.Client = client
	if err := s.Driver.Reclaim(context.Background()); err != nil || asked != 1 {
		t.Fatalf("read %d times: %v", asked, err)
	}
	other := &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: client, Log: slog.New(slog.DiscardHandler)}
	if r := (site{s.SimulatedNode, other}).prepares(t, c); r.Err != nil {
		t.Error(r.Err)
	}
}

// A driver that is killed while it writes leaves a draft with a secret in it.
func TestDraftsOfAKilledDriverAreRemoved(t *testing.T) {
	s := newSite(t, 1)
	s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0")))
	old := time.Now().Add(-time.Hour)
	drafts := []string{s.Dir + "/cdi/.gpuledger.dev-grant_g-aaaaaaaaaaaa.json.123",
		s.Driver.Ledger.References + "/.g-aaaaaaaaaaaa.123"}
	fresh, others := s.Dir+"/cdi/.gpuledger.dev-grant_g-aaaaaaaaaaaa.json.456", s.Dir+"/cdi/.vendor.json.123"
	for _, path := range append([]string{fresh, others}, drafts...) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, old, old); path != fresh && err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chtimes(fresh, time.Now(), time.Now()),
		s.Driver.Reclaim(context.Background())); err != nil &&
		!strings.Contains(err.Error(), "cannot tell whether") {
		t.Fatal(err)
	}
	for _, path := range drafts {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	for _, path := range []string{fresh, others} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("another driver may be writing it: %v", err)
		}
	}
}

func TestALostReferenceIsRenewed(t *testing.T) {
	s := newSite(t, 1)
	c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	before := s.has(t, c)
	if err := errors.Join(os.RemoveAll(s.Dir+"/cdi"), os.RemoveAll(s.Dir+"/references")); err != nil {
		t.Fatal(err)
	}
	after := s.has(t, c)
	if after == before {
		t.Fatal("the secret is kept nowhere, but the name is the same")
	}
	g := s.Grants()[0]
	for name, opens := range map[string]bool{before: false, after: true} {
		reference, err := grant.ParseReference(strings.TrimPrefix(name, "gpuledger.dev/grant="))
		if err != nil || reference.ID != g.ID || reference.Opens(g.Secret) != opens {
			t.Errorf("%q opens the grant: want %v (%v)", name, opens, err)
		}
	}
}

func TestAClaimThatIsAllocatedAgain(t *testing.T) {
	s := newSite(t, 2)
	s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0")))
	s.has(t, claim("u-1", s.result("gpu", 1, grant.Limit, "6Gi", "0")))
	grants := s.Grants()
	if len(grants) != 1 || !grants[0].Has(s.UUID(1)) || grants[0].Memory() != 6*grant.GiB ||
		s.cdiFiles(t) != 1 {
		t.Fatalf("got %+v and %d CDI files, want the new allocation alone", grants, s.cdiFiles(t))
	}
	end := s.Use(grants[0].ID, grant.Identity{})
	r := s.prepares(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0")))
	if r.Err == nil || !strings.Contains(r.Err.Error(), "while a container uses its grant") {
		t.Errorf("got %v, want the grant in use kept", r.Err)
	}
	s.unprepares(t, "u-1")
	if g := s.Grants()[0]; !g.Draining {
		t.Errorf("got %+v, want a grant in use to drain", g)
	}
	end()
	if grants := s.Grants(); len(grants) != 0 {
		t.Errorf("got %+v, want nothing after the container's end", grants)
	}
}

// The kubelet unprepares a claim if a pod is deleted before the claim was prepared for it, even if
// the one other pod of the claim runs.
func TestTheGrantOfARunningPodIsKept(t *testing.T) {
	s := newSite(t, 1)
	before := s.has(t, s.of(1, "u-1", "y", "x"))
	end := s.Use(s.Grants()[0].ID, grant.Identity{UID: "y", Namespace: "team", Pod: "y", Container: "main"})
	s.unprepares(t, "u-1")
	if after := s.has(t, s.of(2, "u-1", "y", "z")); after != before || s.Grants()[0].Draining {
		t.Errorf("the next pod gets %q and %+v, want %q", after, s.Grants()[0], before)
	}

	s.unprepares(t, "u-1")
	s.Client = fake.NewClientset(s.of(2, "u-1", "y", "z"))
	reclaimed := func() []grant.Grant {
		t.Helper()
		if err := s.Driver.Reclaim(context.Background()); err != nil {
			t.Fatal(err)
		}
		return s.Grants()
	}
	if grants := reclaimed(); len(grants) != 1 || grants[0].Draining {
		t.Errorf("while the pod runs: %+v", grants)
	}
	s.pods.learn(s.of(3, "u-1"))
	s.Client = fake.NewClientset()
	if grants := reclaimed(); len(grants) != 1 || !grants[0].Draining {
		t.Errorf("the claim has ended, and a container remains: %+v", grants)
	}
	end()
	if grants := reclaimed(); len(grants) != 0 || s.cdiFiles(t) != 0 {
		t.Errorf("all has ended: %+v and %d CDI files", grants, s.cdiFiles(t))
	}
}

// A pod that the claim is not reserved for any more does not keep the grant.
func TestTheGrantOfAnEndedPodIsReleased(t *testing.T) {
	s := newSite(t, 1)
	s.has(t, s.of(1, "u-1", "y"))
	defer s.Use(s.Grants()[0].ID, grant.Identity{UID: "y", Namespace: "team"})()
	s.pods.learn(s.of(2, "u-1"))
	s.unprepares(t, "u-1")
	if g := s.Grants()[0]; !g.Draining {
		t.Errorf("got %+v, want it draining", g)
	}
}

func params(text string) []resourceapi.DeviceAllocationConfiguration {
	return []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: DriverName,
				Parameters: runtime.RawExtension{Raw: []byte(text)}}}}}
}

// TestAMinimumStrengthIsTheGrants: the node compares it with each container that uses the grant.
func TestAMinimumStrengthIsTheGrants(t *testing.T) {
	s := newSite(t, 1)
	s.HasMPS()
	c := claim("u", s.result("gpu", 0, grant.MPS, "1Gi", "0"))
	c.Status.Allocation.Devices.Config = params(
		`{"apiVersion":"gpuledger.dev/v1","kind":"GrantConfig","minimumStrength":"library"}`)
	s.has(t, c)
	if g := s.Grants()[0]; g.MinimumStrength != grant.StrengthLibrary {
		t.Errorf("the grant demands strength %q, want library", g.MinimumStrength)
	}
}

func TestRefusedClaims(t *testing.T) {
	const head = `"apiVersion":"gpuledger.dev/v1","kind":"GrantConfig"`
	yes := true
	for name, c := range map[string]struct {
		claim func(s site) *resourceapi.ResourceClaim
		want  string
	}{
		"more than is free": {func(s site) *resourceapi.ResourceClaim {
			return claim("u", s.result("gpu", 0, grant.Limit, "13Gi", "0"))
		},
			"refused (no-capacity): cannot grant 13GiB on a GPU in mode limit: GPU 0 has 12GiB of 16GiB " +
				"free (mode limit); GPU 1 is free"},
		"another mode than the GPU's": {func(s site) *resourceapi.ResourceClaim {
			return claim("u",
				s.result("gpu", 0, grant.Exclusive))
		},
			"refused (mode-conflict): cannot grant a whole GPU"},
		"a GPU that is not here": {func(s site) *resourceapi.ResourceClaim {
			r := s.result("gpu", 0, grant.Limit, "1Gi")
			r.Device = "gpu-somewhere-limit"
			return claim("u", r)
		}, `no device "gpu-somewhere-limit"`},
		"another node's pool": {func(s site) *resourceapi.ResourceClaim {
			r := s.result("gpu", 0, grant.Limit, "1Gi")
			r.Pool = "node-2"
			return claim("u", r)
		}, "nothing of the claim is allocated from gpuledger.dev on this node"},
		"everything, to watch it": {func(s site) *resourceapi.ResourceClaim {
			r := s.result("gpu", 0, grant.Limit, "1Gi")
			r.AdminAccess = &yes
			return claim("u", r)
		}, "adminAccess"},
		"no amount": {func(s site) *resourceapi.ResourceClaim {
			return claim("u",
				s.result("gpu", 0, grant.Limit))
		}, "DRAConsumableCapacity"},
		"one GPU twice for one request": {func(s site) *resourceapi.ResourceClaim {
			return claim("u", s.result("gpu", 1, grant.Limit, "1Gi", "0"),
				s.result("gpu", 1, grant.Limit, "1Gi", "0"))
		}, "distinctAttribute: gpuledger.dev/uuid"},
		"different amounts in one grant": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("a", 0, grant.Limit, "1Gi", "0"),
				s.result("b", 1, grant.Limit, "2Gi", "0"))
			for name, amount := range map[string]string{"a": "1Gi", "b": "2Gi"} {
				c.Spec.Devices.Requests = append(c.Spec.Devices.Requests,
					requesting(name, map[resourceapi.QualifiedName]string{memory: amount}))
			}
			c.Status.Allocation.Devices.Config = params(`{` + head + `,"grant":"claim"}`)
			return c
		}, "the grant of the claim has 1GiB and 0% on one GPU, and 2GiB and 0% on another: a grant is the " +
			"same on each"},
		"two modes in one grant": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("a", 0, grant.Limit, "1Gi", "0"),
				s.result("b", 1, grant.Timeslice, "1Gi", "0"))
			c.Status.Allocation.Devices.Config = params(`{` + head + `,"grant":"claim"}`)
			return c
		}, "a grant has one mode"},
		"two modes in one request": {func(s site) *resourceapi.ResourceClaim {
			return claim("u", s.result("a", 0, grant.Limit, "1Gi", "0"),
				s.result("a", 1, grant.Timeslice, "1Gi", "0"), s.result("b", 1, grant.Timeslice, "1Gi", "0"))
		}, `request "a" has GPUs in mode limit and in mode timeslice, and a grant has one mode`},
		"one of two requests does not fit": {func(s site) *resourceapi.ResourceClaim {
			return claim("u", s.result("a", 1, grant.Limit, "1Gi", "0"),
				s.result("b", 0, grant.Limit, "13Gi", "0"))
		}, "refused (no-capacity): cannot grant 13GiB on a GPU in mode limit"},
		"a grant for what there is not": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
			c.Status.Allocation.Devices.Config = params(`{` + head + `,"grant":"pod"}`)
			return c
		}, `grant: want request or claim, not "pod"`},
		"a mode that its device is not in": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
			c.Status.Allocation.Devices.Config = params(`{` + head + `,"mode":"timeslice"}`)
			return c
		}, "asks for mode timeslice, but its device is in mode limit"},
		"a mode that there is not": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
			c.Status.Allocation.Devices.Config = params(`{` + head + `,"mode":"fast"}`)
			return c
		}, `not "fast"`},
		"parameters with a typing error": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
			c.Status.Allocation.Devices.Config = params(`{` + head + `,"mdoe":"limit"}`)
			return c
		}, `unknown field "mdoe"`},
		"parameters of another version": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
			c.Status.Allocation.Devices.Config = params(
				`{"apiVersion":"gpuledger.dev/v9","kind":"GrantConfig"}`)
			return c
		}, `not "gpuledger.dev/v9"`},
		"a strength that nothing here has": {func(s site) *resourceapi.ResourceClaim {
			c := claim("u", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
			c.Status.Allocation.Devices.Config = params(`{` + head + `,"minimumStrength":"hardware"}`)
			return c
		}, "refused (limit-unenforceable)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 2)
			other := s.Grant(admission.Ask{Memory: 4 * grant.GiB, Mode: grant.Limit, Names: []string{"0"},
				Label: "the neighbour's"})
			r := s.prepares(t, c.claim(s))
			if r.Err == nil || !strings.Contains(r.Err.Error(), c.want) {
				t.Errorf("got %v, want %q", r.Err, c.want)
			}
			if r.Err != nil && strings.Contains(r.Err.Error(), string(other.ID)) {
				t.Errorf("%q names another tenant's grant", r.Err)
			}
			if grants := s.Grants(); len(grants) != 1 {
				t.Errorf("got %+v, want the neighbour's grant alone", grants)
			}
		})
	}
}

func TestSharesOverSeveralGPUs(t *testing.T) {
	s := newSite(t, 2)
	s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"),
		s.result("gpu", 1, grant.Limit, "4Gi", "0")))
	if g := s.Grants()[0]; len(g.GPUs) != 2 || g.Memory() != 8*grant.GiB {
		t.Errorf("got %+v, want 4 GiB on each of two GPUs", g)
	}
	both := claim("u-2", s.result("a", 0, grant.Limit, "1Gi", "5"),
		s.result("b", 0, grant.Limit, "2Gi", "5"))
	both.Status.Allocation.Devices.Config = oneGrant()
	s.has(t, both)
	for _, g := range s.Grants() {
		if g.Owner == "claim:u-2" && (len(g.GPUs) != 1 || g.Memory() != 3*grant.GiB || g.Compute != 10) {
			t.Errorf("got %+v, want both requests' shares of one GPU in one grant", g)
		}
	}
}

// requesting returns a request of a claim's spec with these amounts.
func requesting(name string, amounts map[resourceapi.QualifiedName]string) resourceapi.DeviceRequest {
	c := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
	for what, amount := range amounts {
		c.Requests[what] = resource.MustParse(amount)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{Capacity: c}}
}

// A share without an amount is all that is free, and that differs from GPU to GPU.
func TestSharesWithoutAnAmountAreTheLeast(t *testing.T) {
	for name, c := range map[string]struct {
		amounts map[resourceapi.QualifiedName]string
		fails   bool
	}{
		"no amount":    {},
		"compute only": {amounts: map[resourceapi.QualifiedName]string{compute: "30"}},
		"memory":       {map[resourceapi.QualifiedName]string{memory: "12Gi"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 2)
			s.Grant(admission.Ask{Memory: 4 * grant.GiB, Mode: grant.Limit, Names: []string{"0"}})
			of := claim("u-1", s.result("gpu", 1, grant.Limit, "16Gi", "30"),
				s.result("gpu", 0, grant.Limit, "12Gi", "30"))
			of.Spec.Devices.Requests = []resourceapi.DeviceRequest{requesting("gpu", c.amounts)}
			r := s.prepares(t, of)
			if (r.Err != nil) != c.fails {
				t.Fatal(r.Err)
			}
			for _, g := range s.Grants() {
				if g.Owner == "claim:u-1" && (len(g.GPUs) != 2 || g.GPUs[0].Memory != 12*grant.GiB ||
					g.GPUs[1].Memory != 12*grant.GiB || g.Compute != 30) {
					t.Errorf("got %+v, want 12 GiB of each GPU", g)
				}
			}
		})
	}
}

func TestAClaimOfAMIGDevice(t *testing.T) {
	s := newSite(t, 1)
	s.SetGPUs(1, 80*grant.GiB, func(all []simulated.GPUDescription) {
		all[0].MIG = []string{"3g.40gb",
			"1g.10gb"}
	})
	p, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	mig := p.Inventory.GPUs[0].MIG[1]
	c := claim("u-1", resourceapi.DeviceRequestAllocationResult{
		Driver: DriverName, Pool: pool, Request: "gpu",
		Device: strings.ToLower(mig.UUID) + "-mig"})
	name := s.has(t, c)
	if g := s.Grants()[0]; g.Mode != grant.MIG || len(g.GPUs) != 1 || !g.Has(mig.UUID) {
		t.Errorf("got %+v, want the MIG device", g)
	}
	if again := s.has(t, c); again != name {
		t.Errorf("prepared again: %q, want %q", again, name)
	}
	c.UID = "u-2"
	if r := s.prepares(t, c); r.Err == nil ||
		!strings.Contains(r.Err.Error(), "MIG device 0:1 (1g.10gb) is taken whole") {
		t.Errorf("got %v, want it taken", r.Err)
	}
}

func TestGrantsOfDeletedClaimsAreReclaimed(t *testing.T) {
	s := newSite(t, 2)
	there := claim("u-there", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	over := claim("u-over", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	reborn := claim("u-reborn", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	moved := claim("u-moved", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	gone := claim("u-gone", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	used := claim("u-used", s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	for _, c := range []*resourceapi.ResourceClaim{there, over, reborn, moved, gone, used} {
		s.has(t, c)
	}
	mine := s.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit, Owner: "claim:by-hand"})
	for _, g := range s.Grants() {
		if g.Owner == "claim:u-used" {
			defer s.Use(g.ID, grant.Identity{})()
		}
	}
	over.Status.Allocation = nil
	reborn.UID = "another"
	moved.Status.Allocation.Devices.Results[0].Pool = "node-2"
	s.Client = fake.NewClientset(there, over, reborn, moved)
	if err := s.Reclaim(context.Background()); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, g := range s.Grants() {
		left = append(left, string(g.Owner))
	}
	if len(left) != 3 || !strings.Contains(strings.Join(left, " "), "claim:u-there") ||
		!strings.Contains(strings.Join(left, " "), "claim:u-used") || mine.Owner != "claim:by-hand" {
		t.Errorf("got the grants of %v, want those of u-there, u-used and by-hand", left)
	}
}

// A proxy in front of an API server that is down answers 404. So does a server without this version
// of the API.
func TestAnswersOfOtherServersReleaseNothing(t *testing.T) {
	s := newSite(t, 1)
	s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "1Gi", "0")))
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var err error
	if s.Client, err = kubernetes.NewForConfig(&rest.Config{Host: server.URL}); err != nil {
		t.Fatal(err)
	}
	if err := s.Reclaim(context.Background()); err == nil ||
		!strings.Contains(err.Error(), "cannot tell whether the claim of grant") || len(s.Grants()) != 1 {
		t.Errorf("got %v and %d grants, want an error and the grant kept", err, len(s.Grants()))
	}
}

// An API server that cannot be reached answers no other claim's question either.
func TestAnAPIThatDoesNotAnswerIsAskedOnce(t *testing.T) {
	s := newSite(t, 1)
	for _, uid := range []string{"u-1", "u-2", "u-3"} {
		s.has(t, claim(uid, s.result("gpu", 0, grant.Limit, "1Gi", "0")))
	}
	client, asked := fake.NewClientset(), 0
	client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return true, nil, &url.Error{Op: "Get", URL: "https://api", Err: context.DeadlineExceeded}
	})
	s.Client = client
	if err := s.Reclaim(context.Background()); !errors.Is(err, context.DeadlineExceeded) || asked != 1 {
		t.Errorf("got %v after %d questions, want one", err, asked)
	}
}

// recorder is a publisher that records what it gets.
type recorder struct {
	all []resourceslice.DriverResources
}

func (p *recorder) PublishResources(_ context.Context, r resourceslice.DriverResources) error {
	p.all = append(p.all, r)
	return nil
}

func TestSlicesArePublishedWhenTheyChange(t *testing.T) {
	s, to := newSite(t, 1), &recorder{}
	publish := func() {
		t.Helper()
		if err := s.Publish(context.Background(), to); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	publish()
	// the scheduler counts this one
	s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0")))
	publish()
	if len(to.all) != 1 {
		t.Fatalf("published %d times, want once", len(to.all))
	}
	// the scheduler does not know this one
	s.Grant(admission.Ask{Memory: 2 * grant.GiB, Mode: grant.Limit})
	publish()
	if len(to.all) != 2 {
		t.Errorf("published %d times, want twice", len(to.all))
	}
}

// A process that the kubelet has lost keeps its claim's GPU from other claims. The GPU is published
// again when the process has ended.
func TestGPUsInUseByEndedClaimsAreNotPublished(t *testing.T) {
	s, to := newSite(t, 1), &recorder{}
	configure(s.SimulatedNode, several)
	publish := func() []resourceapi.Device {
		t.Helper()
		if err := s.Publish(context.Background(), to); err != nil {
			t.Fatal(err)
		}
		all := to.all[len(to.all)-1].Pools[pool].Slices
		if counters := all[len(all)-1].SharedCounters; len(counters) != 1 {
			t.Errorf(
				"published %d counters, want the GPU's all the time: each change of it is a change for "+
					"the whole cluster",
				len(counters))
		}
		return all[0].Devices
	}
	free := len(publish())
	s.has(t, claim("u-1", s.result("gpu", 0, grant.Exclusive)))
	end := s.Use(s.Grants()[0].ID, grant.Identity{})
	s.unprepares(t, "u-1")
	if devices := publish(); len(devices) != 0 {
		t.Errorf("published %v, want nothing while a container has the whole GPU", devices)
	}
	end()
	if devices := publish(); len(devices) != free {
		t.Errorf("published %v after its end, want the GPU at once in each of %d modes", devices, free)
	}
}
