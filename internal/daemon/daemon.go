// Package daemon runs the managers of a node: what has to be done again and again, or while somebody waits. Nothing that a
// container's start depends on is decided here alone; a node without the daemon keeps its ledger and its guard.
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

// Manager looks after one concern.
type Manager interface {
	Name() string
	// Ensure brings the concern into the state that it should be in, as far as it is not. It is called again and again, and
	// returns what keeps it from doing so.
	Ensure(context.Context) error
	// Stop is called once, after the last Ensure.
	Stop()
}

// Loop calls the managers, and remembers how that went.
type Loop struct {
	Interval func() time.Duration // between two passes; asked anew before each
	Log      *logrus.Logger

	mu      sync.Mutex
	passes  map[string]metrics.ManagerStatus
	started time.Time
}

// Run has each manager ensure at once and then at every interval, until the context ends. One that hangs holds up no other.
func (l *Loop) Run(ctx context.Context, managers ...Manager) {
	l.mu.Lock()
	l.started = time.Now()
	l.passes = map[string]metrics.ManagerStatus{}
	for _, m := range managers { // one that hangs in its first pass shall be seen
		l.passes[m.Name()] = metrics.ManagerStatus{Name: m.Name(), Last: l.started}
	}
	l.mu.Unlock()
	var all sync.WaitGroup
	for _, m := range managers {
		all.Go(func() { l.runManager(ctx, m) })
	}
	<-ctx.Done() // with no manager at all, too
	all.Wait()
}

// attend logs a failure when it is new, and its end.
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

// untilTick is how long it is to the next pass. All managers have the same ticks: to wake up once a second costs less than ten times.
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

// Turns reports whether a manager that waits for nobody has finished a pass within a time, or has only just begun with its first.
// The others may hang with what they look after: that is theirs to say.
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

// Passes tells of each manager's last pass, by name. Before the end of the first that is the start.
func (l *Loop) Passes() []metrics.ManagerStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.passes), func(a, b metrics.ManagerStatus) int { return cmp.Compare(a.Name, b.Name) })
}

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
