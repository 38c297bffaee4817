package node

import (
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
)

// ServerLimits says which of a grant's limits the servers of its MPS daemon keep by themselves, for
// a client without settings of its own. They have the limits of the largest grant over their GPUs.
type ServerLimits struct {
	Known           bool // there is such a daemon
	Threads, Memory bool // they have no more than the grant
}

// ServerLimitsOf reads what gpuledgerd has set for a grant; a grant of another mode has none.
func ServerLimitsOf(n *Node, g *grant.Grant) ServerLimits {
	if g == nil || g.Mode != grant.MPS {
		return ServerLimits{}
	}
	daemons := mpsstate.ForGrants(n.Host, n.Policy.RunDir, []grant.Grant{*g})
	if len(daemons) == 0 {
		return ServerLimits{}
	}
	m := daemons[0] // while it is not ready, it says nothing of its limits
	s := ServerLimits{Known: true, Memory: true}
	s.Threads = g.Compute == 0 || m.Threads > 0 && m.Threads <= g.Compute
	for _, share := range g.GPUs {
		limit, set := m.Limits[share.UUID]
		s.Memory = s.Memory && set && limit <= share.Memory
	}
	return s
}

// Replace reports whether a client needs no variable of this name: the directory is at the place
// where clients look without it, and what the servers or the shim limit needs no setting.
func (s ServerLimits) Replace(variable string, shim bool) bool {
	setting, is := strings.CutPrefix(variable, "CUDA_MPS_")
	switch {
	case !is:
		return false
	case setting == "ACTIVE_THREAD_PERCENTAGE":
		return s.Threads
	case setting == "PINNED_DEVICE_MEM_LIMIT":
		return s.Memory || s.Known && shim
	}
	return s.Known && setting == "PIPE_DIRECTORY"
}
