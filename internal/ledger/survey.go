package ledger

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// survey is the whole ledger as one pass read it under the lock. What is wrong with it, and which
// repairs it needs, are functions of this value. For one grant in use by one container it has
//
//	grants["g-1"]               the grant
//	bindings[key]               its binding; key is of runtime root and container id (bindingKey)
//	byGrant["g-1"]              [key]
//	gpus["GPU-..."]             ["g-1"]
//	owners[sha256 of owner]     "../grants/g-1.json"
//	cgroups[hash of path]       "../bindings/<key>.json"
type survey struct {
	files    *files
	sorted   []grant.Grant // as they were read, oldest first
	damaged  []grant.Damage
	grants   map[grant.ID]*grant.Grant // nil: the entry cannot be read; a removed grant is taken out
	bindings map[string]*grant.Binding // by key, those whose record can be read
	broken   map[string]string         // by key, why another record cannot be read
	byGrant  map[string][]string       // by grant, the names in its directory of links to bindings
	gpus     map[string][]string       // by GPU, the names in its directory of links to grants
	owners   map[string]string         // by the name of an owner's link, its target
	cgroups  map[string]string         // by the name of a cgroup's link, its target
	drafts   []string                  // paths of files that interrupted writes left
	deleted  []string                  // where the entries are of grants that this pass deletes
	strays   []string                  // paths of files that are no entry and no link
	unlisted []Finding                 // one for each directory that cannot be listed
	failed   error                     // the first error of a listing
}

// readSurvey reads the whole ledger. An error says that its entries cannot be listed.
func readSurvey(tx *Tx) (*survey, error) {
	grants, damaged, err := tx.All()
	if err != nil {
		return nil, err
	}
	s := &survey{files: tx.files, sorted: grants, damaged: damaged, grants: map[grant.ID]*grant.Grant{},
		bindings: map[string]*grant.Binding{}, broken: map[string]string{}, byGrant: map[string][]string{},
		gpus: map[string][]string{}, owners: map[string]string{}, cgroups: map[string]string{}}
	for _, d := range damaged {
		s.grants[d.ID] = nil
	}
	for i := range grants {
		s.grants[grants[i].ID] = &grants[i]
	}
	if err := readBindings(s, tx.Bindings); err != nil {
		return nil, err
	}
	readLinks(s)
	return s, nil
}

// left returns the grants that were read and not removed since.
func (s *survey) left() []grant.Grant {
	return slices.DeleteFunc(slices.Clone(s.sorted),
		func(g grant.Grant) bool { return s.grants[g.ID] == nil })
}

// readBindings reads the bindings' records. The grants were read with the bindings of containers
// that may still exist. So only the other records are read here: those of containers that are gone,
// and those whose grant is not in the ledger.
func readBindings(s *survey, from Bindings) error {
	for i := range s.sorted {
		bindings := s.sorted[i].Bindings
		for i := range bindings {
			if b := &bindings[i]; b.Container != "" { // else its record cannot be read
				s.bindings[bindingKey(b.RuntimeRoot, b.Container)] = b
			}
		}
	}
	keys, err := from.files.keys()
	if err != nil {
		return fmt.Errorf("cannot list bindings: %w", err)
	}
	for _, key := range keys {
		if s.bindings[key] != nil {
			continue
		}
		b, err := from.files.load(key)
		if err != nil {
			s.broken[key] = err.Error()
			continue
		}
		from.containers.Examine(&b)
		s.bindings[key] = &b
	}
	return nil
}

// readLinks lists the directories, and reads the links whose targets count.
func readLinks(s *survey) {
	f := s.files
	for _, name := range listEntries(s, string(f.grants)) {
		if _, isEntry := idOf(name); !isEntry {
			s.strays = append(s.strays, string(f.grants)+"/"+name)
		}
	}
	listEntries(s, f.bindings.records)
	for _, id := range list(s, f.bindings.byGrant) {
		s.byGrant[id] = listEntries(s, f.bindings.linksOf(grant.ID(id)))
	}
	for _, uuid := range list(s, string(f.gpus)) {
		s.gpus[uuid] = listEntries(s, f.gpus.of(uuid))
	}
	for _, name := range listEntries(s, string(f.owners)) {
		path := string(f.owners) + "/" + name
		if target, err := os.Readlink(path); err == nil {
			s.owners[name] = target
		} else {
			s.strays = append(s.strays, path)
		}
	}
	for _, name := range list(s, string(f.bindings.cgroups)) {
		if target, err := os.Readlink(string(f.bindings.cgroups) + "/" + name); err == nil {
			s.cgroups[name] = target
		}
	}
	for _, name := range list(s, f.run) { // other programs may keep files there
		if strings.HasPrefix(name, ".outside.json.") {
			s.drafts = append(s.drafts, f.run+"/"+name)
		}
	}
}

// listEntries returns the names in a directory without drafts, whose names begin with a dot. It
// adds the drafts to the survey: this process holds the lock, so no other process is writing them,
// and they are left over.
func listEntries(s *survey, dir string) (names []string) {
	for _, name := range list(s, dir) {
		if name[0] == '.' {
			s.drafts = append(s.drafts, dir+"/"+name)
		} else {
			names = append(names, name)
		}
	}
	return names
}

// list returns the names in a directory. If a file is in the directory's place, there are none, and
// that is no finding: gpuledger did not make the file.
func list(s *survey, dir string) []string {
	names, err := namesIn(dir)
	if err != nil && !isNotDir(err) {
		if s.failed == nil {
			s.failed = err
		}
		s.unlisted = append(s.unlisted, Finding{Subject: dir, Problem: err.Error(), Hint: hintDisk})
	}
	return names
}

// isDamaged reports whether the ledger has an entry with this id that cannot be read.
func isDamaged(s *survey, id grant.ID) bool {
	g, found := s.grants[id]
	return found && g == nil
}
