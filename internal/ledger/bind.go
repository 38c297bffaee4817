package ledger

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Bind records that a container uses a grant, in place of what was recorded of the container
// before. BootID, PIDNS, TimeNS and Created are filled in where they are zero. The record ends with
// the boot, as the container does. ErrNotFound if there is no such grant.
func (tx *Tx) Bind(b grant.Binding) error {
	if !tx.writes {
		return errReadOnly
	}
	if !filepath.IsAbs(b.RuntimeRoot) || !containers.IsID(b.Container) {
		return fmt.Errorf("cannot bind grant %s: container %q under runtime root %q cannot be followed",
			b.Grant, b.Container, b.RuntimeRoot)
	}
	if tx.found == "" || tx.found != b.Grant {
		if _, err := tx.read(b.Grant); err != nil {
			return err
		}
	}
	if err := complete(&b, tx.ledger); err != nil {
		return err
	}
	if err := tx.files.bindings.store(&b); err != nil {
		return fmt.Errorf("cannot bind grant %s to container %q: %w", b.Grant, b.Container, err)
	}
	return nil
}

// complete fills in what a binding's writer left out: when and where it is written.
func complete(b *grant.Binding, l *Ledger) (err error) {
	here := l.Containers.Here
	if b.Created.IsZero() {
		b.Created = l.Host.Now().UTC()
	}
	if b.BootID == "" {
		b.BootID, err = here.BootID()
	}
	if b.PIDNS == 0 && err == nil {
		b.PIDNS, err = here.PIDNS()
	}
	if b.TimeNS == 0 && err == nil {
		b.TimeNS, err = here.TimeNS()
	}
	return err
}

// Unbind forgets the container's binding, if it has one.
func (tx *Tx) Unbind(runtimeRoot, container string) error {
	if !tx.writes {
		return errReadOnly
	}
	key := bindingKey(runtimeRoot, container)
	b, _ := tx.files.bindings.load(key)
	if err := tx.files.bindings.drop(b.Grant, key); err != nil {
		return fmt.Errorf("cannot unbind container %q: %w", container, err)
	}
	return nil
}

// DropDead forgets a grant's dead bindings. An engine that crashed never deletes its containers;
// what it leaves would be examined at every later create.
func (tx *Tx) DropDead(id grant.ID) {
	if !tx.writes {
		return
	}
	bindings, _ := tx.Bindings.ofGrant(id)
	for _, b := range bindings {
		if b.Life == grant.Dead {
			_ = tx.files.bindings.drop(id, bindingKey(b.RuntimeRoot, b.Container))
		}
	}
}

// DropReserved forgets the reservations for a container, whatever runtime root they name: those of
// one grant, or of all with "". A binding to keep stays, as that of a container that was bound just
// now.
func (tx *Tx) DropReserved(id grant.ID, container string, keep *grant.Binding) (err error) {
	if !tx.writes {
		return errReadOnly
	}
	files, kept := &tx.files.bindings, ""
	if keep != nil {
		kept = bindingKey(keep.RuntimeRoot, keep.Container)
	}
	var keys []string
	if id == "" {
		keys, err = files.keys()
	} else {
		keys, err = files.keysOf(id)
	}
	for _, key := range keys {
		b, e := files.load(key)
		if e == nil && key != kept && b.Reserved && b.Container == container {
			err = errors.Join(err, files.drop(b.Grant, key))
		}
	}
	return err
}
