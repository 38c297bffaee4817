// Package dra is gpuledger's driver for dynamic resource allocation (resource.k8s.io/v1).
// Kubernetes' own scheduler chooses the GPUs: it counts bytes by the slices that the node
// publishes, and does not use package kube/placement. The node's ledger decides last, when a claim
// is prepared: admission.Place gets the GPUs by name, and only checks that they have room. Each
// request of a claim is a grant.
package dra

import (
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube"
)

// DriverName is the driver's name.
const DriverName = kube.DriverName

// Source is the source of the grants that the driver enters.
const Source = "dra"

// The capacities of a device.
const (
	memory  = "memory"  // bytes
	compute = "compute" // percent
)

// shared lists the modes in which several claims have parts of one GPU.
var shared = []grant.Mode{grant.Timeslice, grant.Limit, grant.MPS}
