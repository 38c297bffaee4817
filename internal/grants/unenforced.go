package grants

import (
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// WhyNoComputeShare says why a grant of mode limit can have no share of compute here; "" where it
// can.
func WhyNoComputeShare(n *node.Node) string {
	inv, _ := n.Inventory()
	return admission.WhyNoComputeShare(grant.Grant{Mode: grant.Limit, GPUs: make([]grant.Share, 1)}, inv,
		n.Policy)
}

// WhyNoShimLimit says why nothing here can hold a container of mode limit to its memory; "" where
// the shim does.
func WhyNoShimLimit(n *node.Node) string {
	inv, _ := n.Inventory()
	return admission.WhyNoShimLimit(1, inv, n.Policy)
}

// WhyNoDriverLimit says why the driver holds no container of mode limit to its memory here; ""
// where it does.
func WhyNoDriverLimit(n *node.Node) string {
	inv, _ := n.Inventory()
	return admission.WhyNoDriverLimit(grant.Grant{Mode: grant.Limit}, inv, n.Policy)
}
