package grants_test

import (
	"reflect"
	"testing"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// TestReadAgain gives all that Read gives, where nothing has changed.
func TestReadAgain(t *testing.T) {
	n := daemontest.NewNode(t)
	n.Grant('a')
	self, err := n.Host.Self()
	daemontest.Must(t, err, n.Ledger.SetFound(ledger.Found{
		Outside: map[string]grant.Bytes{daemontest.GPU: grant.GiB},
		Excess: []grant.Excess{{Grant: "g-bbbbbbbbbbbb", GPU: daemontest.GPU, Bytes: grant.MiB},
			{Grant: "g-aaaaaaaaaaaa", GPU: daemontest.GPU, Bytes: grant.MiB}},
		Held: map[string][]grant.Process{daemontest.GPU: {self}}}))
	read, err := grants.Read(n.Node)
	daemontest.Must(t, err)
	again, err := grants.ReadAgain(n.Node, read)
	daemontest.Must(t, err)
	if len(read.Held) != 1 || len(read.Outside) != 1 || len(read.Excess) != 2 {
		t.Fatalf("%+v", read)
	}
	again.Now = read.Now
	if !reflect.DeepEqual(again, read) {
		t.Errorf("read again:\n%+v\nread:\n%+v", again, read)
	}
}
