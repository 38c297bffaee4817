package nodeledger

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
)

// CanTie reports whether grants can be tied to pods here. That needs an engine whose annotations
// about pods are trusted.
func (c Content) CanTie() bool { return c.Node.Policy.Engine.ProvesPods() }

// Tie sets the pods and namespaces whose containers may use a grant with its reference. A container
// of another pod that already uses the grant continues, and a warning is logged. It got the grant
// before its ties were known. A missing grant is no error.
func (l Ledger) Tie(g grant.Grant, to []grant.Tie, log *slog.Logger) error {
	if slices.Equal(g.For, to) {
		return nil
	}
	l, err := l.opened()
	if err != nil {
		return err
	}
	tied, err := grants.Tie(l.Open(), g.ID, to)
	var gone *grant.NotFoundError
	if errors.As(err, &gone) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, b := range tied.BindingsOutsideTies() {
		log.Warn("a container that is none of its pods' uses a grant", "grant", g.ID,
			"container", b.Container,
			"namespace", b.Pod.Namespace, "pod", b.Pod.Pod, "uid", b.Pod.UID)
	}
	return nil
}
