package grants

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// How long gpuledgerd is waited for with the ledger locked, for the change and for taking it back: together far less than others
// wait for the lock (ledger.DefaultWait), so that no create is refused because the driver hangs.
const (
	applyTime = 4 * time.Second
	againTime = time.Second
)

const _ = uint64(ledger.DefaultWait/2 - applyTime - againTime) // compiles where that is so

// reapply has gpuledgerd give the containers of a grant what the ledger says now.
func reapply(n *node.Node, id grant.ID, within time.Duration) error {
	return redrive(n, cgmem.Request{Op: cgmem.Apply, Grant: id}, within)
}

// redrive asks gpuledgerd for something about a grant.
func redrive(n *node.Node, r cgmem.Request, within time.Duration) error {
	err := cgmem.Ask(n.Policy.LimitSocket(), r, within)
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot change the driver's limits of grant %s, which stays as it was: %w; see that gpuledgerd runs and what it logs (journalctl -u gpuledgerd)", r.Grant, err)
}

// rehearse has gpuledgerd set once more what the ledger says already, with nothing locked. If it hangs or the driver does, that is
// found out while nobody else waits; and a driver's library that is not loaded yet, which takes its time, is loaded.
func rehearse(n *node.Node, id grant.ID) error {
	var g grant.Grant
	err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(id)
		return err
	})
	if err != nil || !driven(g) {
		return nil // what is wrong with it is told by who changes it
	}
	return reapply(n, id, node.LimitTime)
}

func driven(g grant.Grant) bool {
	return slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return b.Driven })
}

// putDriven replaces a grant whose containers the driver limits. What is given up the driver holds them to before the ledger says that it
// is free, and what is gained they have after. A crash in between leaves a limit that is too small; gpuledgerd's next pass puts it right,
// and what a driver does late.
func putDriven(n *node.Node, tx *ledger.Tx, before, after grant.Grant) error {
	least := limitfiles.Smaller(before.GPUs, after.GPUs)
	if !slices.Equal(least, before.GPUs) {
		if err := redrive(n, cgmem.Request{Op: cgmem.Lower, Grant: before.ID, To: least}, applyTime); err != nil {
			_ = reapply(n, before.ID, againTime) // else the next pass
			return err
		}
		failpoint.Hit("node/driven-lowered")
	}
	if err := tx.Put(after); err != nil {
		return errors.Join(err, putBack(n, tx, before))
	}
	failpoint.Hit("node/driven-put")
	if slices.Equal(least, after.GPUs) {
		return nil
	}
	err := reapply(n, after.ID, applyTime)
	if err == nil {
		return nil
	}
	return errors.Join(err, putBack(n, tx, before))
}

// putBack makes a grant what it was, and asks gpuledgerd once to do the same; else the next pass does.
func putBack(n *node.Node, tx *ledger.Tx, before grant.Grant) error {
	if err := tx.Put(before); err != nil {
		return err
	}
	_ = reapply(n, before.ID, againTime)
	return nil
}
