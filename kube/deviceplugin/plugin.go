// Package deviceplugin serves the kubelet's device plugin API, for clusters without dynamic resource allocation: memory of
// GPUs in units, and whole GPUs.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Plugin serves one resource to the kubelet of this node.
type Plugin struct {
	api.UnimplementedDevicePluginServer
	Desk         *Desk
	Dir          string // of the kubelet's device plugins
	PodResources string // the kubelet's socket that lists pods with their devices; "" where there is none
	Cgroups      string // the tree of the node's cgroups
	Self         string // namespace/name of the pod that this runs in; "" where it runs in none

	mu      sync.Mutex
	server  *grpc.Server
	kubelet os.FileInfo // its socket, when this plugin registered
	lister  os.FileInfo // the socket that lists pods, as it was last
	since   time.Time   // when it was first seen
	devices []*api.Device
	held    []string      // those that containers have, by the ledger
	changed chan struct{} // closed when devices are others

	done    chan struct{}  // closed when the service ends
	ties    sync.WaitGroup // who hurries to tie grants
	until   time.Time      // when that is over
	hurried bool           // somebody does
	unable  sync.Once      // it was said that nothing can be tied here
}

// wait bounds a call to the kubelet.
const wait = 10 * time.Second

// settled is how long a kubelet may take after its start to know its pods. Until then it lists fewer than there are, or none
// (kubernetes/kubernetes#112119).
const settled = time.Minute

// Ensure brings everything up to date: what the kubelet is told, whether it knows this plugin, and the grants of containers that
// are gone. It is called again and again.
func (p *Plugin) Ensure(ctx context.Context) error {
	err := p.look()
	if p.knows() { // else there is nothing yet that the kubelet could be told
		err = errors.Join(err, p.attend(ctx))
	}
	_, untied := p.tie()
	return errors.Join(err, untied, p.reclaim(ctx))
}

// look reads the ledger for what the kubelet is to be told. While nothing can be granted here nothing is offered: of what the kubelet was told
// last, only what containers have is healthy, for a kubelet that starts admits no pod again whose devices are not.
func (p *Plugin) look() error {
	page, err := p.Desk.Book.Read()
	var devices []*api.Device
	var of tenants
	legible := err == nil || page.Problem != nil
	if legible {
		of = p.Desk.tenants(page)
	}
	if err == nil {
		devices, err = p.Desk.Resource.Devices(page, of)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if legible {
		p.held = of.devices
	}
	if err != nil && p.changed == nil {
		return err // nothing is known of this node yet
	}
	if err != nil {
		devices = p.closed()
	}
	if p.changed != nil && same(devices, p.devices) {
		return err
	}
	p.devices = devices
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = make(chan struct{})
	return err
}

// closed are the devices that the kubelet knows, of which none is given out now.
func (p *Plugin) closed() []*api.Device {
	list := make([]*api.Device, len(p.devices))
	for i, d := range p.devices {
		list[i] = &api.Device{ID: d.ID, Health: health(slices.Contains(p.held, d.ID)), Topology: d.Topology}
	}
	return list
}

// knows reports whether there was an inventory to make a list of devices from.
func (p *Plugin) knows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed != nil
}

func same(a, b []*api.Device) bool {
	return slices.EqualFunc(a, b, func(a, b *api.Device) bool { return proto.Equal(a, b) }) // one that was sent differs in fields of the library's own
}

// attend serves and registers where the kubelet is new: one that starts empties the directory and knows nobody.
func (p *Plugin) attend(ctx context.Context) error {
	kubelet, err := os.Stat(p.kubeletSocket())
	if errors.Is(err, fs.ErrNotExist) {
		p.kubelet = nil
		return nil // it is not there yet
	}
	if err != nil {
		return fmt.Errorf("cannot find the kubelet: %w", err)
	}
	_, gone := os.Lstat(p.path())
	if p.server != nil && gone == nil && sameSocket(kubelet, p.kubelet) {
		return nil
	}
	p.Stop()
	p.Desk.forgetQuestion()
	if err := p.serve(); err != nil {
		return err
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	p.kubelet = kubelet
	p.Desk.Log.Info("registered with the kubelet", "resource", p.Desk.Resource.Name)
	return nil
}

// sameSocket tells a socket from another one in its place, which may have its inode.
func sameSocket(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && changeTime(a) == changeTime(b)
}

func changeTime(info os.FileInfo) syscall.Timespec { return info.Sys().(*syscall.Stat_t).Ctim }

func (p *Plugin) kubeletSocket() string { return filepath.Join(p.Dir, "kubelet.sock") }
func (p *Plugin) path() string          { return filepath.Join(p.Dir, p.Desk.Resource.socket()) }

func (p *Plugin) serve() error {
	if err := os.Remove(p.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot serve the kubelet: %w", err)
	}
	listener, err := net.Listen("unix", p.path())
	if err != nil {
		return fmt.Errorf("cannot serve the kubelet: %w", err)
	}
	p.server, p.done = grpc.NewServer(), make(chan struct{})
	api.RegisterDevicePluginServer(p.server, p)
	go func(s *grpc.Server) { _ = s.Serve(listener) }(p.server)
	return nil
}

func (p *Plugin) register(ctx context.Context) error {
	return call(ctx, p.kubeletSocket(), func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := api.NewRegistrationClient(c).Register(ctx, &api.RegisterRequest{Version: api.Version, Endpoint: p.Desk.Resource.socket(),
			ResourceName: p.Desk.Resource.Name, Options: options})
		if err != nil {
			return fmt.Errorf("cannot register with the kubelet: %w", err)
		}
		return nil
	})
}

