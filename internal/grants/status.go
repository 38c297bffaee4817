package grants

import (
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// NodeStatus is the node as people and monitoring are shown it.
type NodeStatus struct {
	Overview
	Cards []Card
	Mode  grant.RulesMode // what becomes of refusals
	Pause node.Pause      // if Mode is disabled
}

// ReadStatus reads it without waiting for a lock. It costs as much as there are grants. With an
// error it holds what could be read.
func ReadStatus(n *node.Node) (NodeStatus, error) {
	o, err := Read(n)
	return StatusOf(n, o, err)
}

// StatusOf gives the status of an overview that was read already, with the error that came with it.
func StatusOf(n *node.Node, o Overview, err error) (NodeStatus, error) {
	s := NodeStatus{Overview: o, Mode: n.Mode()}
	s.Pause, _ = n.Paused()
	if err == nil {
		s.Cards, err = Cards(n, o)
	}
	return s, err
}
