// Package nri is gpuledger's plugin for engines whose default runtime cannot be changed. It calls
// node.Admit through NRI (containerd/nri). An engine continues if a plugin does not answer, so this
// enforces less than gpuledger-runtime does; docs/nri.md says what remains open.
package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/node"
)

// Name and Index identify the plugin to engines: required_plugins lists "gpuledger". Engines call
// plugins in the order of their indexes, so the last one sees the edits of all others.
const (
	Name  = "gpuledger"
	Index = "99"
)

// DefaultSocket is the NRI socket of containerd and CRI-O.
const DefaultSocket = api.DefaultSocketPath

// Options are the settings of a Connection.
type Options struct {
	Socket  string
	Open    func() *node.Node // opens the node with its current configuration
	Observe bool              // change and refuse nothing; record containers outside the ledger
	// make the engine fail a request without an answer, if its NRI can (0.12.5)
	FailRequest bool
	Roots       []string // more directories in which the engine's runtimes keep their state
	Log         *logrus.Logger
}

// Connection keeps the plugin connected to one engine.
type Connection struct {
	Options

	mu       sync.Mutex
	current  *plugin   // nil while not connected
	retry    time.Time // no attempt before this time
	wait     time.Duration
	failure  error                  // of the last attempt
	reserved map[string]reservation // by the ids of the containers for which this process holds grants

	judging    sync.Mutex // held while running containers are judged, by one plugin at a time
	judgements judgements
}

// reservation is what is known of a container for which this process holds a grant.
type reservation struct {
	sandbox, name string // one container of a name is in a sandbox at a time
	begun         bool   // the engine has announced its start: it may run
	over          bool   // the reservation could not be removed
}

// New returns a connection that is not made yet.
func New(o Options) *Connection {
	return &Connection{Options: o, reserved: map[string]reservation{},
		judgements: judgements{of: map[string]*judgement{}}}
}

// Name is its name in logs.
func (m *Connection) Name() string { return "nri" }

// The waits between attempts to connect to an engine. After a boot it goes on with its containers
// as soon as it listens. So one that does not listen yet is tried at each pass of gpuledgerd, which
// costs some system calls.
const (
	firstWait  = 250 * time.Millisecond
	absentWait = 500 * time.Millisecond
	lastWait   = 15 * time.Second
)

// nextWait is the wait after an attempt that failed; last is the one before it.
func nextWait(last time.Duration, err error) time.Duration {
	longest := lastWait
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		longest = absentWait
	}
	return min(max(2*last, firstWait), longest)
}

// Ensure connects if there is no connection, and removes the reservations that an event could not
// remove: no other event of the container may follow.
func (m *Connection) Ensure(ctx context.Context) error {
	return cmp.Or(m.ensureConnected(ctx), m.abandonAgain())
}

// ensureConnected connects unless the wait after the last attempt is not over. The error is that of
// the last attempt.
func (m *Connection) ensureConnected(ctx context.Context) error {
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
		m.wait = nextWait(m.wait, err)
		m.retry = time.Now().Add(m.wait)
		m.failure = fmt.Errorf("cannot reach the engine's NRI: %w", err)
	}
	return m.failure
}

// registration is the time limit of one attempt; an engine gives a plugin five seconds.
const registration = 10 * time.Second

// connect registers with the engine. It opens the connection itself: a stub whose engine ends
// between registration and configuration waits for ever. Then connect closes the connection and
// drops the stub.
func (m *Connection) connect(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", m.Socket)
	if err != nil {
		return err
	}
	p := &plugin{Connection: m}
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

// lost is called when either side has closed the connection.
func (p *plugin) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.current == p {
		p.current = nil
		p.Log.Warnf("the connection to %s is closed", p.runtime)
	}
}

// isClosed reports whether either side has closed the connection.
func (p *plugin) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Stop disconnects from the engine. This process's reservations for containers that have not
// started end with it.
func (m *Connection) Stop() {
	m.mu.Lock()
	p := m.current
	m.mu.Unlock()
	if p != nil {
		p.stub.Stop()
	}
}

func (m *Connection) remember(c *api.Container, begun bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reserved[c.GetId()] = reservation{sandbox: c.GetPodSandboxId(), name: c.GetName(), begun: begun}
}

// begin records that a container may run from now on.
func (m *Connection) begin(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, held := m.reserved[id]; held {
		r.begun, r.over = true, false
		m.reserved[id] = r
	}
}

// abandon removes the reservations of containers, if this process has any for them. The ones that
// it cannot remove are left to Ensure.
func (m *Connection) abandon(n *node.Node, ids ...string) error {
	m.mu.Lock()
	taken := map[string]reservation{}
	for _, id := range ids {
		if r, held := m.reserved[id]; held {
			taken[id] = r
			delete(m.reserved, id)
		}
	}
	m.mu.Unlock()
	if len(taken) == 0 {
		return nil
	}
	ids = slices.Sorted(maps.Keys(taken))
	err := n.Abandon(ids...)
	if err == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range taken {
		if _, again := m.reserved[id]; !again { // reserved meanwhile
			r.over = true
			m.reserved[id] = r
		}
	}
	return fmt.Errorf("cannot free what was held for container %s: %w", strings.Join(ids, ", "), err)
}

func (m *Connection) abandonAgain() error {
	ids := m.remembered(func(_ string, r reservation) bool { return r.over })
	if len(ids) == 0 {
		return nil
	}
	return m.abandon(m.Open(), ids...)
}

// remembered returns the ids of those containers for which this process holds grants that match.
func (m *Connection) remembered(matches func(id string, r reservation) bool) (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.reserved {
		if matches(id, r) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// carriesRules reports whether an NRI of this version passes device rules on (nri 0.10,
// pkg/adaptation/result.go). One without a version counts as older.
func carriesRules(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "v%d.%d", &major, &minor)
	return n == 2 && (major > 0 || minor >= 10)
}

// stubLog lowers the level of the stub's messages about normal operation.
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
