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

// How long to wait for gpuledgerd while the ledger is locked, for the change and for its reversal.
// Together they are far less than other processes wait for the lock (ledger.DefaultWait), so that
// no create is refused because the driver hangs.
const (
	applyTime = 4 * time.Second
	againTime = time.Second
)

const _ = uint64(ledger.DefaultWait/2 - applyTime - againTime) // compiles where that is so

// reapply has gpuledgerd give the containers of a grant what the ledger says now.
func reapply(n *node.Node, id grant.ID, within time.Duration) error {
	return askDaemon(n, cgmem.Call{Op: cgmem.Apply, Grant: id}, within)
}

// askDaemon asks gpuledgerd for something about a grant.
func askDaemon(n *node.Node, r cgmem.Call, within time.Duration) error {
	err := cgmem.Ask(n.Policy.LimitSocket(), r, within)
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot change the driver's limits of grant %s, which stays as it was: %w; "+
		"see that gpuledgerd runs and what it logs (journalctl -u gpuledgerd)", r.Grant, err)
}

// rehearse has gpuledgerd set once more what the ledger says already, with nothing locked. If
// gpuledgerd or the driver hangs, this finds out while no other process waits. A driver's library
// that is not loaded yet is loaded now, which takes time.
func rehearse(n *node.Node, id grant.ID) error {
	var g grant.Grant
	err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(id)
		return err
	})
	if err != nil || !driven(g) {
		return nil // the change itself finds what is wrong
	}
	return reapply(n, id, node.LimitTime)
}

func driven(g grant.Grant) bool {
	return slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return b.Driven })
}

// putDriven replaces a grant whose containers the driver limits. The driver holds them to a smaller
// size before the ledger says that memory is free, and gives them a larger one after. A crash in
// between leaves a limit that is too small; gpuledgerd's next pass corrects it, and what a driver
// does late.
func putDriven(n *node.Node, tx *ledger.Tx, before, after grant.Grant) error {
	least := limitfiles.Smaller(before.GPUs, after.GPUs)
	if !slices.Equal(least, before.GPUs) {
		if err := askDaemon(n, cgmem.Call{Op: cgmem.Lower, Grant: before.ID, To: least},
			applyTime); err != nil {
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

// putBack restores a grant, and asks gpuledgerd once to do the same; else its next pass does.
func putBack(n *node.Node, tx *ledger.Tx, before grant.Grant) error {
	if err := tx.Put(before); err != nil {
		return err
	}
	_ = reapply(n, before.ID, againTime)
	return nil
}
