package ledger

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// survey is all of the ledger as one pass read it under the lock. What is wrong with it, and which
// repairs it needs, are functions of this value.
type survey struct {
	files    files
	grants   map[grant.ID]grant.Grant
	sorted   []grant.Grant // the same, oldest first
	damaged  map[grant.ID]grant.Damage
	bindings map[string]grant.Binding // by key, those whose record can be read
	broken   map[string]error         // by key, the others
	names    map[string][]string      // by directory; of a file there are none
	targets  map[string]string        // of links of owners and cgroups, by path
	unlisted map[string]error         // by directory that could not be listed
}

// readSurvey reads the whole ledger. An error says that its entries cannot be listed.
func readSurvey(tx *Tx) (survey, error) {
	grants, damaged, err := tx.All()
	if err != nil {
		return survey{}, err
	}
	s := survey{files: tx.files, sorted: grants, grants: map[grant.ID]grant.Grant{},
		damaged: map[grant.ID]grant.Damage{}, names: map[string][]string{}, targets: map[string]string{},
		unlisted: map[string]error{}}
	for _, g := range grants {
		s.grants[g.ID] = g
	}
	for _, d := range damaged {
		s.damaged[d.ID] = d
	}
	if s.bindings, s.broken, err = readBindings(tx.Bindings, grants); err != nil {
		return survey{}, err
	}
	readLinks(s)
	return s, nil
}

// readBindings reads all records. Those of containers that may be there were read with their
// grants, so this reads the others: of containers that are gone, and of no grant.
func readBindings(from Bindings, grants []grant.Grant) (all map[string]grant.Binding,
	broken map[string]error, err error) {
	all, broken = map[string]grant.Binding{}, map[string]error{}
	read := map[string]grant.Binding{}
	for _, g := range grants {
		for _, b := range g.Bindings {
			if b.Container != "" { // else its record cannot be read
				read[bindingKey(b.RuntimeRoot, b.Container)] = b
			}
		}
	}
	keys, err := from.files.keys()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list bindings: %w", err)
	}
	for _, key := range keys {
		b, known := read[key]
		if !known {
			if b, err = from.files.load(key); err != nil {
				broken[key] = err
				continue
			}
			from.containers.Examine(&b)
		}
		all[key] = b
	}
	return all, broken, nil
}

// readLinks lists the directories of the ledger, and reads the links whose targets count.
func readLinks(s survey) {
	f := s.files
	for _, dir := range []string{string(f.grants), f.bindings.records, f.roots[1]} {
		list(s, dir)
	}
	for _, uuid := range list(s, string(f.gpus)) {
		list(s, f.gpus.of(uuid))
	}
	for _, id := range list(s, f.bindings.byGrant) {
		list(s, f.bindings.linksOf(grant.ID(id)))
	}
	for _, dir := range []string{string(f.owners), string(f.bindings.cgroups)} {
		for _, name := range list(s, dir) {
			path := filepath.Join(dir, name)
			if target, err := os.Readlink(path); err == nil {
				s.targets[path] = target
			}
		}
	}
}

// list adds a directory's names to the survey. A file in the place of a directory has none:
// gpuledger did not make it.
func list(s survey, dir string) []string {
	names, err := namesIn(dir)
	if err != nil && !isNotDir(err) {
		s.unlisted[dir] = err
	}
	s.names[dir] = names
	return names
}

// has reports whether there is an entry, readable or not.
func has(s survey, id grant.ID) bool {
	_, readable := s.grants[id]
	_, damaged := s.damaged[id]
	return readable || damaged
}

// sortedKeys are the keys of a map in their order, so that one ledger gives one plan.
func sortedKeys[K ~string, V any](of map[K]V) []K { return slices.Sorted(maps.Keys(of)) }
