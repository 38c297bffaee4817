package nri

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestAJudgementThatTakesTooLong: the engine would continue without the plugin. The container is
// refused before that, and what it holds when its judgement ends is freed, unless it may run.
func TestAJudgementThatTakesTooLong(t *testing.T) {
	pod := &api.PodSandbox{Uid: "u", Namespace: "team", Name: "job"}
	created := func(p *plugin) error {
		_, _, err := p.CreateContainer(context.Background(), pod, &api.Container{Id: "c", Name: "train"})
		return err
	}
	started := func(p *plugin) error {
		return p.StartContainer(context.Background(), pod, &api.Container{Id: "c", Name: "train"})
	}
	connected := func(p *plugin) error {
		p.bindInTime(pod, &api.Container{Id: "c", Name: "train"}, true)
		return nil
	}
	for _, c := range []struct {
		name    string
		mode    grant.RulesMode
		observe bool
		engine  grant.Engine
		event   func(*plugin) error
		refused bool
		audit   string // a part of its line
	}{
		{"a create", grant.Enforce, false, grant.Containerd, created, true, `"refuse","code":"internal"`},
		{"a start", grant.Enforce, false, grant.Containerd, started, true, `"refuse","code":"internal"`},
		{"a start by CRI-O, which goes on", grant.Enforce, false, grant.CRIO, started, true,
			`"refuse","mode":"observed","code":"internal"`},
		{"a connection that finds it created", grant.Enforce, false, grant.Containerd, connected, false,
			`"refuse","mode":"observed","code":"internal"`},
		{"a create that is only recorded", grant.Report, false, grant.Containerd, created, false, ""},
		{"a start that is only observed", grant.Enforce, true, grant.Containerd, started, false, ""},
	} {
		synctest.Test(t, func(t *testing.T) { // it waits with a clock that no other process delays
			n := daemontest.NewNode(t)
			n.Policy.Rules.Mode, n.Policy.Audit.File = c.mode, t.TempDir()+"/audit"
			id, goOn, calls := n.Grant('a'), make(chan bool), atomic.Int32{}
			var logged strings.Builder
			log := logrus.New()
			log.SetOutput(&logged)
			open := func() *node.Node {
				if calls.Add(1) == 1 { // for the judgement
					<-goOn
				}
				return opened(n)
			}
			p := &plugin{timeout: 200 * time.Millisecond, engine: c.engine, Connection: New(Options{Log: log,
				Roots: []string{n.Root}, Observe: c.observe, Open: open})}
			reserve(t, n, p, id, &api.Container{Id: "c"})
			answered := make(chan error, 1)
			go func() { answered <- c.event(p) }()
			select {
			case err := <-answered:
				if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(),
					`refused (internal): container "train" cannot be judged within 175ms`) ||
					!strings.Contains(logged.String(), "cannot be judged within 175ms") {
					t.Errorf("%s: the answer is %v, and the log has %q", c.name, err, logged.String())
				}
			case <-time.After(20 * p.timeout):
				t.Errorf("%s: there is no answer", c.name)
			}
			if audit, _ := os.ReadFile(n.Policy.Audit.File); !strings.Contains(string(audit), c.audit) ||
				c.audit != "" && !strings.Contains(string(audit), `"name":"job"`) {
				t.Errorf("%s: the audit log has %s, want %s", c.name, audit, c.audit)
			}
			close(goOn)
			keeps := !c.refused || c.engine == grant.CRIO
			for end := time.Now().Add(5 * time.Second); !keeps && len(bound(t, n, id)) > 0; {
				if time.Sleep(time.Millisecond); time.Now().After(end) {
					t.Fatalf("%s: the refused container still holds its grant", c.name)
				}
			}
			// waits until the judgement has unlocked the ledger
			daemontest.Must(t, n.Ledger.Update(func(*ledger.Tx) error { return nil }))
			if time.Sleep(50 * time.Millisecond); keeps && len(bound(t, n, id)) == 0 {
				t.Errorf("%s: the container may run, and does not hold its grant", c.name)
			}
		})
	}
}

