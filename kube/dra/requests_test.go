package dra

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// oneGrant returns a claim's parameters that make these requests, or all, one grant.
func oneGrant(requests ...string) []resourceapi.DeviceAllocationConfiguration {
	return []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClaim,
		Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: DriverName,
				Parameters: runtime.RawExtension{Raw: []byte(
					`{"apiVersion":"gpuledger.dev/v1","kind":"GrantConfig","grant":"claim"}`)}}}}}
}

// names prepares a claim without an error. It returns the CDI names for each request, as the
// kubelet gives them to a container that names the request.
func (s site) names(t *testing.T, c *resourceapi.ResourceClaim) map[string][]string {
	t.Helper()
	r := s.prepares(t, c)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	of := map[string][]string{}
	for _, d := range r.Devices {
		for _, request := range d.Requests {
			of[mainRequest(request)] = append(of[mainRequest(request)], d.CDIDeviceIDs...)
		}
	}
	return of
}

// grantNamed returns the grant that a CDI name opens.
func (s site) grantNamed(t *testing.T, names []string) grant.Grant {
	t.Helper()
	if len(names) != 1 {
		t.Fatalf("got the CDI names %v, want one", names)
	}
	reference, err := grant.ParseReference(strings.TrimPrefix(names[0], grant.CDIKindGrant+"="))
	for _, g := range s.Grants() {
		if err == nil && g.ID == reference.ID && reference.Opens(g.Secret) {
			return g
		}
	}
	t.Fatalf("%q opens no grant (%v)", names[0], err)
	return grant.Grant{}
}

func (s site) owners() []grant.Owner {
	var all []grant.Owner
	for _, g := range s.Grants() {
		all = append(all, g.Owner)
	}
	slices.Sort(all)
	return all
}

func TestEachRequestIsAGrant(t *testing.T) {
	s := newSite(t, 2)
	c := claim("u-1", s.result("train", 0, grant.Limit, "4Gi", "30"),
		s.result("serve", 0, grant.Limit, "2Gi", "0"), s.result("whole/large", 1, grant.Exclusive))
	names := s.names(t, c)
	for request, want := range map[string]struct {
		owner  grant.Owner
		label  string
		mode   grant.Mode
		gpu    int
		memory grant.Bytes
	}{
		"train": {"claim:u-1.train", "team/claim-u-1/train", grant.Limit, 0, 4 * grant.GiB},
		"serve": {"claim:u-1.serve", "team/claim-u-1/serve", grant.Limit, 0, 2 * grant.GiB},
		"whole": {"claim:u-1.whole", "team/claim-u-1/whole/large", grant.Exclusive, 1, 16 * grant.GiB},
	} {
		g := s.grantNamed(t, names[request])
		if g.Owner != want.owner || g.Label != want.label || g.Mode != want.mode ||
			!g.Has(s.UUID(want.gpu)) || len(g.GPUs) != 1 || g.Memory() != want.memory || g.Source != Source ||
			!slices.Equal(g.For, teams("pod-of-u-1")) {
			t.Errorf("request %s got %+v, want %+v", request, g, want)
		}
	}
	if again := s.names(t, c); len(s.Grants()) != 3 || !slices.Equal(again["train"], names["train"]) ||
		!slices.Equal(again["serve"], names["serve"]) || !slices.Equal(again["whole"], names["whole"]) {
		t.Errorf("prepared again: %v, want %v", again, names)
	}
	s.unprepares(t, "u-1")
	s.unprepares(t, "u-1")
	if kept, err := os.ReadDir(s.Dir + "/references"); err != nil ||
		len(s.Grants())+s.cdiFiles(t)+len(kept) > 0 {
		t.Errorf("given up: %v, %d CDI files, %v is kept (%v)", s.Grants(), s.cdiFiles(t), kept, err)
	}
}

// The devices of others in a claim are not the driver's.
func TestAClaimWithOneRequestHereIsNamedWithoutIt(t *testing.T) {
	s := newSite(t, 2)
	others := s.result("nic", 0, grant.Limit, "1Gi", "0")
	others.Driver = "nic.example.com"
	names := s.names(t, claim("u-1", others, s.result("gpu", 0, grant.Limit, "1Gi", "0"),
		s.result("gpu", 1, grant.Limit, "1Gi", "0")))
	if g := s.grantNamed(t, names["gpu"]); g.Owner != "claim:u-1" || len(g.GPUs) != 2 ||
		g.Label != "team/claim-u-1" || names["nic"] != nil {
		t.Errorf("got %+v and %v", g, names)
	}
}

