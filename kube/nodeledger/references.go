package nodeledger

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

// References are kept because the kubelet keeps the CDI names of prepared claims in its checkpoint.
// After a boot it prepares a claim again. Before Kubernetes 1.37 it adds the answer to the names in
// the checkpoint (kubernetes/kubernetes#140471). A container with a name that no longer exists
// never starts, so the claim must get its old name again.

// keep writes the reference of a grant to a file that only root can read. The kubelet's checkpoint
// is as private.
func (l Ledger) keep(r grant.Reference) error {
	if err := l.keepAll([]grant.Reference{r}); err != nil {
		return fmt.Errorf("cannot keep the reference of grant %s: %w", r.ID, err)
	}
	return nil
}

// keepAll is keep for several references, which takes hardly longer than for one. On an error some
// of them may be kept.
func (l Ledger) keepAll(references []grant.Reference) error {
	if l.References == "" || len(references) == 0 {
		return nil
	}
	if err := os.MkdirAll(l.References, 0o700); err != nil {
		return err
	}
	content := map[string][]byte{}
	for _, r := range references {
		content[string(r.ID)] = []byte(r.String() + "\n")
	}
	return host.ReplaceFiles(l.References, content, 0o600)
}

func (l Ledger) kept(id grant.ID) string { return filepath.Join(l.References, string(id)) }

// keptFor returns the kept reference of a grant if it still opens the grant.
func (l Ledger) keptFor(g grant.Grant) (grant.Reference, bool) {
	if l.References == "" {
		return grant.Reference{}, false
	}
	text, err := host.ReadFile(l.kept(g.ID), 256)
	if err != nil {
		return grant.Reference{}, false
	}
	r, err := grant.ParseReference(strings.TrimSpace(string(text)))
	return r, err == nil && r.ID == g.ID && r.Opens(g.Secret)
}

func (l Ledger) dropKept(id grant.ID) error {
	if l.References == "" {
		return nil
	}
	if err := os.Remove(l.kept(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot drop the reference of grant %s: %w", id, err)
	}
	return nil
}

// abandoned is the age from which a draft of a file counts as left by a killed process. A running
// process writes a draft in less than a second.
const abandoned = time.Minute

// RemoveOrphans removes the CDI files and references of grants that are no longer in the ledger,
// such as those released by hand. A damaged entry counts as in the ledger, because it needs its old
// name after a repair. RemoveOrphans also removes the drafts that a killed agent has left.
func (l Ledger) RemoveOrphans(v grant.View) error {
	if l.References == "" {
		return nil
	}
	l, err := l.opened()
	if err != nil {
		return err
	}
	since := time.Now().Add(-abandoned)
	swept := errors.Join(l.Files().Sweep(since), host.RemoveDrafts(l.References, "g-", since))
	entries, err := os.ReadDir(l.References)
	if errors.Is(err, fs.ErrNotExist) {
		return swept
	}
	err = errors.Join(err, swept)
	for _, e := range entries {
		id, bad := grant.ParseID(e.Name())
		if bad == nil && !hasEntry(v, id) {
			err = errors.Join(err, l.Files().Forget(id), l.dropKept(id))
		}
	}
	return err
}

func hasEntry(v grant.View, id grant.ID) bool {
	return slices.ContainsFunc(v.Grants, func(g grant.Grant) bool { return g.ID == id }) ||
		slices.ContainsFunc(v.Damaged, func(d grant.Damage) bool { return d.ID == id })
}
