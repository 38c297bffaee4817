package sim

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// process is a virtual process: a goroutine that runs only while the scheduler waits for it.
type process struct {
	name    string
	pid     int
	start   uint64
	resume  chan struct{}
	waits   string // the path of the lock that it waits for
	killed  bool
	done    bool
	faults  int  // errors of the disk that it has met
	creates bool // it decides about a container
	binds   bool // or has decided: it may be the creator of a container
	makes   int  // which container that is
	// beside are the grants of other creates of that id, which were at work meanwhile
	beside []grant.ID
	// earliest is the earliest time that the clock has shown since its create began
	earliest time.Time
	update   bool        // it changes a grant, which takes two changes of two files
	ready    []string    // the sets of GPUs whose MPS daemons were ready since (mps.go)
	of       *gpuledgerd // whose thread it is
	// the inventories that there were since it had the ledger's lock last, or since it began
	// (partitions.go)
	inventories []grant.Inventory
	// the ledger when it had the lock last; nil before, and when the clock was set since
	ledger *grant.View
	// blocked reports whether it waits for something else than a lock; nil: it does not
	blocked func() bool
}

// scheduler runs one virtual process at a time, and is its host.Simulator.
type scheduler struct {
	random  *rand.Rand
	disk    *disk
	rates   rates
	current *process
	yielded chan struct{}
	all     []*process
	locks   map[string]*process
	trace   func(format string, args ...any)
	failed  string // of the code under test, as a panic
	faults  bool   // a disk has failed
	unread  bool   // it has failed at a read since the turns of users were looked at
	steps   int    // that have changed files
	// locked is called when a process has got a lock, made when a step has been made
	locked func(p *process, path string)
	made   func(step host.Step)
}

// rates are probabilities for each step of a process.
type rates struct{ yield, fault, readFault float64 }

// spawn makes a process, which runs when it is resumed.
func (s *scheduler) spawn(p *process, body func()) {
	p.resume = make(chan struct{})
	s.all = append(s.all, p)
	go func() {
		<-p.resume
		defer s.ended(p)
		if !p.killed {
			body()
		}
	}()
}

func (s *scheduler) ended(p *process) {
	if why := recover(); why != nil && !p.killed { // sync.Once turns an end into a panic
		s.failed = fmt.Sprintf("%s: %v\n%s", p.name, why, debug.Stack())
	}
	for path, holder := range s.locks {
		if holder == p {
			delete(s.locks, path)
		}
	}
	p.done, s.current = true, nil
	s.yielded <- struct{}{}
}

// run lets a process run until it yields or ends.
func (s *scheduler) run(p *process) {
	s.current = p
	p.resume <- struct{}{}
	<-s.yielded
	s.current = nil
}

// kill ends a process at the step that it is about to make.
func (s *scheduler) kill(p *process) {
	p.killed = true
	s.run(p)
}

func (s *scheduler) yield(p *process) {
	s.yielded <- struct{}{}
	<-p.resume
	if p.killed {
		runtime.Goexit()
	}
}

// pause is a step of a process outside of the code under test.
func (s *scheduler) pause() { s.yield(s.current) }

// ready are the processes that can run.
func (s *scheduler) ready() (list []*process) {
	for _, p := range s.all {
		if !p.done && (p.waits == "" || s.locks[p.waits] == nil) && (p.blocked == nil || !p.blocked()) {
			list = append(list, p)
		}
	}
	return list
}

// Before implements host.Simulator.
func (s *scheduler) Before(step host.Step) error {
	p := s.current
	switch {
	case p == nil: // the observer
		return nil
	case p.killed: // deferred calls of a process that is killed: only the kernel acts
		if step.Kind == host.GivesLock {
			return nil
		}
		return unix.EIO
	case step.Kind == host.GivesLock:
		return nil
	case step.Kind == host.Mounts: // the directory itself will do
		return host.ErrMade
	}
	if s.random.Float64() < s.rates.yield {
		s.yield(p)
	}
	if step.Kind == host.TakesLock {
		for s.locks[step.Path] != nil {
			p.waits = step.Path
			s.yield(p)
		}
		p.waits, s.locks[step.Path] = "", p
		s.locked(p, step.Path)
	}
	return s.fault(p, step)
}

// fault makes some steps fail, as a disk does that is full or broken.
func (s *scheduler) fault(p *process, step host.Step) error {
	rate, err := s.rates.fault, error(unix.EIO)
	switch step.Kind {
	case host.Reads:
		rate = s.rates.readFault
	case host.Creates, host.Writes, host.MakesDir, host.Symlinks, host.Links, host.Renames:
		if s.random.IntN(2) == 0 {
			err = unix.ENOSPC
		}
	case host.TakesLock:
		return nil
	}
	if strings.HasSuffix(step.Path, ".toml") { // the defaults are directories of the machine
		return nil
	}
	if rate == 0 || s.random.Float64() >= rate {
		return nil
	}
	p.faults++
	s.faults = true
	s.unread = s.unread || step.Kind == host.Reads
	s.trace("%s: %v at %s %s", p.name, err, step.Kind, s.short(step.Path))
	return err
}

// After implements host.Simulator.
func (s *scheduler) After(step host.Step, err error) {
	if step.Kind == host.GivesLock {
		delete(s.locks, step.Path)
		return
	}
	if err == nil {
		s.disk.made(step)
		s.made(step)
	}
	if err == nil && shows(step) {
		s.steps++
	}
	if step.Kind != host.TakesLock && s.current != nil {
		s.trace("%s: %s %s %v", s.current.name, step.Kind, s.short(step.Path), err == nil)
	}
}

// shows reports whether a step can change what others read: not what is done to drafts.
func shows(step host.Step) bool {
	switch step.Kind {
	case host.TakesLock, host.Creates, host.Syncs, host.SyncsDir, host.Mounts:
		return false
	case host.Writes, host.Removes:
		return !strings.HasPrefix(filepath.Base(step.Path), ".")
	}
	return true
}

func (s *scheduler) short(path string) string {
	dir := strings.TrimSuffix(s.disk.root, "/state")
	return ownPID.Replace(strings.TrimPrefix(path, dir))
}

// Random implements host.Simulator.
func (s *scheduler) Random() (b [16]byte) {
	for i := range b {
		b[i] = byte(s.random.Uint32())
	}
	return b
}
