package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// keepExpired is how long an unused grant stays after its time: its user hears that it is expired,
// not that there was never one.
const keepExpired = 24 * time.Hour

// survey is all of the ledger as one pass read it under the lock, and what was found and done
// since.
type survey struct {
	tx       *Tx
	grants   map[grant.ID]grant.Grant
	damaged  map[grant.ID]grant.Damage
	sorted   []grant.Grant
	bindings map[string]grant.Binding // by key, those whose record can be read
	broken   map[string]error         // by key, the others
	findings []Finding
	failed   error // the first repair that wasn't possible
}

func (tx *Tx) survey() (*survey, error) {
	grants, damaged, err := tx.All()
	if err != nil {
		return nil, err
	}
	s := &survey{
		tx: tx, sorted: grants, grants: map[grant.ID]grant.Grant{}, damaged: map[grant.ID]grant.Damage{},
		bindings: map[string]grant.Binding{}, broken: map[string]error{},
	}
	for _, g := range grants {
		s.grants[g.ID] = g
	}
	for _, d := range damaged {
		s.damaged[d.ID] = d
	}
	return s, s.readBindings()
}

// readBindings reads those that were not read with their grants: of containers that are gone, and
// of no grant.
func (s *survey) readBindings() error {
	read := map[string]grant.Binding{}
	for _, g := range s.sorted {
		for _, b := range g.Bindings {
			if b.Container != "" { // else its record cannot be read
				read[bindingKey(b.RuntimeRoot, b.Container)] = b
			}
		}
	}
	names, err := namesIn(s.tx.l.bindingsDir())
	if err != nil {
		return fmt.Errorf("cannot list bindings: %w", err)
	}
	for _, name := range names {
		key, isJSON := strings.CutSuffix(name, ".json")
		if !isJSON || !isKey(key) {
			continue
		}
		b, known := read[key]
		if !known {
			if b, err = s.tx.load(key); err != nil {
				s.broken[key] = err
				continue
			}
			s.tx.l.Containers.Examine(&b)
		}
		s.bindings[key] = b
	}
	return nil
}

// Sweep removes what is over: released and adopted grants whose container is gone, grants that
// expired a day ago and are not in use, dead bindings; and what crashes left behind. It returns the
// first thing that couldn't be removed.
func (tx *Tx) Sweep() error {
	if !tx.writes {
		return errReadOnly
	}
	s, err := tx.survey()
	if err != nil {
		return err
	}
	s.removeOverdue()
	s.repairAll()
	return s.failed
}

// repairAll puts right whatever is derived. Bindings come before links: theirs go with them.
func (s *survey) repairAll() {
	s.repairBindings()
	s.repairBindingLinks()
	s.repairOccupied()
	s.repairOwners()
	s.repairGPUs()
	s.removeTemporary()
}

// removeOverdue leaves the grants' links to the repair. No sync: a grant that a power cut brings
// back is over as before, and is removed again.
func (s *survey) removeOverdue() {
	now := s.tx.l.Host.Now()
	for id, g := range s.grants {
		overdue := g.Draining || g.Orphaned() || !g.Expires.IsZero() &&
			!now.Before(g.Expires.Add(keepExpired))
		if len(g.Bindings) > 0 || !overdue {
			continue
		}
		s.tx.found = ""
		err := os.Remove(s.tx.l.grantPath(id))
		s.repaired(s.tx.l.grantPath(id), "the grant is over", err)
		if err == nil {
			delete(s.grants, id)
		}
		failpoint.Hit("ledger/sweep-removed")
	}
}

// has reports whether there is an entry, readable or not.
func (s *survey) has(id grant.ID) bool {
	_, readable := s.grants[id]
	_, damaged := s.damaged[id]
	return readable || damaged
}

func (s *survey) repairBindings() {
	for key, b := range s.bindings {
		problem := ""
		switch {
		case b.Life == grant.Dead:
			problem = fmt.Sprintf("container %q is gone", b.Container)
		case !s.has(b.Grant):
			problem = fmt.Sprintf("container %q is bound to grant %s, which does not exist", b.Container,
				b.Grant)
		default:
			continue
		}
		s.repaired(s.tx.l.bindingPath(key), problem, s.tx.dropBinding(b.Grant, key))
		delete(s.bindings, key)
	}
}

// repairBindingLinks goes through <run>/grants. A record that can't be read may be a live
// container's while a grant links to it; without a link no grant ever knew of it.
func (s *survey) repairBindingLinks() {
	linked := map[string]bool{} // by path below <run>/grants
	for _, id := range s.list(s.tx.l.boundDir()) {
		for _, key := range s.list(s.tx.l.boundPath(grant.ID(id))) {
			if !isKey(key) {
				continue
			}
			b, readable := s.bindings[key]
			_, broken := s.broken[key]
			if broken && s.has(grant.ID(id)) || readable && b.Grant == grant.ID(id) {
				linked[id+"/"+key], linked[key] = true, true
				continue
			}
			s.remove(filepath.Join(s.tx.l.boundPath(grant.ID(id)), key), "link to a binding that is gone")
		}
		if !s.has(grant.ID(id)) {
			_ = unix.Rmdir(s.tx.l.boundPath(grant.ID(id))) // where it is empty; never a file
		}
	}
	for key, b := range s.bindings {
		if path := string(b.Grant) + "/" + key; !linked[path] {
			s.repaired(filepath.Join(s.tx.l.boundDir(), path), "the link to a binding is missing",
				s.tx.linkBinding(b.Grant, key))
		}
	}
	for key, err := range s.broken {
		if !linked[key] {
			s.remove(s.tx.l.bindingPath(key), "a binding of no grant: "+err.Error())
		} else {
			s.find(s.tx.l.bindingPath(key), "the binding can't be read, so its grant stays in use until it "+
				"is released by force: "+err.Error(), "`gpuledger release --force ID` of its grant drops it")
		}
	}
}