func TestRequestsCanBeOneGrant(t *testing.T) {
	s := newSite(t, 2)
	c := claim("u-1", s.result("a", 0, grant.Limit, "4Gi", "0"), s.result("b", 1, grant.Limit, "4Gi", "0"))
	c.Status.Allocation.Devices.Config = oneGrant()
	names := s.names(t, c)
	if g := s.grantNamed(t, names["a"]); g.Owner != "claim:u-1" || len(g.GPUs) != 2 ||
		!slices.Equal(names["a"], names["b"]) || len(s.Grants()) != 1 {
		t.Errorf("got %+v by %v, want one grant of both requests", s.Grants(), names)
	}
	c = claim("u-2", s.result("a", 0, grant.Limit, "1Gi", "0"), s.result("b", 1, grant.Limit, "1Gi", "0"),
		s.result("c", 1, grant.Limit, "2Gi", "0"))
	c.Status.Allocation.Devices.Config = oneGrant("a", "b")
	s.names(t, c)
	before := s.owners()
	if want := []grant.Owner{"claim:u-1", "claim:u-2", "claim:u-2.c"}; !slices.Equal(before, want) {
		t.Errorf("got %v, want %v", before, want)
	}
	s.names(t, c)
	if after := s.owners(); !slices.Equal(after, before) {
		t.Errorf("prepared again: %v, want %v", after, before)
	}
}

func TestAllRequestsOfAClaimOrNone(t *testing.T) {
	s := newSite(t, 2)
	a, b := s.result("a", 0, grant.Limit, "4Gi", "0"), s.result("b", 1, grant.Exclusive)
	other := s.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit, Names: []string{"1"}})
	if r := s.prepares(t, claim("u-1", a, b)); r.Err == nil || len(r.Devices) > 0 {
		t.Errorf("got %v, %v", r.Devices, r.Err)
	}
	if kept, err := os.ReadDir(s.Dir + "/references"); err != nil || len(s.Grants()) != 1 ||
		s.cdiFiles(t)+len(kept) > 0 {
		t.Errorf("refused: %+v, %d CDI files, %v is kept (%v), want the neighbour's grant alone", s.Grants(),
			s.cdiFiles(t), kept, err)
	}
	if err := s.Release(other.ID); err != nil {
		t.Fatal(err)
	}
	s.names(t, claim("u-1", a, b))
	if got, want := s.owners(), []grant.Owner{"claim:u-1.a", "claim:u-1.b"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A driver is killed after the first grant of a claim. The next Prepare goes on, the first grant's
// name stays, and a refusal of another grant does not withdraw it: the kubelet may know the name.
func TestAPrepareThatWasKilledGoesOn(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s site, c *resourceapi.ResourceClaim){
		"prepared again": func(t *testing.T, s site, c *resourceapi.ResourceClaim) {
			before := s.Grants()[0]
			if g := s.grantNamed(t, s.names(t, c)["a"]); g.ID != before.ID || len(s.Grants()) != 2 {
				t.Errorf("got %+v, want grant %s and another one", s.Grants(), before.ID)
			}
		},
		"prepared again, and refused": func(t *testing.T, s site, c *resourceapi.ResourceClaim) {
			before := s.Grants()[0]
			full := s.Grant(admission.Ask{Mode: grant.Exclusive, Names: []string{"1"}})
			if r := s.prepares(t, c); r.Err == nil || len(s.Grants()) != 2 {
				t.Errorf("got %v and %+v", r.Err, s.Grants())
			}
			if err := s.Release(full.ID); err != nil {
				t.Fatal(err)
			}
			if g := s.grantNamed(t, s.names(t, c)["a"]); g.ID != before.ID {
				t.Errorf("got %+v, want grant %s", g, before.ID)
			}
		},
		"given up": func(t *testing.T, s site, c *resourceapi.ResourceClaim) {
			s.unprepares(t, string(c.UID))
		},
		"gone": func(t *testing.T, s site, c *resourceapi.ResourceClaim) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 2)
			c := claim("u-1", s.result("a", 0, grant.Limit, "4Gi", "0"),
				s.result("b", 1, grant.Limit, "2Gi", "0"))
			asks, err := translate(c, pool, contentOf(t, s.Driver))
			if err != nil {
				t.Fatal(err)
			}
			asks[0].ask.For = tiesOf(c)
			if _, err := s.EnterWithCDI(asks[0].ask); err != nil { // all that the killed driver did
				t.Fatal(err)
			}
			end(t, s, c)
			if err := s.Driver.Reclaim(context.Background()); err != nil { // the API has no claim
				t.Fatal(err)
			}
			if len(s.Grants())+s.cdiFiles(t) > 0 {
				t.Errorf("the claim is gone: %+v and %d CDI files are left", s.Grants(), s.cdiFiles(t))
			}
		})
	}
}

