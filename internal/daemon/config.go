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

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// configManager is the manager of the configuration, for the other managers. Decisions about
// containers do not use it. They read the file themselves, so that they are the same with and
// without a daemon.
type configManager struct {
	open   func() *node.Node
	config string // the file's path
	log    *logrus.Logger

	mu      sync.Mutex
	current *node.Node // as last read without an error; Broken: there was none since the start
	lock    *os.File   // of its run directory
	stamp   host.Stamp // of the file that is in force
	cluster host.Stamp // of the cluster's file beside it
	read    time.Time  // when that was read; zero: read it in the next pass

	end      func() // of the daemon
	lockLost error  // why it ends: another daemon has taken its place
}

// newConfigManager reads the configuration for the first time, and makes this process the node's
// only daemon. A broken configuration does not keep the daemon from starting: without its NRI
// plugin, containers behind NRI alone would start unchecked.
func newConfigManager(open func() *node.Node, config string, log *logrus.Logger) (*configManager, error) {
	n := open()
	n.Keep()
	lock, err := lockRunDir(n.Policy.RunDir)
	if err != nil {
		return nil, err
	}
	return &configManager{open: open, config: config, log: log, current: n, lock: lock}, nil
}

func (s *configManager) Name() string { return "configuration" }

func (s *configManager) Stop() {}

// Close releases the lock, after every manager has stopped.
func (s *configManager) Close() { _ = s.lock.Close() }

// Ensure reads a changed file. If that is broken it is an error, and the last good configuration
// stays in force for the daemon's own work.
func (s *configManager) Ensure(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.keepLock(); err != nil {
		return err
	}
	is, cluster, now := host.StampOf(s.config), host.StampOf(policy.ClusterPath(s.config)), time.Now()
	if is == s.stamp && is.Before(s.read) && cluster == s.cluster && cluster.Before(s.read) {
		return nil
	}
	err := s.reload()
	// the cause may end without a change of the file
	if s.stamp, s.cluster, s.read = is, cluster, now; err != nil {
		s.read = time.Time{}
	}
	return err
}

// reload reads the file.
func (s *configManager) reload() error {
	n := s.open()
	if n.Broken != nil {
		return n.Broken
	}
	if s.current.Broken == nil && reflect.DeepEqual(n.Policy, s.current.Policy) {
		return nil
	}
	if n.Policy.RunDir != s.current.Policy.RunDir {
		lock, err := lockRunDir(n.Policy.RunDir)
		if err != nil {
			return fmt.Errorf("cannot take up the changed configuration: %w", err)
		}
		_ = s.lock.Close()
		s.lock = lock
	}
	n.Keep()
	s.current = n
	s.log.WithFields(logrus.Fields{"mode": n.Policy.Rules.Mode, "listen": n.Policy.Daemon.Listen,
		"interval": n.Policy.Daemon.Interval}).Info("the configuration has changed and is in force")
	return nil
}

// keepLock takes the lock again if its file was removed (`rm -rf` of the run directory). If another
// daemon has been started meanwhile, this one ends.
func (s *configManager) keepLock() error {
	runDir := s.current.Policy.RunDir
	if isLockFile(s.lock, runDir) {
		return nil
	}
	lock, err := lockRunDir(runDir)
	if errors.Is(err, errRunning) && s.end != nil {
		s.lockLost = fmt.Errorf("cannot go on: %s was removed, and another %w", lockPath(runDir), errRunning)
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

// Err is why the daemon has ended by itself.
func (s *configManager) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lockLost
}

// Reload is Ensure at the request of an administrator, and logs the result.
func (s *configManager) Reload() {
	s.mu.Lock()
	s.read = time.Time{}
	s.mu.Unlock()
	if err := s.Ensure(context.Background()); err != nil {
		s.log.WithError(err).Warn("the configuration stays as it was")
		return
	}
	s.log.Info("the configuration is read again")
}

// Node is this machine with the last good configuration, or with a broken one if there was none.
func (s *configManager) Node() *node.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// listenAddress is where metrics and the status page are served; "" for nowhere.
func (s *configManager) listenAddress() string { return s.Node().Policy.Daemon.Listen }

// Interval is the time between two passes of a manager.
func (s *configManager) Interval() time.Duration {
	interval, err := grant.ParseDuration(s.Node().Policy.Daemon.Interval)
	if err != nil { // cannot be: the configuration was checked
		return time.Second
	}
	return interval
}

// configuredManager is a manager that does nothing before there has been a good configuration: it
// would work by the defaults, and for example end what the node's own file allows.
type configuredManager struct {
	Manager
	node func() *node.Node
}

func (m configuredManager) Ensure(ctx context.Context) error {
	if m.node().Broken != nil {
		return nil
	}
	return m.Manager.Ensure(ctx)
}
