package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

type outsideRecord struct {
	Version int                    `json:"version"`
	BootID  string                 `json:"boot_id"`
	Taken   time.Time              `json:"taken,omitzero"` // only for people: what was found counts until somebody looks again
	GPUs    map[string]grant.Bytes `json:"gpus"`
}

// Outside is the memory, by GPU, that was found in use by nobody's grant. Nil where nobody has looked in this boot.
func (tx *Tx) Outside() (map[string]grant.Bytes, error) {
	data, err := readFile(tx.l.outsidePath(), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var rec outsideRecord
	if err == nil {
		err = runFormat.unmarshal(data, rec.read, func() int { return rec.Version })
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", tx.l.outsidePath(), err)
	}
	boot, err := tx.l.bootID()
	if err != nil || rec.BootID != boot {
		return nil, err
	}
	return rec.GPUs, nil
}

// SetOutside records the memory, by GPU, that is in use outside the ledger. It holds until it is set again or the node
// boots, however old it is: while nobody looks nobody is granted what may still be in use.
func (l *Ledger) SetOutside(gpus map[string]grant.Bytes) error {
	boot, err := l.bootID()
	if err != nil {
		return err
	}
	data, err := json.Marshal(outsideRecord{runFormat.version, boot, l.Host.Now().UTC(), gpus}, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("internal error: cannot encode what is outside the ledger: %w", err)
	}
	return l.Update(func(*Tx) error {
		return host.ReplaceFile(l.outsidePath(), append(data, '\n'), 0o600, host.Volatile)
	})
}
