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
	Bindings   Bindings
	Creates    Creates

	files *files
}

// Open gives the ledger of the directories. It touches nothing.
func Open(o Options) *Ledger {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	return open(o, containers.New(o.Host))
}

func open(o Options, reader *containers.Reader) *Ledger {
	f := filesIn(filepath.Clean(o.State), filepath.Clean(o.Run))
	return &Ledger{Options: o, Containers: reader, files: f, Bindings: Bindings{&f.bindings, reader},
		Creates: Creates{f.run + "/creates", reader}}
}

// ForOneCreate gives the ledger for one create, to one goroutine. It finds out once about each
// binding what takes a search through all processes, and only before the ledger is locked. The life
// of a binding that it sees first with the ledger locked is then unknown.
func (l *Ledger) ForOneCreate() *Ledger { return open(l.Options, l.Containers.ForOneCreate()) }

// Update runs fn with the ledger to itself. It makes missing directories. An error from fn is
// returned as it is; a *LockError says that the lock could not be had.
func (l *Ledger) Update(fn func(*Tx) error) error {
	for _, dir := range l.files.dirs() {
		if err := ensureDir(dir); err != nil {
			return fmt.Errorf("cannot write the ledger: %w", err)
		}
	}
	unlock, err := lock(l.files.lock, l.Wait)
	if err != nil {
		return err
	}
	defer unlock()
	defer l.Containers.ForbidSearch()()
	failpoint.Hit("ledger/locked")
	tx := newTx(l)
	tx.writes = true
	defer func() { tx.writes = false }()
	return fn(tx)
}

// Persist makes the grants durable that are in the ledger. Those that Put has returned are.
func (l *Ledger) Persist() error {
	if err := syncDir(string(l.files.grants)); err != nil {
		return fmt.Errorf("cannot make the ledger's grants durable: %w", err)
	}
	return nil
}

// View runs fn on the ledger as it is. It never waits: every file is replaced as a whole, so a
// reader sees an entry before or after a change. A ledger that was not written yet is empty.
func (l *Ledger) View(fn func(*Tx) error) error { return fn(newTx(l)) }

// Tx is a ledger within Update or View. Only a Tx from Update writes, and only until its function
// returns.
type Tx struct {
	Bindings Bindings

	ledger *Ledger
	files  *files
	writes bool
	// the grant that was read last with the ledger locked, unless it was deleted since
	found grant.ID
}

func newTx(l *Ledger) *Tx { return &Tx{Bindings: l.Bindings, ledger: l, files: l.files} }

// files says where the parts of a ledger are.
type files struct {
	state, run string
	grants     grantFiles
	owners     ownerLinks
	gpus       gpuLinks
	bindings   bindingFiles
	found      string // what the watch found
	lock       string
}

func filesIn(state, run string) *files {
	return &files{state: state, run: run,
		grants: grantFiles(state + "/grants"), owners: ownerLinks(state + "/owners"),
		gpus: gpuLinks(state + "/gpus"),
		bindings: bindingFiles{records: run + "/bindings", byGrant: run + "/grants",
			cgroups: cgroupLinks(run + "/cgroups")},
		found: run + "/outside.json", lock: run + "/lock"}
}

// dirs are the directories that hold entries; those above them come with them.
func (f *files) dirs() []string {
	return []string{string(f.grants), string(f.owners), string(f.gpus), f.bindings.records,
		f.bindings.byGrant}
}

// ensureDir makes a directory, and those above it, which only the caller's user can read. What it
// makes survives a power cut.
func ensureDir(path string) error {
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	err := host.Mkdir(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := ensureDir(filepath.Dir(path)); err != nil {
			return err
		}
		err = host.Mkdir(path)
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
