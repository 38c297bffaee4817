package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// kubeletOf has the parts of a kubelet that the plugin calls, at the node's sockets.
type kubeletOf struct {
	deviceplugin.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer
	plugins string
	came    chan string // endpoints
	asked   chan struct{}
}

func (k *kubeletOf) Register(_ context.Context,
	r *deviceplugin.RegisterRequest) (*deviceplugin.Empty, error) {
	k.came <- r.Endpoint
	return &deviceplugin.Empty{}, nil
}

func (k *kubeletOf) List(context.Context,
	*podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	select {
	case k.asked <- struct{}{}:
	default:
	}
	return &podresources.ListPodResourcesResponse{}, nil
}

func (p podOf) kubelet(t *testing.T) *kubeletOf {
	t.Helper()
	k := &kubeletOf{plugins: p.Node + "/var/lib/kubelet/device-plugins", came: make(chan string, 8),
		asked: make(chan struct{}, 1)}
	server := grpc.NewServer()
	deviceplugin.RegisterRegistrationServer(server, k)
	podresources.RegisterPodResourcesListerServer(server, k)
	t.Cleanup(server.Stop)
	for _, dir := range []string{k.plugins, p.Node + "/var/lib/kubelet/pod-resources"} {
		listener, err := net.Listen("unix", dir+"/kubelet.sock")
		must(t, err)
		go func() { _ = server.Serve(listener) }()
	}
	return k
}

// gets calls Allocate at the endpoint that registers next.
func (k *kubeletOf) gets(t *testing.T, logged func() string, sets ...[]string) (ids []grant.ID) {
	t.Helper()
	var endpoint string
	eventually(t, "the plugin registers", logged, func() bool {
		select {
		case endpoint = <-k.came:
			return true
		default:
			return false
		}
	})
	conn, err := grpc.NewClient("unix:"+filepath.Join(k.plugins, endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	for _, set := range sets {
		r, err := deviceplugin.NewDevicePluginClient(conn).Allocate(t.Context(),
			&deviceplugin.AllocateRequest{ContainerRequests: []*deviceplugin.ContainerAllocateRequest{
				{DevicesIds: set}}})
		must(t, err)
		reference, err := grant.ParseReference(r.ContainerResponses[0].Envs[grant.ReferenceEnv])
		must(t, err)
		ids = append(ids, reference.ID)
	}
	return ids
}

// contained makes a container of the node that uses a grant. Its runtime's state names its first
// process. Of its cgroup only the name exists.
func (p podOf) contained(t *testing.T, id grant.ID, init grant.Process) {
	t.Helper()
	const root = "/run/containerd/runc/k8s.io"
	name := "container-of-" + string(id)
	must(t, os.MkdirAll(p.Node+root+"/"+name, 0o711), os.WriteFile(p.Node+root+"/"+name+"/state.json",
		fmt.Appendf(nil,
			`{"init_process_pid": %d, "init_process_start": %d, "cgroup_paths": {"devices": %q}}`,
			init.PID, init.Start, deviceCgroups()+"/"+name), 0o600))
	ended := grant.Process{PID: init.PID, Start: init.Start + 1}
	must(t, p.ledger(t).Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: root, Container: name, Bundle: "/nowhere",
			Creator: ended})
	}))
}

// deviceCgroups returns the directory of containers' cgroups.
func deviceCgroups() string {
	if _, err := os.Stat("/sys/fs/cgroup/devices/cgroup.procs"); err == nil {
		return "/sys/fs/cgroup/devices"
	}
	return "/sys/fs/cgroup"
}

// The plugin must register, grant, query the kubelet for its pods' devices, and find running
// containers by the node's processes and cgroups.
func TestThePluginWorksInItsPod(t *testing.T) {
	p := podFor(t, "device-plugin", "device-plugin", "--resources", "memory", "--interval", "50ms")
	k := p.kubelet(t)
	alive := exec.Command("sleep", "1000000")
	must(t, alive.Start())
	t.Cleanup(func() { _ = alive.Process.Kill(); _ = alive.Wait() })
	init, _, err := host.Default().Process(alive.Process.Pid)
	must(t, err)

	units := [][]string{{"unit-0", "unit-1", "unit-2", "unit-3"}, {"unit-4", "unit-5", "unit-6", "unit-7"}}
	killed, logged := p.start(t)
	first := k.gets(t, logged, units...)
	eventually(t, "it queries the pods' devices", logged, func() bool { return len(k.asked) > 0 })
	p.checkPrivileges(t, killed.Process.Pid)
	must(t, killed.Process.Kill())
	_ = killed.Wait() // until then it has the socket for probes, and the next one complains
	p.contained(t, first[0], init)
	p.contained(t, first[1], grant.Process{PID: init.PID, Start: init.Start + 2})

	// It reads only what the node shows.
	_, logged = p.start(t)
	second := k.gets(t, logged, units...)
	o, err := grants.Read(p.ledger(t))
	must(t, err)
	there := map[grant.ID]grant.Grant{}
	for _, g := range o.Grants {
		there[g.ID] = g
	}
	for _, id := range []grant.ID{first[0], second[0], second[1]} {
		if _, found := there[id]; !found {
			t.Errorf(
				"grant %s was released: it is one of %v and %v, and only the second of the first has no "+
					"container that lives",
				id, first, second)
		}
	}
	if _, found := there[first[1]]; found {
		t.Errorf("the grant of a container that ended, %s, exists when its units are allocated again",
			first[1])
	}
	if log := logged(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the plugin complains:\n%s", log)
	}
	if slices.Equal(first, second) {
		t.Errorf("both times %v", first)
	}
}
