package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// The records by which the shim in a container learns its limits are made, changed and removed with the ledger locked, as the
// grants are whose they are. What a crash leaves undone the next pass does: they are derived from the ledger.

// shimPlaces are where the proxies lie, from the directory of the program that runs: as packages install them, and as `make build`
// does.
var shimPlaces = []string{"../lib/gpuledger/shim", "shim"}

// Shim looks for the proxies. Their directory is told without links: a package's is a link to that of its version, and what is
// mounted into a container is never written over.
func (n *Node) Shim() grant.Shim {
	var dirs []string
	if dir := n.Policy.Enforcement.Shim; dir != "" {
		dirs = append(dirs, dir)
	} else if program, err := os.Executable(); err == nil {
		for _, place := range shimPlaces {
			dirs = append(dirs, filepath.Join(filepath.Dir(program), place))
		}
	}
	var problem string
	for _, dir := range dirs {
		real, err := host.RealPath(dir)
		if err == nil {
			err = soundShim(real)
		}
		if err == nil {
			return grant.Shim{Dir: real, Throttle: isLibrary(filepath.Join(real, grant.ThrottleLibrary)) == nil}
		}
		if problem == "" || !errors.Is(err, fs.ErrNotExist) {
			problem = err.Error()
		}
	}
	return grant.Shim{Problem: "the shim is not installed: " + problem}
}

// ComputeUnkept says why a grant of mode limit can have no share of compute here; "" where it can.
func (n *Node) ComputeUnkept() string {
	inv, _ := n.Inventory()
	return admission.ComputeUnkept(grant.Grant{Mode: grant.Limit, GPUs: make([]grant.Share, 1)}, inv, n.Policy)
}

// Limitless says why nothing here can hold a container of mode limit to its memory; "" where the shim does.
func (n *Node) Limitless() string {
	inv, _ := n.Inventory()
	return admission.Limitless(1, inv, n.Policy)
}

// soundShim is an error where the proxies are not there, or not of this architecture.
func soundShim(dir string) error {
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if err := isLibrary(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// isLibrary reads the head of an ELF file (elf.h): class, byte order, type and machine.
func isLibrary(path string) error {
	var head [20]byte
	err := host.ReadHead(path, head[:], 0)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s is no library: it is too short", path)
	}
	if err != nil {
		return err
	}
	if string(head[:6]) != "\x7fELF\x02\x01" || head[16] != elfShared || head[18] != elfMachine() || head[19] != 0 {
		return fmt.Errorf("%s is no library of this machine's architecture", path)
	}
	return nil
}

const elfShared = 3 // ET_DYN

// elfMachine is this architecture's: EM_X86_64, EM_AARCH64; 0, of no library, of another one.
func elfMachine() byte {
	switch runtime.GOARCH {
	case "amd64":
		return 62
	case "arm64":
		return 183
	}
	return 0
}

// couldBeLimited reports whether one of the grants that a container may hold is of mode limit or mps.
func couldBeLimited(view grant.View) bool {
	return view.Whole != nil || slices.ContainsFunc(view.Grants, func(g grant.Grant) bool { return g.Mode == grant.Limit || g.Mode == grant.MPS })
}

// writeLimits makes the records of a grant, or sets them to what the grant is now. The ledger is locked.
func writeLimits(n *Node, g grant.Grant) error {
	root := n.Policy.LimitsRoot()
	if err := limits.Room(root); err != nil {
		return err
	}
	ensure := func() error { return limits.Ensure(n.Policy.LimitsDir(g.ID), g.GPUs, admission.Share(g, n.Policy)) }
	err := ensure()
	if errors.Is(err, unix.ENOSPC) {
		err = makeRoom(n, root, ensure)
	}
	return err
}

// makeRoom tries again in a room that is full. What has a name there is cut. What has none, and what a container fills again faster than it is cut,
// the room is made larger for, because no tenant may keep another from starting: whoever fills it pays for the memory in its own cgroup.
func makeRoom(n *Node, root string, ensure func() error) error {
	grown, left := limits.Trim(root)
	err := ensure()
	for _, more := range []grant.Bytes{16 * grant.MiB, 64 * grant.MiB, 256 * grant.MiB, grant.GiB} {
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
		if problem := limits.Enlarge(root, more); problem != nil {
			err = fmt.Errorf("%w; %w", err, problem)
			break
		}
		err = ensure()
	}
	if all := append(grown, left...); err != nil && len(all) > 0 {
		err = fmt.Errorf("%w; containers of %s have taken the room", err, strings.Join(all, ", "))
	}
	return err
}

func unlimitable(c grant.Container, err error) *Decision {
	r := refusal(grant.InjectionImpossible, "the memory limit of container %q cannot be set up", c.Name())
	r.Recorded = append(r.Recorded, err.Error()) // it may name other grants
	r.Hint = "an administrator finds the reason in the audit log"
	return r
}

// removeLimits removes the records of a grant that is over.
func removeLimits(n *Node, id grant.ID) {
	_ = limits.Remove(n.Policy.LimitsDir(id)) // else the next sweep does
}

// Prepare makes the records of a grant whose containers an engine starts without asking us before, by a CDI file. Who may neither mount
// nor write to what is there, as an agent in a pod, leaves that to the create: the wrapper and gpuledgerd make the records, too, and
// what they do not make no runtime can mount.
func (n *Node) Prepare(id grant.ID) error {
	return n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := get(tx, id)
		if err != nil {
			return err
		}
		inv, problem := n.Inventory()
		if problem != nil || !admission.Offer(g, n.Host.Now(), inv, n.Policy).Limited {
			return nil // no file of it mounts them
		}
		if err := writeLimits(n, g); !errors.Is(err, fs.ErrPermission) {
			return err
		}
		return nil
	})
}

