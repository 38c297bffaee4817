// Package daemon is gpuledgerd. It runs the managers, each of which keeps one part of the node in
// the state that it should have. In this package are those of the configuration, the ledger, the
// inventory, the CDI files, the engines' configuration and the audit log. The others have packages
// of their own: watcher, driverlimits, httpserver and userserver below this one, and mps, nodeacl
// and nri.
//
// The start of a container never depends on the daemon alone: a node without it still has its
// ledger, and still refuses containers.
package daemon

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/metrics"
)

// Manager is responsible for one part of the daemon's work.
type Manager interface {
	Name() string
	// Ensure brings that part into the state that it should have. It is called in every pass, and
	// its error is why it could not.
	Ensure(context.Context) error
	// Stop is called once, after the last Ensure.
	Stop()
}

// Loop calls the managers, and records how their passes went.
type Loop struct {
	Interval func() time.Duration // between two passes; called before each
	Log      *logrus.Logger

	mu      sync.Mutex
	passes  map[string]metrics.ManagerStatus
	started time.Time
}

// Run calls Ensure of each manager at once and then at every interval, until the context ends. A
// manager that hangs delays no other.
func (l *Loop) Run(ctx context.Context, managers ...Manager) {
	l.mu.Lock()
	l.started = time.Now()
	l.passes = map[string]metrics.ManagerStatus{}
	for _, m := range managers { // so that one that hangs in its first pass is reported, too
		l.passes[m.Name()] = metrics.ManagerStatus{Name: m.Name(), Last: l.started}
	}
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, m := range managers {
		all.Go(func() { l.runManager(ctx, m) })
	}
	<-ctx.Done() // also without any manager
	all.Wait()
}

// runManager logs an error when it is new.
func (l *Loop) runManager(ctx context.Context, m Manager) {
	defer m.Stop()
	for last := ""; ctx.Err() == nil; {
		began := time.Now()
		err := m.Ensure(ctx)
		l.record(m.Name(), began, time.Since(began), err)
		last = logNewError(l.Log, m, last, err)
		select {
		case <-ctx.Done():
		case <-time.After(l.untilTick(time.Now())):
		}
	}
}

// untilTick is the time until the next pass. All managers have the same ticks, because to wake up
// once a second costs less than ten times.
func (l *Loop) untilTick(now time.Time) time.Duration {
	interval := max(l.Interval(), time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	return interval - now.Sub(l.started)%interval
}

func (l *Loop) record(name string, at time.Time, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.passes == nil {
		l.passes = map[string]metrics.ManagerStatus{}
	}
	p := l.passes[name]
	p.Name, p.Last, p.Took, p.Passes, p.Error = name, at, took, p.Passes+1, ""
	if err != nil {
		p.Errors++
		p.Error = err.Error()
	}
	l.passes[name] = p
}

// Alive reports whether a manager that never waits has finished a pass within a time, or has just
// begun its first one. Other managers may wait for what they manage, and report that themselves.
func (l *Loop) Alive(name string, within time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started.IsZero() {
		return true
	}
	last := l.started
	if p, passed := l.passes[name]; passed {
		last = p.Last
	}
	return time.Since(last) < within
}

// Passes returns each manager's last pass, by name. Before the end of the first pass, that is its
// beginning.
func (l *Loop) Passes() []metrics.ManagerStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.passes),
		func(a, b metrics.ManagerStatus) int { return cmp.Compare(a.Name, b.Name) })
}

// logNewError logs the error of a pass if it differs from the last one, and returns it.
func logNewError(log *logrus.Logger, m Manager, last string, err error) string {
	now := ""
	if err != nil {
		now = fmt.Sprintf("%s: %v", m.Name(), err)
	}
	if now != "" && now != last {
		log.Warn(now)
	}
	return now
}
