package nodeledger

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// tooOld is the age from which a report of the node's watch says nothing about the present.
const tooOld = time.Minute

// Used returns how much memory of each GPU processes use, by the GPU's UUID, as the node's daemon
// has reported. nil: there is no daemon, or its report is old.
func (c Content) Used() map[string]grant.Bytes {
	if c.Node == nil || c.Node.Broken != nil {
		return nil
	}
	boot, err := c.Node.Host.BootID()
	if err != nil {
		return nil
	}
	r, err := watch.Load(c.Node.Policy.RunDir, boot)
	// from the future: the clock was set back since
	if err != nil || c.Node.Host.Now().Sub(r.Taken).Abs() > tooOld {
		return nil
	}
	used := map[string]grant.Bytes{}
	for _, g := range r.GPUs {
		used[g.UUID] = g.Used
	}
	return used
}
