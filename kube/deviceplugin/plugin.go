// Package deviceplugin serves the kubelet's device plugin API, for clusters without dynamic
// resource allocation. It offers GPU memory in units, and whole GPUs.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/socket"
)

// Plugin serves one resource to the kubelet of this node.
type Plugin struct {
	api.UnimplementedDevicePluginServer
	Allocator    *Allocator
	Dir          string // the kubelet's directory of device plugins
	PodResources string // the kubelet's socket that lists pods with their devices; "" if there is none
	Cgroups      string // the root of the node's cgroup tree
	Self         string // namespace/name of the plugin's own pod; "" outside a pod
	// Intercept is called for each call of the kubelet, if it is set.
	Intercept grpc.UnaryServerInterceptor

	mu      sync.Mutex
	server  *grpc.Server
	kubelet os.FileInfo // its socket when this plugin registered
	lister  os.FileInfo // the socket that lists pods, at the last look
	sent    bool        // its kubelet has got pods, as far as a plugin outside a pod can see
	since   time.Time   // when that socket was first seen, or its kubelet had got pods
	devices []*api.Device
	held    map[string]bool // devices of containers, by the ledger
	changed chan struct{}   // closed when the devices change
	problem error           // of the last look at the ledger

	done       chan struct{}  // closed when the service ends
	ties       sync.WaitGroup // the goroutine of tieSoon
	tieUntil   time.Time      // when tieSoon gives up
	tying      bool           // the goroutine of tieSoon runs
	registered atomic.Bool    // with a kubelet, at any time

	unable sync.Once // logs once that grants cannot be tied here
}

// wait is the time limit of a call to the kubelet.
const wait = 10 * time.Second

// settled is how long a restarted kubelet may take to know its pods. Before that it lists only some
// of them, or none (kubernetes/kubernetes#112119).
const settled = time.Minute

// Ensure updates the list of devices, the registration with the kubelet, the ties of grants, and
// the grants of ended containers. It is called repeatedly.
func (p *Plugin) Ensure(ctx context.Context) error {
	err := p.look()
	p.mu.Lock()
	p.problem = err
	p.mu.Unlock()
	if p.hasDevices() { // otherwise there are no devices to list yet
		err = errors.Join(err, p.ensureRegistered(ctx))
	}
	_, untied := p.tie()
	return errors.Join(err, untied, p.reclaim(ctx))
}

