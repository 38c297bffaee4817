package ledger

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// survey is all of the ledger as one pass read it under the lock. What is wrong with it, and which
// repairs it needs, are functions of this value.
type survey struct {
	files    *files
	sorted   []grant.Grant // oldest first
	damaged  []grant.Damage
	grants   map[grant.ID]*grant.Grant // nil for an entry that cannot be read
	bindings map[string]*grant.Binding // by key, those whose record can be read
	broken   map[string]string         // by key, why another record cannot be read
	byGrant  map[string][]string       // names of a grant's links to bindings
	gpus     map[string][]string       // names of a GPU's links
	owners   map[string]string         // targets of links, by name
	cgroups  map[string]string         // targets of links, by name
	drafts   []string                  // paths that interrupted writes left
	strays   []string                  // paths of files that are no entry and no link
	unlisted []Finding                 // directories
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

// readBindings reads all records. Those of containers that may be there were read with their
// grants, so this reads the others: of containers that are gone, and of no grant.
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

// listEntries gives a directory's names but for drafts, which it adds to the survey: no other
// process writes while this one holds the lock.
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

// list gives a directory's names. A file in the place of a directory has none: gpuledger did not
// make it.
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

// isDamaged reports whether there is an entry that cannot be read.
func isDamaged(s *survey, id grant.ID) bool {
	g, found := s.grants[id]
	return found && g == nil
}
