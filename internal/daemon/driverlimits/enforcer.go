// Package driverlimits has the manager of the limits that NVIDIA's driver itself enforces, from
// version 615 on: how many bytes of a GPU all processes of a cgroup may have together
// (docs/adr/0046). No library in the container is needed for it. Other programs ask the manager for
// a change by package cgmem, which is only the protocol; this package answers them, and calls the
// driver in a child process.
package driverlimits

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/daemon/nvmlchild"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Enforcer is the manager. It sets the limits of a container when the hook of its create asks for
// them, compares them in every pass with the ledger and with the driver, and removes them: when the
// wrapper asks before a delete, or when a pass finds the cgroup empty.
type Enforcer struct {
	node   func() *node.Node
	driver interface {
		Limit(context.Context, grant.Source, []grant.CgroupLimit) ([]grant.CgroupLimit, error)
		Close()
	}
	cache  *ledgercache.Cache
	log    *logrus.Logger
	socket requestSocket

	driftCount atomic.Uint64 // limits that another program has changed
	current    atomic.Pointer[[]grant.Finding]

	mu         sync.Mutex      // one change at a time
	known      []limitedCgroup // the cgroups with limits, as the record has them
	tracker    watch.Tracker   // of the findings about changed limits
	pending    pendingLimits   // limits that this manager changes and has not read back yet
	runDir     string          // the run directory with the record of known; "": it was not read yet
	followed   ledger.Stamp    // of the ledger with which known agrees
	followedAt time.Time       // when known was compared with it
	answered   bool            // the driver answered the last call, so its library is loaded

	completed   ledger.Stamp // of the ledger in which unlimited looked for bindings without limits last
	completedAt time.Time    // when that was
}

// New makes the manager of a node. config is the path of the configuration, for the child process
// that calls NVML.
func New(n func() *node.Node, ledger *ledgercache.Cache, config string, log *logrus.Logger) *Enforcer {
	inventory := func() host.Stamp { return n().InventoryStamp() }
	return &Enforcer{node: n, driver: nvmlchild.NewLimitSetter(config, inventory), cache: ledger, log: log}
}

func (l *Enforcer) Name() string { return "limits" }

// Stop leaves the limits as they are: containers outlive the daemon.
func (l *Enforcer) Stop() {
	l.socket.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.driver.Close()
}

// Ensure checks the limits that are set, and opens the socket for requests if the driver can limit
// memory or something is limited. Whether a container gets limits is decided at its create, by
// policy and inventory as they were then. So a socket that is open stays open for containers that
// have been admitted. It is closed if the check fails and nothing is limited: no request could
// succeed then, because the driver does not answer or the record cannot be read.
func (l *Enforcer) Ensure(ctx context.Context) error {
	n := l.node()
	inv, problem := n.Inventory()
	could := problem == nil && inv.Driver.MemoryLimits == grant.CanLimit &&
		n.Policy.Enforcement.Limit != grant.LibraryBackend
	limited, err := l.check(ctx, n, could)
	unable := err != nil
	err = errors.Join(err, l.limitMissing(ctx, n))
	switch {
	case unable && !limited:
		// Without a socket a create uses another backend. With one it would choose the driver, and
		// its hook would then refuse it.
		l.socket.close()
	case could || limited || l.socket.isOpen():
		err = errors.Join(l.socket.open(n.Policy.LimitSocket(), l.handle), err)
	}
	return err
}

// load reads the record in the run directory, unless it has read that one already. The caller holds
// the lock.
func (l *Enforcer) load(n *node.Node) error {
	if l.runDir == n.Policy.RunDir {
		return nil
	}
	boot, err := n.Host.BootID()
	if err != nil {
		return err
	}
	known, err := loadRecord(n.Policy.RunDir, boot)
	if err == nil {
		l.known, l.pending, l.runDir, l.followed = known.List, nil, n.Policy.RunDir, ledger.Stamp{}
	}
	return err
}

// save writes the record with these cgroups, and keeps them as known. The caller holds the lock.
func (l *Enforcer) save(n *node.Node, known []limitedCgroup) error {
	boot, err := n.Host.BootID()
	if err == nil {
		err = recordFile{List: known}.save(n.Policy.RunDir, boot)
	}
	if err == nil {
		l.known = known
		maps.DeleteFunc(l.pending, func(p cgroupGPU, _ bool) bool {
			return !slices.ContainsFunc(known,
				func(f limitedCgroup) bool { return f.dir(n.Host) == p.cgroup })
		})
	}
	return err
}

// handle does what a request of another gpuledger program asks for.
func (l *Enforcer) handle(ctx context.Context, r cgmem.Call, peer int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.node()
	if err := l.load(n); err != nil {
		return err
	}
	switch r.Op {
	case cgmem.Set:
		return l.limitCreated(ctx, n, r, peer)
	case cgmem.Apply:
		return l.updateGrant(ctx, n, r.Grant, reduction{})
	case cgmem.Lower:
		by, _, err := n.Host.Process(peer)
		if err != nil {
			return fmt.Errorf("cannot identify the process that asks: %w", err)
		}
		return l.updateGrant(ctx, n, r.Grant, reduction{To: r.To, By: by})
	case cgmem.Clear:
		_, err := l.clear(ctx, n, func(f limitedCgroup) bool { return f.isOf(r.RuntimeRoot, r.Container) })
		return err
	}
	return fmt.Errorf("gpuledgerd does not know the request %q", grant.Printable(string(r.Op)))
}
