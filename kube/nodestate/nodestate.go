// Package nodestate is what a node's agent and the scheduler write for each other: what the node's
// GPUs have, an annotation of the Node object, and what pods are allocated, annotations of theirs.
// The ledger of the node stays what decides.
package nodestate

import (
	"encoding/json"
	"fmt"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Annotation is the key of the annotation on the Node object.
const Annotation = "gpuledger.dev/ledger"

// Published is a node's GPUs and what is granted of them.
type Published struct {
	Version int            `json:"version"` // 1
	GPUs    []PublishedGPU `json:"gpus"`
	// Adopted are the containers whose allocations are in the ledger, so that Free and Compute do
	// not have them any more: POD_UID/CONTAINER.
	Adopted []string `json:"adopted,omitempty"`
	Closed  string   `json:"closed,omitempty"` // why the node can enter no grant; "": it can
	// Pod is the pod of the device plugin that keeps this up to date: NAMESPACE/NAME. Without that
	// pod the rest is old. "": the plugin runs outside a pod.
	Pod string `json:"pod,omitempty"`
}

// PublishedGPU is one GPU. Its amounts are for new grants.
type PublishedGPU struct {
	UUID    string       `json:"uuid"`
	Index   int          `json:"index"`
	Product string       `json:"product,omitempty"`
	Memory  grant.Bytes  `json:"memory"`            // all that it has
	Free    grant.Bytes  `json:"free"`              // after grants, reserve and use outside the ledger
	Compute int          `json:"compute"`           // percent that is not granted
	Modes   []grant.Mode `json:"modes"`             // those that a grant may have by the policy
	Unkept  bool         `json:"unkept,omitempty"`  // in mode limit it gives no share of compute
	Mode    grant.Mode   `json:"mode,omitempty"`    // of the grants that are on it; "": it has none
	Closed  string       `json:"closed,omitempty"`  // why it takes no new grant
	Outside grant.Bytes  `json:"outside,omitempty"` // used without a grant
	Held    bool         `json:"held,omitempty"`    // a container has it open that has no grant of it
	// Space could be granted if nothing was granted or used outside: Memory without the reserve.
	// Parts of a GPU are parts of it. 0: Memory.
	Space grant.Bytes `json:"space,omitempty"`
	// Served is, in mode mps, over how many GPUs the grants are. 0: over one.
	Served int `json:"served,omitempty"`
	// Granted is what its grants have of it, also those of other programs than the scheduler.
	Granted grant.Bytes `json:"granted,omitempty"`
	// Used is what processes use of it, as the node's watch has found, to a twentieth of its
	// memory. 0: nothing, or unknown.
	Used grant.Bytes `json:"used,omitempty"`
}

// Encode returns the value of the annotation.
func (s Published) Encode() (string, error) {
	s.Version = 1
	text, err := json.Marshal(s)
	return string(text), err
}

// Decode reads the value of the annotation.
func Decode(text string) (Published, error) {
	var s Published
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Published{}, fmt.Errorf("cannot read the annotation %s: %w", Annotation, err)
	}
	if s.Version != 1 {
		return Published{}, fmt.Errorf("cannot read the annotation %s: it has version %d, not 1", Annotation,
			s.Version)
	}
	return s, nil
}
