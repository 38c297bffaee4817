package node

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/request"
)

// JudgeDescriptors judges the descriptors with which a process is started in a container that
// exists already (exec). Nodes of a GPU that the container was created with, by its devices and
// rules, are its own; any other is refused. What makes the process root on the node is recorded,
// and what was noted, as at a create.
func (n *Node) JudgeDescriptors(c request.Caller) *grant.Refusal {
	r, err := request.FindHanded(createdSpec(n, c.Container), c, n.finder(n.Inventory))
	if err != nil {
		return &grant.Refusal{Code: grant.Internal, Message: err.Error(), Hint: hintOf(grant.Internal)}
	}
	for _, h := range r.Hits {
		own := h.Cover == grant.CoverNode && slices.ContainsFunc(r.Hits, func(other grant.Hit) bool {
			return other.Node == h.Node && !ofDescriptor(other.Vector)
		})
		if !ofDescriptor(h.Vector) || own || h.Cover != grant.CoverNever && r.AllDevices {
			continue
		}
		return &grant.Refusal{Code: h.Code,
			Message: "the process would inherit " + strings.Replace(h.Vector, ":", " ", 1) + " (" + h.Value +
				"), through which a GPU can be reached that container \"" + c.Container.Name() +
				"\" was not created with",
			Hint: "leave the descriptor out; a container's GPUs are settled when it is created"}
	}
	d := Decision{Verdict: grant.Verdict{Kind: grant.Pass}, pod: r.Container.Pod}
	for _, way := range r.NodeRoot {
		d.Recorded = append(d.Recorded, "exec: node-root by "+grant.Printable(way))
	}
	for _, note := range r.Noted {
		d.Recorded = append(d.Recorded, "exec: "+grant.Printable(note))
	}
	recordDecision(n, c.Container, d)
	return nil
}

func ofDescriptor(vector string) bool { return strings.HasPrefix(vector, "descriptor:") }
