package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// settings is the manager of the configuration: what the other managers go by. Decisions about containers do not ask it; they
// read the file themselves, so that they are the same with and without a daemon.
type settings struct {
	open   func() *node.Node
	config string // the file's path
	log    *logrus.Logger

	mu    sync.Mutex
	good  *node.Node // as last read without an error
	lock  *os.File   // of its run directory
	stamp host.Stamp // of the file as it is in force,
	read  time.Time  // and when that was; zero: it is to be read

	end  func() // of the daemon
	lost error  // why: another has taken its place
}

// newSettings reads the configuration for the first time, and makes this process the node's only daemon.
func newSettings(open func() *node.Node, config string, log *logrus.Logger) (*settings, error) {
	n := open()
	if n.Broken != nil {
		return nil, n.Broken
	}
	n.Keep()
	lock, err := single(n.Policy.RunDir)
	if err != nil {
		return nil, err
	}
	return &settings{open: open, config: config, log: log, good: n, lock: lock}, nil
}

func (s *settings) Name() string { return "configuration" }

func (s *settings) Stop() {}

// Close gives the lock back, when every manager has stopped.
func (s *settings) Close() { _ = s.lock.Close() }

// Ensure takes up a changed file. A broken one is told, and the last good one stays in force for the daemon's own work.
func (s *settings) Ensure(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.hold(); err != nil {
		return err
	}
	is, now := host.StampOf(s.config), time.Now()
	if is == s.stamp && is.Before(s.read) {
		return nil
	}
	err := s.take()
	if s.stamp, s.read = is, now; err != nil { // what keeps it from being in force may be over without a change of the file
		s.read = time.Time{}
	}
	return err
}

// take reads the file.
func (s *settings) take() error {
	n := s.open()
	if n.Broken != nil {
		return n.Broken
	}
	if reflect.DeepEqual(n.Policy, s.good.Policy) {
		return nil
	}
	if n.Policy.RunDir != s.good.Policy.RunDir {
		lock, err := single(n.Policy.RunDir)
		if err != nil {
			return fmt.Errorf("cannot take up the changed configuration: %w", err)
		}
		_ = s.lock.Close()
		s.lock = lock
	}
	n.Keep()
	s.good = n
	s.log.WithFields(logrus.Fields{"mode": n.Policy.Rules.Mode, "listen": n.Policy.Daemon.Listen, "interval": n.Policy.Daemon.Interval}).Info("the configuration has changed and is in force")
	return nil
}

// hold takes the lock again where somebody has removed it (`rm -rf` of the run directory). Where another daemon has been started
// meanwhile, this one ends.
func (s *settings) hold() error {
	runDir := s.good.Policy.RunDir
	if holds(s.lock, runDir) {
		return nil
	}
	lock, err := single(runDir)
	if errors.Is(err, errHeld) && s.end != nil {
		s.lost = fmt.Errorf("cannot go on: %s was removed, and another %w", lockPath(runDir), errHeld)
		s.end()
	}
	if err != nil {
		return err
	}
	_ = s.lock.Close()
	s.lock = lock
	s.log.Warnf("%s was removed; it is made and locked again", lockPath(runDir))
	return nil
}

// Lost is why the daemon has ended by itself.
func (s *settings) Lost() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// Reload is Ensure for a person who asked, and hears how it went.
func (s *settings) Reload() {
	s.mu.Lock()
	s.read = time.Time{}
	s.mu.Unlock()
	if err := s.Ensure(context.Background()); err != nil {
		s.log.WithError(err).Warn("the configuration stays as it was")
		return
	}
	s.log.Info("the configuration is read again")
}

// Node is this machine as the last good configuration describes it.
func (s *settings) Node() *node.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.good
}

// Interval is the time between two passes of a manager.
func (s *settings) Interval() time.Duration {
	interval, err := time.ParseDuration(s.Node().Policy.Daemon.Interval)
	if err != nil { // the configuration is checked for it
		return time.Second
	}
	return interval
}
