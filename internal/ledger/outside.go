package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

type outsideRecord struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	// only for people: what was found counts until the next look
	Taken time.Time              `json:"taken,omitzero"`
	GPUs  map[string]grant.Bytes `json:"gpus"`
	// Held are processes of containers that have a GPU without a grant of it, by GPU: PID/START,
	// with spaces between them.
	Held map[string]string `json:"held,omitzero"`
}

// Outside is the memory, by GPU, that was found in use outside the ledger; nil if no program
// has looked in this boot.
func (tx *Tx) Outside() (map[string]grant.Bytes, error) {
	rec, err := tx.outside()
	return rec.GPUs, err
}

// Held are the GPUs that a container has which has no grant of them, as far as its processes still
// run.
func (tx *Tx) Held() (map[string]bool, error) {
	rec, err := tx.outside()
	held := map[string]bool{}
	for uuid, processes := range rec.Held {
		for text := range strings.FieldsSeq(processes) {
			pid, start, _ := strings.Cut(text, "/")
			var p grant.Process
			p.PID, _ = strconv.Atoi(pid)
			p.Start, _ = strconv.ParseUint(start, 10, 64)
			if runs, unknown := tx.l.Host.Runs(p); runs || unknown != nil {
				held[uuid] = true
			}
		}
	}
	return held, err
}

func (tx *Tx) outside() (rec outsideRecord, err error) {
	data, err := host.ReadRegular(tx.l.outsidePath(), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return outsideRecord{}, nil
	}
	if err == nil {
		err = runFormat.unmarshal(data, rec.read, func() int { return rec.Version })
	}
	if err != nil {
		return outsideRecord{}, fmt.Errorf("cannot read %s: %w", tx.l.outsidePath(), err)
	}
	boot, err := tx.l.Containers.Here.BootID()
	if err != nil || rec.BootID != boot {
		return outsideRecord{}, err
	}
	return rec, nil
}

// SetOutside is SetFound of memory alone.
func (l *Ledger) SetOutside(gpus map[string]grant.Bytes) error { return l.SetFound(gpus, nil) }

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
	data, err := json.Marshal(outsideRecord{runFormat.version, boot, l.Host.Now().UTC(), gpus, texts},
		jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("internal error: cannot encode what is outside the ledger: %w", err)
	}
	return l.Update(func(*Tx) error {
		return host.ReplaceFile(l.outsidePath(), append(data, '\n'), 0o600, host.Volatile)
	})
}
