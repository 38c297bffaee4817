// Package nri is gpuledger's plugin for engines whose default runtime cannot be changed: the same
// node.Admit, asked through NRI (containerd/nri). An engine goes on without a plugin that does not
// answer, so this guards less than gpuledger-runtime does; docs/nri.md says what is left open.
package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/node"
)

// Name and Index are how engines know the plugin: "gpuledger" stands in required_plugins. Plugins
// are asked in the order of their indexes, so that the last sees what those before it add.
const (
	Name  = "gpuledger"
	Index = "99"
)

// DefaultSocket is where containerd and CRI-O listen.
const DefaultSocket = api.DefaultSocketPath

// Options of a Manager.
type Options struct {
	Socket  string
	Open    func() *node.Node // the node as its configuration is now
	Observe bool              // change and refuse nothing; record what is outside the ledger
	// have the engine fail a request that we do not answer, where its NRI can (0.12.5)
	FailRequest bool
	Roots       []string // further directories in which the engine's runtimes keep their states
	Log         *logrus.Logger
}

// Manager keeps the plugin connected to one engine.
type Manager struct {
	Options

	mu       sync.Mutex
	current  *plugin   // nil while not connected
	retry    time.Time // not before
	wait     time.Duration
	failure  error           // of the last attempt
	reserved map[string]bool // containers that this process holds grants for
}

// New gives a manager that is not connected yet.
func New(o Options) *Manager { return &Manager{Options: o, reserved: map[string]bool{}} }

// Name is what logs call it.
func (m *Manager) Name() string { return "nri" }

// The waits between attempts to reach an engine that is not there.
const (
	firstWait = 250 * time.Millisecond
	lastWait  = 15 * time.Second
)

// Ensure connects where there is no connection, sooner after it was lost than when there was none
// for long. The error is that of the last attempt.
func (m *Manager) Ensure(ctx context.Context) error {
	m.mu.Lock()
	idle, failure := m.current == nil && !time.Now().Before(m.retry), m.failure
	m.mu.Unlock()
	if !idle {
		return failure
	}
	err := m.connect(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure = nil; err != nil && ctx.Err() == nil {
		m.wait = min(max(2*m.wait, firstWait), lastWait)
		m.retry = time.Now().Add(m.wait)
		m.failure = fmt.Errorf("cannot reach the engine's NRI: %w", err)
	}
	return m.failure
}

// registration bounds one attempt; an engine gives a plugin five seconds.
const registration = 10 * time.Second

// connect registers with the engine. The connection is our own, because a stub whose engine dies
// between the registration and the configuration waits for ever: then it is closed under it and the
// stub forgotten.
func (m *Manager) connect(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", m.Socket)
	if err != nil {
		return err
	}
	p := &plugin{Manager: m}
	p.stub, err = stub.New(p, stub.WithConnection(conn), stub.WithPluginName(Name),
		stub.WithPluginIdx(Index), stub.WithOnClose(p.lost),
		stub.WithLogger(stubLog{m.Log}),
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: m.FailRequest}))
	if err == nil {
		err = p.start(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.closed {
		return errors.New("the engine closed the connection")
	}
	m.current, m.wait, m.retry = p, 0, time.Time{}
	m.Log.Infof("connected to %s at %s, %s", p.runtime, m.Socket, doing[m.Observe])
	return nil
}

var doing = map[bool]string{false: "enforcing", true: "observing"}

func (p *plugin) start(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- p.stub.Start(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(registration):
		return fmt.Errorf("it did not answer within %s", registration)
	}
}

// lost hears that the connection is closed, by whichever side.
func (p *plugin) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.current == p {
		p.current = nil
		p.Log.Warnf("the connection to %s is closed", p.runtime)
	}
}

// Stop leaves the engine. What this process holds for containers that have not started ends with
// it.
func (m *Manager) Stop() {
	m.mu.Lock()
	p := m.current
	m.mu.Unlock()
	if p != nil {
		p.stub.Stop()
	}
}

func (m *Manager) remember(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reserved[id] = true
}

// forget reports whether there was something to remember.
func (m *Manager) forget(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.reserved[id]
	delete(m.reserved, id)
	return was
}

func (m *Manager) remembered() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.reserved))
}

// carriesRules reports whether an NRI of that version hands device rules on (nri 0.10,
// pkg/adaptation/result.go). One that does not say its version is taken for older.
func carriesRules(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "v%d.%d", &major, &minor)
	return n == 2 && (major > 0 || minor >= 10)
}

// stubLog keeps to itself what the stub says of ordinary life.
type stubLog struct{ *logrus.Logger }

func (l stubLog) Debugf(_ context.Context, format string, args ...any) {
	l.Logger.Tracef("stub: "+format, args...)
}

func (l stubLog) Infof(_ context.Context, format string, args ...any) {
	l.Logger.Debugf("stub: "+format, args...)
}

func (l stubLog) Warnf(_ context.Context, format string, args ...any) {
	l.Logger.Warnf("stub: "+format, args...)
}

func (l stubLog) Errorf(_ context.Context, format string, args ...any) {
	l.Logger.Errorf("stub: "+format, args...)
}
