package node

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Hands judges the descriptors with which a process is run in a container that is there already.
// Nodes of a GPU that the container was created with are its own; any other is refused.
func (n *Node) Hands(c request.Caller) *grant.Refusal {
	r, err := request.Find(createdSpec(n, c.Container), c, n.finder(n.Inventory))
	if err != nil {
		return &grant.Refusal{Code: grant.Internal, Message: err.Error(), Hint: hintOf(grant.Internal)}
	}
	for _, h := range r.Hits {
		if !strings.HasPrefix(h.Vector, "descriptor:") || h.Cover == grant.CoverNode && (r.AllDevices || slices.ContainsFunc(r.Hits, func(own grant.Hit) bool {
			return own.Node == h.Node && !strings.HasPrefix(own.Vector, "descriptor:")
		})) {
			continue
		}
		return &grant.Refusal{Code: h.Code, Message: "the process would be handed a GPU by " + h.Vector + " (" + h.Value + "), which container \"" + c.Container.Name() + "\" was not created with",
			Hint: "leave the descriptor out; a container's GPUs are settled when it is created"}
	}
	return nil
}