// call is one call to a socket of the kubelet's.
func call(ctx context.Context, socket string, do func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(ctx, conn)
}

// reclaim asks the kubelet who has what. Without an answer nothing is released, nor by one that may leave pods out.
func (p *Plugin) reclaim(ctx context.Context) error {
	if p.PodResources == "" {
		return nil
	}
	lister, err := os.Stat(p.PodResources)
	if errors.Is(err, fs.ErrNotExist) {
		p.lister = nil
		return nil // the kubelet is not there
	}
	if err != nil {
		return fmt.Errorf("cannot find the kubelet: %w", err)
	}
	if !sameSocket(lister, p.lister) {
		p.lister, p.since = lister, p.Desk.Now()
	}
	return call(ctx, p.PodResources, func(ctx context.Context, c *grpc.ClientConn) error {
		list, err := podresources.NewPodResourcesListerClient(c).List(ctx, &podresources.ListPodResourcesRequest{})
		if err != nil {
			return fmt.Errorf("cannot ask the kubelet who has which GPU: %w", err)
		}
		after, err := os.Stat(p.PodResources)
		watched := p.Desk.Now().Sub(p.since)
		complete := err == nil && sameSocket(lister, after) && watched >= settled && p.listsSelf(list.PodResources)
		to := readGiven(p.Dir, p.Desk.Resource.Name)
		pods := sync.OnceValue(func() map[string]bool { return podsIn(p.Cgroups) })
		there := func(uid string) bool { return pods() == nil || pods()[uid] }
		return p.Desk.Reclaim(list.PodResources, complete, func(id grant.ID, age time.Duration) fate { return to.fate(id, min(age, watched), there) })
	})
}

// listsSelf reports whether the kubelet knows this plugin's own pod, and so the others that the API server has for it: all
// come at once.
func (p *Plugin) listsSelf(pods []*podresources.PodResources) bool {
	return p.Self == "" || slices.ContainsFunc(pods, func(pod *podresources.PodResources) bool { return pod.Namespace+"/"+pod.Name == p.Self })
}

// Stop ends the service. The kubelet keeps what it was told for some minutes.
func (p *Plugin) Stop() {
	p.kubelet = nil // whoever serves again registers again
	if p.server != nil {
		p.server.Stop()
		close(p.done)
		p.ties.Wait()
		p.mu.Lock()
		p.server, p.hurried = nil, false
		p.mu.Unlock()
	}
	_ = os.Remove(p.path())
}

var options = &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}

// GetDevicePluginOptions says that the plugin likes to be asked which devices to take.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return options, nil
}

// ListAndWatch tells the kubelet what there is, and again whenever that is something else.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	for {
		p.mu.Lock()
		devices, changed := p.devices, p.changed
		p.mu.Unlock()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed: // never nil: Ensure makes a list before it serves
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation chooses for the kubelet.
func (p *Plugin) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	response := &api.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerPreferredAllocationResponse{
			DeviceIDs: p.Desk.Preferred(c.AvailableDeviceIDs, c.MustIncludeDeviceIDs, int(c.AllocationSize))})
	}
	return response, nil
}

// Allocate enters a grant for each container of the request: all, or an error that the pod's events show.
func (p *Plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		answer, err := p.Desk.Allocate(c.DevicesIds)
		if err != nil {
			p.Desk.Log.Warn("cannot allocate", "resource", p.Desk.Resource.Name, "devices", len(c.DevicesIds), "error", err)
			return nil, fmt.Errorf("gpuledger: %w", err)
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	p.hurry()
	if err := p.look(); err != nil {
		p.Desk.Log.Log(context.Background(), slog.LevelWarn, err.Error())
	}
	return response, nil
}
