package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Pause is the break-glass: while it lasts, what would be refused, or lose GPUs by policy, starts as it is, and is recorded.
// Admissions go on, so that the ledger stays true.
type Pause struct {
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until,omitzero"` // zero: until enabled
}

// maxPause bounds what is read of the file, in bytes.
const maxPause = 4096

func (n *Node) pausePath() string { return filepath.Join(n.Policy.StateDir, "disabled.json") }

// Paused tells whether refusals are switched off. A file that cannot be read switches nothing off.
func (n *Node) Paused() (Pause, bool) {
	var p Pause
	text, err := host.ReadFile(n.pausePath(), maxPause)
	if err != nil || json.Unmarshal(text, &p) != nil || p.Version != 1 {
		return Pause{}, false
	}
	return p, p.Until.IsZero() || n.Host.Now().Before(p.Until)
}

// Disable switches refusals off for a time, 0 for until Enable. It survives a reboot.
func (n *Node) Disable(long time.Duration) (Pause, error) {
	p := Pause{Version: 1, Since: n.Host.Now().UTC().Truncate(time.Second)}
	if long > 0 {
		p.Until = p.Since.Add(long)
	}
	text, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(n.Policy.StateDir, 0o700)
	}
	if err == nil {
		err = host.ReplaceFile(n.pausePath(), append(text, '\n'), 0o600, host.Durable)
	}
	if err != nil {
		return p, fmt.Errorf("cannot disable: %w", err)
	}
	n.auditSwitch("disabled", p)
	return p, nil
}

// Enable ends a Pause, and tells whether there was one.
func (n *Node) Enable() (bool, error) {
	p, was := n.Paused()
	err := os.Remove(n.pausePath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = host.SyncDir(n.Policy.StateDir)
	}
	if err != nil {
		return was, fmt.Errorf("cannot enable: %w", err)
	}
	n.auditSwitch("enabled", p)
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
