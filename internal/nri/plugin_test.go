package nri

import (
	"io"
	"os"
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

// TestAReservationThatCannotBeDropped is dropped at the container's next event.
func TestAReservationThatCannotBeDropped(t *testing.T) {
	n := daemontest.NewNode(t)
	id := n.Grant('a')
	self, err := n.Host.Self()
	daemontest.Must(t, err, n.Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: n.Root, Container: "c", Creator: self,
			Reserved: true})
	}))
	log := logrus.New()
	log.SetOutput(io.Discard)
	p := &plugin{Connection: New(Options{Open: func() *node.Node { return n.Node }, Log: log})}
	p.remember("c")
	reservations := func() (found int) {
		daemontest.Must(t, n.Ledger.View(func(tx *ledger.Tx) error {
			g, err := tx.Get(id)
			found = len(g.Bindings)
			return err
		}))
		return found
	}
	lock := n.Policy.RunDir + "/lock"
	daemontest.Must(t, os.Rename(lock, lock+".away"), os.Mkdir(lock, 0o700))
	_, err = p.StopContainer(t.Context(), nil, &api.Container{Id: "c"})
	daemontest.Must(t, err, os.Remove(lock), os.Rename(lock+".away", lock))
	if found := reservations(); found != 1 {
		t.Fatalf("%d reservations without the lock, want the one of before", found)
	}
	daemontest.Must(t, p.RemoveContainer(t.Context(), nil, &api.Container{Id: "c"}))
	if found := reservations(); found != 0 || len(p.remembered()) > 0 {
		t.Errorf("%d reservations after the next event, and it remembers %q", found, p.remembered())
	}
}

// TestAContainerThatStopsBeforeItsTurn is not judged, and so not bound: the engine has listed it as
// running when the plugin connected.
func TestAContainerThatStopsBeforeItsTurn(t *testing.T) {
	n := daemontest.NewNode(t)
	log, ended := logrus.New(), make(chan bool)
	log.SetOutput(io.Discard)
	var opened atomic.Int32
	stopped := make(chan bool)
	p := &plugin{Connection: New(Options{Log: log, Roots: []string{n.Root}, Open: func() *node.Node {
		if opened.Add(1) == 1 { // for the first container
			<-stopped
		}
		return n.Node
	}})}
	log.AddHook(inStep{ended})
	_, err := p.Synchronize(t.Context(), nil, []*api.Container{
		{Id: "first", State: api.ContainerState_CONTAINER_RUNNING},
		{Id: "second", State: api.ContainerState_CONTAINER_RUNNING}})
	daemontest.Must(t, err)
	for opened.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err = p.StopContainer(t.Context(), nil, &api.Container{Id: "second"})
	daemontest.Must(t, err)
	close(stopped)
	<-ended
	if calls := opened.Load(); calls != 2 {
		t.Errorf("the node is opened %d times, want 2: for the first container and for the stop", calls)
	}
}

// inStep tells when all containers are judged.
type inStep struct{ ended chan bool }

func (inStep) Levels() []logrus.Level { return []logrus.Level{logrus.InfoLevel} }

func (s inStep) Fire(*logrus.Entry) error {
	close(s.ended)
	return nil
}