// The version before made a claim with several requests one grant. The kubelet has its name, and
// does not forget it over a boot.
func TestAClaimOfTheVersionBeforeKeepsItsGrant(t *testing.T) {
	s := newSite(t, 2)
	c := claim("u-1", s.result("a", 0, grant.Limit, "4Gi", "0"), s.result("b", 1, grant.Limit, "4Gi", "0"))
	reference, err := s.EnterWithCDI(admission.Ask{Owner: "claim:u-1", Source: Source,
		Label: "team/claim-u-1", Names: []string{s.UUID(1), s.UUID(0)}, Mode: grant.Limit,
		Memory: 8 * grant.GiB})
	if err != nil {
		t.Fatal(err)
	}
	s.Client = fake.NewClientset(c)
	if err := errors.Join(s.Driver.Reclaim(context.Background()), os.RemoveAll(s.Dir+"/cdi")); err != nil {
		t.Fatal(err)
	}
	names := s.names(t, c)
	if g := s.grantNamed(t, names["a"]); g.ID != reference.ID || !slices.Equal(names["a"], names["b"]) ||
		len(s.Grants()) != 1 || !slices.Equal(g.For, teams("pod-of-u-1")) ||
		names["a"][0] != grant.CDIKindGrant+"="+reference.String() {
		t.Errorf("got %+v by %v, want the grant that there was, by its name", s.Grants(), names)
	}
	end := s.Use(reference.ID, grant.Identity{})
	s.names(t, c)
	end()
	s.unprepares(t, "u-1")
	if len(s.Grants())+s.cdiFiles(t) > 0 {
		t.Errorf("given up: %+v and %d CDI files", s.Grants(), s.cdiFiles(t))
	}
	s.names(t, c)
	if got, want := s.owners(), []grant.Owner{"claim:u-1.a", "claim:u-1.b"}; !slices.Equal(got, want) {
		t.Errorf("prepared anew: %v, want %v", got, want)
	}
}

func TestARequestThatIsAllocatedAgain(t *testing.T) {
	s := newSite(t, 2)
	before := s.names(t, claim("u-1", s.result("a", 0, grant.Limit, "4Gi", "0"),
		s.result("b", 0, grant.Limit, "2Gi", "0")))
	after := s.names(t, claim("u-1", s.result("a", 0, grant.Limit, "4Gi", "0"),
		s.result("b", 1, grant.Limit, "2Gi", "0")))
	if !slices.Equal(before["a"], after["a"]) || slices.Equal(before["b"], after["b"]) ||
		len(s.Grants()) != 2 || s.cdiFiles(t) != 2 {
		t.Errorf("got %v after %v, want another name for b alone; %+v", after, before, s.Grants())
	}
	used := s.grantNamed(t, after["b"])
	end := s.Use(used.ID, grant.Identity{})
	alone := claim("u-1", s.result("a", 0, grant.Limit, "4Gi", "0"))
	if r := s.prepares(t, alone); r.Err == nil ||
		!strings.Contains(r.Err.Error(), "the claim was allocated anew while a container uses its grant "+
			string(used.ID)) || len(s.Grants()) != 2 {
		t.Errorf("got %v and %+v", r.Err, s.Grants())
	}
	s.unprepares(t, "u-1")
	if g := s.Grants(); len(g) != 1 || !g[0].Draining {
		t.Errorf("given up: %+v, want the grant in use to drain", g)
	}
	end()
}

