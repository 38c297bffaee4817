package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/order"
)

// foundRecord is what the watch found, as its file holds it.
type foundRecord struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	// only for people: what was found counts until it is set again
	Taken time.Time              `json:"taken,omitzero"`
	GPUs  map[string]grant.Bytes `json:"gpus"`
	// Excess is what of it is beyond a grant, by GRANT/GPU.
	Excess map[string]grant.Bytes `json:"excess,omitzero"`
	// Held are processes of containers that have a GPU without a grant of it, by GPU: PID/START,
	// with spaces between them.
	Held map[string]string `json:"held,omitzero"`
}

// Found is what the watch found in use that the ledger did not grant.
type Found struct {
	// memory, by UUID of a GPU or MIG device; nil if no program has looked in this boot
	Outside map[string]grant.Bytes
	Excess  []grant.Excess // what of it is beyond grants
	// processes of containers that have a GPU or MIG device without a grant of it, by UUID
	Held map[string][]grant.Process
}

// HeldGPUs are the GPUs and MIG devices that containers without a grant of them have. One is no
// longer held when all of the container's processes have ended.
func (f Found) HeldGPUs(h host.Host) map[string]bool {
	held := map[string]bool{}
	for uuid, processes := range f.Held {
		for _, p := range processes {
			if runs, unknown := h.Runs(p); runs || unknown != nil {
				held[uuid] = true
			}
		}
	}
	return held
}

// FoundError says that what the watch found cannot be read. Nothing is granted until it is set
// again: a GPU may be in use.
type FoundError struct {
	Path string
	Err  error
}

func (e *FoundError) Error() string { return fmt.Sprintf("cannot read %s: %v", e.Path, e.Err) }
func (e *FoundError) Unwrap() error { return e.Err }

// Found reads what the watch found in this boot. It may return a *FoundError.
func (tx *Tx) Found() (Found, error) {
	path := tx.files.found
	data, err := host.ReadRegular(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return Found{}, nil
	}
	var rec foundRecord
	if err == nil {
		err = runFormat.unmarshal(data, rec.read, func() int { return rec.Version })
	}
	if err != nil {
		return Found{}, &FoundError{Path: path, Err: err}
	}
	boot, err := tx.Bindings.containers.Here.BootID()
	if err != nil || rec.BootID != boot {
		return Found{}, err
	}
	return rec.found(), nil
}

func (r foundRecord) found() Found {
	f := Found{Outside: r.GPUs, Held: make(map[string][]grant.Process, len(r.Held))}
	for key, bytes := range r.Excess {
		name, gpu, _ := strings.Cut(key, "/")
		if id, err := grant.ParseID(name); err == nil {
			f.Excess = append(f.Excess, grant.Excess{Grant: id, GPU: gpu, Bytes: bytes})
		}
	}
	order.Stable(f.Excess, func(a, b grant.Excess) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Grant, b.Grant))
	})
	for uuid, processes := range r.Held {
		for text := range strings.FieldsSeq(processes) {
			pid, start, _ := strings.Cut(text, "/")
			var p grant.Process
			p.PID, _ = strconv.Atoi(pid)
			p.Start, _ = strconv.ParseUint(start, 10, 64)
			f.Held[uuid] = append(f.Held[uuid], p)
		}
	}
	return f
}

// FoundStamp changes when what the watch found is set again, and when another program changes the
// record.
func (l *Ledger) FoundStamp() host.Stamp { return host.StampOf(l.files.found) }

// SetFound records what is in use outside the ledger. It holds until it is set again or the node
// boots, however old it is: memory that may still be in use is not granted while no program looks.
func (l *Ledger) SetFound(f Found) error {
	boot, err := l.Containers.Here.BootID()
	if err != nil {
		return err
	}
	rec := foundRecord{Version: runFormat.version, BootID: boot, Taken: l.Host.Now().UTC(), GPUs: f.Outside}
	for _, e := range f.Excess {
		if rec.Excess == nil {
			rec.Excess = map[string]grant.Bytes{}
		}
		rec.Excess[string(e.Grant)+"/"+e.GPU] += e.Bytes
	}
	for uuid, processes := range f.Held {
		if rec.Held == nil {
			rec.Held = map[string]string{}
		}
		for _, p := range processes {
			rec.Held[uuid] = strings.TrimSpace(rec.Held[uuid] + " " + p.String())
		}
	}
	data, err := rec.encode()
	if err != nil {
		return fmt.Errorf("internal error: cannot encode what was found outside the ledger: %w", err)
	}
	return l.Update(func(*Tx) error {
		return host.ReplaceFile(l.files.found, withSum(append(data, '\n')), 0o600, host.Volatile)
	})
}
