package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Pause is the break-glass: while it lasts, what would be refused, or lose GPUs by policy, starts
// as it is, and is recorded. Admissions go on, so that the ledger stays true.
type Pause struct {
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until,omitzero"` // zero: until enabled
	// it ends with this boot: the state directory could not be written
	BootID string `json:"boot_id,omitzero"`
}

func (p *Pause) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.Int(d, &p.Version)
		case "since":
			return tokens.Time(d, &p.Since)
		case "until":
			return tokens.Time(d, &p.Until)
		case "boot_id":
			return tokens.String(d, &p.BootID)
		}
		return d.SkipValue()
	})
}

func (p Pause) encode() ([]byte, error) {
	w := tokens.NewWriter()
	w.Object(func() {
		w.Name("version").Int(int64(p.Version))
		w.Name("since").Time(p.Since)
		w.TimeUnlessZero("until", p.Until)
		w.Words("boot_id", p.BootID)
	})
	return w.End()
}

// maxPause bounds what is read of the file, in bytes.
const maxPause = 4096

// pausePath returns the file of a Pause in the state directory, or in the run directory if the
// state directory cannot be written.
func pausePath(dir string) string { return filepath.Join(dir, "disabled.json") }

// Paused reports whether refusals are switched off. A file that cannot be read switches nothing
// off. If there are two, that of the run directory is newer: a program that writes the other
// removes it.
func (n *Node) Paused() (Pause, bool) {
	p, known := pauseIn(n.Policy.RunDir)
	if known {
		boot, err := n.Host.BootID()
		known = err == nil && p.BootID == boot && isOurs(pausePath(n.Policy.RunDir))
	}
	if !known {
		p, known = pauseIn(n.Policy.StateDir)
	}
	if !known || !p.lasts(n.Host.Now()) {
		return Pause{}, false
	}
	return p, true
}

// lasts reports whether a Pause is not over. The file of one that is over stays, and a clock that
// is set back to before its beginning must not switch refusals off again.
func (p Pause) lasts(now time.Time) bool {
	return p.Until.IsZero() || !now.Before(p.Since) && now.Before(p.Until)
}

// isOurs reports whether a file is root's: the directory may have been opened to others.
func isOurs(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}

func pauseIn(dir string) (p Pause, known bool) {
	text, err := host.ReadFile(pausePath(dir), maxPause)
	if err != nil || tokens.Whole(text, p.read) != nil || p.Version != 1 {
		return Pause{}, false
	}
	return p, true
}

// Disable switches refusals off for a time, 0 for until Enable. It survives a reboot, unless only
// the run directory can be written: the disk may be what is broken.
func (n *Node) Disable(long time.Duration) (Pause, error) {
	p := Pause{Version: 1, Since: n.Host.Now().UTC().Truncate(time.Second)}
	if long > 0 {
		p.Until = p.Since.Add(long)
	}
	err := writePause(n.Policy.StateDir, p, host.Durable)
	if err == nil {
		_, err = unpause(n.Policy.RunDir) // of before, with another time
	}
	if err != nil {
		var volatile error
		if p, volatile = pauseForBoot(n, p); volatile != nil {
			return p, fmt.Errorf("cannot disable: %w; nor until the next boot: %w; policy.mode = "+
				"\"report\" in the configuration does the same", err, volatile)
		}
	}
	recordSwitch(n, "disabled", p)
	return p, nil
}

// pauseForBoot counts before what the state directory says, for this boot.
func pauseForBoot(n *Node, p Pause) (_ Pause, err error) {
	if p.BootID, err = n.Host.BootID(); err == nil {
		err = writePause(n.Policy.RunDir, p, host.Volatile)
	}
	return p, err
}

func writePause(dir string, p Pause, keeps host.Durability) error {
	text, err := p.encode()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = host.ReplaceFile(pausePath(dir), append(text, '\n'), 0o600, keeps)
	}
	return err
}

// Enabled is how a Pause was ended.
type Enabled struct {
	Was bool  // there was one
	For error // why it is over for this boot alone: the state directory has it, and cannot be written
}

// Enable ends a Pause. Where the disk has one and is broken meanwhile, one in the run directory
// that is over says so.
func (n *Node) Enable() (e Enabled, err error) {
	p, was := n.Paused()
	stored, err := unpause(n.Policy.StateDir)
	e, removed := Enabled{Was: was, For: err}, stored
	if err == nil {
		stored, err = unpause(n.Policy.RunDir)
		removed = removed || stored
	} else {
		// over, wherever the clock is set to
		_, err = pauseForBoot(n, Pause{Version: 1, Since: n.Host.Now().UTC().Truncate(time.Second),
			Until: time.Unix(1, 0).UTC()})
	}
	switch {
	case err != nil && e.For != nil:
		return e, fmt.Errorf("cannot enable: %w; nor until the next boot: %w", e.For, err)
	case err != nil:
		return e, fmt.Errorf("cannot enable: %w", err)
	case removed:
		recordSwitch(n, "enabled", p)
	}
	return e, nil
}

// unpause removes a Pause from a directory, and tells whether there was one.
func unpause(dir string) (was bool, err error) {
	if _, err := os.Lstat(pausePath(dir)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil // of a file system that is read-only not even what is not there can be removed
	}
	if err = os.Remove(pausePath(dir)); err == nil {
		err = host.SyncDir(dir)
	}
	return true, err
}

// Mode returns what becomes of refusals, and of what policy takes away, now: "enforce", "report" or
// "disabled".
func (n *Node) Mode() grant.RulesMode {
	if _, paused := n.Paused(); paused {
		return grant.Disabled
	}
	if n.Policy.Rules.Mode == grant.Report && n.Broken == nil {
		return grant.Report
	}
	return grant.Enforce
}
