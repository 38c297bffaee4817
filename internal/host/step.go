package host

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Step is one step that a process makes at files which other processes see.
type Step struct {
	Kind StepKind
	Path string
	To   string // the new name of Renames and Links, the target of Symlinks
	Data []byte // of Writes
}

// StepKind says what a step does.
type StepKind string

// The kinds of steps. Removes removes a name: of a file, a link or an empty directory.
const (
	Reads     StepKind = "read"
	Creates   StepKind = "create"
	Writes    StepKind = "write"
	Syncs     StepKind = "sync"      // a file's content
	SyncsDir  StepKind = "sync-dir"  // the names in a directory
	MakesDir  StepKind = "mkdir"     // with mode 0700
	Removes   StepKind = "remove"    // a name
	Renames   StepKind = "rename"    // from Path to To
	Links     StepKind = "link"      // a second name To of Path
	Symlinks  StepKind = "symlink"   // Path leads to To
	TakesLock StepKind = "take-lock" // waits while another process has it
	GivesLock StepKind = "give-lock"
	Mounts    StepKind = "mount" // a file system at Path
)

// Simulator stands between a simulated node's processes and its files.
type Simulator interface {
	// Before runs before a step. The step is not made if it returns an error, which is ErrMade if
	// the simulator has made it.
	Before(Step) error
	// After runs when the step was made, or has failed with an error of the system.
	After(Step, error)
	// Random returns what the kernel would.
	Random() [16]byte
}

// Simulated is nil in every program. Only test/sim sets it: it runs many virtual processes in one,
// in an order that a seed decides, with errors of the disk, power cuts and ends of processes.
var Simulated Simulator

// ErrMade is Before's error for a step that the simulator has made itself.
var ErrMade = errors.New("the simulator has made this step")

// Take makes a step: do, and around it what a simulator wants.
func Take(s Step, do func() error) error {
	err := before(s)
	switch err {
	case nil:
		err = do()
	case ErrMade:
		err = nil
	default:
		return err
	}
	after(s, err)
	return err
}

func before(s Step) error {
	if Simulated == nil {
		return nil
	}
	return Simulated.Before(s)
}

func after(s Step, err error) {
	if Simulated != nil {
		Simulated.After(s, err)
	}
}

// Go runs do in a goroutine of a group. A simulated process has no other goroutines: there it runs
// at once.
func Go(all *sync.WaitGroup, do func()) {
	if Simulated != nil {
		do()
		return
	}
	all.Go(do)
}

// Mutex is a sync.Mutex that a goroutine may have while it makes steps. A simulator lets others run
// meanwhile.
type Mutex struct{ mu sync.Mutex }

func (m *Mutex) Lock() {
	if Simulated != nil {
		_ = before(Step{Kind: TakesLock, Path: m.name()})
	}
	m.mu.Lock()
}

func (m *Mutex) Unlock() {
	m.mu.Unlock()
	if Simulated != nil {
		after(Step{Kind: GivesLock, Path: m.name()}, nil)
	}
}

func (m *Mutex) name() string { return fmt.Sprintf("mutex %p", m) }

// Mkdir is os.Mkdir for a directory that only the caller's user can use.
func Mkdir(path string) error {
	return Take(Step{Kind: MakesDir, Path: path}, func() error { return os.Mkdir(path, 0o700) })
}

// Remove is os.Remove.
func Remove(path string) error {
	return Take(Step{Kind: Removes, Path: path}, func() error { return os.Remove(path) })
}

// Rmdir removes a directory if it is empty, and nothing else.
func Rmdir(path string) error {
	return Take(Step{Kind: Removes, Path: path}, func() error { return unix.Rmdir(path) })
}

// Rename is os.Rename.
func Rename(path, to string) error {
	return Take(Step{Kind: Renames, Path: path, To: to}, func() error { return os.Rename(path, to) })
}

// Link is os.Link.
func Link(path, to string) error {
	return Take(Step{Kind: Links, Path: path, To: to}, func() error { return os.Link(path, to) })
}

// Symlink is os.Symlink.
func Symlink(target, path string) error {
	s := Step{Kind: Symlinks, Path: path, To: target}
	return Take(s, func() error { return os.Symlink(target, path) })
}
