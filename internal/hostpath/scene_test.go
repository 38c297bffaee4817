package hostpath

import (
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

// scene is a node whose directories of the ledger are in a directory of the test.
type scene struct {
	*hostpathtest.NodeDir
	node Environment
}

func newScene(t testing.TB) *scene {
	s := &scene{NodeDir: hostpathtest.New(t)}
	s.node = Environment{Host: s.Host(),
		Policy: &grant.Policy{StateDir: s.Path("state"), RunDir: s.Path("run")}}
	return s
}
