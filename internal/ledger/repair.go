package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/order"
)

// keepExpired is how long an unused grant stays after its time. Its user reads meanwhile that it is
// expired, and not that there was never one.
const keepExpired = 24 * time.Hour

// repair is a change to one file that is over, or is derived from others. It drops a binding, or
// makes path a link to the target, or without either removes path.
type repair struct {
	path, problem   string
	binding, target string
}

// plan is the repairs that a ledger needs, in their order.
type plan []repair

func (p *plan) remove(path, problem string)       { p.add(repair{path: path, problem: problem}) }
func (p *plan) link(path, target, problem string) { p.add(repair{path, problem, "", target}) }

//go:noinline
func (p *plan) add(r repair) { *p = append(*p, r) }

// Sweep removes what is over: released and adopted grants whose container is gone, grants that
// expired a day ago and are not in use, dead bindings; and what crashes left behind. Grants that
// expired since are over from then on. It returns the first thing that could not be done.
func (tx *Tx) Sweep() error {
	_, err := tx.Swept()
	return err
}

// Swept does what Sweep does, and returns the ledger without what it removed. A placement counts by
// this one reading: all that is free in it was ended before, so it stays free.
func (tx *Tx) Swept() (grant.View, error) {
	v := grant.View{Now: tx.ledger.Host.Now()}
	if !tx.writes {
		return v, errReadOnly
	}
	s, err := readSurvey(tx)
	if err != nil {
		return v, err
	}
	_, failed := removeOverdue(tx, s, v.Now)
	v.Grants, v.Damaged = s.left(), slices.Concat(s.damaged, s.missing())
	if err := endExpired(tx, v.Grants, v.Now); err != nil && failed == nil {
		failed = err
	}
	if _, err := repairAll(tx, s); err != nil && failed == nil {
		failed = err
	}
	if failed != nil {
		return v, failed
	}
	return v, tx.addFound(&v)
}

// endExpired writes into those of the grants that are not in use and whose time is over that it is,
// once. What they have of their GPUs is about to be granted anew, and a clock that is set back must
// not bring them back.
func endExpired(tx *Tx, grants []grant.Grant, now time.Time) error {
	for i := range grants {
		g := &grants[i]
		if len(g.Bindings) > 0 || g.Over || !g.Expired(now) {
			continue
		}
		g.Over = true
		if err := tx.Put(*g); err != nil {
			return err
		}
	}
	return nil
}

// removeOverdue deletes the grants that are over, from the survey too. It leaves their bindings and
// links to the other repairs, and syncs nothing: that comes before the removal of their links, and
// before the next grant.
func removeOverdue(tx *Tx, s *survey, now time.Time) (findings []Finding, failed error) {
	for _, id := range overdue(s, now) {
		tx.found = ""
		r := repair{path: s.files.grants.path(id), problem: "the grant is over"}
		err := host.Rename(r.path, deleted(r.path))
		if err == nil {
			delete(s.grants, id)
			s.deleted = append(s.deleted, deleted(r.path))
		}
		findings = note(findings, r, err, &failed)
		failpoint.Hit("ledger/sweep-removed")
	}
	return findings, failed
}

// overdue are the grants that are over and that no container uses.
func overdue(s *survey, now time.Time) (ids []grant.ID) {
	for id, g := range s.grants {
		if g == nil {
			continue
		}
		expired := !g.Expires.IsZero() && !now.Before(g.Expires.Add(keepExpired))
		if len(g.Bindings) == 0 && (g.Draining || g.Orphaned() || expired) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// repairAll makes all that is derived agree with the entries. It returns the first error.
func repairAll(tx *Tx, s *survey) (findings []Finding, failed error) {
	findings, failed = s.unlisted, s.failed
	all := repairs(s, tx.ledger.Host.Now())
	if slices.ContainsFunc(all, s.isDurable) {
		// a power cut must not bring back a grant without its links
		if err := syncDir(string(s.files.grants)); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("cannot tidy the ledger: %w", err))
			all = slices.DeleteFunc(all, s.isDurable)
		}
	}
	for _, r := range all {
		if failed != nil && strings.HasSuffix(r.path, deletedSuffix) {
			continue // it says which bindings are still to be dropped
		}
		findings = note(findings, r, apply(s, r), &failed)
	}
	for _, path := range s.deleted {
		if failed != nil {
			break // the next pass goes on, as after a crash
		}
		if err := host.Remove(path); err != nil {
			failed = fmt.Errorf("cannot tidy the ledger: %w", err)
		}
	}
	if err := syncAndClose(nil, relinked(s, all)); err != nil && failed == nil {
		failed = fmt.Errorf("cannot tidy the ledger: %w", err)
	}
	for _, uuid := range slices.Sorted(maps.Keys(s.gpus)) {
		_ = host.Rmdir(s.files.gpus.of(uuid)) // where it is empty; never a file
	}
	for _, id := range slices.Sorted(maps.Keys(s.byGrant)) {
		if _, found := s.grants[grant.ID(id)]; !found {
			_ = host.Rmdir(s.files.bindings.linksOf(grant.ID(id)))
		}
	}
	if _, err := tx.ledger.Creates.Announced(nil); err != nil { // which reads all, whatever is asked for
		findings = append(findings, Finding{Subject: tx.ledger.Creates.dir,
			Problem: fmt.Sprintf("containers with a GPU are refused, because it has creates under way that "+
				"cannot be read: %v", err),
			Hint: "remove what cannot be read; each create makes its file anew"})
	}
	return findings, failed
}