// TestAContainerThatIsNotJudgedInTimeHoldsUpNoOther: at a connection the engine waits for what is
// created, and the containers that run are judged one by one.
func TestAContainerThatIsNotJudgedInTimeHoldsUpNoOther(t *testing.T) {
	for name, state := range map[string]api.ContainerState{
		"created": api.ContainerState_CONTAINER_CREATED, "running": api.ContainerState_CONTAINER_RUNNING} {
		synctest.Test(t, func(t *testing.T) {
			n, ended, calls := daemontest.NewNode(t), make(chan bool, 2), atomic.Int32{}
			never := make(chan bool)
			defer func() { close(never); synctest.Wait() }() // it writes below the test's directory
			log := silent()
			log.AddHook(inStep{ended})
			open := func() *node.Node {
				if calls.Add(1) == 1 {
					<-never // the first judgement does not end
				}
				return opened(n)
			}
			p := &plugin{timeout: 200 * time.Millisecond, Connection: New(Options{Log: log, Open: open,
				Roots: []string{n.Root}})}
			go func() {
				_, _ = p.Synchronize(t.Context(), nil, []*api.Container{{Id: "first", State: state},
					{Id: "second", State: state}})
			}()
			select {
			case <-ended:
			case <-time.After(20 * p.timeout):
				t.Errorf("%s: the plugin waits", name)
			}
			if calls := calls.Load(); calls < 3 { // by the two judgements, and for the refusal of one
				t.Errorf("%s: the node is opened %d times", name, calls)
			}
		})
	}
}

// TestAContainerThatStopsBeforeItsLateJudgementEnds holds nothing: no event of it follows.
func TestAContainerThatStopsBeforeItsLateJudgementEnds(t *testing.T) {
	c := &api.Container{Id: "c", State: api.ContainerState_CONTAINER_RUNNING}
	stopped := func(p *plugin) { daemontest.Must(t, p.stops()) }
	for _, row := range []struct {
		name    string
		mode    grant.RulesMode
		observe bool
		judged  func(*plugin) error
		ends    func(*plugin)
	}{
		{"it ran at the connection", grant.Enforce, false, func(p *plugin) error {
			p.bindInTime(nil, c, false)
			return nil
		}, stopped},
		{"its create is only recorded", grant.Report, false, func(p *plugin) error {
			_, _, err := p.CreateContainer(t.Context(), nil, c)
			return err
		}, stopped},
		{"its start is only observed", grant.Enforce, true, func(p *plugin) error {
			return p.StartContainer(t.Context(), nil, c)
		}, stopped},
		{"it ran, and is gone at the next connection", grant.Enforce, false, func(p *plugin) error {
			p.bindInTime(nil, c, false)
			return nil
		}, func(p *plugin) {
			_, err := (&plugin{Connection: p.Connection}).Synchronize(t.Context(), nil, nil)
			daemontest.Must(t, err)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := daemontest.NewNode(t)
			n.Policy.Rules.Mode = row.mode
			id, goOn, calls := n.Grant('a'), make(chan bool), atomic.Int32{}
			open := func() *node.Node {
				if calls.Add(1) == 1 { // for the judgement
					<-goOn
				}
				return opened(n)
			}
			p := &plugin{timeout: 200 * time.Millisecond, Connection: New(Options{Log: silent(), Open: open,
				Roots: []string{n.Root}, Observe: row.observe})}
			daemontest.Must(t, row.judged(p))
			row.ends(p)
			reserve(t, n, p, id, c) // as the judgement does
			p.begin(c.GetId())
			close(goOn)
			for end := time.Now().Add(5 * time.Second); len(bound(t, n, id)) > 0; {
				if time.Sleep(time.Millisecond); time.Now().After(end) {
					t.Fatalf("%s: the container still holds its grant", row.name)
				}
			}
			synctest.Wait() // it writes below the test's directory until it ends
		})
	}
}

// opened is the node as gpuledgerd opens it, for each request anew.
func opened(n *daemontest.TestNode) *node.Node {
	its, ledger := *n.Node, *n.Ledger
	its.Ledger = &ledger
	return &its
}
