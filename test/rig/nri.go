package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/edit/adjust"
)

// NRI is an engine as a plugin sees it. It is the server that containerd and CRI-O link
// (nri/pkg/adaptation), in the test's own process. The test invents its containers.
type NRI struct {
	Node    *Node
	server  *adaptation.Adaptation
	front   net.Listener
	conns   []net.Conn
	plugins atomic.Int64
	mu      sync.Mutex
	listed  []*api.Container
	NoPIDs  bool // it reports no process, as CRI-O does
	engine  string
	version string
	socket  string
}

// nriSocket is where the node's engine listens for plugins.
func (n *Node) nriSocket() string { return filepath.Join(n.Dir, "nri.sock") }

// patience is how long the server waits for a plugin, if the test is not about that.
const patience = 20 * time.Second

// NRI starts the server. It ends with the test.
func (n *Node) NRI(options ...adaptation.Option) *NRI {
	n.T.Helper()
	return n.nri(&NRI{Node: n, engine: "containerd", version: "v2.4.2", socket: n.nriSocket()}, options...)
}

// NRIOf is the server of an engine with this name and version, at a socket of its own. It ends with
// the test.
func (n *Node) NRIOf(engine, version string) *NRI {
	n.T.Helper()
	return n.nri(&NRI{Node: n, engine: engine, version: version, socket: n.nriSocket() + "." + engine})
}

func (n *Node) nri(e *NRI, options ...adaptation.Option) *NRI {
	n.T.Helper()
	e.Start(options...)
	n.T.Cleanup(e.Stop)
	return e
}

// Socket is where the engine listens for plugins.
func (e *NRI) Socket() string { return e.socket }

// Start listens, for the first time or again after Stop.
func (e *NRI) Start(options ...adaptation.Option) {
	e.Node.T.Helper()
	adaptation.SetPluginRequestTimeout(patience) // a slow machine is no failure
	adaptation.SetPluginRegistrationTimeout(patience)
	none := filepath.Join(e.Node.Dir, "no-plugins")
	options = append([]adaptation.Option{adaptation.WithSocketPath(e.socket + ".server"),
		adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none),
		adaptation.WithMetrics(counter{e: e})}, options...)
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate,
		error) {
		return nil, nil
	}
	server, err := adaptation.New(e.engine, e.version, e.synchronize, update, options...)
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		e.Node.T.Fatal(err)
	}
	e.server = server
	if e.front, err = net.Listen("unix", e.socket); err != nil {
		e.Node.T.Fatal(err)
	}
	go e.accept(e.front)
}

// accept passes plugins on to the server. A stopped server keeps its connections until its process
// ends; here accept closes them.
func (e *NRI) accept(front net.Listener) {
	for {
		plugin, err := front.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", e.socket+".server")
		if err != nil {
			_ = plugin.Close()
			continue
		}
		e.mu.Lock()
		e.conns = append(e.conns, plugin, server)
		e.mu.Unlock()
		for _, way := range [][2]net.Conn{{plugin, server}, {server, plugin}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				_, _ = way[0].Close(), way[1].Close()
			}()
		}
	}
}

// Stop closes the socket and every connection.
func (e *NRI) Stop() {
	if e.server != nil {
		e.server.Stop()
		e.server = nil
		_ = e.front.Close()
		e.mu.Lock()
		for _, conn := range e.conns {
			_ = conn.Close()
		}
		e.mu.Unlock()
		e.plugins.Store(0)
	}
}

// List sets the containers that a plugin gets when it connects.
func (e *NRI) List(containers ...*api.Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listed = containers
}

func (e *NRI) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	e.mu.Lock()
	containers := e.listed
	e.mu.Unlock()
	_, err := tell(ctx, []*api.PodSandbox{Pod()}, containers)
	return err
}

// counter counts the connected plugins.
type counter struct {
	adaptation.Metrics
	e *NRI
}

func (counter) RecordPluginInvocation(string, string, error)                               {}
func (counter) RecordPluginLatency(string, string, time.Duration)                          {}
func (counter) RecordPluginAdjustments(string, string, *api.ContainerAdjustment, int, int) {}
func (c counter) UpdatePluginCount(
	n int) {
	c.e.plugins.Store(int64(n))
}

// Connected waits for the plugin, beside the engine's own ones.
func (e *NRI) Connected(own ...int) {
	e.Node.T.Helper()
	wanted := int64(1)
	for _, n := range own {
		wanted += int64(n)
	}
	Eventually(e.Node.T, "a plugin is connected to the engine",
		func() bool { return e.plugins.Load() >= wanted })
}

