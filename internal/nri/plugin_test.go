package nri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// ample is an engine's timeout that no test lives to see the end of.
const ample = 5 * time.Minute

// TestAReservationThatCannotBeRemoved is removed at the container's next event, or in the next pass
// of gpuledgerd: no event may follow.
func TestAReservationThatCannotBeRemoved(t *testing.T) {
	n := daemontest.NewNode(t)
	id := n.Grant('a')
	p := &plugin{Connection: New(Options{Open: func() *node.Node { return n.Node }, Log: silent()})}
	p.current = p // connected
	lock := n.Policy.RunDir + "/lock"
	for _, c := range []struct {
		name   string
		events []func() error
		next   func() error
	}{
		{"it has stopped, and is removed", []func() error{p.stops}, p.removes},
		{"it has stopped and is removed, and there is a pass", []func() error{p.stops, p.removes},
			func() error { return p.Ensure(t.Context()) }},
	} {
		reserve(t, n, p, id, &api.Container{Id: "c"})
		daemontest.Must(t, os.Rename(lock, lock+".away"), os.Mkdir(lock, 0o700))
		for _, event := range c.events {
			daemontest.Must(t, event())
		}
		if err := p.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "container c: ") {
			t.Errorf("%s: the pass without the lock returns %v", c.name, err)
		}
		daemontest.Must(t, os.Remove(lock), os.Rename(lock+".away", lock))
		if found := bound(t, n, id); len(found) != 1 {
			t.Fatalf("%s: bound are %q without the lock, want what was before", c.name, found)
		}
		daemontest.Must(t, c.next())
		if found := bound(t, n, id); len(found) != 0 || len(p.reserved) > 0 {
			t.Errorf("%s: bound are %q, and it remembers %v", c.name, found, p.reserved)
		}
	}
}

// TestAFailedCreateHoldsNothing: the engine reports none. What is held for a container ends with
// the next attempt at it and with its sandbox, unless the container may run or its runtime has it.
func TestAFailedCreateHoldsNothing(t *testing.T) {
	container := func(id, sandbox, name string) *api.Container {
		return &api.Container{Id: id, PodSandboxId: sandbox, Name: name}
	}
	next := func(c *api.Container) func(p *plugin) error {
		return func(p *plugin) error {
			_, _, err := p.CreateContainer(context.Background(), nil, c)
			return err
		}
	}
	stop := func(sandbox string) func(p *plugin) error {
		return func(p *plugin) error { return p.StopPodSandbox(t.Context(), &api.PodSandbox{Id: sandbox}) }
	}
	remove := func(p *plugin) error { return p.RemovePodSandbox(t.Context(), &api.PodSandbox{Id: "s"}) }
	nothing := func(*daemontest.TestNode, *plugin) {}
	state := func(content string) func(*daemontest.TestNode, *plugin) {
		return func(n *daemontest.TestNode, _ *plugin) {
			daemontest.Must(t, os.MkdirAll(n.Root+"/c", 0o700),
				os.WriteFile(n.Root+"/c/status", []byte(content), 0o600))
		}
	}
	self, err := daemontest.NewNode(t).Host.Self()
	daemontest.Must(t, err)
	runs := fmt.Sprintf(`{"pid":%d,"process-start-time":%d,"cgroup-path":"/none"}`, self.PID, self.Start)
	again := next(container("d", "s", "train"))
	first, unnamed := container("c", "s", "train"), container("c", "s", "")
	for _, c := range []struct {
		name   string
		held   *api.Container
		before func(*daemontest.TestNode, *plugin)
		event  func(*plugin) error
		kept   bool
	}{
		{"the next attempt", first, nothing, again, false},
		{"a container of another name", container("c", "s", "other"), nothing, again, true},
		{"a container of another sandbox", container("c", "another", "train"), nothing, again, true},
		{"containers without names, as of CRI-O without a kubelet", unnamed, nothing,
			next(container("d", "s", "")), true},
		{"the same container", first, nothing, next(first), true},
		{"the next attempt, and the runtime has the first", first, state(runs), again, true},
		{"the next attempt, and what the runtime has cannot be read", first, state("{"), again, true},
		{"the next attempt, and the start of the first was announced", first,
			func(_ *daemontest.TestNode, p *plugin) {
				_ = p.StartContainer(t.Context(), nil, first)
			}, again, true},
		{"its sandbox stops", unnamed, nothing, stop("s"), false},
		{"its sandbox is removed", unnamed, nothing, remove, false},
		{"another sandbox stops", unnamed, nothing, stop("t"), true},
		{"its sandbox stops, and the runtime has it", unnamed, state(runs), stop("s"), true},
	} {
		n := daemontest.NewNode(t)
		id := n.Grant('a')
		p := &plugin{timeout: ample, Connection: New(Options{Open: func() *node.Node { return n.Node },
			Log: silent(), Roots: []string{n.Root}})}
		reserve(t, n, p, id, c.held)
		c.before(n, p)
		daemontest.Must(t, c.event(p))
		if found := bound(t, n, id); (len(found) > 0) != c.kept {
			t.Errorf("%s: the grant is held by %q, want it held: %v", c.name, found, c.kept)
		}
	}
}

