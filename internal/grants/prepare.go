package grants

import (
	"errors"
	"io/fs"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Prepare makes the files of limits for a grant whose containers an engine starts by a CDI file,
// without asking gpuledger before. A caller that may neither mount nor write there, as an agent in
// a pod, leaves that to the create: the wrapper and gpuledgerd make the files, too, and no runtime
// can mount files that are not there.
func Prepare(n *node.Node, id grant.ID) error {
	return n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := get(tx, id)
		if err != nil {
			return err
		}
		inv, problem := n.Inventory()
		if problem != nil || !admission.Offer(g, n.Host.Now(), inv, n.Policy).Limited {
			return nil // its CDI file does not mount them
		}
		if err := limitfiles.Write(n.Policy, g); !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	})
}
