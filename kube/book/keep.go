package book

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// References are kept because the kubelet keeps them: after a boot it asks for a claim anew, and (before Kubernetes 1.37) adds the
// answer to the CDI names that it has in its checkpoint (kubernetes/kubernetes#140471). A container for which one of the names
// is not there any more never starts, so a claim has to get the name that it had.

// keep notes the reference of a grant, for root alone, as the kubelet's checkpoint does.
func (b Book) keep(r grant.Reference) error {
	if b.References == "" {
		return nil
	}
	err := os.MkdirAll(b.References, 0o700)
	if err == nil {
		err = host.ReplaceFile(b.kept(r.ID), []byte(r.String()+"\n"), 0o600, host.Durable)
	}
	if err != nil {
		return fmt.Errorf("cannot keep the reference of grant %s: %w", r.ID, err)
	}
	return nil
}

func (b Book) kept(id grant.ID) string { return filepath.Join(b.References, string(id)) }

// keptFor is the reference that was kept for a grant, where it still opens it.
func (b Book) keptFor(g grant.Grant) (grant.Reference, bool) {
	if b.References == "" {
		return grant.Reference{}, false
	}
	text, err := host.ReadFile(b.kept(g.ID), 256)
	if err != nil {
		return grant.Reference{}, false
	}
	r, err := grant.ParseReference(strings.TrimSpace(string(text)))
	return r, err == nil && r.ID == g.ID && r.Opens(g.Secret)
}

func (b Book) dropKept(id grant.ID) error {
	if b.References == "" {
		return nil
	}
	if err := os.Remove(b.kept(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot drop the reference of grant %s: %w", id, err)
	}
	return nil
}

// abandoned is how old a draft of a file is when its writer was killed: a living one takes no second.
const abandoned = time.Minute

// Tidy drops the files of grants that were exposed and that the ledger has no entry of any more: somebody else has released them. A
// damaged entry is one: repaired, it needs the name that it had. So go the drafts that a killed agent has left.
func (b Book) Tidy(v grant.View) error {
	if b.References == "" {
		return nil
	}
	since := time.Now().Add(-abandoned)
	swept := errors.Join(b.Files().Sweep(since), host.RemoveDrafts(b.References, "g-", since))
	entries, err := os.ReadDir(b.References)
	if errors.Is(err, fs.ErrNotExist) {
		return swept
	}
	err = errors.Join(err, swept)
	for _, e := range entries {
		id, bad := grant.ParseID(e.Name())
		if bad == nil && !entered(v, id) {
			err = errors.Join(err, b.Files().Forget(id), b.dropKept(id))
		}
	}
	return err
}

func entered(v grant.View, id grant.ID) bool {
	return slices.ContainsFunc(v.Grants, func(g grant.Grant) bool { return g.ID == id }) ||
		slices.ContainsFunc(v.Damaged, func(d grant.Damage) bool { return d.ID == id })
}