func (p *plugin) stops() error {
	_, err := p.StopContainer(context.Background(), nil, &api.Container{Id: "c"})
	return err
}

func (p *plugin) removes() error {
	return p.RemoveContainer(context.Background(), nil, &api.Container{Id: "c"})
}

func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// reserve holds a grant for a container.
func reserve(t *testing.T, n *daemontest.TestNode, p *plugin, id grant.ID, c *api.Container) {
	t.Helper()
	self, err := n.Host.Self()
	daemontest.Must(t, err, n.Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: n.Root, Container: c.GetId(), Creator: self,
			Reserved: true})
	}))
	p.remember(c, false)
}

// bound returns the containers that a grant is bound to.
func bound(t *testing.T, n *daemontest.TestNode, id grant.ID) (containers []string) {
	t.Helper()
	daemontest.Must(t, n.Ledger.View(func(tx *ledger.Tx) error {
		g, err := tx.Get(id)
		for _, b := range g.Bindings {
			containers = append(containers, b.Container)
		}
		return err
	}))
	return containers
}

// TestAContainerThatStopsBeforeItsTurn is not judged, and so not bound: the engine has listed it as
// running when the plugin connected.
func TestAContainerThatStopsBeforeItsTurn(t *testing.T) {
	s := startJudging(t)
	_, err := s.plugin.StopContainer(t.Context(), nil, &api.Container{Id: "second"})
	daemontest.Must(t, err)
	close(s.goOn)
	<-s.ended
	if calls := s.opened.Load(); calls != 2 {
		t.Errorf("the node is opened %d times, want 2: for the first container and for the stop", calls)
	}
}

// TestALostConnectionsContainersAreNotBound: another plugin receives the events of their stops, and
// judges what runs when the engine is there again.
func TestALostConnectionsContainersAreNotBound(t *testing.T) {
	s := startJudging(t)
	s.plugin.lost()
	again := &plugin{Connection: s.plugin.Connection}
	_, err := again.Synchronize(t.Context(), nil, nil)
	daemontest.Must(t, err)
	id := s.Grant('a')
	reserve(t, s.TestNode, s.plugin, id, &api.Container{Id: "first"}) // as its judgement does
	close(s.goOn)
	<-s.ended
	if calls := s.opened.Load(); calls != 2 {
		t.Errorf("the node is opened %d times, want 2: to judge the first container and to free it", calls)
	}
	if found := bound(t, s.TestNode, id); len(found) > 0 {
		t.Errorf("bound are %q", found)
	}
}

// judging is a plugin that judges the first of two running containers until it may go on.
type judging struct {
	*daemontest.TestNode
	plugin *plugin
	opened atomic.Int32 // how often the node was opened
	goOn   chan bool
	ended  chan bool // a plugin has judged all of its containers
}

func startJudging(t *testing.T) *judging {
	t.Helper()
	s := &judging{TestNode: daemontest.NewNode(t), goOn: make(chan bool), ended: make(chan bool, 2)}
	log := silent()
	log.AddHook(inStep{s.ended})
	s.plugin = &plugin{timeout: ample, Connection: New(Options{Log: log, Roots: []string{s.Root},
		Open: func() *node.Node {
			if s.opened.Add(1) == 1 { // for the first container
				<-s.goOn
			}
			return s.Node
		}})}
	_, err := s.plugin.Synchronize(t.Context(), nil, []*api.Container{
		{Id: "first", State: api.ContainerState_CONTAINER_RUNNING},
		{Id: "second", State: api.ContainerState_CONTAINER_RUNNING}})
	daemontest.Must(t, err)
	for s.opened.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	return s
}

