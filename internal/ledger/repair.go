package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// keepExpired is how long an unused grant stays after its time. Its user reads meanwhile that it is
// expired, and not that there was never one.
const keepExpired = 24 * time.Hour

// repair is a change to one file that is derived from others, or is over. It makes path a link to
// the target, or drops a binding, or without either removes path.
type repair struct {
	path, problem string
	target        string
	binding       string // key
	grant         grant.ID
}

// Sweep removes what is over: released and adopted grants whose container is gone, grants that
// expired a day ago and are not in use, dead bindings; and what crashes left behind. It returns the
// first thing that could not be removed.
func (tx *Tx) Sweep() error {
	if !tx.writes {
		return errReadOnly
	}
	s, err := readSurvey(tx)
	if err != nil {
		return err
	}
	_, s, failed := removeOverdue(tx, s)
	_, err = repairAll(tx, s)
	return cmp.Or(failed, err)
}

// removeOverdue removes the grants that are over, and gives the survey without them. It leaves
// their links to the other repairs. Nothing is synced: a grant that a power cut brings back is over
// as before, and is removed again.
func removeOverdue(tx *Tx, s survey) ([]Finding, survey, error) {
	var findings []Finding
	var failed error
	left := map[grant.ID]grant.Grant{}
	over := overdue(s, tx.host.Now())
	for id, g := range s.grants {
		if !over[id] {
			left[id] = g
		}
	}
	for _, id := range sortedKeys(over) {
		tx.found = ""
		finding, err := apply(s.files, repair{path: s.files.grants.path(id), problem: "the grant is over"})
		if findings = append(findings, finding); err != nil {
			left[id], failed = s.grants[id], cmp.Or(failed, err)
		}
		failpoint.Hit("ledger/sweep-removed")
	}
	s.grants = left
	return findings, s, failed
}

// overdue are the grants that are over and that no container uses.
func overdue(s survey, now time.Time) map[grant.ID]bool {
	over := map[grant.ID]bool{}
	for id, g := range s.grants {
		expired := !g.Expires.IsZero() && !now.Before(g.Expires.Add(keepExpired))
		if len(g.Bindings) == 0 && (g.Draining || g.Orphaned() || expired) {
			over[id] = true
		}
	}
	return over
}

// repairAll makes all that is derived agree with the entries. It returns the first error.
func repairAll(tx *Tx, s survey) (findings []Finding, failed error) {
	for _, dir := range sortedKeys(s.unlisted) {
		failed = cmp.Or(failed, s.unlisted[dir])
		findings = append(findings, Finding{Subject: dir, Problem: s.unlisted[dir].Error(), Hint: hintDisk})
	}
	for _, r := range repairs(s, tx.host.Now()) {
		finding, err := apply(s.files, r)
		findings, failed = append(findings, finding), cmp.Or(failed, err)
	}
	for _, dir := range maybeEmpty(s) {
		_ = unix.Rmdir(dir) // where it is empty; never a file
	}
	tx.creates.Announced(nil) // which removes those that are over
	return findings, failed
}

// apply carries out a repair, and says what was wrong and whether it still is.
func apply(f files, r repair) (Finding, error) {
	var err error
	switch {
	case r.binding != "":
		err = f.bindings.drop(r.grant, r.binding)
	case r.target != "":
		err = linkIn(r.target, r.path)
	default:
		err = os.Remove(r.path)
	}
	finding := Finding{Subject: r.path, Problem: r.problem, Repaired: err == nil}
	if err != nil {
		finding.Problem, finding.Hint = r.problem+"; "+err.Error(), hintDisk
		err = fmt.Errorf("cannot tidy the ledger: %w", err)
	}
	failpoint.Hit("ledger/repaired")
	return finding, err
}

