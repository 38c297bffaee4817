package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	api "k8s.io/kubelet/pkg/apis/dra/v1"
	oldapi "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// What Kubernetes' own tests of DRA (test/e2e/dra, test/e2e_node) check of a driver. They only run
// with a driver of their own (docs/suites.md), so here a test calls ours as the kubelet does: over
// the sockets that the library of Kubernetes serves.

// served is a driver that answers on its sockets, which are below the working directory.
type served struct {
	*Service
	registrar, driver string // sockets
}

// serves starts a driver. pod is the UID of its pod, or "".
func serves(t *testing.T, d *Driver, pod string) served {
	t.Helper()
	if err := errors.Join(os.MkdirAll("registry", 0o700), os.MkdirAll("data", 0o700)); err != nil {
		t.Fatal(err)
	}
	s, err := d.Serve(context.Background(), "registry", "data", types.UID(pod))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	if pod != "" {
		pod = "-" + pod
	}
	return served{s, "registry/" + DriverName + pod + "-reg.sock", "data/dra" + pod + ".sock"}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// prepare makes the kubelet's call for claims, which have to be in the API.
func (s served) prepare(t *testing.T, claims ...*resourceapi.ResourceClaim) (
	*api.NodePrepareResourcesResponse, error) {
	t.Helper()
	request := &api.NodePrepareResourcesRequest{}
	for _, c := range claims {
		request.Claims = append(request.Claims, &api.Claim{Namespace: c.Namespace, Name: c.Name,
			Uid: string(c.UID)})
	}
	return api.NewDRAPluginClient(dial(t, s.driver)).NodePrepareResources(t.Context(), request)
}

// unprepare makes the kubelet's call for claims with these UIDs. The kubelet makes it for claims
// that are no longer in the API, too.
func (s served) unprepare(t *testing.T, uids ...string) {
	t.Helper()
	request := &api.NodeUnprepareResourcesRequest{}
	for _, uid := range uids {
		request.Claims = append(request.Claims, &api.Claim{Namespace: "team", Name: "claim-" + uid, Uid: uid})
	}
	r, err := api.NewDRAPluginClient(dial(t, s.driver)).NodeUnprepareResources(t.Context(), request)
	if err != nil || len(r.Claims) != len(uids) || Failed(r) {
		t.Errorf("unprepare %v: got %v, %v, want an answer without an error for each", uids, r, err)
	}
}

// onSockets is a site in whose directory a test may serve: the path of a socket must be short.
func onSockets(t *testing.T, gpus int) site {
	s := newSite(t, gpus)
	t.Chdir(s.Dir)
	return s
}

func TestTheKubeletRegistersTheDriver(t *testing.T) {
	s := onSockets(t, 1)
	at := serves(t, s.Driver, "")
	client := registration.NewRegistrationClient(dial(t, at.registrar))
	info, err := client.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// a kubelet takes the first version that it knows
	versions := []string{"v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}
	if info.Type != registration.DRAPlugin || info.Name != DriverName || info.Endpoint != at.driver ||
		!slices.Equal(info.SupportedVersions, versions) {
		t.Errorf("got %v, want type %s, name %s, endpoint %s and %v", info, registration.DRAPlugin,
			DriverName, at.driver, versions)
	}
	registered := func(is bool, why, want string) {
		t.Helper()
		_, _ = client.NotifyRegistrationStatus(t.Context(),
			&registration.RegistrationStatus{PluginRegistered: is, Error: why})
		if err := at.Registered(); fmt.Sprint(err) != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if at.Registered() == nil {
		t.Error("a driver that no kubelet has called is registered")
	}
	registered(false, "no such version", "the kubelet does not register this driver: no such version")
	registered(true, "", "<nil>")
}

func TestBothVersionsOfTheKubeletsCalls(t *testing.T) {
	s := onSockets(t, 1)
	c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	s.Client = fake.NewClientset(c)
	at := serves(t, s.Driver, "")
	older := oldapi.NewDRAPluginClient(dial(t, at.driver))
	r, err := at.prepare(t, c)
	if err != nil || len(r.Claims) != 1 || Failed(r) {
		t.Fatalf("got %v, %v", r, err)
	}
	device := r.Claims["u-1"].Devices[0]
	asked := []*oldapi.Claim{{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)}}
	again, err := older.NodePrepareResources(t.Context(), &oldapi.NodePrepareResourcesRequest{Claims: asked})
	if err != nil || len(again.Claims["u-1"].GetDevices()) != 1 {
		t.Fatalf("v1beta1: got %v, %v", again, err)
	}
	if d := again.Claims["u-1"].Devices[0]; d.PoolName != pool || d.DeviceName != device.DeviceName ||
		!slices.Equal(d.RequestNames, []string{"gpu"}) || len(d.CdiDeviceIds) != 1 ||
		!slices.Equal(d.CdiDeviceIds, device.CdiDeviceIds) {
		t.Errorf("v1beta1: got %v, want what v1 gives: %v", d, device)
	}
	for range 2 {
		r, err := older.NodeUnprepareResources(t.Context(),
			&oldapi.NodeUnprepareResourcesRequest{Claims: asked})
		if answer := r.GetClaims()["u-1"]; err != nil || answer == nil || answer.Error != "" {
			t.Errorf("v1beta1: unprepare: got %v, %v", r, err)
		}
	}
	at.unprepare(t, "u-1", "never-prepared")
	if len(s.Grants()) > 0 || s.cdiFiles(t) > 0 {
		t.Errorf("given up: got %v and %d CDI files", s.Grants(), s.cdiFiles(t))
	}
}

// One claim of a pod can be refused, and the kubelet tries all of them again.
func TestAClaimThatIsRefusedBesideOthers(t *testing.T) {
	s := onSockets(t, 1)
	good := claim("good", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	large := claim("large", s.result("gpu", 0, grant.Limit, "14Gi", "0"))
	s.Client = fake.NewClientset(good, large)
	at := serves(t, s.Driver, "")
	for range 2 {
		r, err := at.prepare(t, good, large)
		if err != nil || len(r.Claims) != 2 {
			t.Fatalf("got %v, %v", r, err)
		}
		if c := r.Claims["good"]; c.Error != "" || len(c.Devices) != 1 {
			t.Errorf("the claim that fits: got %v", c)
		}
		if c := r.Claims["large"]; !strings.HasPrefix(c.Error, "gpuledger: ") || len(c.Devices) != 0 {
			t.Errorf("the claim that is too large: got %v, want an error", c)
		}
		if len(s.Grants()) != 1 || s.cdiFiles(t) != 1 {
			t.Errorf("got %v, want one grant", s.Grants())
		}
	}
	at.unprepare(t, "good", "large")
	if len(s.Grants()) > 0 {
		t.Errorf("given up: got %v", s.Grants())
	}
	if r, err := at.prepare(t, large); err != nil || Failed(r) {
		t.Errorf("when there is room: got %v, %v", r, err)
	}
}

// The kubelet may call for a claim that was deleted, or made anew, since it read the pod.
func TestAClaimThatTheAPIDoesNotHaveSo(t *testing.T) {
	s := onSockets(t, 1)
	asked := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	anew, free := asked.DeepCopy(), asked.DeepCopy()
	anew.UID, free.Status.Allocation = "u-2", nil
	for want, there := range map[string][]runtime.Object{"not found": nil, "got replaced": {anew},
		"not allocated": {free}} {
		t.Run(want, func(t *testing.T) {
			t.Chdir(t.TempDir())
			s.Client = fake.NewClientset(there...)
			if r, err := serves(t, s.Driver, "").prepare(t, asked); err == nil ||
				!strings.Contains(err.Error(), want) || len(s.Grants()) > 0 {
				t.Errorf("got %v, %v and the grants %v", r, err, s.Grants())
			}
		})
	}
}

// The kubelet writes the health of devices into the status of pods. It finds a device by the names
// of pool and device in the slice.
func TestTheKubeletWatchesTheDevicesHealth(t *testing.T) {
	s := onSockets(t, 2)
	at := serves(t, s.Driver, "")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	watch, err := drahealth.NewDRAResourceHealthClient(dial(t, at.driver)).NodeWatchResources(ctx,
		&drahealth.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := watch.Recv()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]drahealth.HealthStatus{}
	for _, d := range r.Devices {
		seen[d.Device.PoolName+"/"+d.Device.DeviceName] = d.Health
	}
	for _, slice := range slicesOf(t, s.SimulatedNode) {
		for _, d := range slice.Devices {
			if seen[pool+"/"+d.Name] != drahealth.HealthStatus_HEALTHY {
				t.Errorf("%s is published, and the kubelet has %v", d.Name, seen)
			}
		}
	}
}

// An update of the DaemonSet starts the new pod beside the old one, and either of them may end
// first. The kubelet may call either.
func TestAnUpdateBesideTheOldDriver(t *testing.T) {
	s := onSockets(t, 1)
	c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	s.Client = fake.NewClientset(c)
	another := func() *Driver {
		return &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: s.Client,
			Log: slog.New(slog.DiscardHandler)}
	}
	var first *api.NodePrepareResourcesResponse
	works := func(at served) {
		t.Helper()
		info, err := registration.NewRegistrationClient(dial(t, at.registrar)).GetInfo(t.Context(),
			&registration.InfoRequest{})
		if err != nil || info.Name != DriverName || info.Endpoint != at.driver {
			t.Errorf("%s: got %v, %v", at.registrar, info, err)
		}
		r, err := at.prepare(t, c)
		if first == nil {
			first = r
		}
		if err != nil || Failed(r) || len(r.Claims) != 1 || !reflect.DeepEqual(
			r.Claims["u-1"].GetDevices()[0].CdiDeviceIds, first.Claims["u-1"].Devices[0].CdiDeviceIds) {
			t.Errorf("%s: got %v, %v, want %v", at.driver, r, err, first)
		}
	}
	gone := func(at served) {
		t.Helper()
		at.Stop()
		for _, socket := range []string{at.registrar, at.driver} {
			if _, err := os.Lstat(socket); !os.IsNotExist(err) {
				t.Errorf("a driver that has ended leaves %s (%v)", socket, err)
			}
		}
	}
	old := serves(t, s.Driver, "pod-1")
	works(old)
	failed := serves(t, another(), "pod-2")
	works(failed)
	gone(failed) // it is rolled back
	works(old)
	next := serves(t, another(), "pod-3")
	gone(old)
	works(next)
	next.unprepare(t, "u-1")
	if len(s.Grants()) > 0 {
		t.Errorf("given up: got %v", s.Grants())
	}
}

// The scheduler uses a pool only if it has all slices of the newest generation.
func TestThePoolInTheAPIIsComplete(t *testing.T) {
	s := onSockets(t, 2)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool, UID: "uid-of-the-node"}}
	cluster, writes := fake.NewClientset(node), new(atomic.Int32)
	cluster.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object,
		error) { // as the API server does
		slice := a.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, writes.Add(1))
		return false, nil, nil
	})
	s.Client = cluster
	at := serves(t, s.Driver, "")
	has := func(want int) (generation int64) {
		t.Helper()
		var now []resourceapi.ResourceSlice
		eventually(t, fmt.Sprintf("the pool has %d slices", want), func() bool {
			if err := s.Publish(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			list, err := cluster.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now = list.Items
			return len(now) == want && !slices.ContainsFunc(now, func(slice resourceapi.ResourceSlice) bool {
				return slice.Spec.Pool.ResourceSliceCount != int64(want) ||
					slice.Spec.Pool.Generation != now[0].Spec.Pool.Generation
			})
		})
		var owned []string
		devices := map[string]bool{}
		for _, slice := range now {
			spec := slice.Spec
			if spec.Driver != DriverName || spec.Pool.Name != pool || spec.NodeName == nil ||
				*spec.NodeName != pool || spec.AllNodes != nil || spec.NodeSelector != nil {
				t.Errorf("got %+v, want a slice of this node", spec)
			}
			for _, o := range slice.OwnerReferences {
				owned = append(owned, o.Kind+" "+string(o.UID))
			}
			for _, d := range spec.Devices {
				if devices[d.Name] {
					t.Errorf("device %s is twice in the pool", d.Name)
				}
				devices[d.Name] = true
			}
		}
		if !slices.Equal(owned, slices.Repeat([]string{"Node uid-of-the-node"}, want)) {
			t.Errorf("the slices belong to %v, want the node alone: they go with it", owned)
		}
		return now[0].Spec.Pool.Generation
	}
	first := has(1)
	configure(s.SimulatedNode, several)
	second := has(2) // devices, and counters
	if second <= first {
		t.Errorf("generation %d with one slice, then %d with two", first, second)
	}
	before := writes.Load()
	if now := has(2); now != second || writes.Load() != before {
		t.Errorf("nothing has changed: generation %d after %d, and %d slices were made", now, second,
			writes.Load()-before)
	}
}
