package node

import (
	"errors"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
)

// gpushare's pod-level annotations: the allocation whose size stands in the container's
// environment, and the sum that bounds it.
const (
	gpushareSource = "annotation:ALIYUN_COM_GPU_MEM_IDX"
	gpusharePod    = "ALIYUN_COM_GPU_MEM_POD"
	maxPodUnits    = 1 << 30 // keeps sums of GiB within 64 bits
)

// addPodUnits puts the pod's sum beside a size that the environment claims, which an image can set.
func addPodUnits(r *grant.Request, annotations map[string]string) {
	for i := range r.Allocations {
		if a := &r.Allocations[i]; a.Source == gpushareSource {
			a.InEnv = true
			if units, err := strconv.Atoi(annotations[gpusharePod]); err == nil && 0 < units &&
				units <= maxPodUnits {
				a.PodUnits = units
			}
		}
	}
}

// enter makes an adopted grant one of the ledger's, in the critical section that decided on it. It
// counts only with a binding, so a crash between here and the binding leaves nothing that holds a
// GPU.
func enter(n *Node, tx *ledger.Tx, adopted grant.Grant, id grant.ID) (grant.Grant, error) {
	g, _, err := NewGrant(admission.Ask{Owner: adopted.Owner, Label: adopted.Label, Mode: adopted.Mode,
		Compute: adopted.Compute, Source: adopted.Source})
	if err != nil {
		return adopted, err
	}
	if g.ID = id; id == "" {
		return adopted, errors.New("the system gives no random bytes")
	}
	g.Begin(n.Host.Now(), 0)
	g.GPUs = adopted.GPUs
	if err := tx.Put(g); err != nil {
		return adopted, err
	}
	failpoint.Hit("node/adopted")
	return g, nil
}

// unbind forgets a binding, and with it what only its container kept: the grant that it adopted,
// and the limits of one that is over.
func unbind(n *Node, tx *ledger.Tx, runtimeRoot, container string) error {
	b, err := tx.Bindings.Of(runtimeRoot, container)
	if err := tx.Unbind(runtimeRoot, container); err != nil {
		return err
	}
	if err == nil {
		dropOrphan(n, tx, b.Grant)
	}
	return nil
}

// dropOrphan removes an adopted grant without a container. Such a grant does not count, and a later
// sweep would remove it.
func dropOrphan(n *Node, tx *ledger.Tx, id grant.ID) {
	g, err := tx.Get(id)
	if err == nil && g.Orphaned() {
		_ = tx.Delete(id)
	}
	gone := errors.Is(err, ledger.ErrNotFound) && !tx.Bindings.Used(id) // else another container may run
	if gone || err == nil && !g.Live(n.Host.Now()) {
		limitfiles.Remove(n.Policy, id)
	}
}
