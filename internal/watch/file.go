package watch

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/host"
)

// file is what the daemon keeps in the run directory for whoever asks what is used, without asking the daemon.
type file struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	Report
}

const (
	fileName    = "watch.json"
	fileVersion = 1
	maxFile     = 16 << 20
)

// Save writes a report to the run directory, replacing the last one. There is one writer, so that a crash leaves one draft at
// most.
func Save(runDir, bootID string, r Report) error {
	data, err := json.Marshal(file{fileVersion, bootID, r}, jsontext.WithIndent(" "))
	if err != nil {
		return fmt.Errorf("internal error: cannot encode a report: %w", err)
	}
	path := filepath.Join(runDir, fileName)
	draft := filepath.Join(runDir, "."+fileName+".new")
	_ = os.Remove(draft)
	if err = os.WriteFile(draft, append(data, '\n'), 0o600); err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		return fmt.Errorf("cannot write what is used of the GPUs: %w", err)
	}
	return nil
}

// Load reads the last report of this boot. It may be old: see Taken.
func Load(runDir, bootID string) (Report, error) {
	path := filepath.Join(runDir, fileName)
	data, err := host.ReadFile(path, maxFile)
	if err != nil {
		return Report{}, err
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return Report{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if f.Version != fileVersion || f.BootID != bootID {
		return Report{}, fmt.Errorf("cannot read %s: it is of version %d and of another boot or program", path, f.Version)
	}
	return f.Report, nil
}
