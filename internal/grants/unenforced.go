package grants

import (
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// ComputeUnkept says why a grant of mode limit can have no share of compute here; "" where it can.
func ComputeUnkept(n *node.Node) string {
	inv, _ := n.Inventory()
	return admission.ComputeUnkept(grant.Grant{Mode: grant.Limit, GPUs: make([]grant.Share, 1)}, inv,
		n.Policy)
}

// Limitless says why nothing here can hold a container of mode limit to its memory; "" where the
// shim does.
func Limitless(n *node.Node) string {
	inv, _ := n.Inventory()
	return admission.Limitless(1, inv, n.Policy)
}

// Driverless says why the driver holds no container of mode limit to its memory here; "" where it
// does.
func Driverless(n *node.Node) string {
	inv, _ := n.Inventory()
	return admission.Driverless(grant.Grant{Mode: grant.Limit}, inv, n.Policy)
}
