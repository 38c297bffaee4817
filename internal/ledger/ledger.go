package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// DefaultWait is how long Update waits for the lock unless told otherwise: long against 64 writers
// at once (0.3 s), short against an engine's time-out for a create (minutes).
const DefaultWait = 10 * time.Second

// Options say where a ledger is.
type Options struct {
	State string // directory that survives a reboot, as /var/lib/gpuledger
	Run   string // directory that need not, as /run/gpuledger
	Host  host.Host
	Wait  time.Duration // for the lock; 0 is DefaultWait
}

// Ledger is a node's ledger. It holds nothing open and may be used by many goroutines.
type Ledger struct {
	Options
	Containers *containers.Reader // answers whether the container of a binding runs
}

// Open gives the ledger of the directories. It touches nothing.
func Open(o Options) *Ledger {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	return &Ledger{o, containers.New(o.Host)}
}

// ForOneCreate gives the ledger for one create, to one goroutine. It finds out once about each
// binding what takes a search through all processes, and only before the ledger is locked. The life
// of a binding that it sees first with the ledger locked is then unknown.
func (l *Ledger) ForOneCreate() *Ledger { return &Ledger{l.Options, l.Containers.ForOneCreate()} }

// Update runs fn with the ledger to itself. It makes missing directories. An error from fn is
// returned as it is; a
// *LockError says that the lock couldn't be had.
func (l *Ledger) Update(fn func(*Tx) error) error {
	for _, dir := range l.dirs() {
		if err := ensureDir(dir); err != nil {
			return fmt.Errorf("cannot write the ledger: %w", err)
		}
	}
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	defer l.Containers.ForbidSearch()()
	failpoint.Hit("ledger/locked")
	tx := &Tx{l: l, writes: true}
	defer func() { tx.writes = false }()
	return fn(tx)
}

// View runs fn on the ledger as it is. It never waits: every file is replaced whole, so a reader
// sees an entry before or after a change. A ledger that was not written yet is empty.
func (l *Ledger) View(fn func(*Tx) error) error { return fn(&Tx{l: l}) }

// HasBinding reports whether the container has a binding, dead or alive. It costs one system call:
// every delete of every container on the node asks.
func (l *Ledger) HasBinding(runtimeRoot, container string) bool {
	_, err := os.Lstat(l.bindingPath(bindingKey(runtimeRoot, container)))
	return err == nil
}

// Used reports whether a container has been bound to the grant since it was made, or since the
// node's start: one that is there or one that is gone. It may know the grant's reference. It costs
// one system call.
func (l *Ledger) Used(id grant.ID) bool {
	_, err := os.Lstat(l.boundPath(id))
	return !errors.Is(err, fs.ErrNotExist) // who cannot look takes it that one has
}

// Tx is a ledger within Update or View. Only one from Update writes, and only until its function
// returns.
type Tx struct {
	l      *Ledger
	writes bool
	found  grant.ID // the grant that was read last with the ledger locked, where it was not deleted since
}

func (l *Ledger) grantsDir() string   { return filepath.Join(l.State, "grants") }
func (l *Ledger) ownersDir() string   { return filepath.Join(l.State, "owners") }
func (l *Ledger) gpusDir() string     { return filepath.Join(l.State, "gpus") }
func (l *Ledger) bindingsDir() string { return filepath.Join(l.Run, "bindings") }
func (l *Ledger) boundDir() string    { return filepath.Join(l.Run, "grants") }
func (l *Ledger) lockPath() string    { return filepath.Join(l.Run, "lock") }
func (l *Ledger) grantPath(id grant.ID) string {
	return filepath.Join(l.grantsDir(), string(id)+".json")
}
func (l *Ledger) bindingPath(key string) string  { return filepath.Join(l.bindingsDir(), key+".json") }
func (l *Ledger) boundPath(id grant.ID) string   { return filepath.Join(l.boundDir(), string(id)) }
func (l *Ledger) gpuPath(uuid string) string     { return filepath.Join(l.gpusDir(), uuid) }
func (l *Ledger) outsidePath() string            { return filepath.Join(l.Run, "outside.json") }
func (l *Ledger) ownerPath(o grant.Owner) string { return filepath.Join(l.ownersDir(), ownerKey(o)) }

// dirs are the directories that hold entries; those above them come with them.
func (l *Ledger) dirs() []string {
	return []string{l.grantsDir(), l.ownersDir(), l.gpusDir(), l.bindingsDir(), l.boundDir()}
}

// ensureDir makes a directory, and those above it, which only the caller's user can read. What it
// makes survives a power cut.
func ensureDir(path string) error {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := ensureDir(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	if errors.Is(err, fs.ErrExist) { // another process was faster, or it is no directory
		if info, e := os.Stat(path); e == nil && info.IsDir() {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return host.SyncDir(filepath.Dir(path))
}
