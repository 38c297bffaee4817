package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Pause is the break-glass: while it lasts, what would be refused, or lose GPUs by policy, starts as it is, and is recorded.
// Admissions go on, so that the ledger stays true.
type Pause struct {
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until,omitzero"`   // zero: until enabled
	BootID  string    `json:"boot_id,omitzero"` // it ends with this boot: the state directory could not be written
}

// maxPause bounds what is read of the file, in bytes.
const maxPause = 4096

// pausePath is the file of a Pause in the state directory, or in the run directory where that one is part of the emergency.
func pausePath(dir string) string { return filepath.Join(dir, "disabled.json") }

// Paused tells whether refusals are switched off. A file that cannot be read switches nothing off.
func (n *Node) Paused() (Pause, bool) {
	if p, paused := n.pauseIn(n.Policy.StateDir); paused {
		return p, true
	}
	p, paused := n.pauseIn(n.Policy.RunDir)
	if !paused || !isOurs(pausePath(n.Policy.RunDir)) {
		return Pause{}, false
	}
	boot, err := n.Host.BootID()
	return p, err == nil && p.BootID == boot
}

// isOurs reports whether a file is root's: somebody may have opened the directory.
func isOurs(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}

func (n *Node) pauseIn(dir string) (p Pause, paused bool) {
	text, err := host.ReadFile(pausePath(dir), maxPause)
	if err != nil || json.Unmarshal(text, &p) != nil || p.Version != 1 {
		return Pause{}, false
	}
	return p, p.Until.IsZero() || n.Host.Now().Before(p.Until)
}

// Disable switches refusals off for a time, 0 for until Enable. It survives a reboot, unless only the run directory can be written: the
// disk may be what is broken.
func (n *Node) Disable(long time.Duration) (Pause, error) {
	p := Pause{Version: 1, Since: n.Host.Now().UTC().Truncate(time.Second)}
	if long > 0 {
		p.Until = p.Since.Add(long)
	}
	err := n.pause(n.Policy.StateDir, p, host.Durable)
	if err == nil {
		_ = os.Remove(pausePath(n.Policy.RunDir)) // of before, with another time
	} else {
		var volatile error
		if p.BootID, volatile = n.Host.BootID(); volatile == nil {
			volatile = n.pause(n.Policy.RunDir, p, host.Volatile)
		}
		if volatile != nil {
			return p, fmt.Errorf("cannot disable: %w; nor until the next boot: %w; policy.mode = \"report\" in the configuration does the same", err, volatile)
		}
	}
	n.auditSwitch("disabled", p)
	return p, nil
}

func (n *Node) pause(dir string, p Pause, keeps host.Durability) error {
	text, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = host.ReplaceFile(pausePath(dir), append(text, '\n'), 0o600, keeps)
	}
	return err
}

// Enable ends a Pause, and tells whether there was one.
func (n *Node) Enable() (bool, error) {
	p, was := n.Paused()
	removed := false
	for _, dir := range []string{n.Policy.RunDir, n.Policy.StateDir} {
		if _, err := os.Lstat(pausePath(dir)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue // of a file system that is read-only not even what is not there can be removed
		}
		err := os.Remove(pausePath(dir))
		if err == nil {
			err = host.SyncDir(dir)
		}
		if err != nil {
			return was, fmt.Errorf("cannot enable: %w", err)
		}
		removed = true
	}
	if removed {
		n.auditSwitch("enabled", p)
	}
	return was, nil
}

// Mode is what becomes of refusals, and of what policy takes away, now: "enforce", "report" or "disabled".
func (n *Node) Mode() grant.RulesMode {
	if _, paused := n.Paused(); paused {
		return grant.Disabled
	}
	if n.Policy.Rules.Mode == grant.Report && n.Broken == nil {
		return grant.Report
	}
	return grant.Enforce
}
