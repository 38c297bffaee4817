package node

import "github.com/gpuledger/gpuledger/internal/grant"

// Picture is the node as it is shown to people and monitoring.
type Picture struct {
	Overview
	Cards []Card
	Mode  grant.RulesMode // what becomes of refusals
	Pause Pause           // where Mode is disabled
}

// Picture reads it without waiting for anybody. It costs as much as there are grants. With an error it holds what could be
// read.
func (n *Node) Picture() (Picture, error) {
	p := Picture{Mode: n.Mode()}
	p.Pause, _ = n.Paused()
	var err error
	if p.Overview, err = n.Overview(); err != nil {
		return p, err
	}
	p.Cards, err = n.Cards(p.Overview)
	return p, err
}