// repairOwners makes each owner's link lead to its live grant. A link to an entry that can't be
// read stays: whose it is only the link can tell.
func (s *survey) repairOwners() {
	now := s.tx.l.Host.Now()
	want, live := map[string]grant.ID{}, map[string]bool{}
	for _, g := range s.sorted { // oldest first: of several the newest counts, as after its Put
		key := ownerKey(g.Owner)
		if _, found := s.grants[g.ID]; found && hasLink(g.Owner) && (g.Live(now) || !live[key]) {
			want[key], live[key] = g.ID, g.Live(now)
		}
	}
	for _, key := range s.list(s.tx.l.ownersDir()) {
		path := filepath.Join(s.tx.l.ownersDir(), key)
		target, err := os.Readlink(path)
		if err != nil || key[0] == '.' {
			continue
		}
		s.repairOwner(path, target, want[key])
		delete(want, key)
	}
	for key, id := range want {
		if path := filepath.Join(s.tx.l.ownersDir(), key); live[key] {
			s.repaired(path, "the link to grant "+string(id)+" is missing",
				replaceLink(ownerTarget(id), path))
		}
	}
}

func (s *survey) repairOwner(path, target string, want grant.ID) {
	id, _ := idOf(filepath.Base(target))
	_, damaged := s.damaged[id]
	switch {
	case want != "" && target != ownerTarget(want) && !damaged:
		s.repaired(path, "it leads to "+target+" and not to grant "+string(want),
			replaceLink(ownerTarget(want), path))
	case want == "" && !damaged:
		s.remove(path, "it leads to "+target+", which is not its owner's")
	}
}

func (s *survey) repairGPUs() {
	for _, uuid := range s.list(s.tx.l.gpusDir()) {
		for _, name := range s.list(s.tx.l.gpuPath(uuid)) {
			id := grant.ID(name)
			_, damaged := s.damaged[id]
			if g := s.grants[id]; !damaged && !g.Has(uuid) && name[0] != '.' {
				s.remove(filepath.Join(s.tx.l.gpuPath(uuid), name), "link to a grant that is gone")
			}
		}
		_ = unix.Rmdir(s.tx.l.gpuPath(uuid)) // where it is empty; never a file
	}
	for id, g := range s.grants {
		for _, share := range g.GPUs {
			err := s.tx.linkGPU(id, share.UUID)
			if !errors.Is(err, os.ErrExist) {
				s.repaired(filepath.Join(s.tx.l.gpuPath(share.UUID), string(id)),
					"the link to a grant was missing", err)
			}
		}
	}
}

// removeTemporary removes what killed writers left: no other process writes while this one holds
// the lock.
func (s *survey) removeTemporary() {
	l := s.tx.l
	dirs := []string{l.grantsDir(), l.ownersDir(), l.bindingsDir()}
	for _, uuid := range s.list(l.gpusDir()) {
		dirs = append(dirs, l.gpuPath(uuid))
	}
	for _, dir := range dirs {
		for _, name := range s.list(dir) {
			if name[0] == '.' {
				s.remove(filepath.Join(dir, name), "left over from a write that was interrupted")
			}
		}
	}
	for _, name := range s.list(l.Run) { // others may keep files there
		if strings.HasPrefix(name, ".outside.json.") {
			s.remove(filepath.Join(l.Run, name), "left over from a write that was interrupted")
		}
	}
}

// list is a directory's names. What is no directory has none: gpuledger did not make it.
func (s *survey) list(dir string) []string {
	names, err := namesIn(dir)
	if err != nil && !isNotDir(err) && s.failed == nil {
		s.failed = err
		s.find(dir, err.Error(), hintDisk)
	}
	return names
}

func (s *survey) remove(path, problem string) { s.repaired(path, problem, os.Remove(path)) }

// repaired notes what was wrong and whether it still is.
func (s *survey) repaired(path, problem string, err error) {
	if err != nil {
		problem += "; " + err.Error()
		if s.failed == nil {
			s.failed = fmt.Errorf("cannot tidy the ledger: %w", err)
		}
	}
	f := Finding{Subject: path, Problem: problem, Repaired: err == nil}
	if err != nil {
		f.Hint = hintDisk
	}
	s.findings = append(s.findings, f)
	failpoint.Hit("ledger/repaired")
}

func (s *survey) find(subject, problem, hint string) {
	s.findings = append(s.findings, Finding{Subject: subject, Problem: problem, Hint: hint})
}
