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

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/request"
)

// limiter finds who has the driver limit memory here. Where the driver cannot, nothing is looked for.
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

// Driverless says why the driver holds no container of mode limit to its memory here; "" where it does.
func (n *Node) Driverless() string {
	inv, _ := n.Inventory()
	return admission.Driverless(grant.Grant{Mode: grant.Limit}, inv, n.Policy)
}

// drivable reports whether the driver's limit can be set for the container: our hook is about to be in its spec, or is.
func (f facts) drivable(spec request.Spec) bool {
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

// limitTime is how long a hook waits for gpuledgerd: it may have to load the driver's library first.
const limitTime = 40 * time.Second

// Drive has the driver limit a container that its runtime has made and not started, of a create that our runtime has admitted: without
// its binding nobody knows what it may have. Nothing is done for one whose grant is held by something else, or that starts as it is
// whoever asks: the hook stands in a spec that somebody uses again.
func (n *Node) Drive(c Create, pid int) *grant.Refusal {
	b, err := admitted(n, c)
	switch {
	case err == nil && !b.Driven:
		return nil
	case err == nil:
		err = cgmem.Ask(n.Policy.LimitSocket(), cgmem.Request{Op: cgmem.Set, RuntimeRoot: b.RuntimeRoot, Container: b.Container, PID: pid}, limitTime)
	case startsAsItIs(n, c):
		return nil
	}
	if err == nil {
		return nil
	}
	return &grant.Refusal{Code: grant.LimitUnenforceable, Message: "the driver's memory limit cannot be set: " + err.Error(),
		Hint: "see that gpuledgerd runs (systemctl status gpuledgerd) and what `gpuledger doctor` says of strength; or set enforcement.limit = \"library\""}
}

// admitted is the binding of a live container's create. Where the configuration cannot be read the ledger is somewhere else.
func admitted(n *Node, c Create) (b grant.Binding, err error) {
	switch {
	case c.Live.Unknown != nil:
		return b, c.Live.Unknown
	case n.Broken != nil:
		return b, n.Broken
	}
	err = n.Ledger.View(func(tx *ledger.Tx) (err error) {
		b, err = tx.Binding(c.Container.RuntimeRoot, c.Container.ID)
		return err
	})
	if errors.Is(err, ledger.ErrNotFound) {
		err = fmt.Errorf("the ledger has no create of container %q, whose runtime keeps its state in %s", c.Container.Name(), c.Container.RuntimeRoot)
	}
	return b, err
}

// startsAsItIs reports whether a container starts as it is, whoever asks.
func startsAsItIs(n *Node, c Create) bool {
	d := n.Explain(c)
	return d.Kind == grant.Pass && !d.Touches()
}

// Weaken says in the ledger that nothing holds a container, which starts all the same because nothing is enforced. Its root may be
// unknown.
func (n *Node) Weaken(c grant.Container) {
	_ = n.Ledger.Update(func(tx *ledger.Tx) (err error) {
		for _, root := range append(tx.BindingsIn(c.ID, c.Bundle), c.RuntimeRoot) {
			if b, e := tx.Binding(root, c.ID); e == nil && b.Driven {
				b.Driven, b.Strength = false, grant.StrengthNone
				b.Weaker = "the driver's memory limit could not be set, and nothing is enforced"
				err = errors.Join(err, tx.Bind(b))
			}
		}
		return err
	})
}

// undrive takes the driver's limits off the cgroup of a container that is gone, as long as that is there. What is left of
// them gpuledgerd finds by itself.
func undrive(n *Node, runtimeRoot, container string, within time.Duration) {
	_ = cgmem.Ask(n.Policy.LimitSocket(), cgmem.Request{Op: cgmem.Clear, RuntimeRoot: runtimeRoot, Container: container}, within)
}

// How long gpuledgerd is waited for with the ledger locked, for the change and for taking it back: together far less than others
// wait for the lock (ledger.DefaultWait), so that no create is refused because the driver hangs.
const (
	applyTime = 4 * time.Second
	againTime = time.Second
)

const _ = uint64(ledger.DefaultWait/2 - applyTime - againTime) // compiles where that is so

// reapply has gpuledgerd give the containers of a grant what the ledger says now.
func reapply(n *Node, id grant.ID, within time.Duration) error {
	return redrive(n, cgmem.Request{Op: cgmem.Apply, Grant: id}, within)
}

// redrive asks gpuledgerd for something about a grant.
func redrive(n *Node, r cgmem.Request, within time.Duration) error {
	err := cgmem.Ask(n.Policy.LimitSocket(), r, within)
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot change the driver's limits of grant %s, which stays as it was: %w; see that gpuledgerd runs and what it logs (journalctl -u gpuledgerd)", r.Grant, err)
}

// rehearse has gpuledgerd set once more what the ledger says already, with nothing locked. If it hangs or the driver does, that is
// found out while nobody else waits; and a driver's library that is not loaded yet, which takes its time, is loaded.
func rehearse(n *Node, id grant.ID) error {
	var g grant.Grant
	err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(id)
		return err
	})
	if err != nil || !driven(g) {
		return nil // what is wrong with it is told by who changes it
	}
	return reapply(n, id, limitTime)
}

func driven(g grant.Grant) bool {
	return slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return b.Driven })
}

// putDriven replaces a grant whose containers the driver limits. What is given up the driver holds them to before the ledger says that it
// is free, and what is gained they have after. A crash in between leaves a limit that is too small; gpuledgerd's next pass puts it right,
// and what a driver does late.
func putDriven(n *Node, tx *ledger.Tx, before, after grant.Grant) error {
	least := smaller(before.GPUs, after.GPUs)
	if !slices.Equal(least, before.GPUs) {
		if err := redrive(n, cgmem.Request{Op: cgmem.Lower, Grant: before.ID, To: least}, applyTime); err != nil {
			_ = reapply(n, before.ID, againTime) // else the next pass
			return err
		}
		failpoint.Hit("node/driven-lowered")
	}
	if err := tx.Put(after); err != nil {
		return errors.Join(err, putBack(n, tx, before))
	}
	failpoint.Hit("node/driven-put")
	if slices.Equal(least, after.GPUs) {
		return nil
	}
	err := reapply(n, after.ID, applyTime)
	if err == nil {
		return nil
	}
	return errors.Join(err, putBack(n, tx, before))
}

// putBack makes a grant what it was, and asks gpuledgerd once to do the same; else the next pass does.
func putBack(n *Node, tx *ledger.Tx, before grant.Grant) error {
	if err := tx.Put(before); err != nil {
		return err
	}
	_ = reapply(n, before.ID, againTime)
	return nil
}
