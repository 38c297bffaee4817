// Package driverlimits manages the memory limits that the driver itself enforces on cgroups.
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
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Enforcer manages the memory limits that the driver itself enforces (docs/adr/0046). It sets them
// for the hook of a create, compares them with the ledger in every pass, and removes them before or
// after a cgroup goes.
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

	mu         sync.Mutex // one change at a time
	known      []limitedCgroup
	tracker    watch.Tracker
	pending    pendingLimits
	runDir     string       // that known is saved in
	followed   ledger.Stamp // the state of the ledger that known follows
	followedAt time.Time    // when followed was read
	answered   bool         // the driver has answered

	completed   ledger.Stamp // the state of the ledger whose bindings all have limits
	completedAt time.Time    // when that was checked
}

// New makes a manager for the node, with the configuration at the path.
func New(n func() *node.Node, ledger *ledgercache.Cache, config string, log *logrus.Logger) *Enforcer {
	return &Enforcer{node: n, driver: nvmlchild.NewLimitSetter(config), cache: ledger, log: log}
}

func (l *Enforcer) Name() string { return "limits" }

// Stop leaves the limits as they are: containers outlive the daemon.
func (l *Enforcer) Stop() {
	l.socket.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.driver.Close()
}

// Ensure listens for requests if the driver can limit memory or limits are set, and checks those.
// Policy and inventory decide at the create whether a container gets limits. So an open socket
// stays open for containers that have been admitted. It is closed while nothing is limited and no
// request could succeed, because the driver does not answer or the record cannot be read.
func (l *Enforcer) Ensure(ctx context.Context) error {
	n := l.node()
	inv, problem := n.Inventory()
	could := problem == nil && inv.Driver.MemoryLimits == grant.CanLimit &&
		n.Policy.Enforcement.Limit != grant.LibraryBackend
	limited, err := l.check(ctx, n, could)
	unable := err != nil
	err = errors.Join(err, l.limitMissing(ctx, n))
	switch {
	case unable && !limited: // then a create uses another backend, and its hook does not refuse it
		l.socket.close()
	case could || limited || l.socket.isOpen():
		err = errors.Join(l.socket.open(n.Policy.LimitSocket(), l.handle), err)
	}
	return err
}

// load reads the record of the run directory, if it was not read yet. The lock is held.
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

// save writes the record. The lock is held.
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
