// Package placement decides which GPUs of which node a pod gets: by memory, compute, mode and
// policy. It is pure: it knows neither Kubernetes' objects nor the ledger.
//
// Package kube/scheduler uses it, on clusters with gpuledger's scheduler extender. With DRA,
// Kubernetes' own scheduler chooses the GPUs. On the node, admission.Place chooses the GPUs of a
// new grant, or checks those that a scheduler has chosen.
package placement

import "github.com/gpuledger/gpuledger/internal/grant"

// Demand is what one container asks for.
type Demand struct {
	Container string
	Init      bool // it ends before the pod's next containers start
	GPUs      int  // how many different GPUs of one node; at least 1

	// The memory on each GPU: an amount, or a part of it in thousandths. If both are 0, it is the
	// whole GPU in mode exclusive, and otherwise all memory that the GPU has for shares.
	Memory grant.Bytes
	Part   int // 1 to 1000

	Compute int        // percent of each GPU; 0: no share of its own
	Mode    grant.Mode // "": the node's mode for shares
}

// Wish is all that a pod asks for.
type Wish struct {
	// Demands are in the order in which the containers start. An init container that runs on beside
	// the others (restartPolicy Always) stands where it starts, and has no Init.
	Demands []Demand
	Policy  Policy // "": the node's, then the configuration's

	// App is what the replicas of one application have in common, as the UID of their owner, if
	// they are to be on different GPUs. "": they need not be.
	App string

	// Products, if there are any, are those of which one must be a part of the name of the GPU's,
	// in letters of either case.
	Products []string
	// AtLeast is the least memory that each GPU must have in all. 0: any.
	AtLeast grant.Bytes
}

// Policy is how GPUs and nodes are chosen among those that fit.
type Policy string

const (
	Binpack Policy = "binpack" // the fullest that fits
	Spread  Policy = "spread"  // the emptiest
)
