package engines

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// DropIns is an engine's configuration in several files. Each file overrides those before it.
type DropIns struct {
	Files []string // in the order in which the engine reads them
	trees map[string]map[string]any
	Ours  string // gpuledger's file; Doc holds it
	Doc   *configfile.TOML
}

// readDropIns reads all files of an engine, with gpuledger's own.
func readDropIns(in filetree.System, ours string, files []string) (d DropIns, err error) {
	d = DropIns{Files: configfile.Union(files, ours), trees: map[string]map[string]any{}, Ours: ours}
	for _, path := range d.Files {
		doc, err := ReadTOML(in, path)
		if err != nil {
			return d, err
		}
		if path == ours {
			d.Doc = doc
		}
		d.trees[path] = doc.Tree()
	}
	return d, nil
}

// Paths are the files that the engine reads.
func (d DropIns) Paths() []string { return d.Files }

// Tree is the merged content of all files.
func (d DropIns) Tree() map[string]any {
	tree := map[string]any{}
	for _, path := range d.Files {
		tree = configfile.Merge(tree, d.trees[path])
	}
	return tree
}

// Overruled is a file that is read after gpuledger's and sets the same key; "" if none does.
func (d DropIns) Overruled(key ...string) string {
	for _, path := range d.Files[slices.Index(d.Files, d.Ours)+1:] {
		if _, found := configfile.Lookup(d.trees[path], key); found {
			return path
		}
	}
	return ""
}

// sortedWith is the order in which an engine reads its files: the main ones, then all drop-in files
// by name. The files of a directory among these are read where its name stands.
func sortedWith(dropIns []string, ours string, main ...string) []string {
	names := configfile.Union(dropIns, ours)
	slices.SortFunc(names, func(a, b string) int {
		return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
	})
	return append(main, names...)
}