// Lost waits until the server has dropped the plugins that have ended. It does so at a request, and
// counts them as connected until then.
func (e *NRI) Lost() {
	e.Node.T.Helper()
	Eventually(e.Node.T, "the engine has lost its plugins", func() bool {
		_ = e.StopPod(PodOf("none"))
		return e.plugins.Load() == 0
	})
}

// Restart closes all plugins' connections and does not wait for new ones.
func (e *NRI) Restart() {
	e.Node.T.Helper()
	e.Stop()
	e.Start()
}

// Plugin connects a plugin that makes the same adjustment to every container. It returns a function
// that ends it.
func (e *NRI) Plugin(adjust func(*api.ContainerAdjustment)) (stop func()) {
	e.Node.T.Helper()
	s, err := stub.New(adjuster(adjust), stub.WithSocketPath(e.socket), stub.WithPluginName("test"),
		stub.WithPluginIdx("00"), stub.WithOnClose(func() {}))
	if err == nil {
		err = s.Start(context.Background())
	}
	if err != nil {
		e.Node.T.Fatal(err)
	}
	return s.Stop
}

type adjuster func(*api.ContainerAdjustment)

func (f adjuster) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	a := &api.ContainerAdjustment{}
	f(a)
	return a, nil, nil
}

// Pod is the sandbox of a container that is in no other.
func Pod() *api.PodSandbox {
	return &api.PodSandbox{Id: "sandbox", Name: "job", Namespace: "ml",
		Uid: "11111111-2222-3333-4444-555555555555", Annotations: map[string]string{}}
}

// PodOf is a pod with a sandbox of another name.
func PodOf(sandbox string) *api.PodSandbox {
	pod := Pod()
	pod.Id = sandbox
	return pod
}

// NRIContainer is what containerd sends to plugins about a container with this spec.
func NRIContainer(id string, spec specs.Spec) *api.Container {
	c := &api.Container{Id: id, PodSandboxId: "sandbox", Name: "train", Env: spec.Process.Env,
		Mounts: api.FromOCIMounts(spec.Mounts), Hooks: api.FromOCIHooks(spec.Hooks),
		Annotations: map[string]string{}, User: &api.User{Uid: spec.Process.User.UID},
		Linux: &api.LinuxContainer{
			CgroupsPath: spec.Linux.CgroupsPath, Devices: api.FromOCILinuxDevices(spec.Linux.Devices),
			Namespaces: api.FromOCILinuxNamespaces(spec.Linux.Namespaces),
			Resources:  api.FromOCILinuxResources(spec.Linux.Resources, nil)}}
	if rdt := spec.Linux.IntelRdt; rdt != nil {
		c.Linux.Rdt = &api.LinuxRdt{ClosId: api.String(rdt.ClosID)}
	}
	for key, value := range spec.Annotations {
		c.Annotations[key] = value
	}
	return c
}

// Create sends the bundle's container to the plugins, and writes their changes of its spec into the
// bundle.
func (e *NRI) Create(b *Bundle) error {
	e.Node.T.Helper()
	return e.CreateIn(Pod(), b)
}

// CreateIn is Create for a container of another pod.
func (e *NRI) CreateIn(pod *api.PodSandbox, b *Bundle) error {
	e.Node.T.Helper()
	var spec specs.Spec
	if err := json.Unmarshal(b.Config(), &spec); err != nil {
		e.Node.T.Fatal(err)
	}
	adjustment, err := e.AskIn(pod, NRIContainer(b.ID, spec))
	if err != nil {
		return err
	}
	config, err := adjust.Apply(b.Config(), adjustment)
	if err != nil {
		e.Node.T.Fatal(err)
	}
	b.WriteConfig(config)
	return nil
}

// Ask is the request to create, and its answer.
func (e *NRI) Ask(c *api.Container) (*api.ContainerAdjustment, error) { return e.AskIn(Pod(), c) }

// AskIn is Ask for a container of another pod.
func (e *NRI) AskIn(pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	c.PodSandboxId = pod.Id
	answer, err := e.server.CreateContainer(context.Background(),
		&api.CreateContainerRequest{Pod: pod, Container: c})
	return answer.GetAdjust(), err
}

