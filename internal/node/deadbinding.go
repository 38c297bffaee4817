package node

import (
	"errors"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// RemoveDeadBinding removes a container's binding if the container has ended, at its delete. It
// waits for the lock no longer than removalWait and never fails: the next reader finds that a
// binding left behind is dead. It returns the bundle of what it removed.
func (n *Node) RemoveDeadBinding(runtimeRoot, container string) (bundle string) {
	bundle, _ = removeDeadBinding(n, runtimeRoot, container, removalWait)
	return bundle
}

// replaceDeadBinding is RemoveDeadBinding before another container of the id starts. What is left
// would count as that container's until it ends, so it waits for longer. That happens only where an
// id is used again and the delete has not removed the binding.
func replaceDeadBinding(n *Node, runtimeRoot, container string) {
	_, _ = removeDeadBinding(n, runtimeRoot, container, replaceWait)
}

func removeDeadBinding(n *Node, runtimeRoot, container string, wait time.Duration) (bundle string,
	err error) {
	if !n.Ledger.Bindings.Has(runtimeRoot, container) {
		return "", nil
	}
	quick, until, driven := *n.Ledger, time.Now().Add(wait), false
	quick.Wait = wait
	err = quick.Update(func(tx *ledger.Tx) error {
		b, err := tx.Bindings.Of(runtimeRoot, container)
		if err != nil || b.Life != grant.Dead {
			return err
		}
		bundle, driven = b.Bundle, b.Driven
		return unbind(n, tx, runtimeRoot, container)
	})
	if driven {
		clearDriverLimit(n, runtimeRoot, container, time.Until(until))
	}
	return bundle, err
}

// removalWait is how long a delete may be held up, replaceWait a create of an id whose last
// container has left a binding.
const (
	removalWait = 100 * time.Millisecond
	replaceWait = 2 * time.Second
)

// RemoveDeadBindings removes the bindings of containers that are gone, and with them the grants
// that these adopted, and tells how many there were. It reads bindings only, and takes the lock
// only for those. While another process has the lock for long, all are left to the next call.
func (n *Node) RemoveDeadBindings() (removed int) {
	for _, b := range n.Ledger.Bindings.Dead() {
		_, err := removeDeadBinding(n, b.RuntimeRoot, b.Container, removalWait)
		var locked *ledger.LockError
		if errors.As(err, &locked) {
			break
		}
		if err == nil {
			removed++
		}
	}
	return removed
}
