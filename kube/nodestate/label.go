package nodestate

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The labels of a node that choose the mode of its GPUs. Ours wins over that of ACK.
const (
	LabelMode    = "gpuledger.dev/mode"
	LabelACKMode = "ack.node.gpu.schedule"
)

// ackModes are the values of ACK's label. core_mem is its mode with shares of compute, which the
// node counts or enforces as it is configured.
var ackModes = map[string]grant.Mode{
	"cgpu": grant.Limit, "core_mem": grant.Limit, "share": grant.Timeslice, "mps": grant.MPS,
	"exclusive": grant.Exclusive, "default": grant.Exclusive, "topology": grant.Exclusive,
}

// ModeOf returns the mode that a node's labels choose; "": none. The error says of the
// node that it has a label whose value is not known.
func ModeOf(labels map[string]string) (grant.Mode, error) {
	if value := grant.Mode(labels[LabelMode]); value != "" {
		if !slices.Contains([]grant.Mode{grant.Limit, grant.Timeslice, grant.MPS, grant.Exclusive}, value) {
			return "", fmt.Errorf("has the label %s=%s, which is not known", LabelMode, value)
		}
		return value, nil
	}
	value := labels[LabelACKMode]
	mode, known := ackModes[value]
	if value != "" && !known {
		return "", fmt.Errorf("has the label %s=%s, which is not known", LabelACKMode, value)
	}
	return mode, nil
}
