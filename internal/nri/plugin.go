package nri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/edit/adjust"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/request"
)

// plugin answers the requests of one connection. An error makes the engine's operation fail.
type plugin struct {
	*Connection
	stub    stub.Stub
	closed  bool   // guarded by the manager's lock
	runtime string // the name that the engine reports, with its version
	engine  grant.Engine
	can     adjust.Support
	timeout time.Duration // the engine's time limit for one request
}

// engines are the names that engines report.
var engines = map[string]grant.Engine{"containerd": grant.Containerd, "cri-o": grant.CRIO}

// stateRoots are the directories in which engines let their runtimes keep the state of CRI
// containers.
var stateRoots = map[grant.Engine][]string{
	grant.Containerd: {"/run/containerd/runc/k8s.io"},
	grant.CRIO:       {"/run/runc", "/run/crun"},
	grant.NoEngine:   {"/run/runc"},
}

// Configure receives the engine's name and version. It subscribes only to the events of the methods
// below.
func (p *plugin) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	p.runtime, p.engine = runtime+" "+version, grant.NoEngine
	if engine, known := engines[runtime]; known {
		p.engine = engine
	}
	p.can.Rules = carriesRules(p.stub.RuntimeNRIVersion())
	// an engine with NRI 0.4 sends none, and the stub then reports 0
	p.timeout = cmp.Or(p.stub.RequestTimeout(), stub.DefaultRequestTimeout)
	return 0, nil
}

// CreateContainer admits the container. This process holds the grant for it until its create.
func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox,
	c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if p.Observe {
		return nil, nil, nil
	}
	adjustment, err := p.inTime(pod, c, false, func() (*api.ContainerAdjustment, error) {
		return p.admit(pod, c)
	})
	return adjustment, nil, err
}

// admit admits the container, and returns what the engine is to change of it.
func (p *plugin) admit(pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, error) {
	n := p.node()
	p.abandonFailed(n, c)
	create, err := p.create(n, pod, c)
	if err != nil {
		return nil, err
	}
	// waiting for the ledger's lock may take half of the limit
	create.Reserve, create.Timeout = true, p.timeout/4
	d := n.Admit(create)
	if d.Bound {
		p.remember(c, false)
	}
	if err := p.answer(c, d); err != nil || d.NotEnforced != "" || !d.Touches() {
		return nil, err
	}
	adjustment, err := p.can.Container(d.Verdict, c)
	if err != nil {
		return nil, fmt.Errorf("gpuledger: internal error: %w", err)
	}
	return adjustment, nil
}

// StartContainer judges what the real runtime has made, before any process of it runs. That
// includes the edits of later plugins, of CDI and of gpuledger-runtime. It turns the reservation
// into a binding. CRI-O starts the container after an error, too, and logs it (1.34.0,
// container_start.go), so there it is judged like one that runs.
func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	p.begin(c.GetId())
	running := p.Observe || p.engine == grant.CRIO
	_, err := p.inTime(pod, c, running, func() (*api.ContainerAdjustment, error) {
		return nil, p.judgeStart(pod, c, running)
	})
	return err
}

// judgeStart returns why a container must not start, or nil.
func (p *plugin) judgeStart(pod *api.PodSandbox, c *api.Container, running bool) error {
	d, err := p.judgeExisting(pod, c, stage{running: running})
	if err != nil {
		return err
	}
	if err := p.answer(c, d); err != nil || p.Observe || d.NotEnforced != grant.Observed {
		return err
	}
	return errors.New(lineOf(d.Refusal()))
}

// StopContainer is called when a container has stopped, or its create is undone.
func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox,
	c *api.Container) ([]*api.ContainerUpdate, error) {
	p.cleanUp(c.GetId())
	return nil, nil
}

// RemoveContainer is called when a container is removed.
func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.cleanUp(c.GetId())
	return nil
}

// StopPodSandbox is called when all containers of a sandbox have stopped. An engine that could not
// create one of them may have sent no event of that container.
func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	n := p.node()
	p.abandonUnborn(n, func(_ string, r reservation) bool { return r.sandbox == pod.GetId() })
	return nil
}

// RemovePodSandbox is called when a sandbox is removed.
func (p *plugin) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return p.StopPodSandbox(ctx, pod)
}

