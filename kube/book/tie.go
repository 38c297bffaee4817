package book

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Ties reports whether grants can be tied to pods here: containers have to be who somebody vouches that they are.
func (p Page) Ties() bool { return p.Node.Policy.Engine.Vouches() }

// Tie sets who may use a grant, of those who have its reference. A container of anybody else that uses it already goes on, and is told to the
// log: it got the grant before this was known. One that is gone is no error.
func (b Book) Tie(g grant.Grant, to []grant.Tie, log *slog.Logger) error {
	if slices.Equal(g.For, to) {
		return nil
	}
	tied, err := b.Open().Tie(g.ID, to)
	var gone *grant.NotFoundError
	if errors.As(err, &gone) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, b := range tied.Strangers() {
		log.Warn("a container that is none of its pods' uses a grant", "grant", g.ID, "container", b.Container, "namespace", b.Pod.Namespace, "pod", b.Pod.Pod, "uid", b.Pod.UID)
	}
	return nil
}
