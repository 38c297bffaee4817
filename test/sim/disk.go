package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
)

// disk knows of the files below a directory what a power cut may leave of them: a file's content is
// durable once the file is synced, a name once its directory is. Until then each change of a name
// may be there or not, whatever the order.
type disk struct {
	root  string
	top   *inode
	count int // of changes of names, for their order
}

// inode is a file, a link or a directory.
type inode struct {
	target        string // of a link
	data, durable []byte // of a file; durable is nil before its first sync
	isDir         bool
	live, kept    map[string]*inode // names of a directory; kept are durable
	pending       []change
}

// change is what one step did to the names of a directory. A nil inode removes a name.
type change struct {
	names map[string]*inode
	order int
}

func newDir() *inode {
	return &inode{isDir: true, live: map[string]*inode{}, kept: map[string]*inode{}}
}

func newDisk(root string) *disk { return &disk{root: root, top: newDir()} }

// find gives the directory of a path, and the name in it; nil outside of this disk.
func (d *disk) find(path string) (dir *inode, name string) {
	rest, below := strings.CutPrefix(path, d.root+"/")
	if !below {
		return nil, ""
	}
	words := strings.Split(rest, "/")
	dir = d.top
	for _, word := range words[:len(words)-1] {
		if dir = dir.live[word]; dir == nil {
			return nil, ""
		}
	}
	return dir, words[len(words)-1]
}

func (d *disk) at(path string) *inode {
	if path == d.root {
		return d.top
	}
	if dir, name := d.find(path); dir != nil {
		return dir.live[name]
	}
	return nil
}

// made enters a step that was made.
func (d *disk) made(s host.Step) {
	dir, name := d.find(s.Path)
	node := d.at(s.Path)
	switch s.Kind {
	case host.Syncs:
		if node != nil {
			node.durable = slices.Clone(node.data)
		}
	case host.SyncsDir:
		if node != nil {
			node.kept, node.pending = maps.Clone(node.live), nil
		}
	case host.Writes:
		if node != nil {
			node.data = append(node.data, s.Data...)
		}
	}
	if dir == nil {
		return
	}
	switch s.Kind {
	case host.Creates:
		d.change(dir, map[string]*inode{name: {data: []byte{}}})
	case host.MakesDir:
		d.change(dir, map[string]*inode{name: newDir()})
	case host.Symlinks:
		d.change(dir, map[string]*inode{name: {target: s.To}})
	case host.Removes:
		d.change(dir, map[string]*inode{name: nil})
	case host.Links:
		d.change(dir, map[string]*inode{filepath.Base(s.To): node})
	case host.Renames:
		d.change(dir, map[string]*inode{name: nil, filepath.Base(s.To): node})
	}
}

func (d *disk) change(dir *inode, names map[string]*inode) {
	d.count++
	dir.pending = append(dir.pending, change{names, d.count})
	set(dir.live, names)
}

func set(names, to map[string]*inode) {
	for name, node := range to {
		if names[name] = node; node == nil {
			delete(names, name)
		}
	}
}

// cut is a power cut: it leaves what is durable, and of the rest what the random numbers say.
func (d *disk) cut(r *rand.Rand) {
	kind, until := r.IntN(4), 0
	if d.count > 0 {
		until = r.IntN(d.count + 1)
	}
	d.top.cut(r, func(order int) bool {
		switch kind {
		case 0:
			return false
		case 1:
			return true
		case 2: // a journal
			return order <= until
		}
		return r.IntN(2) == 0
	})
	d.count = 0
}

func (n *inode) cut(r *rand.Rand, stays func(order int) bool) {
	if !n.isDir {
		n.data = n.torn(r)
		n.durable = n.data
		return
	}
	for _, c := range n.pending {
		if stays(c.order) {
			set(n.kept, c.names)
		}
	}
	n.live, n.pending = maps.Clone(n.kept), nil
	for _, name := range slices.Sorted(maps.Keys(n.live)) {
		n.live[name].cut(r, stays)
	}
}

// torn is what is left of a file's content.
func (n *inode) torn(r *rand.Rand) []byte {
	if n.durable != nil && string(n.durable) == string(n.data) || r.IntN(3) == 0 {
		return n.data
	}
	if n.durable != nil && r.IntN(2) == 0 {
		return n.durable
	}
	return n.data[:r.IntN(len(n.data)+1)]
}

// rebuild makes the real directory what the disk has.
func (d *disk) rebuild() error {
	if err := os.RemoveAll(d.root); err != nil {
		return err
	}
	return d.top.make(d.root)
}

func (n *inode) make(path string) error {
	switch {
	case n.target != "":
		return os.Symlink(n.target, path)
	case !n.isDir:
		return os.WriteFile(path, n.data, 0o600)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(n.live)) {
		if err := n.live[name].make(path + "/" + name); err != nil {
			return err
		}
	}
	return nil
}

// differs tells how the real directory differs from what the disk has: a change that was made past
// the seam. "" if it does not.
func (d *disk) differs() string { return d.top.differs(d.root) }

func (n *inode) differs(path string) string {
	if !n.isDir {
		return ""
	}
	entries, _ := os.ReadDir(path)
	if len(entries) != len(n.live) {
		return fmt.Sprintf("%s has %d names, the simulated disk %d", path, len(entries), len(n.live))
	}
	for _, e := range entries {
		other := n.live[e.Name()]
		if other == nil {
			return path + "/" + e.Name() + " is not on the simulated disk"
		}
		if what := other.differs(path + "/" + e.Name()); what != "" {
			return what
		}
	}
	return ""
}