// linkIn makes path a link to target, and the directory for it.
func linkIn(target, path string) error {
	err := replaceLink(target, path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return replaceLink(target, path)
}

// repairs are the changes that make all that is derived agree with the entries. Bindings come
// before links: the links of a dropped binding go with it.
func repairs(s survey, now time.Time) []repair {
	dropped := bindingRepairs(s)
	s = without(s, dropped)
	all := append(dropped, bindingLinkRepairs(s)...)
	all = append(all, cgroupLinkRepairs(s)...)
	all = append(all, ownerLinkRepairs(s, now)...)
	all = append(all, gpuLinkRepairs(s)...)
	return append(all, temporaryRepairs(s)...)
}

// bindingRepairs drop the bindings of containers that are gone, and of grants that do not exist.
func bindingRepairs(s survey) (all []repair) {
	for _, key := range sortedKeys(s.bindings) {
		if problem := wrongBinding(s, s.bindings[key]); problem != "" {
			all = append(all, repair{path: s.files.bindings.path(key), problem: problem, binding: key,
				grant: s.bindings[key].Grant})
		}
	}
	return all
}

// wrongBinding says why a binding is to be dropped; "" if it stays.
func wrongBinding(s survey, b grant.Binding) string {
	switch {
	case b.Life == grant.Dead:
		return fmt.Sprintf("container %q is gone", b.Container)
	case !has(s, b.Grant):
		return fmt.Sprintf("container %q is bound to grant %s, which does not exist", b.Container, b.Grant)
	}
	return ""
}

// without gives the survey as it is when bindings were dropped, with their links.
func without(s survey, dropped []repair) survey {
	if len(dropped) == 0 {
		return s
	}
	left, gone, unlinked := map[string]grant.Binding{}, map[string]bool{}, map[string]bool{}
	for _, r := range dropped {
		gone[r.binding] = true
		unlinked[filepath.Join(s.files.bindings.linksOf(r.grant), r.binding)] = true
		for _, cgroup := range s.bindings[r.binding].Occupies {
			if path := s.files.bindings.cgroups.path(cgroup); s.targets[path] == bindingTarget(r.binding) {
				unlinked[path] = true
			}
		}
	}
	for key, b := range s.bindings {
		if !gone[key] {
			left[key] = b
		}
	}
	names := map[string][]string{}
	for dir, all := range s.names {
		for _, name := range all {
			if !unlinked[filepath.Join(dir, name)] {
				names[dir] = append(names[dir], name)
			}
		}
	}
	s.bindings, s.names = left, names
	return s
}

// bindingLinkRepairs make each binding have its link from its grant, and no other. A record that
// cannot be read may be a live container's as long as a grant links to it; without a link no grant
// ever knew of it.
func bindingLinkRepairs(s survey) (all []repair) {
	f, linked := s.files.bindings, linkedBindings(s)
	for _, id := range s.names[f.byGrant] {
		dir := f.linksOf(grant.ID(id))
		for _, key := range s.names[dir] {
			if path := filepath.Join(dir, key); isKey(key) && !linked[path] {
				all = append(all, repair{path: path, problem: "link to a binding that is gone"})
			}
		}
	}
	for _, key := range sortedKeys(s.bindings) {
		if path := filepath.Join(f.linksOf(s.bindings[key].Grant), key); !linked[path] {
			all = append(all, repair{path: path, problem: "the link to a binding is missing",
				target: "../" + bindingTarget(key)})
		}
	}
	for _, key := range sortedKeys(s.broken) {
		if !linked[key] {
			all = append(all, repair{path: f.path(key),
				problem: "a binding of no grant: " + s.broken[key].Error()})
		}
	}
	return all
}

// linkedBindings are the right links from grants to bindings, by path, and the bindings that they
// lead to, by key.
func linkedBindings(s survey) map[string]bool {
	f, linked := s.files.bindings, map[string]bool{}
	for _, name := range s.names[f.byGrant] {
		id := grant.ID(name)
		for _, key := range s.names[f.linksOf(id)] {
			b, readable := s.bindings[key]
			_, broken := s.broken[key]
			if broken && has(s, id) || readable && b.Grant == id {
				linked[filepath.Join(f.linksOf(id), key)], linked[key] = true, true
			}
		}
	}
	return linked
}

// cgroupLinkRepairs make each binding have its links from cgroups, and remove those that lead to no
// binding.
func cgroupLinkRepairs(s survey) (all []repair) {
	dir, want := s.files.bindings.cgroups, map[string]string{}
	for key, b := range s.bindings {
		for _, cgroup := range b.Occupies {
			want[dir.path(cgroup)] = key
		}
	}
	for _, name := range s.names[string(dir)] {
		path := filepath.Join(string(dir), name)
		target, isLink := s.targets[path]
		key := keyIn(target)
		switch _, broken := s.broken[key]; {
		case !isLink, broken:
		case want[path] == "":
			all = append(all, repair{path: path, problem: "link of a cgroup to a binding that is gone"})
		case want[path] == key:
			delete(want, path)
		}
	}
	for _, path := range sortedKeys(want) {
		all = append(all, repair{path: path, problem: "the link of a cgroup to its binding is missing",
			target: bindingTarget(want[path])})
	}
	return all
}

// ownerLinkRepairs make each owner's link lead to its live grant. A link to an entry that cannot be
// read stays: only the link can say whose grant that is.
func ownerLinkRepairs(s survey, now time.Time) (all []repair) {
	want, live := map[string]grant.ID{}, map[string]bool{}
	for _, g := range s.sorted { // oldest first: of several the newest counts, as after its Put
		path := s.files.owners.path(g.Owner)
		if _, found := s.grants[g.ID]; found && hasLink(g.Owner) && (g.Live(now) || !live[path]) {
			want[path], live[path] = g.ID, g.Live(now)
		}
	}
	for _, name := range s.names[string(s.files.owners)] {
		path := filepath.Join(string(s.files.owners), name)
		target, isLink := s.targets[path]
		if !isLink || name[0] == '.' {
			continue
		}
		if problem := wrongOwner(s, target, want[path]); problem != "" {
			all = append(all, repair{path: path, problem: problem, target: ownerTarget(want[path])})
		}
		delete(want, path)
	}
	for _, path := range sortedKeys(want) {
		if live[path] {
			all = append(all, repair{path: path, target: ownerTarget(want[path]),
				problem: "the link to grant " + string(want[path]) + " is missing"})
		}
	}
	return all
}

// wrongOwner says what is wrong with an owner's link that should lead to a grant, "" to none.
func wrongOwner(s survey, target string, want grant.ID) string {
	id, _ := idOf(filepath.Base(target))
	_, damaged := s.damaged[id]
	switch {
	case damaged, target == ownerTarget(want):
		return ""
	case want == "":
		return "it leads to " + target + ", which is not its owner's"
	}
	return "it leads to " + target + " and not to grant " + string(want)
}

// gpuLinkRepairs make each GPU have its links to the grants on it, and no other.
func gpuLinkRepairs(s survey) (all []repair) {
	f, linked := s.files.gpus, map[string]bool{}
	for _, uuid := range s.names[string(f)] {
		for _, name := range s.names[f.of(uuid)] {
			id := grant.ID(name)
			linked[f.path(uuid, id)] = true
			_, damaged := s.damaged[id]
			if g := s.grants[id]; !damaged && !g.Has(uuid) && name[0] != '.' {
				all = append(all, repair{path: f.path(uuid, id), problem: "link to a grant that is gone"})
			}
		}
	}
	for _, id := range sortedKeys(s.grants) {
		for _, share := range s.grants[id].GPUs {
			if path := f.path(share.UUID, id); !linked[path] {
				all = append(all, repair{path: path, problem: "the link to a grant was missing",
					target: gpuTarget(id)})
			}
		}
	}
	return all
}

// temporaryRepairs remove what killed writers left: no other process writes while this one holds
// the lock.
func temporaryRepairs(s survey) (all []repair) {
	const problem = "left over from a write that was interrupted"
	f := s.files
	dirs := []string{string(f.grants), string(f.owners), f.bindings.records}
	for _, uuid := range s.names[string(f.gpus)] {
		dirs = append(dirs, f.gpus.of(uuid))
	}
	for _, dir := range dirs {
		for _, name := range s.names[dir] {
			if name[0] == '.' {
				all = append(all, repair{path: filepath.Join(dir, name), problem: problem})
			}
		}
	}
	drafts := "." + filepath.Base(f.found) + "."
	for _, name := range s.names[filepath.Dir(f.found)] { // other programs may keep files there
		if strings.HasPrefix(name, drafts) {
			all = append(all, repair{path: filepath.Join(filepath.Dir(f.found), name), problem: problem})
		}
	}
	return all
}

// maybeEmpty are the directories that go when the last link in them has gone.
func maybeEmpty(s survey) (dirs []string) {
	for _, uuid := range s.names[string(s.files.gpus)] {
		dirs = append(dirs, s.files.gpus.of(uuid))
	}
	for _, id := range s.names[s.files.bindings.byGrant] {
		if !has(s, grant.ID(id)) {
			dirs = append(dirs, s.files.bindings.linksOf(grant.ID(id)))
		}
	}
	return dirs
}
