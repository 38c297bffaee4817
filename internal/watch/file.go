package watch

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// useFile is what the daemon writes to the run directory, so that other programs can read what is
// used without asking the daemon.
type useFile struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	Comparison
}

const (
	fileName    = "watch.json"
	fileVersion = 1
	maxFile     = 16 << 20
)

// Save writes a report to the run directory, in place of the last one. There is one writer, so a
// crash leaves at most one draft. Users name cgroups, with any bytes: what is not UTF-8 becomes
// U+FFFD in the file.
func Save(runDir, bootID string, r Comparison) error {
	data, err := json.Marshal(useFile{fileVersion, bootID, r}, jsontext.WithIndent(" "),
		jsontext.AllowInvalidUTF8(true))
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

// Differs reports whether two reports differ in substance: other GPUs or grants, a change of more
// than a hundredth of a GPU, or another reason to take the inventory again.
func (r Comparison) Differs(o Comparison) bool {
	same := slices.EqualFunc(r.GPUs, o.GPUs, func(a, b GPUUse) bool {
		return a.UUID == b.UUID && a.Total == b.Total && a.Processes == b.Processes &&
			difference(a.Used, b.Used) <= a.Total/100 && difference(a.Outside, b.Outside) <= a.Total/100 &&
			maps.EqualFunc(a.MIGOutside, b.MIGOutside, func(x, y grant.Bytes) bool {
				return difference(x, y) <= a.Total/100
			})
	})
	return !same || r.Stale != o.Stale || len(r.Findings) != len(o.Findings) || len(r.Grants) != len(o.Grants)
}

func difference(a, b grant.Bytes) grant.Bytes { return max(a, b) - min(a, b) }

// Load reads the last report of this boot. It may be old: see Taken.
func Load(runDir, bootID string) (Comparison, error) {
	path := filepath.Join(runDir, fileName)
	data, err := host.ReadFile(path, maxFile)
	if err != nil {
		return Comparison{}, err
	}
	var f useFile
	if err := json.Unmarshal(data, &f); err != nil {
		return Comparison{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if f.Version != fileVersion || f.BootID != bootID {
		return Comparison{}, fmt.Errorf("cannot read %s: it is of version %d and of another boot or program",
			path, f.Version)
	}
	return f.Comparison, nil
}

// stale is when a report says nothing about now any more, in intervals of the daemon.
const stale = 5

// Recent reads the last report, if it is about now.
func Recent(runDir, bootID, interval string, now time.Time) (Comparison, bool) {
	r, err := Load(runDir, bootID)
	every, e := grant.ParseDuration(interval)
	// from the future: the clock was set back since
	recent := now.Sub(r.Taken).Abs() <= max(stale*every, stale*time.Second)
	return r, err == nil && e == nil && recent
}