// TestStartContainerJudgesWhatNRIReports: the bundle's file can add to that and take nothing away.
func TestStartContainerJudgesWhatNRIReports(t *testing.T) {
	n := daemontest.NewNode(t)
	self, err := n.Host.Self()
	bundle := t.TempDir()
	daemontest.Must(t, err, os.MkdirAll(n.Root+"/c", 0o700),
		os.WriteFile(n.Root+"/c/state.json", fmt.Appendf(nil, `{"init_process_pid":%d,`+
			`"init_process_start":%d,"config":{"labels":["bundle=%s"]}}`, self.PID, self.Start, bundle),
			0o600))
	var logged strings.Builder
	log := logrus.New()
	log.SetOutput(&logged)
	const all = "NVIDIA_VISIBLE_DEVICES=all"
	for _, c := range []struct {
		name    string
		env     string // as NRI reports it
		config  string // as the bundle's file is; "": a pipe
		refused bool
		watches bool // gpuledgerd only observes
	}{
		{"neither asks", "A=1", `["A=1"]`, false, false},
		{"only what NRI reports asks", all, `["A=1"]`, true, false},
		{"only the file asks", "A=1", `["` + all + `"]`, true, false},
		{"there is a pipe, and what NRI reports asks", all, "", true, false},
		{"there is a pipe, and what NRI reports does not ask", "A=1", "", false, false},
		{"gpuledger-runtime is observed, which may have edited the file", all, `["A=1"]`, false, true},
	} {
		file := bundle + "/config.json"
		_ = os.Remove(file)
		if c.config == "" {
			daemontest.Must(t, unix.Mkfifo(file, 0o600))
		} else {
			daemontest.Must(t, os.WriteFile(file, []byte(`{"process":{"env":`+c.config+
				`},"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`), 0o600))
		}
		p := &plugin{timeout: ample, Connection: New(Options{Open: func() *node.Node { return n.Node },
			Log: log, Roots: []string{n.Root}, Observe: c.watches})}
		if err := p.StartContainer(t.Context(), nil, &api.Container{Id: "c", Env: []string{c.env}}); (err !=
			nil) != c.refused || logged.Len() > 0 {
			t.Errorf("%s: %v, and it logs %q", c.name, err, &logged)
		}
	}
}

// TestTheLedgerIsAwaitedForHalfOfTheEnginesTime: an engine that names no time gives the usual one
// of NRI, and continues without an answer after it.
func TestTheLedgerIsAwaitedForHalfOfTheEnginesTime(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{
		0: stub.DefaultRequestTimeout / 2, time.Second: time.Second / 2, time.Hour: ledger.DefaultWait,
	} {
		n := daemontest.NewNode(t)
		p := &plugin{stub: timed{time: given},
			Connection: New(Options{Open: func() *node.Node { return n.Node }})}
		_, err := p.Configure(t.Context(), "", "containerd", "v1.7.0")
		daemontest.Must(t, err)
		if wait := p.node().Ledger.Wait; wait != want {
			t.Errorf("an engine gives %s: the ledger is awaited for %s, want %s", given, wait, want)
		}
	}
}

// timed is the stub of an engine with a time limit.
type timed struct {
	stub.Stub
	time time.Duration
}

func (s timed) RequestTimeout() time.Duration { return s.time }
func (timed) RuntimeNRIVersion() string       { return "" }

// inStep tells when all containers are judged.
type inStep struct{ ended chan bool }

func (inStep) Levels() []logrus.Level { return []logrus.Level{logrus.InfoLevel} }

func (s inStep) Fire(*logrus.Entry) error {
	s.ended <- true
	return nil
}

// TestAnEngineThatIsNotUpIsTriedEachSecond: after a boot containers start as soon as it listens.
func TestAnEngineThatIsNotUpIsTriedEachSecond(t *testing.T) {
	socket := t.TempDir() + "/nri.sock"
	dial := func() error {
		_, err := net.Dial("unix", socket)
		return err
	}
	missing := dial()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	daemontest.Must(t, l.Close())
	for _, c := range []struct {
		err     error
		longest time.Duration
	}{{missing, time.Second}, {dial(), time.Second}, {errors.New("it did not answer"), 15 * time.Second}} {
		wait := time.Duration(0)
		for range 10 {
			wait = nextWait(wait, c.err)
		}
		if wait > c.longest || c.longest > time.Second && wait < c.longest {
			t.Errorf("%v: at last it waits %s, want %s at most", c.err, wait, c.longest)
		}
	}
	if wait := nextWait(lastWait, missing); wait > time.Second {
		t.Errorf("an engine that has ended is tried after %s", wait)
	}
}