// Synchronize handles the containers that exist when the plugin connects. Containers that are
// created and not started need their grants held again before the engine continues. There may be
// hundreds of running ones, which are judged afterwards: the engine gives a plugin two seconds.
func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox,
	containers []*api.Container) ([]*api.ContainerUpdate, error) {
	podOf, here := map[string]*api.PodSandbox{}, map[string]bool{}
	for _, pod := range pods {
		podOf[pod.GetId()] = pod
	}
	var running []*api.Container
	var ids []string           // of these
	var created sync.WaitGroup // one that cannot be judged in time holds up no other
	for _, c := range containers {
		here[c.GetId()] = true
		switch isCreated := c.GetState() == api.ContainerState_CONTAINER_CREATED; {
		case !isCreated:
			running, ids = append(running, c), append(ids, c.GetId())
		case !p.Observe:
			created.Go(func() { p.bindInTime(podOf[c.GetPodSandboxId()], c, true) })
		}
	}
	created.Wait()
	p.judgements.stop(func(id string) bool { return !here[id] }) // before it looks for what is held
	for _, id := range p.remembered(func(id string, _ reservation) bool { return !here[id] }) {
		p.cleanUp(id)
	}
	p.judgements.begin(ids...)
	go func() {
		p.judgeRunning(podOf, running)
		p.judgements.end(ids...)
	}()
	return nil, nil
}

// judgeRunning judges the containers that ran when the plugin connected. It ends with the
// connection: the plugin of the next one receives the events of stops, and judges what runs then.
func (p *plugin) judgeRunning(podOf map[string]*api.PodSandbox, running []*api.Container) {
	p.judging.Lock() // the plugin of a lost connection may still judge its last container
	defer p.judging.Unlock()
	outside := 0
	for _, c := range running {
		if p.isClosed() {
			return
		}
		if p.judgements.stopped(c.GetId()) {
			continue
		}
		if p.bindInTime(podOf[c.GetPodSandboxId()], c, false) {
			outside++
		}
	}
	p.Log.Infof("in step with %s: %d running containers, %d outside the ledger", p.runtime, len(running),
		outside)
}

// bindInTime binds what an existing container may use, and reports whether it has GPUs outside the
// ledger. If that takes too long, it goes on by itself.
func (p *plugin) bindInTime(pod *api.PodSandbox, c *api.Container, reserve bool) (outside bool) {
	_, err := p.inTime(pod, c, true, func() (*api.ContainerAdjustment, error) {
		d, err := p.judgeExisting(pod, c, stage{running: true, reserve: reserve})
		if err == nil {
			err = p.answer(c, d)
		}
		if err != nil {
			p.Log.Errorf("cannot judge container %s: %v", c.GetId(), err)
		}
		if d.Kind == grant.Refused {
			return nil, errOutside
		}
		return nil, nil
	})
	return errors.Is(err, errOutside)
}

// errOutside says that a container has GPUs outside the ledger.
var errOutside = errors.New("it has GPUs outside the ledger")

// stage says in which phase of its life a container is.
type stage struct {
	running bool // a refusal is only recorded
	reserve bool // it has not started
}

// judgeExisting judges a container that exists.
func (p *plugin) judgeExisting(pod *api.PodSandbox, c *api.Container, s stage) (node.Decision, error) {
	n := p.node()
	create, err := p.create(n, pod, c)
	if err != nil {
		return node.Decision{}, err
	}
	create.Running, create.AnyRoot = s.running, true
	create.Container.Bundle = containers.Bundle(create.Container.RuntimeRoot, create.Container.ID)
	if config := p.configOf(create.Container.Bundle); config != nil {
		if !p.Observe { // else gpuledger-runtime has judged that
			create.Reported = create.Config
		}
		create.Config, err = settled(config, specOf(p.engineOf(n), pod, c))
		create.Unread = err
	}
	holder, known := initOf(n, create.Container, c)
	if create.Reserve = s.reserve || !known; create.Reserve {
		if holder, err = n.Host.Self(); err != nil {
			return node.Decision{}, fmt.Errorf("gpuledger: cannot tell processes: %w", err)
		}
	}
	d := n.JudgeCreated(create, holder)
	if d.Bound && create.Reserve {
		p.remember(c, !s.reserve)
	}
	return d, nil
}

// initOf returns the container's first process, from its runtime's state or otherwise from the
// engine; CRI-O reports none.
func initOf(n *node.Node, c grant.Container, told *api.Container) (grant.Process, bool) {
	if p, found := n.Ledger.Containers.Init(c.RuntimeRoot, c.ID); found {
		return p, true
	}
	p, _, err := n.Host.Process(int(told.GetPid()))
	return p, err == nil && told.GetPid() != 0
}

// configOf returns the spec that the real runtime was given; nil if the container does not exist
// yet, or its file cannot be read.
func (p *plugin) configOf(bundle string) []byte {
	if bundle == "" {
		return nil
	}
	config, err := host.ReadRegular(filepath.Join(bundle, "config.json"), request.MaxSpec)
	if err != nil {
		return nil
	}
	return config
}

