// Package limitfiles decides which files of package limits exist and what they say: those of every
// grant that needs them, with what the ledger says, and no others. Package limits knows one grant's
// files, and neither ledger nor policy. The files are made, changed and removed with the ledger
// locked, as the grants are to which they belong. What a crash leaves undone the next pass does.
package limitfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// Write makes the files of a grant, or sets them to what the grant is now. The ledger is locked.
func Write(p grant.Policy, g grant.Grant) error {
	root := p.LimitsRoot()
	if err := limits.Mount(root); err != nil {
		return err
	}
	var known limits.Contexts
	contexts := func(uuid string) grant.Bytes {
		if known == nil { // only new files need it
			known = limits.ReadContexts(p.ContextsFile())
		}
		return known[uuid]
	}
	ensure := func() error {
		return limits.Ensure(p.LimitsDir(g.ID), g.GPUs, admission.ThrottlePercent(g, p), contexts)
	}
	err := ensure()
	if errors.Is(err, unix.ENOSPC) {
		err = makeRoom(root, ensure)
	}
	return err
}

// makeRoom tries again on a file system that is full. It cuts files that grew. For files without a
// name, and for those that a container fills faster than they are cut, it makes the file system
// larger: no tenant may keep another from starting. A container that fills it pays for the memory
// in its own cgroup.
func makeRoom(root string, ensure func() error) error {
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

// Remove removes the files of a grant that is over.
func Remove(p grant.Policy, id grant.ID) {
	_ = limits.Remove(p.LimitsDir(id)) // else the next sweep does
}

// Sweep removes from the ledger what is over, and from the run directory what was kept for it. It
// returns what is left of the ledger (Tx.Swept).
func Sweep(p grant.Policy, tx *ledger.Tx) (grant.View, error) {
	v, err := tx.Swept()
	if err == nil {
		Settle(p, v.Now, tx)
	}
	return v, err
}

// Settle makes the files agree with the ledger: it removes those of grants that are gone and that
// no container uses, and sets those of live ones to what the ledger says. Files that cannot be
// removed or set are a finding: what is wrong with one grant's keeps no other from being entered.
// It costs as much as there are files.
func Settle(p grant.Policy, now time.Time, tx *ledger.Tx) (findings []ledger.Finding) {
	root := p.LimitsRoot()
	for _, name := range limits.Kept(root) {
		id, dir := grant.ID(name), filepath.Join(root, name)
		g, err := tx.Entry(id)
		if err == nil && !g.Live(now) { // unless a container uses it
			g, err = tx.Get(id)
		}
		var problem string
		switch {
		case errors.Is(err, ledger.ErrNotFound) && tx.Bindings.Used(id): // its container may run
			continue
		case errors.Is(err, ledger.ErrNotFound) || err == nil && !g.Live(now):
			problem, err = "the limits of a grant that is over", limits.Remove(dir)
			if err != nil {
				findings = append(findings, ledger.Finding{Subject: dir, Problem: err.Error(),
					Hint: "if `lsattr " + dir + "` shows `i` or `a`, run `chattr -ia` on that file; " +
						"the next check removes it"})
				continue
			}
		case err == nil:
			problem, err = sync(p, g, dir)
		default: // damaged: its containers keep what they have
			continue
		}
		switch {
		case errors.Is(err, limits.ErrLeased):
			findings = append(findings, ledger.Finding{Subject: dir, Problem: err.Error()})
		case err != nil:
			findings = append(findings, ledger.Finding{Subject: dir, Problem: err.Error(),
				Hint: "if it stays so, end the grant's containers, and release the grant"})
		case problem != "":
			findings = append(findings, ledger.Finding{Subject: dir, Problem: problem, Repaired: true})
		}
	}
	grown, left := limits.Trim(root)
	for _, name := range append(grown, left...) {
		findings = append(findings, ledger.Finding{Subject: filepath.Join(root, name),
			Problem:  "a container has made its accounting region larger, or set attributes on it",
			Repaired: !slices.Contains(left, name), Hint: "end the container of that grant"})
	}
	if mib, inodes := limits.Unlinked(root); mib+inodes > 0 && len(left) == 0 { // else they may be theirs
		findings = append(findings, ledger.Finding{Subject: root,
			Problem: fmt.Sprintf("a container has the accounting region of a grant that is over, and fills "+
				"the room with it: %d MiB and %d inodes have no name there", mib, inodes),
			Hint: fmt.Sprintf("find its processes with `grep -l 'region//deleted' /proc/[0-9]*/mountinfo` "+
				"and `lsof +aL1 %s`, and end the container; until then the room grows with each "+
				"container that needs some", root)})
	}
	return findings
}

// sync sets a grant's files to what the ledger says, and tells whether they said something else.
// If there is no limits file, the next create makes one.
func sync(p grant.Policy, g grant.Grant, dir string) (problem string, err error) {
	l, err := limits.Open(dir)
	switch {
	case err == nil:
	case errors.Is(err, limits.ErrLeased):
		return "", err
	case limits.NoneIn(dir, err):
		return "", nil
	default:
		return "", fmt.Errorf("cannot open the limits: %w", err)
	}
	defer l.Close()
	share := admission.ThrottlePercent(g, p)
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

// Open opens the limits of a grant. It returns nil if no container has any. If a container has
// limits that cannot be opened from here, that is an error: the ledger must not promise what does
// not take effect.
func Open(p grant.Policy, g grant.Grant) (*limits.Limits, error) {
	l, err := limits.Open(p.LimitsDir(g.ID))
	if err == nil {
		return l, nil
	}
	bound := slices.ContainsFunc(g.Bindings,
		func(b grant.Binding) bool { return b.Strength == grant.StrengthLibrary })
	if bound || !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot change the limits of grant %s, which a container uses: %w", g.ID, err)
	}
	return nil, nil
}

// Smaller gives the shares that a grant has while it changes: of each the smaller size. So memory
// is given up before the ledger says that it is free, and is gained after.
func Smaller(before, after []grant.Share) []grant.Share {
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
