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
	return PrepareAll(n, []grant.ID{id})[0]
}

// PrepareAll is Prepare for several grants, with the ledger locked once. It returns an error, or
// nil, for each of them.
func PrepareAll(n *node.Node, ids []grant.ID) []error {
	errs := make([]error, len(ids))
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		inv, problem := n.Inventory()
		for i, id := range ids {
			g, err := get(tx, id)
			if err == nil && problem == nil {
				err = prepare(n, g, inv)
			}
			errs[i] = err
		}
		return nil
	})
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

func prepare(n *node.Node, g grant.Grant, inv grant.Inventory) error {
	if !admission.Offer(g, n.Host.Now(), inv, n.Policy).Limited {
		return nil // its CDI file does not mount them
	}
	if err := limitfiles.Write(n.Policy, g); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}
