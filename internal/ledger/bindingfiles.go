package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// bindingRecord is a binding as its file holds it.
type bindingRecord struct {
	Version int `json:"version"`
	grant.Binding
}

// bindingFiles are the records of bindings, and the links that lead to them: from a directory of
// each grant, and from the cgroups that a container may get.
type bindingFiles struct {
	records string // directory
	byGrant string // directory of the grants' directories
	cgroups cgroupLinks
}

func (f *bindingFiles) path(key string) string { return f.records + "/" + key + ".json" }

// linksOf is the directory of the links to a grant's bindings.
func (f *bindingFiles) linksOf(id grant.ID) string { return f.byGrant + "/" + string(id) }

// keys lists the records, readable or not.
func (f *bindingFiles) keys() ([]string, error) {
	names, err := namesIn(f.records)
	var keys []string
	for _, name := range names {
		if key, isRecord := strings.CutSuffix(name, ".json"); isRecord && isKey(key) {
			keys = append(keys, key)
		}
	}
	return keys, err
}

// keysOf lists a grant's links.
func (f *bindingFiles) keysOf(id grant.ID) ([]string, error) {
	names, err := namesIn(f.linksOf(id))
	return slices.DeleteFunc(names, func(name string) bool { return !isKey(name) }), err
}

// load reads a record, without finding out whether its container runs.
func (f *bindingFiles) load(key string) (grant.Binding, error) {
	path := f.path(key)
	data, err := host.ReadRegular(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return grant.Binding{}, err
	}
	var rec bindingRecord
	if err == nil {
		err = runFormat.unmarshal(data, rec.read, func() int { return rec.Version })
	}
	if err == nil && bindingKey(rec.RuntimeRoot, rec.Container) != key {
		err = errors.New("it is about another container than its name says")
	}
	if err != nil {
		return grant.Binding{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return rec.Binding, nil
}

// store writes a record, in place of what was recorded of the container before.
func (f *bindingFiles) store(b *grant.Binding) error {
	key := bindingKey(b.RuntimeRoot, b.Container)
	before, unknown := f.load(key)
	data, err := bindingRecord{runFormat.version, *b}.encode()
	if err == nil {
		err = f.link(b.Grant, key)
	}
	if err == nil {
		err = f.cgroups.add(key, b.Occupies)
	}
	if err == nil {
		failpoint.Hit("ledger/bind-linked")
		err = host.ReplaceFile(f.path(key), withSum(append(data, '\n')), 0o600, host.Volatile)
	}
	if err != nil {
		if isNew := errors.Is(unknown, fs.ErrNotExist); isNew || unknown == nil && before.Grant != b.Grant {
			f.unlink(b.Grant, key)
		}
		return err
	}
	f.cgroups.remove(key, slices.DeleteFunc(before.Occupies, func(path string) bool {
		return slices.Contains(b.Occupies, path)
	}))
	failpoint.Hit("ledger/bind-written")
	if before.Grant != "" && before.Grant != b.Grant {
		f.unlink(before.Grant, key)
	}
	failpoint.Hit("ledger/bind-unlinked")
	return nil
}

// drop removes a record, then its links. In the other order, a crash would leave a binding that its
// grant does not know of. If the record cannot be read, only the link of the grant id goes with it,
// and Sweep removes the others; "" is no grant.
func (f *bindingFiles) drop(id grant.ID, key string) error {
	b, _ := f.load(key)
	if err := host.Remove(f.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.cgroups.remove(key, b.Occupies)
	failpoint.Hit("ledger/unbind-removed")
	if id != "" {
		f.unlink(id, key)
	}
	failpoint.Hit("ledger/unbind-unlinked")
	return nil
}

// dropAll removes all bindings of a grant that is deleted, readable or not, and the trace of its
// use.
func (f *bindingFiles) dropAll(id grant.ID) error {
	keys, err := f.keysOf(id)
	for _, key := range keys {
		if b, e := f.load(key); e == nil && b.Grant != id {
			f.unlink(id, key)
			continue
		}
		err = errors.Join(err, f.drop(id, key))
	}
	_ = host.Rmdir(f.linksOf(id))
	return err
}

// link links a record from its grant's directory. The directory stays when the binding goes: it is
// the trace that a container may know the grant's reference, and it is made before a container can
// know it.
func (f *bindingFiles) link(id grant.ID, key string) error {
	dir := f.linksOf(id)
	if err := host.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := host.Symlink("../"+bindingTarget(key), dir+"/"+key)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (f *bindingFiles) unlink(id grant.ID, key string) {
	_ = host.Remove(f.linksOf(id) + "/" + key)
}

// bindingTarget is where a link in a directory of the run directory leads to.
func bindingTarget(key string) string { return "../bindings/" + key + ".json" }

const keyDigits = 32

// bindingKey names a container on this node. Two engines may give the same id.
func bindingKey(runtimeRoot, container string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(runtimeRoot) + "\x00" + container))
	return hex.EncodeToString(sum[:])[:keyDigits]
}

func isKey(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == keyDigits
}
