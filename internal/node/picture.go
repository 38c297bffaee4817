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
func (n *Node) Picture() (Picture, error) { return n.PictureOf(n.Overview()) }

// PictureOf is Picture of an overview that was read already, with the error that came with it.
func (n *Node) PictureOf(o Overview, err error) (Picture, error) {
	p := Picture{Overview: o, Mode: n.Mode()}
	p.Pause, _ = n.Paused()
	if err == nil {
		p.Cards, err = n.Cards(o)
	}
	return p, err
}
