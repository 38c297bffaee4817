package nodeledger

import (
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestAnOpenedNodeStays: it is not opened again with others, and a later caller does not get it.
func TestAnOpenedNodeStays(t *testing.T) {
	config := t.TempDir() + "/config.toml"
	opened := make(chan *node.Node, 3)
	l := Ledger{Batch: &Batch{}, Open: func() *node.Node {
		n := node.Open(config, host.Default())
		opened <- n
		return n
	}}
	first, _ := l.opened()
	if n := <-opened; first.Open() != n {
		t.Errorf("it has %p, want %p", first.Open(), n)
	}
	begun, goOn := make(chan bool, 2), make(chan bool)
	go l.Batch.opens.do(l, func(all []Ledger) []*node.Node {
		begun <- true
		<-goOn
		return openAll(all)
	})
	<-begun // from now on others wait for each other
	again := make(chan Ledger)
	go func() { at, _ := first.opened(); again <- at }()
	select {
	case at := <-again:
		if at.Open() != first.Open() {
			t.Error("it is another node the second time")
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for others to open theirs")
	}
	close(goOn)
	if later, _ := l.opened(); later.Open() == first.Open() {
		t.Error("a later caller gets the node of an earlier one")
	}
}