// look reads the ledger and updates the list of devices. If nothing can be granted here, nothing is
// offered. Then only the devices of containers stay healthy: a restarted kubelet does not admit a
// pod again whose devices are unhealthy.
func (p *Plugin) look() error {
	if p.Allocator.Resource.Placed {
		return p.lookPlaced()
	}
	content, err := p.Allocator.Ledger.Read()
	var devices []*api.Device
	var held map[string]bool
	legible := err == nil || content.Problem != nil
	if legible {
		held = p.Allocator.held(content)
	}
	if err == nil {
		devices, err = p.Allocator.Resource.Devices(content, held)
	}
	if len(devices) > MostOffered {
		err = fmt.Errorf("this node has %d units of %s, and the kubelet takes at most %d: "+
			"set a larger --unit", len(devices), p.Allocator.Resource.Unit, MostOffered)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if legible {
		p.held = held
	}
	return p.offer(devices, err)
}

// offer updates the list of devices; err says why nothing can be granted. The caller has the lock.
func (p *Plugin) offer(devices []*api.Device, err error) error {
	if err != nil && p.changed == nil {
		return err // this node has never been readable
	}
	if err != nil {
		devices = p.closed(p.devices)
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

// closed returns devices of which only those of containers are healthy.
func (p *Plugin) closed(devices []*api.Device) []*api.Device {
	list := make([]*api.Device, len(devices))
	for i, d := range devices {
		list[i] = &api.Device{ID: d.ID, Health: health(p.held[d.ID]), Topology: d.Topology}
	}
	return list
}

// hasDevices reports whether a list of devices was ever made from an inventory.
func (p *Plugin) hasDevices() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed != nil
}

func same(a, b []*api.Device) bool {
	// A message that was sent differs in private fields of the library.
	return slices.EqualFunc(a, b, func(a, b *api.Device) bool { return proto.Equal(a, b) })
}

// ensureRegistered serves and registers if the kubelet is new. A kubelet that starts empties the
// directory and knows no plugin.
func (p *Plugin) ensureRegistered(ctx context.Context) error {
	kubelet, err := os.Stat(p.kubeletSocket())
	if errors.Is(err, fs.ErrNotExist) {
		p.kubelet = nil
		return nil // it has not started yet
	}
	if err != nil {
		return fmt.Errorf("cannot find the kubelet: %w", err)
	}
	_, gone := os.Lstat(p.path())
	if p.server != nil && gone == nil && sameSocket(kubelet, p.kubelet) {
		return nil
	}
	p.Stop()
	p.Allocator.forgetPreferenceCall()
	if err := p.serve(); err != nil {
		return err
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	p.kubelet = kubelet
	p.registered.Store(true)
	p.Allocator.Log.Info("registered with the kubelet", "resource", p.Allocator.Resource.Name)
	return nil
}

// Registered returns an error if no kubelet knows this plugin yet.
func (p *Plugin) Registered() error {
	if p.registered.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.problem != nil {
		return fmt.Errorf("%s is not registered with the kubelet: %w", p.Allocator.Resource.Name, p.problem)
	}
	return fmt.Errorf("%s is not registered with the kubelet yet", p.Allocator.Resource.Name)
}

// sameSocket tells a socket from a new one at the same path. The new one may have the same inode,
// so it compares the change times, too.
func sameSocket(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && changeTime(a) == changeTime(b)
}

func changeTime(info os.FileInfo) syscall.Timespec { return info.Sys().(*syscall.Stat_t).Ctim }

func (p *Plugin) kubeletSocket() string { return filepath.Join(p.Dir, "kubelet.sock") }
func (p *Plugin) path() string          { return filepath.Join(p.Dir, p.Allocator.Resource.socket()) }

func (p *Plugin) serve() error {
	listener, err := socket.Listen(p.path())
	if err != nil {
		return fmt.Errorf("cannot serve the kubelet: %w", err)
	}
	var server []grpc.ServerOption
	if p.Intercept != nil {
		server = append(server, grpc.UnaryInterceptor(p.Intercept))
	}
	p.mu.Lock()
	p.server, p.done = grpc.NewServer(server...), make(chan struct{})
	p.mu.Unlock()
	api.RegisterDevicePluginServer(p.server, p)
	go func(s *grpc.Server) { _ = s.Serve(listener) }(p.server)
	return nil
}

func (p *Plugin) register(ctx context.Context) error {
	return call(ctx, p.kubeletSocket(), func(ctx context.Context, c *grpc.ClientConn) error {
		_, err := api.NewRegistrationClient(c).Register(ctx,
			&api.RegisterRequest{Version: api.Version, Endpoint: p.Allocator.Resource.socket(),
				ResourceName: p.Allocator.Resource.Name, Options: options})
		if err != nil {
			return fmt.Errorf("cannot register with the kubelet: %w", err)
		}
		return nil
	})
}

// call connects to a socket of the kubelet and makes one call.
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

// reclaim asks the kubelet which containers have which devices. Without an answer it releases
// nothing, and neither if the list may lack pods.
func (p *Plugin) reclaim(ctx context.Context) error {
	if p.PodResources == "" {
		return nil
	}
	lister, err := os.Stat(p.PodResources)
	if errors.Is(err, fs.ErrNotExist) {
		p.lister = nil
		return nil // the kubelet is not running
	}
	if err != nil {
		return fmt.Errorf("cannot find the kubelet: %w", err)
	}
	if !sameSocket(lister, p.lister) {
		p.lister, p.since, p.sent = lister, p.Allocator.Now(), p.Self != ""
		p.Allocator.forgetListed()
	}
	return call(ctx, p.PodResources, func(ctx context.Context, c *grpc.ClientConn) error {
		list, err := podresources.NewPodResourcesListerClient(c).List(ctx,
			&podresources.ListPodResourcesRequest{})
		if err != nil {
			return fmt.Errorf("cannot ask the kubelet who has which GPU: %w", err)
		}
		after, err := os.Stat(p.PodResources)
		devices := listed(list.PodResources, p.Allocator.Resource.Name).devices
		if p.Allocator.Resource.Placed {
			p.hold(devices)
		}
		pods := sync.OnceValue(func() map[string]bool { return podsIn(p.Cgroups) })
		if !p.sent && pods() != nil {
			// a boot without an API server: only static pods are there, for as long as it is away
			p.sent, p.since = len(devices) > 0 || ofAPIServer(pods()), p.Allocator.Now()
		}
		watched := p.Allocator.Now().Sub(p.since)
		complete := err == nil && sameSocket(lister, after) && watched >= settled &&
			p.listsSelf(list.PodResources)
		to := readCheckpoint(p.Dir, p.Allocator.Resource.Name)
		return p.Allocator.Reclaim(list.PodResources, complete,
			func(id grant.ID, age time.Duration) futureUse {
				return to.futureUse(id, min(age, watched), pods)
			})
	})
}

// listsSelf reports whether the kubelet lists this plugin's own pod. If so it knows all pods that
// the API server has for it, because it receives them together.
func (p *Plugin) listsSelf(pods []*podresources.PodResources) bool {
	return p.Self == "" || slices.ContainsFunc(pods,
		func(pod *podresources.PodResources) bool { return pod.Namespace+"/"+pod.Name == p.Self })
}

// Stop ends the service. The kubelet keeps the last list for some minutes.
func (p *Plugin) Stop() {
	p.kubelet = nil // the next start of the service registers again
	if p.server != nil {
		p.server.Stop() // it closes the listener, which removes the socket
		p.mu.Lock()
		close(p.done)
		p.server, p.done = nil, nil // no call that goes on begins to tie any more
		p.mu.Unlock()
		p.ties.Wait()
		p.mu.Lock()
		p.tying = false
		p.mu.Unlock()
	}
}

var options = &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}

// GetDevicePluginOptions says that the plugin wants the kubelet to ask for preferred devices.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return options, nil
}

// ListAndWatch sends the devices to the kubelet, and again whenever they change.
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

// GetPreferredAllocation chooses devices for the kubelet.
func (p *Plugin) GetPreferredAllocation(_ context.Context,
	r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	response := &api.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerPreferredAllocationResponse{
				DeviceIDs: p.Allocator.Preferred(c.AvailableDeviceIDs, c.MustIncludeDeviceIDs,
					int(c.AllocationSize))})
	}
	return response, nil
}

// Allocate enters a grant for each container of the request. If one fails it returns an error,
// which the pod's events show.
func (p *Plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		answer, err := p.Allocator.Allocate(c.DevicesIds)
		if err != nil {
			p.Allocator.Log.Warn("cannot allocate", "resource", p.Allocator.Resource.Name, "devices",
				len(c.DevicesIds), "error", err)
			return nil, fmt.Errorf("gpuledger: %w", err)
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	p.tieSoon()
	if err := p.look(); err != nil {
		p.Allocator.Log.Log(context.Background(), slog.LevelWarn, err.Error())
	}
	return response, nil
}