// sweep removes from the ledger what is over, and from the run directory what was kept for it.
func sweep(n *Node, tx *ledger.Tx) error {
	if err := tx.Sweep(); err != nil {
		return err
	}
	_, err := settleLimits(n, tx)
	return err
}

// settleLimits makes the records agree with the ledger: those of grants that are gone go, those of live ones say what the ledger
// says. It costs as much as there are records.
func settleLimits(n *Node, tx *ledger.Tx) (findings []ledger.Finding, err error) {
	root := n.Policy.LimitsRoot()
	for _, name := range limits.Kept(root) {
		id, dir := grant.ID(name), filepath.Join(root, name)
		g, err := tx.Entry(id)
		if err == nil && !g.Live(n.Host.Now()) { // unless a container uses it
			g, err = tx.Get(id)
		}
		var problem string
		switch {
		case errors.Is(err, ledger.ErrNotFound) || err == nil && !g.Live(n.Host.Now()):
			problem, err = "the limits of a grant that is over", limits.Remove(dir)
		case err == nil:
			problem, err = syncLimits(n, g, dir)
		default: // damaged: its containers keep what they have
			continue
		}
		if errors.Is(err, limits.ErrLeased) {
			findings = append(findings, ledger.Finding{Subject: dir, Problem: err.Error()})
			continue
		}
		if err != nil {
			return findings, err
		}
		if problem != "" {
			findings = append(findings, ledger.Finding{Subject: dir, Problem: problem, Repaired: true})
		}
	}
	grown, left := limits.Trim(root)
	for _, name := range append(grown, left...) {
		findings = append(findings, ledger.Finding{Subject: filepath.Join(root, name), Problem: "a container has made its accounting region larger, or set attributes on it",
			Repaired: !slices.Contains(left, name), Hint: "end the container of that grant"})
	}
	if mib, inodes := limits.Nameless(root); mib+inodes > 0 && len(left) == 0 { // else they may be theirs
		findings = append(findings, ledger.Finding{Subject: root,
			Problem: fmt.Sprintf("a container has the accounting region of a grant that is over, and fills the room with it: %d MiB and %d inodes have no name there", mib, inodes),
			Hint: fmt.Sprintf("find its processes with `grep -l 'region//deleted' /proc/[0-9]*/mountinfo` and `lsof +aL1 %s`, and end the container; until then the room grows with each container that needs some",
				root)})
	}
	return findings, nil
}

// syncLimits sets what a grant's records say to what the ledger says, and tells whether they said something else. Records that cannot be
// read are made again by the next create.
func syncLimits(n *Node, g grant.Grant, dir string) (problem string, err error) {
	l, err := limits.Open(dir)
	if errors.Is(err, limits.ErrLeased) {
		return "", err
	}
	if err != nil {
		return "", nil
	}
	defer l.Close()
	share := admission.Share(g, n.Policy)
	for _, s := range g.GPUs {
		if b, err := l.Bytes(s.UUID); err != nil || b != s.Memory {
			return "the limits are not what the ledger says", l.Set(g.GPUs, share)
		}
	}
	if l.Share() != share { // the policy may be another by now: nothing is wrong
		return "", l.Set(g.GPUs, share)
	}
	return "", nil
}

// openLimits is the open limits of a grant, nil where no container has any. Those of a container that has some, but which cannot be
// reached from here, are an error: the ledger must not say what does not come to be.
func openLimits(n *Node, g grant.Grant) (*limits.Limits, error) {
	l, err := limits.Open(n.Policy.LimitsDir(g.ID))
	if err == nil {
		return l, nil
	}
	bound := slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return b.Strength == grant.StrengthLibrary })
	if bound || !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot change the limits of grant %s, which a container uses: %w", g.ID, err)
	}
	return nil, nil
}

// smaller are the shares of a grant that is about to change, none of them larger than it may be before or after: what is given up is
// given up before the ledger says that it is free, and what is gained is had after.
func smaller(before, after []grant.Share) []grant.Share {
	least := slices.Clone(before)
	for i := range least {
		for _, s := range after {
			if s.UUID == least[i].UUID {
				least[i].Memory = min(least[i].Memory, s.Memory)
			}
		}
	}
	return least
}
