package driverlimits

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/host"
)

// recordFile lists the cgroups that gpuledgerd has limited, or was about to. They are recorded
// before a limit is set, so that the next gpuledgerd can remove it after a crash.
type recordFile struct {
	Version int             `json:"version"`
	BootID  string          `json:"boot_id"`
	List    []limitedCgroup `json:"leaves"`
}

const (
	recordName    = "driver-limits.json"
	recordVersion = 1
	maxRecord     = 16 << 20
)

// loadRecord reads the record of this boot. Without a file it is empty.
func loadRecord(runDir, boot string) (l recordFile, err error) {
	path := filepath.Join(runDir, recordName)
	data, err := host.ReadFile(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return recordFile{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	switch {
	case err != nil:
		return recordFile{}, fmt.Errorf("cannot read %s: %w; %s", path, err, recordHint)
	case l.BootID != boot: // cgroups end with the boot
		return recordFile{}, nil
	case l.Version != recordVersion:
		return recordFile{}, fmt.Errorf("cannot read %s: its version is %d and this gpuledgerd knows %d; "+
			"start the gpuledgerd that wrote it, or %s", path, l.Version, recordVersion, recordHint)
	}
	return l, nil
}

// recordHint is for an unreadable record: no one knows which limits are set then. Those of cgroups
// that are gone are over.
const recordHint = "remove it when no container with strength driver runs (gpuledger grants), and " +
	"gpuledgerd goes on"

func (l recordFile) save(runDir, boot string) error {
	l.Version, l.BootID = recordVersion, boot
	data, err := json.Marshal(l, jsontext.WithIndent(" "))
	if err != nil {
		return fmt.Errorf("internal error: cannot encode the driver's limits: %w", err)
	}
	return host.ReplaceFile(filepath.Join(runDir, recordName), append(data, '\n'), 0o600, host.Volatile)
}
