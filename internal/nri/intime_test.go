package nri

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestAJudgementThatTakesTooLong: the engine would continue without the plugin. The container is
// refused before that, and what its judgement has held in the end is freed, unless it runs.
func TestAJudgementThatTakesTooLong(t *testing.T) {
	created := func(p *plugin) error {
		_, _, err := p.CreateContainer(context.Background(), nil, &api.Container{Id: "c", Name: "train"})
		return err
	}
	started := func(p *plugin) error {
		return p.StartContainer(context.Background(), nil, &api.Container{Id: "c", Name: "train"})
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
		{"a create that is only recorded", grant.Report, false, grant.Containerd, created, false, ""},
		{"a start that is only observed", grant.Enforce, true, grant.Containerd, started, false, ""},
	} {
		n := daemontest.NewNode(t)
		n.Policy.Rules.Mode, n.Policy.Audit.File = c.mode, t.TempDir()+"/audit"
		id, goOn, opened := n.Grant('a'), make(chan bool), atomic.Int32{}
		var logged strings.Builder
		log := logrus.New()
		log.SetOutput(&logged)
		open := func() *node.Node {
			if opened.Add(1) == 1 { // for the judgement
				<-goOn
			}
			return n.Node
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
		if audit, _ := os.ReadFile(n.Policy.Audit.File); !strings.Contains(string(audit), c.audit) {
			t.Errorf("%s: the audit log has %s, want %s", c.name, audit, c.audit)
		}
		if !c.refused {
			continue // and its judgement never ends
		}
		close(goOn)
		keeps := c.engine == grant.CRIO
		for end := time.Now().Add(5 * time.Second); !keeps && len(bound(t, n, id)) > 0; {
			if time.Sleep(time.Millisecond); time.Now().After(end) {
				t.Fatalf("%s: the refused container still holds its grant", c.name)
			}
		}
		// waits until the judgement has unlocked the ledger
		daemontest.Must(t, n.Ledger.Update(func(*ledger.Tx) error { return nil }))
		if time.Sleep(50 * time.Millisecond); keeps && len(bound(t, n, id)) == 0 {
			t.Errorf("%s: the container runs, and does not hold its grant", c.name)
		}
	}
}

// TestAContainerThatIsNotJudgedInTimeHoldsUpNoOther: at a connection the engine waits for what is
// created, and the containers that run are judged one by one.
func TestAContainerThatIsNotJudgedInTimeHoldsUpNoOther(t *testing.T) {
	for name, state := range map[string]api.ContainerState{
		"created": api.ContainerState_CONTAINER_CREATED, "running": api.ContainerState_CONTAINER_RUNNING} {
		n, ended, opened := daemontest.NewNode(t), make(chan bool, 2), atomic.Int32{}
		log := silent()
		log.AddHook(inStep{ended})
		open := func() *node.Node {
			if opened.Add(1) == 1 {
				select {} // the first judgement never ends
			}
			return n.Node
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
		if opened := opened.Load(); opened < 3 { // by the two judgements, and for the refusal of one
			t.Errorf("%s: the node is opened %d times", name, opened)
		}
	}
}
