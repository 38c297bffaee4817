package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// foundRecord is what the watch found, as its file holds it.
type foundRecord struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	// only for people: what was found counts until it is set again
	Taken time.Time              `json:"taken,omitzero"`
	GPUs  map[string]grant.Bytes `json:"gpus"`
	// Held are processes of containers that have a GPU without a grant of it, by GPU: PID/START,
	// with spaces between them.
	Held map[string]string `json:"held,omitzero"`
}

// Found is what the watch found in use that the ledger did not grant.
type Found struct {
	Outside map[string]grant.Bytes // memory, by GPU; nil if no program has looked in this boot
	held    map[string]string      // processes, as in the file
}

// Held are the GPUs that containers without a grant of them have. A GPU is no longer held when all
// of the container's processes have ended.
func (f Found) Held(h host.Host) map[string]bool {
	held := map[string]bool{}
	for uuid, processes := range f.held {
		for text := range strings.FieldsSeq(processes) {
			pid, start, _ := strings.Cut(text, "/")
			var p grant.Process
			p.PID, _ = strconv.Atoi(pid)
			p.Start, _ = strconv.ParseUint(start, 10, 64)
			if runs, unknown := h.Runs(p); runs || unknown != nil {
				held[uuid] = true
			}
		}
	}
	return held
}

// Found reads what the watch found in this boot.
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
		return Found{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	boot, err := tx.Bindings.containers.Here.BootID()
	if err != nil || rec.BootID != boot {
		return Found{}, err
	}
	return Found{rec.GPUs, rec.Held}, nil
}

// SetFound records the memory, by GPU, that is in use outside the ledger, and which processes have
// a GPU that they were not granted. It holds until it is set again or the node boots, however old
// it is: memory that may still be in use is not granted while no program looks.
func (l *Ledger) SetFound(gpus map[string]grant.Bytes, held map[string][]grant.Process) error {
	boot, err := l.Containers.Here.BootID()
	if err != nil {
		return err
	}
	var texts map[string]string
	for uuid, processes := range held {
		if texts == nil {
			texts = map[string]string{}
		}
		for _, p := range processes {
			texts[uuid] = strings.TrimSpace(texts[uuid] + " " + p.String())
		}
	}
	data, err := foundRecord{runFormat.version, boot, l.Host.Now().UTC(), gpus, texts}.encode()
	if err != nil {
		return fmt.Errorf("internal error: cannot encode what was found outside the ledger: %w", err)
	}
	return l.Update(func(*Tx) error {
		return host.ReplaceFile(l.files.found, withSum(append(data, '\n')), 0o600, host.Volatile)
	})
}