// isDurable reports whether the grants must be durable before a repair. That is so for a link that
// must survive what its grant survives. And what a killed process has kept of the entry that it
// replaced says that the new one may not be: its record of limits is written next, and would stay.
func (s *survey) isDurable(r repair) bool {
	dir := filepath.Dir(r.path)
	return dir == string(s.files.owners) || filepath.Dir(dir) == string(s.files.gpus) ||
		dir == string(s.files.grants) && strings.HasSuffix(r.path, keptSuffix)
}

// relinked are the directories in which repairs have made such links, and those above them.
func relinked(s *survey, all []repair) (dirs []string) {
	for _, r := range all {
		if dir := filepath.Dir(r.path); r.target != "" && s.isDurable(r) {
			dirs = append(dirs, dir, filepath.Dir(dir))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// apply carries out a repair.
func apply(s *survey, r repair) error {
	switch {
	case r.binding != "":
		return s.files.bindings.drop(s.bindings[r.binding].Grant, r.binding)
	case r.target == "":
		err := host.Remove(r.path)
		if errors.Is(err, fs.ErrNotExist) { // a draft: the grant has been written since, to mark it as over
			return nil
		}
		return err
	}
	err := replaceLink(r.target, r.path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := host.Mkdir(filepath.Dir(r.path)); err != nil {
		return err
	}
	return replaceLink(r.target, r.path)
}

// note adds what was wrong, and whether it still is. It keeps the first error.
func note(findings []Finding, r repair, err error, failed *error) []Finding {
	f := Finding{Subject: r.path, Problem: r.problem, Repaired: err == nil}
	if err != nil {
		f.Problem, f.Hint = r.problem+"; "+err.Error(), hintDisk
		if *failed == nil {
			*failed = fmt.Errorf("cannot tidy the ledger: %w", err)
		}
	}
	failpoint.Hit("ledger/repaired")
	return append(findings, f)
}

// repairs are the changes that make all that is derived agree with the entries. Bindings come
// before links: the links of a dropped binding go with it.
func repairs(s *survey, now time.Time) (p plan) {
	owners := func(s *survey, p *plan) { ownerLinkRepairs(s, now, p) }
	for _, find := range []func(*survey, *plan){bindingRepairs, bindingLinkRepairs, cgroupLinkRepairs,
		owners, gpuLinkRepairs} {
		var of plan
		find(s, &of)
		order.Stable(of, func(a, b repair) int {
			return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.binding, b.binding))
		})
		p = append(p, of...)
	}
	for _, path := range s.drafts {
		p.remove(path, "left over from a write that was interrupted")
	}
	return p
}

// ends reports whether a binding is to be dropped. That of a container that runs is not, even if
// its grant is not in the ledger: the state directory may be an older copy, or not be mounted yet.
// It is if the grant is deleted now, or its deletion was interrupted: another container may have
// the name by then.
func ends(s *survey, b *grant.Binding) bool {
	_, found := s.grants[b.Grant]
	entry := deleted(s.files.grants.path(b.Grant))
	return b.Life == grant.Dead ||
		!found && (slices.Contains(s.drafts, entry) || slices.Contains(s.deleted, entry))
}

// bindingRepairs drop the bindings of containers that are gone, and of grants that are deleted.
func bindingRepairs(s *survey, p *plan) {
	for key, b := range s.bindings {
		if !ends(s, b) {
			continue
		}
		problem := fmt.Sprintf("container %q is gone", b.Container)
		if b.Life != grant.Dead {
			problem = fmt.Sprintf("grant %s of container %q is deleted", b.Grant, b.Container)
		}
		p.add(repair{path: s.files.bindings.path(key), binding: key, problem: problem})
	}
}

// bindingLinkRepairs make each binding have its link from its grant, and no other. A record that
// cannot be read may be a live container's as long as a grant links to it; without a link no grant
// ever knew of it.
func bindingLinkRepairs(s *survey, p *plan) {
	f, linked := s.files.bindings, linkedBindings(s)
	for id, keys := range s.byGrant {
		for _, key := range keys {
			if path := f.byGrant + "/" + id + "/" + key; isKey(key) && !linked[path] {
				p.remove(path, "link to a binding that is gone")
			}
		}
	}
	for key, b := range s.bindings {
		if path := f.linksOf(b.Grant) + "/" + key; !linked[path] && !ends(s, b) {
			p.link(path, "../"+bindingTarget(key), "the link to a binding is missing")
		}
	}
	for key, problem := range s.broken {
		if !linked[key] && s.failed == nil { // else a link to it may be in what could not be listed
			p.remove(f.path(key), "a binding of no grant: "+problem)
		}
	}
}

// linkedBindings are the right links from grants to bindings, by path, and the bindings that they
// lead to, by key.
func linkedBindings(s *survey) map[string]bool {
	linked := map[string]bool{}
	for id, keys := range s.byGrant {
		_, found := s.grants[grant.ID(id)]
		for _, key := range keys {
			b := s.bindings[key]
			if s.broken[key] != "" && found || b != nil && string(b.Grant) == id {
				linked[s.files.bindings.byGrant+"/"+id+"/"+key], linked[key] = true, true
			}
		}
	}
	return linked
}

// cgroupLinkRepairs make each binding have its links from cgroups, and remove those that lead to no
// binding.
func cgroupLinkRepairs(s *survey, p *plan) {
	dir, want := s.files.bindings.cgroups, map[string]string{}
	for key, b := range s.bindings {
		for _, cgroup := range b.Occupies {
			// the links of a binding that ends go with it
			if path := dir.path(cgroup); !ends(s, b) || want[path] == "" {
				want[path] = key
			}
		}
	}
	for name, target := range s.cgroups {
		path, key := string(dir)+"/"+name, keyIn(target)
		switch b := s.bindings[want[path]]; {
		case s.broken[key] != "":
		case want[path] == key:
			delete(want, path)
		case b == nil || ends(s, b):
			p.remove(path, "link of a cgroup to a binding that is gone")
		}
	}
	for path, key := range want {
		if !ends(s, s.bindings[key]) {
			p.link(path, bindingTarget(key), "the link of a cgroup to its binding is missing")
		}
	}
}

// ownerLinkRepairs make each owner's link lead to its live grant. A link to an entry that cannot be
// read stays: only the link can say whose grant that is.
func ownerLinkRepairs(s *survey, now time.Time, p *plan) {
	want, live := map[string]grant.ID{}, map[string]bool{}
	for i := range s.sorted { // oldest first: of several the newest counts, as after its Put
		g := &s.sorted[i]
		key := ownerKey(g.Owner)
		if s.grants[g.ID] != nil && hasLink(g.Owner) && (g.Live(now) || !live[key]) {
			want[key], live[key] = g.ID, g.Live(now)
		}
	}
	for key, target := range s.owners {
		path, right := string(s.files.owners)+"/"+key, want[key]
		id, _ := idOf(filepath.Base(target))
		switch {
		case isDamaged(s, id):
		case right == "":
			p.remove(path, "it leads to "+target+", which is not its owner's")
		case target != ownerTarget(right):
			p.link(path, ownerTarget(right), "it leads to "+target+" and not to grant "+string(right))
		}
		delete(want, key)
	}
	for key, id := range want {
		if live[key] {
			p.link(string(s.files.owners)+"/"+key, ownerTarget(id),
				"the link to grant "+string(id)+" is missing")
		}
	}
}

// gpuLinkRepairs make each GPU have its links to the grants on it, and no other.
func gpuLinkRepairs(s *survey, p *plan) {
	f, linked := s.files.gpus, map[string]bool{}
	for uuid, names := range s.gpus {
		for _, name := range names {
			id := grant.ID(name)
			path := f.path(uuid, id)
			linked[path] = true
			if g := s.grants[id]; !isDamaged(s, id) && (g == nil || !g.Has(uuid)) {
				p.remove(path, "link to a grant that is gone")
			}
		}
	}
	for id, g := range s.grants {
		if g == nil {
			continue
		}
		for _, share := range g.GPUs {
			if path := f.path(share.UUID, id); !linked[path] {
				p.link(path, gpuTarget(id), "the link to a grant was missing")
			}
		}
	}
}
