package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// bindingRecord is a binding as its file holds it.
type bindingRecord struct {
	Version int `json:"version"`
	grant.Binding
}

// Bind records that a container uses a grant, in place of what was recorded of the container
// before. BootID, PIDNS, TimeNS and Created are filled in where they are zero. The record is
// volatile, as what it is about. ErrNotFound if there is no such grant.
func (tx *Tx) Bind(b grant.Binding) error {
	if !tx.writes {
		return errReadOnly
	}
	if err := tx.complete(&b); err != nil {
		return err
	}
	key := bindingKey(b.RuntimeRoot, b.Container)
	before, _ := tx.load(key)
	data, err := bindingRecord{runFormat.version, b}.encode()
	if err == nil {
		err = tx.linkBinding(b.Grant, key)
	}
	if err == nil {
		err = tx.occupy(key, b.Occupies)
	}
	if err == nil {
		failpoint.Hit("ledger/bind-linked")
		err = host.ReplaceFile(tx.l.bindingPath(key), append(data, '\n'), 0o600, host.Volatile)
	}
	if err != nil {
		if before.Grant != b.Grant {
			tx.unlinkBinding(b.Grant, key)
		}
		return fmt.Errorf("cannot bind grant %s to container %q: %w", b.Grant, b.Container, err)
	}
	tx.unoccupy(key, slices.DeleteFunc(before.Occupies, func(path string) bool {
		return slices.Contains(b.Occupies, path)
	}))
	failpoint.Hit("ledger/bind-written")
	if before.Grant != "" && before.Grant != b.Grant {
		tx.unlinkBinding(before.Grant, key)
	}
	failpoint.Hit("ledger/bind-unlinked")
	return nil
}

// DropDead forgets a grant's dead bindings. An engine that crashed never deletes its containers;
// what it leaves would be examined at every later create.
func (tx *Tx) DropDead(id grant.ID) {
	if !tx.writes {
		return
	}
	bindings, _ := tx.allOf(id)
	for _, b := range bindings {
		if b.Life == grant.Dead {
			_ = tx.dropBinding(id, bindingKey(b.RuntimeRoot, b.Container))
		}
	}
}

// DeadBindings lists the bindings whose container is gone. It reads no grant and takes no lock: who
// removes one looks again under it.
func (tx *Tx) DeadBindings() []grant.Binding {
	var all []grant.Binding
	for _, key := range tx.keys("") {
		// else it is being made, just gone, or damaged, which Check tells
		if b, err := tx.load(key); err == nil {
			all = append(all, b)
		}
	}
	tx.l.Containers.Examine(pointers(all)...)
	return slices.DeleteFunc(all, func(b grant.Binding) bool { return b.Life != grant.Dead })
}

func pointers(bindings []grant.Binding) []*grant.Binding {
	var to []*grant.Binding
	for i := range bindings {
		to = append(to, &bindings[i])
	}
	return to
}

// BindingsIn lists the runtime roots under which a container of this id and bundle has a binding,
// dead or alive, for a caller that knows no root.
func (tx *Tx) BindingsIn(container, bundle string) []string {
	names, _ := namesIn(tx.l.bindingsDir())
	var roots []string
	for _, name := range names {
		if key, isRecord := strings.CutSuffix(name, ".json"); isRecord && isKey(key) {
			if b, err := tx.load(key); err == nil && b.Container == container && b.Bundle == bundle {
				roots = append(roots, b.RuntimeRoot)
			}
		}
	}
	return roots
}

// DropReserved forgets what was reserved for a container that is being created now or never will
// be, whatever runtime root its reserver took it to have: of one grant, or of all with "".
func (tx *Tx) DropReserved(id grant.ID, container string) {
	for _, key := range tx.keys(id) {
		b, err := tx.load(key)
		if tx.writes && err == nil && b.Reserved && b.Container == container {
			_ = tx.dropBinding(b.Grant, key)
		}
	}
}

