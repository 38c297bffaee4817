package deviceplugin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

// fakeKubelet speaks the real protocols over real sockets in the current directory, because socket
// paths must be short.
type fakeKubelet struct {
	api.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer
	t        *testing.T
	server   *grpc.Server
	requests chan *api.RegisterRequest

	mu   sync.Mutex
	pods []*podresources.PodResources
}

// startKubelet starts a kubelet: it removes all sockets in the directory and has no registered
// plugin.
func startKubelet(t *testing.T) *fakeKubelet {
	t.Helper()
	sockets, err := os.ReadDir(".")
	check(t, err)
	for _, s := range sockets {
		if s.Type()&os.ModeSocket != 0 {
			check(t, os.Remove(s.Name()))
		}
	}
	k := &fakeKubelet{t: t, server: grpc.NewServer(), requests: make(chan *api.RegisterRequest, 8)}
	api.RegisterRegistrationServer(k.server, k)
	podresources.RegisterPodResourcesListerServer(k.server, k)
	listener, err := net.Listen("unix", "kubelet.sock")
	check(t, err)
	go func() { _ = k.server.Serve(listener) }()
	t.Cleanup(k.server.Stop)
	return k
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (k *fakeKubelet) Register(_ context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.requests <- r
	return &api.Empty{}, nil
}

func (k *fakeKubelet) List(context.Context,
	*podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, nil
}

// has adds a pod with the devices of its container.
func (k *fakeKubelet) has(pod, resource string, ids ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = append(k.pods, &podresources.PodResources{Namespace: "team", Name: pod,
		Containers: []*podresources.ContainerResources{
			{Name: "main", Devices: []*podresources.ContainerDevices{
				{ResourceName: resource, DeviceIds: ids}}}}})
}

func (k *fakeKubelet) forgets() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = nil
}

// writes writes the checkpoint of a kubelet that gives references to containers of these pods, by
// UID.
func (k *fakeKubelet) writes(resource string, to map[string]grant.Reference) {
	k.t.Helper()
	var entries []any
	for uid, r := range to {
		answer, err := proto.Marshal(
			&api.ContainerAllocateResponse{Envs: map[string]string{grant.ReferenceEnv: r.String()}})
		check(k.t, err)
		entries = append(entries, map[string]any{"PodUID": uid, "ContainerName": "main",
			"ResourceName": resource,
			"DeviceIDs":    map[string][]string{"-1": {}}, "AllocResp": answer})
	}
	data, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": entries,
		"RegisteredDevices": map[string][]string{resource: {}}}, "Checksum": 1})
	check(k.t, err)
	check(k.t, os.WriteFile(checkpointFile, data, 0o600))
}

// registered waits for the next plugin that registers, and connects to the endpoint that it names.
func (k *fakeKubelet) registered() (api.DevicePluginClient, *api.RegisterRequest) {
	k.t.Helper()
	select {
	case r := <-k.requests:
		conn, err := grpc.NewClient("unix:"+r.Endpoint,
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(k.t, err)
		k.t.Cleanup(func() { conn.Close() })
		return api.NewDevicePluginClient(conn), r
	case <-time.After(time.Minute):
		k.t.Fatal("no plugin has registered")
		return nil, nil
	}
}

// site is a node whose plugin runs only when a test calls it.
type site struct {
	*nodeledgertest.SimulatedNode
	*Plugin
	kubelet *fakeKubelet
	now     time.Time
}

func newSite(t *testing.T, gpus int, r Resource, config string) *site {
	t.Helper()
	t.Chdir(t.TempDir())
	s := &site{SimulatedNode: nodeledgertest.New(t, gpus, 16*grant.GiB, config), now: time.Now()}
	s.kubelet = startKubelet(t)
	s.Plugin = &Plugin{Dir: ".", PodResources: "kubelet.sock",
		Allocator: &Allocator{Ledger: s.Ledger, Resource: r, Log: slog.New(slog.DiscardHandler),
			Now: func() time.Time { return s.now }}}
	t.Cleanup(s.Plugin.Stop)
	return s
}

// later moves the plugin's clock on until its grants are at least so old. The ledger has the
// machine's clock, which has gone on since the plugin's was set.
func (s *site) later(d time.Duration) {
	if now := time.Now(); now.After(s.now) {
		s.now = now
	}
	s.now = s.now.Add(d)
}

func (s *site) ensure() {
	s.SimulatedNode.T.Helper()
	check(s.kubelet.t, s.Ensure(context.Background()))
}

// allocate gives free devices to a container. As a kubelet does, it first makes a preference call.
func (s *site) allocate(c api.DevicePluginClient, ids ...string) (*api.ContainerAllocateResponse, error) {
	return s.allocateAfter(c, nil, ids...)
}

// allocateAfter gives devices to a container of a pod whose init containers had some. The kubelet
// takes those first, and its preference call is only about the missing ones (k8s.io/kubernetes
// v1.36, devicesToAllocate).
func (s *site) allocateAfter(c api.DevicePluginClient, had []string,
	ids ...string) (*api.ContainerAllocateResponse, error) {
	var again []string
	for _, id := range ids {
		if slices.Contains(had, id) {
			again = append(again, id)
		}
	}
	if len(again) < len(ids) {
		_, err := c.GetPreferredAllocation(context.Background(),
			&api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{
				{AvailableDeviceIDs: ids, MustIncludeDeviceIDs: again, AllocationSize: int32(len(ids))}}})
		if err != nil {
			return nil, err
		}
	}
	r, err := c.Allocate(context.Background(),
		&api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	return r.ContainerResponses[0], nil
}

// gets allocates free devices and returns the grant and its reference.
func (s *site) gets(c api.DevicePluginClient, ids ...string) (grant.Grant, grant.Reference) {
	s.kubelet.t.Helper()
	return s.getsAfter(c, nil, ids...)
}

// getsAfter is gets for a container of a pod whose init containers had these devices.
func (s *site) getsAfter(c api.DevicePluginClient, had []string,
	ids ...string) (grant.Grant, grant.Reference) {
	t := s.kubelet.t
	t.Helper()
	r, err := s.allocateAfter(c, had, ids...)
	check(t, err)
	reference, err := grant.ParseReference(r.Envs[grant.ReferenceEnv])
	check(t, err)
	if r.Annotations[Annotation] != reference.String() {
		t.Errorf("the annotation is %q, the variable %q", r.Annotations[Annotation], reference)
	}
	all := s.Grants()
	i := slices.IndexFunc(all, func(g grant.Grant) bool { return g.ID == reference.ID })
	if i < 0 || !reference.Opens(all[i].Secret) {
		t.Fatalf("%s opens none of %v", reference.ID, all)
	}
	return all[i], reference
}

// some returns the ids of a range of units.
func some(from, to int) []string {
	var ids []string
	for n := from; n <= to; n++ {
		ids = append(ids, unitID(n))
	}
	return ids
}

// healthy counts the healthy devices in the next list.
func healthy(t *testing.T, stream api.DevicePlugin_ListAndWatchClient) (healthy, all int) {
	t.Helper()
	r, err := stream.Recv()
	check(t, err)
	for _, d := range r.Devices {
		if d.Health == api.Healthy {
			healthy++
		}
	}
	return healthy, len(r.Devices)
}