// create returns the container as NRI describes it.
func (p *plugin) create(n *node.Node, pod *api.PodSandbox, c *api.Container) (node.Create, error) {
	config, err := json.Marshal(specOf(p.engineOf(n), pod, c))
	if err != nil {
		return node.Create{}, fmt.Errorf("gpuledger: cannot read container %q: %w", c.GetName(), err)
	}
	container := grant.Container{Engine: p.engineOf(n), RuntimeRoot: p.rootOf(c.GetId()), ID: c.GetId()}
	return node.Create{Caller: request.Caller{Container: container}, Config: config,
		Edit: func(config []byte, v grant.Verdict) ([]byte, error) {
			return p.edited(config, v, c)
		}}, nil
}

// edited returns the spec as the engine will make it.
func (p *plugin) edited(config []byte, v grant.Verdict, c *api.Container) ([]byte, error) {
	adjustment, err := p.can.Container(v, c)
	var inexpressible *adjust.Inexpressible
	if errors.As(err, &inexpressible) {
		return nil, &grant.Refusal{Code: grant.InjectionImpossible,
			Message: fmt.Sprintf("container %q needs an edit that its engine cannot make: %v",
				cmp.Or(c.GetName(), c.GetId()), err),
			Hint: "take it out of the pod, or have the engine call gpuledger-runtime, which can (" +
				grant.Docs + "nri.md)"}
	}
	if err != nil {
		return nil, err
	}
	return adjust.Apply(config, adjustment)
}

// answer returns the error that the engine gets for a decision: one line, or nil. A refusal that is
// only recorded goes to the log instead.
func (p *plugin) answer(c *api.Container, d node.Decision) error {
	refusal := d.Refusal()
	if refusal == nil {
		return nil
	}
	if d.NotEnforced == "" {
		return errors.New(lineOf(refusal))
	}
	p.Log.Warnf("container %s (%s): %s", c.GetId(), d.NotEnforced, lineOf(refusal))
	return nil
}

func lineOf(r *grant.Refusal) string {
	line := "gpuledger: " + r.Error()
	if r.Hint != "" {
		line += "; hint: " + r.Hint
	}
	return oci.Clean(line)
}

// cleanUp removes a container's reservation, and its binding if that is dead.
func (p *plugin) cleanUp(id string) {
	p.judgements.stop(func(judged string) bool { return judged == id })
	n := p.node()
	if err := p.abandon(n, id); err != nil {
		p.Log.Warn(err)
	}
	for _, root := range p.roots() {
		n.RemoveDeadBinding(root, id)
	}
}

// abandonFailed removes what is held for earlier attempts at a container whose create failed in the
// runtime. containerd 2.4.2 sends no event of that before it removes the container
// (container_start.go), CRI-O 1.34.0 none at all (container_create.go). The kubelet makes the
// container anew, with another id.
func (p *plugin) abandonFailed(n *node.Node, c *api.Container) {
	if c.GetName() == "" { // CRI-O reports names only under a kubelet
		return
	}
	p.abandonUnborn(n, func(id string, r reservation) bool {
		return id != c.GetId() && r.sandbox == c.GetPodSandboxId() && r.name == c.GetName()
	})
}

// abandonUnborn removes those reservations that match, unless the container may run or its runtime
// has it. The node then waits for the ledger only so long as is left of its time.
func (p *plugin) abandonUnborn(n *node.Node, matches func(id string, r reservation) bool) {
	ids := p.remembered(func(id string, r reservation) bool { return !r.begun && matches(id, r) })
	ids = slices.DeleteFunc(ids, func(id string) bool {
		return slices.ContainsFunc(p.roots(), func(root string) bool {
			return n.Ledger.Containers.Life(root, id) != grant.Dead
		})
	})
	if len(ids) == 0 {
		return
	}
	began := time.Now()
	if err := p.abandon(n, ids...); err != nil {
		p.Log.Warn(err)
	}
	n.Ledger.Wait -= time.Since(began)
}

// node opens the node for each request, so that the current configuration decides. It waits for the
// ledger only so long that time remains to answer: without an answer an engine continues without
// the plugin.
func (p *plugin) node() *node.Node {
	n := p.Open()
	if half := p.timeout / 2; 0 < half && half < n.Ledger.Wait {
		n.Ledger.Wait = half
	}
	return n
}

// engineOf returns the engine whose statements about pods are trusted: NoEngine if the
// configuration cannot be read.
func (p *plugin) engineOf(n *node.Node) grant.Engine {
	if n.Broken != nil {
		return grant.NoEngine
	}
	return p.engine
}

func (p *plugin) roots() []string {
	return append(append([]string(nil), p.Roots...), stateRoots[p.engine]...)
}

// rootOf returns the runtime's root that has the container, or the one that it will most likely
// get: NRI does not report it. A reservation is found by the container's id under any root.
func (p *plugin) rootOf(id string) string {
	for _, root := range p.roots() {
		if info, err := os.Stat(filepath.Join(root, id)); err == nil && info.IsDir() {
			return root
		}
	}
	return p.roots()[0]
}
