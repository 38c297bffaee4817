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
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Pause is what `gpuledger disable` records. While it lasts, a container that would be refused, or
// lose GPUs by policy, starts unchanged and is recorded. Containers with a grant are admitted as
// always, so that the ledger stays correct.
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
// removes it. A Pause whose time is over is removed, so that it does not begin again when the clock
// is set back into its time.
func (n *Node) Paused() (Pause, bool) {
	p, known := pause(n)
	switch now := n.Host.Now(); {
	case known && p.lasts(now):
		return p, true
	case known && p.expired(now):
		forgetExpired(n)
	}
	return Pause{}, false
}

// pause returns the Pause that counts, which may be over.
func pause(n *Node) (p Pause, known bool) {
	if p, known = pauseIn(n.Policy.RunDir); known {
		boot, err := n.Host.BootID()
		known = err == nil && p.BootID == boot && isOurs(pausePath(n.Policy.RunDir))
	}
	if !known {
		p, known = pauseIn(n.Policy.StateDir)
	}
	return p, known
}

// lasts reports whether a Pause is not over. A clock that is set back to before its beginning must
// not switch refusals off again.
func (p Pause) lasts(now time.Time) bool {
	return p.Until.IsZero() || !now.Before(p.Since) && now.Before(p.Until)
}

// expired reports whether a Pause has lasted to its end. The mark that Enable leaves on a disk that
// is read-only has never lasted.
func (p Pause) expired(now time.Time) bool {
	return p.Since.Before(p.Until) && !now.Before(p.Until)
}

// forgetExpired removes a Pause that has expired. A Disable at the same time must not lose its new
// file, so the two take turns; if that cannot be, the next caller removes it.
func forgetExpired(n *Node) {
	unlock, err := lockPause(n, 0)
	if err != nil {
		return
	}
	defer unlock()
	if p, known := pause(n); known && p.expired(n.Host.Now()) {
		_, _, _ = endPause(n)
	}
}

// lockPause waits for its turn to change the Pause. The lock is on the state directory itself,
// which can be locked also if it cannot be written.
func lockPause(n *Node, wait time.Duration) (unlock func(), err error) {
	dir, err := os.Open(n.Policy.StateDir)
	if err != nil {
		return nil, err
	}
	if err := host.Flock(int(dir.Fd()), wait); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return func() { _ = dir.Close() }, nil
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

// Disable switches refusals off for a time; 0: until Enable. It survives a reboot, unless only the
// run directory can be written, because the disk may be broken.
func (n *Node) Disable(long time.Duration) (Pause, error) {
	if unlock, err := lockPause(n, pauseTurn); err == nil { // an emergency goes on without its turn
		defer unlock()
	}
	p := Pause{Version: 1, Since: n.Host.Now().UTC().Truncate(time.Second)}
	if long > 0 {
		p.Until = p.Since.Add(long)
	}
	err := writePause(n.Policy.StateDir, p, host.Durable)
	if err == nil {
		_, err = unpause(n.Policy.RunDir) // an earlier one, with another time
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

// pauseTurn is how long Disable waits for its turn. Another program needs some milliseconds.
const pauseTurn = time.Second

// pauseForBoot writes a Pause that replaces, for this boot, the one in the state directory.
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
	For error // why it is over only for this boot: the one in the state directory cannot be removed
}

// Enable ends a Pause. If the one in the state directory cannot be removed, Enable writes one that
// is over into the run directory.
func (n *Node) Enable() (e Enabled, err error) {
	p, was := n.Paused()
	removed, kept, err := endPause(n)
	e = Enabled{Was: was, For: kept}
	if stored, failed := endMisplaced(n); err == nil {
		removed, err = removed || stored, failed
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

// endPause removes what the two directories have of a Pause. kept is why the state directory still
// has it: then a mark in the run directory ends it for this boot.
func endPause(n *Node) (removed bool, kept, err error) {
	if removed, kept = unpause(n.Policy.StateDir); kept == nil {
		volatile, err := unpause(n.Policy.RunDir)
		return removed || volatile, nil, err
	}
	// over, wherever the clock is set to
	_, err = pauseForBoot(n, Pause{Version: 1, Since: n.Host.Now().UTC().Truncate(time.Second),
		Until: time.Unix(1, 0).UTC()})
	return removed, kept, err
}

// endMisplaced removes a Pause from the default directories, where other ones are configured.
// Disable wrote there while the configuration did not name them, and the next such mistake would
// bring that Pause back. Another configuration than the node's own leaves these directories alone.
func endMisplaced(n *Node) (removed bool, err error) {
	if n.config != policy.DefaultPath {
		return false, nil
	}
	d := policy.Default()
	for dir, own := range map[string]string{d.StateDir: n.Policy.StateDir, d.RunDir: n.Policy.RunDir} {
		if dir != own {
			was, failed := unpause(dir)
			removed, err = removed || was, errors.Join(err, failed)
		}
	}
	return removed, err
}

// unpause removes a Pause from a directory, and tells whether there was one.
func unpause(dir string) (was bool, err error) {
	if _, err := os.Lstat(pausePath(dir)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil // on a read-only file system, removing a missing file fails too
	}
	if err = os.Remove(pausePath(dir)); err == nil {
		err = host.SyncDir(dir)
	}
	return true, err
}

// Mode returns what now happens to refusals, and to what policy takes away: "enforce", "report" or
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