// keys are the bindings of one grant, or with "" all.
func (tx *Tx) keys(id grant.ID) []string {
	dir := tx.l.bindingsDir()
	if id != "" {
		dir = tx.l.boundPath(id)
	}
	names, _ := namesIn(dir)
	var keys []string
	for _, name := range names {
		if key := strings.TrimSuffix(name, ".json"); isKey(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// complete checks a binding and fills in what the ledger knows itself.
func (tx *Tx) complete(b *grant.Binding) (err error) {
	if !filepath.IsAbs(b.RuntimeRoot) || !containers.IsID(b.Container) {
		return fmt.Errorf("cannot bind grant %s: container %q under runtime root %q can't be followed",
			b.Grant, b.Container, b.RuntimeRoot)
	}
	if tx.found == "" || tx.found != b.Grant {
		if _, err := tx.read(b.Grant); err != nil {
			return err
		}
	}
	if b.Created.IsZero() {
		b.Created = tx.l.Host.Now().UTC()
	}
	if b.BootID == "" {
		b.BootID, err = tx.l.Containers.Here.BootID()
	}
	if b.PIDNS == 0 && err == nil {
		b.PIDNS, err = tx.l.Containers.Here.PIDNS()
	}
	if b.TimeNS == 0 && err == nil {
		b.TimeNS, err = tx.l.Containers.Here.TimeNS()
	}
	return err
}

// Unbind forgets the container's binding, if it has one.
func (tx *Tx) Unbind(runtimeRoot, container string) error {
	if !tx.writes {
		return errReadOnly
	}
	key := bindingKey(runtimeRoot, container)
	b, _ := tx.load(key) // of one that can't be read the link stays behind, for Sweep
	if err := tx.dropBinding(b.Grant, key); err != nil {
		return fmt.Errorf("cannot unbind container %q: %w", container, err)
	}
	return nil
}

// Binding reads the container's binding and finds out whether it is alive. ErrNotFound if it has
// none.
func (tx *Tx) Binding(runtimeRoot, container string) (grant.Binding, error) {
	b, err := tx.load(bindingKey(runtimeRoot, container))
	if errors.Is(err, fs.ErrNotExist) {
		return grant.Binding{}, notFoundError{"a binding of container %q", container}
	}
	if err != nil {
		return grant.Binding{}, fmt.Errorf("cannot find a binding of container %q: %w", container, err)
	}
	tx.l.Containers.Examine(&b)
	return b, nil
}

// bindingsOf lists a grant's bindings that are not dead. One whose record can't be read may be
// alive: it is unknown.
func (tx *Tx) bindingsOf(id grant.ID) ([]grant.Binding, error) {
	bindings, err := tx.allOf(id)
	return slices.DeleteFunc(bindings, func(b grant.Binding) bool { return b.Life == grant.Dead }), err
}

// allOf lists a grant's bindings, dead ones as well.
func (tx *Tx) allOf(id grant.ID) (bindings []grant.Binding, err error) {
	names, err := namesIn(tx.l.boundPath(id))
	if err != nil {
		return nil, fmt.Errorf("cannot list the bindings of grant %s: %w", id, err)
	}
	var unreadable []grant.Binding
	for _, key := range names {
		if !isKey(key) {
			continue
		}
		b, err := tx.load(key)
		switch {
		case errors.Is(err, fs.ErrNotExist): // being made, or just gone
		case err != nil:
			unreadable = append(unreadable, grant.Binding{Grant: id, Life: grant.LifeUnknown})
		case b.Grant == id:
			bindings = append(bindings, b)
		}
	}
	tx.l.Containers.Examine(pointers(bindings)...)
	return append(bindings, unreadable...), nil
}

// load reads a binding's file, without finding out whether it is alive.
func (tx *Tx) load(key string) (grant.Binding, error) {
	path := tx.l.bindingPath(key)
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

// dropBinding removes a binding's file, then its link. The other way round a crash would leave a
// binding that its grant does not know of.
func (tx *Tx) dropBinding(id grant.ID, key string) error {
	b, _ := tx.load(key) // of one that can't be read the links stay behind, for Sweep
	if err := os.Remove(tx.l.bindingPath(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tx.unoccupy(key, b.Occupies)
	failpoint.Hit("ledger/unbind-removed")
	if id != "" {
		tx.unlinkBinding(id, key)
	}
	failpoint.Hit("ledger/unbind-unlinked")
	return nil
}

// dropBindings removes all bindings of a grant that is deleted, readable or not.
func (tx *Tx) dropBindings(id grant.ID) error {
	names, err := namesIn(tx.l.boundPath(id))
	for _, key := range names {
		if !isKey(key) {
			continue
		}
		if b, e := tx.load(key); e == nil && b.Grant != id {
			tx.unlinkBinding(id, key)
			continue
		}
		err = errors.Join(err, tx.dropBinding(id, key))
	}
	_ = unix.Rmdir(tx.l.boundPath(id)) // the trace of its use goes with the grant
	return err
}

// linkBinding links a binding from its grant's directory. The directory stays when the binding
// goes: it is the trace that a container may know the grant's reference, and it is made before
// there is anything to know it by.
func (tx *Tx) linkBinding(id grant.ID, key string) error {
	dir := tx.l.boundPath(id)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := os.Symlink("../../bindings/"+key+".json", filepath.Join(dir, key))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (tx *Tx) unlinkBinding(id grant.ID, key string) {
	_ = os.Remove(filepath.Join(tx.l.boundPath(id), key))
}

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