// Begin tells the plugins that the bundle's container is created and about to start.
func (e *NRI) Begin(b *Bundle) error {
	e.Node.T.Helper()
	return e.BeginIn(Pod(), e.Now(b))
}

// BeginIn is Begin for a container of another pod.
func (e *NRI) BeginIn(pod *api.PodSandbox, c *api.Container) error {
	return e.server.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: c})
}

// Now is the container as the engine lists it.
func (e *NRI) Now(b *Bundle) *api.Container {
	e.Node.T.Helper()
	var spec specs.Spec
	if err := json.Unmarshal(b.Config(), &spec); err != nil {
		e.Node.T.Fatal(err)
	}
	c := NRIContainer(b.ID, spec)
	if c.State = api.ContainerState_CONTAINER_CREATED; b.Init() != 0 {
		c.State = api.ContainerState_CONTAINER_RUNNING
	}
	if !e.NoPIDs {
		c.Pid = uint32(b.Init())
	}
	return c
}

// Remove tells the plugins that the container is stopped and removed.
func (e *NRI) Remove(id string) error {
	c := &api.Container{Id: id, PodSandboxId: "sandbox"}
	_, err := e.server.StopContainer(context.Background(),
		&api.StopContainerRequest{Pod: Pod(), Container: c})
	return errors.Join(err, e.server.RemoveContainer(context.Background(),
		&api.RemoveContainerRequest{Pod: Pod(), Container: c}))
}

// StopPod tells the plugins that a sandbox is stopped.
func (e *NRI) StopPod(pod *api.PodSandbox) error {
	return e.server.StopPodSandbox(context.Background(), &api.StopPodSandboxRequest{Pod: pod})
}

// RemovePod tells the plugins that a sandbox is removed.
func (e *NRI) RemovePod(pod *api.PodSandbox) error {
	return e.server.RemovePodSandbox(context.Background(), &api.RemovePodSandboxRequest{Pod: pod})
}

// Daemon is a running gpuledgerd.
type Daemon struct {
	Node *Node
	cmd  *exec.Cmd
	log  string
}

// Daemon starts gpuledgerd on the node. It ends with the test.
func (n *Node) Daemon(args ...string) *Daemon {
	n.T.Helper()
	if !slices.Contains(args, "--runtime-root") {
		args = append(args, "--runtime-root", n.Root)
	}
	d := &Daemon{Node: n, log: filepath.Join(n.Dir, "gpuledgerd.log")}
	log, err := os.OpenFile(d.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		n.T.Fatal(err)
	}
	defer log.Close()
	d.cmd = n.Command(n.binary("gpuledgerd"), append([]string{"--nri-socket", n.nriSocket()}, args...)...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		d.End(syscall.SIGKILL)
		if n.T.Failed() {
			n.T.Logf("gpuledgerd's log:\n%s", d.Log())
		}
	})
	return d
}

// PID is its process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Signal sends a signal to it.
func (d *Daemon) Signal(s syscall.Signal) { _ = d.cmd.Process.Signal(s) }

// End sends a signal and returns the status that the daemon ends with; -1 if the signal ended it.
func (d *Daemon) End(s syscall.Signal) int {
	if d.cmd.ProcessState == nil {
		d.Signal(s)
		_ = d.cmd.Wait()
		free := func() bool { // its successor gives up sooner
			holder, _ := os.ReadFile(d.Node.daemonLock())
			return string(holder) != fmt.Sprintln(d.PID()) || d.Node.LockIsFree()
		}
		if !comesTrue(patience, free) {
			d.Node.T.Errorf("the lock of a gpuledgerd that has ended is held after %v", patience)
		}
	}
	return d.cmd.ProcessState.ExitCode()
}

func (n *Node) daemonLock() string { return filepath.Join(n.Dir, "run/gpuledgerd.lock") }

// LockIsFree reports whether a gpuledgerd can start on the node. What a killed one has just started
// has its lock until it executes its program.
func (n *Node) LockIsFree() bool {
	syscall.ForkLock.RLock() // else what this program starts could have it then
	defer syscall.ForkLock.RUnlock()
	lock, err := os.Open(n.daemonLock())
	if err != nil {
		return true
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// Stands reports whether a SIGSTOP has arrived.
func (d *Daemon) Stands() bool { return processState(d.cmd.Process.Pid) == 'T' }

// Log is the daemon's log.
func (d *Daemon) Log() string {
	log, _ := os.ReadFile(d.log)
	return string(log)
}
