package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/request"
)

// limiter finds out how the driver is made to limit memory on this node. If the driver cannot, it
// looks for nothing.
func limiter(n *Node, inv grant.Inventory) (l grant.Limiter) {
	if inv.Driver.MemoryLimits != grant.CanLimit || n.Policy.Enforcement.Limit == grant.LibraryBackend {
		return l
	}
	program, err := os.Executable()
	if err != nil {
		return grant.Limiter{Problem: "gpuledger-hook cannot be found: " + err.Error()}
	}
	l.Hook = filepath.Join(filepath.Dir(program), "gpuledger-hook")
	config, err := filepath.Abs(n.config)
	if err == nil {
		err = unix.Access(l.Hook, unix.X_OK)
	}
	l.Env = policy.PathEnv + "=" + config
	var st unix.Statfs_t
	root := filepath.Join(n.Host.Sys, "fs/cgroup")
	switch {
	case err != nil:
		l.Problem = "gpuledger-hook cannot be called: " + err.Error()
	case unix.Statfs(root, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC:
		l.Problem = "the driver limits cgroups of v2, and " + root + " is none"
	default:
		if err := cgmem.Listens(n.Policy.LimitSocket()); err != nil {
			l.Problem = err.Error()
		}
	}
	return l
}

// canSetDriverLimit reports whether the driver's limit can be set for the container: our hook is
// about to be in its spec, or is.
func (f *createFacts) canSetDriverLimit(spec request.Spec) bool {
	if f.CgroupsOff || f.Restored {
		return false
	}
	if f.Hooked {
		return true
	}
	return spec.Hooks != nil && slices.ContainsFunc(spec.Hooks.CreateRuntime, func(h specs.Hook) bool {
		return filepath.Base(h.Path) == "gpuledger-hook" && len(h.Args) == 2 && h.Args[1] == grant.LimitStage
	})
}

// LimitTime is how long a hook waits for gpuledgerd: it may have to load the driver's library
// first.
const LimitTime = 40 * time.Second

// SetDriverLimit has the driver limit a container that its runtime has made and not started. The
// create must have been admitted by gpuledger-runtime: its binding says what the container may
// have. Nothing is done for a container that the driver does not limit, or that starts as it is:
// its spec may be a copy of an edited one, with the hook in it.
func (n *Node) SetDriverLimit(c Create, pid int) *grant.Refusal {
	b, err := admitted(n, c)
	switch {
	case err == nil && !b.Driven:
		return nil
	case err == nil:
		err = cgmem.Ask(n.Policy.LimitSocket(), cgmem.Call{
			Op: cgmem.Set, RuntimeRoot: b.RuntimeRoot, Container: b.Container, PID: pid}, LimitTime)
	case startsAsItIs(n, c):
		return nil
	}
	if err == nil {
		return nil
	}
	return &grant.Refusal{Code: grant.LimitUnenforceable,
		Message: "the driver's memory limit cannot be set: " + err.Error(),
		Hint: "see that gpuledgerd runs (systemctl status gpuledgerd) and what `gpuledger doctor` says of " +
			"strength; or set enforcement.limit = \"library\""}
}

// admitted returns the binding of a live container's create. If the configuration cannot be read,
// the ledger may be at another place.
func admitted(n *Node, c Create) (b grant.Binding, err error) {
	switch {
	case c.Live.Unknown != nil:
		return b, c.Live.Unknown
	case n.Broken != nil:
		return b, n.Broken
	}
	b, err = n.Ledger.Bindings.Of(c.Container.RuntimeRoot, c.Container.ID)
	if errors.Is(err, ledger.ErrNotFound) {
		err = fmt.Errorf("the ledger has no create of container %q, whose runtime keeps its state in %s",
			c.Container.Name(), c.Container.RuntimeRoot)
	}
	return b, err
}

// startsAsItIs reports whether a container starts without any change.
func startsAsItIs(n *Node, c Create) bool {
	d := n.Explain(c)
	return d.Kind == grant.Pass && !d.Touches()
}

// Weaken says in the ledger that nothing holds a container, which starts all the same because
// nothing is enforced. Its root may be unknown.
func (n *Node) Weaken(c grant.Container) {
	_ = n.Ledger.Update(func(tx *ledger.Tx) (err error) {
		for _, root := range append(tx.Bindings.RootsOf(c.ID, c.Bundle), c.RuntimeRoot) {
			if b, e := tx.Bindings.Of(root, c.ID); e == nil && b.Driven {
				b.Driven, b.Strength = false, grant.StrengthNone
				b.Weaker = "the driver's memory limit could not be set, and nothing is enforced"
				err = errors.Join(err, tx.Bind(b))
			}
		}
		return err
	})
}

// clearDriverLimit takes the driver's limits off the cgroup of a container that is gone, as long as
// that is there. What is left of them gpuledgerd finds by itself.
func clearDriverLimit(n *Node, runtimeRoot, container string, within time.Duration) {
	_ = cgmem.Ask(n.Policy.LimitSocket(), cgmem.Call{
		Op: cgmem.Clear, RuntimeRoot: runtimeRoot, Container: container}, within)
}