// The list firstAvailable of a request may be allocated otherwise the second time, on the same GPU.
func TestAnotherSubrequestIsAnotherGrant(t *testing.T) {
	big := func(s site) *resourceapi.ResourceClaim {
		return claim("u-1", s.result("gpu/big", 0, grant.Limit, "8Gi", "0"))
	}
	small := func(s site) *resourceapi.ResourceClaim {
		return claim("u-1", s.result("gpu/small", 0, grant.Limit, "2Gi", "0"))
	}
	s := newSite(t, 1)
	before := s.has(t, big(s))
	if s.has(t, big(s)) != before {
		t.Error("the same subrequest: it has another name")
	}
	after := s.has(t, small(s))
	if g := s.Grants(); before == after || len(g) != 1 || g[0].GPUs[0].Memory != 2*grant.GiB ||
		g[0].Label != "team/claim-u-1/gpu/small" {
		t.Errorf("allocated anew: %+v, by the same name: %v", g, before == after)
	}
	end := s.Use(s.Grants()[0].ID, grant.Identity{})
	if r := s.prepares(t, big(s)); r.Err == nil ||
		!strings.Contains(r.Err.Error(), "allocated anew while a container uses its grant") {
		t.Errorf("while a container uses it: got %v", r.Err)
	}
	end()

	// an older version has entered no subrequest, so the size may be an administrator's
	older := newSite(t, 1)
	older.Grant(admission.Ask{Owner: "claim:u-1", Source: Source, Label: "team/claim-u-1", Mode: grant.Limit,
		Memory: 2 * grant.GiB, Names: []string{"0"}})
	older.prepares(t, big(older))
	if g := older.Grants(); len(g) != 1 || g[0].GPUs[0].Memory != 2*grant.GiB {
		t.Errorf("a grant of an older version: %+v", g)
	}
}

// Reclaim looks a claim up once, and releases what is free of one that is gone.
func TestGrantsOfADeletedClaimsRequests(t *testing.T) {
	s := newSite(t, 2)
	two := func(uid string) *resourceapi.ResourceClaim {
		return claim(uid, s.result("a", 0, grant.Limit, "1Gi", "0"),
			s.result("b", 1, grant.Limit, "2Gi", "0"))
	}
	there := two("u-there")
	s.names(t, there)
	used := s.grantNamed(t, s.names(t, two("u-gone"))["b"])
	defer s.Use(used.ID, grant.Identity{})()
	api := fake.NewClientset(there)
	s.Client = api
	if err := s.Driver.Reclaim(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, want := s.owners(), []grant.Owner{"claim:u-gone.b", "claim:u-there.a",
		"claim:u-there.b"}; !slices.Equal(got, want) || len(api.Actions()) != 2 {
		t.Errorf("got %v, want %v; it asked %v", got, want, api.Actions())
	}
}

// Pods that are added to a claim may use each of its grants.
func TestEachGrantOfAClaimIsForItsPods(t *testing.T) {
	s := newSite(t, 2)
	version := func(n string, pods ...string) *resourceapi.ResourceClaim {
		c := claim("u-1", s.result("a", 0, grant.Limit, "1Gi", "0"), s.result("b", 1, grant.Exclusive))
		c.ResourceVersion, c.Status.ReservedFor = n, reservedFor(pods...)
		return c
	}
	api := watched(s)
	defer follows(s.Driver)()
	api.send(version("1", "p1"))
	s.names(t, version("1", "p1"))
	api.send(version("2", "p1", "p2"))
	eventually(t, "both grants are for both pods", func() bool {
		all := s.Grants()
		return len(all) == 2 && slices.Equal(all[0].For, teams("p1", "p2")) &&
			slices.Equal(all[1].For, teams("p1", "p2"))
	})
	eventually(t, "the claim is watched", func() bool { return api.watches("claim-u-1") == 1 })
}

// A driver of the version before may run beside this one, and reclaims what it does not know. It
// looks up the claim that the label names, and releases nothing of a claim that it cannot look up.
func TestTheVersionBeforeFindsNoClaimByTheLabelOfARequest(t *testing.T) {
	s := newSite(t, 2)
	s.names(t, claim("u-1", s.result("a", 0, grant.Limit, "1Gi", "0"),
		s.result("b", 1, grant.Limit, "2Gi", "0")))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound",` +
			`"code":404}`))
	}))
	defer server.Close()
	api, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	claims := api.ResourceV1().ResourceClaims("team")
	if _, err := claims.Get(context.Background(), "claim-u-1", metav1.GetOptions{}); !gone(err) {
		t.Errorf("a claim that there is not: %v", err)
	}
	for _, g := range s.Grants() {
		namespace, name, _ := strings.Cut(g.Label, "/") // as it did
		_, err := claims.Get(context.Background(), name, metav1.GetOptions{})
		if namespace != "team" || err == nil || gone(err) {
			t.Errorf("the claim of %s: %v, want an error that does not say that it is gone", g.Label, err)
		}
	}
}
