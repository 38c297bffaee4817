// Package hostpath answers what a path of the node leads to: which file it is, at which other paths
// the same file is, and whether a container that reaches it is root on the node.
package hostpath

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Environment is what the answers depend on beside the file system.
type Environment struct {
	Host    host.Host
	Policy  *grant.Policy
	Config  string // the configuration file
	Program string // the program that runs
}

// Paths answers for one container, in one goroutine. It looks up each path once, and it is gone
// with the container's create: a file that changes meanwhile is judged as it was.
type Paths struct {
	// Known has what the paths that were looked up lead to. A path that is in it is not looked up.
	Known map[string]Place

	node   Environment
	plain  map[string]bool // directories of those, with the slash, that no link is on the way to
	ledger []string        // the ledger's directories, by their real paths; nil until they are needed
	own    []guard         // what ownGuards found; nil until it is needed

	elsewhere map[pathQuestion][]Alias
	positions map[string]position // of the directories that were asked for
	anchored  []position          // nil until they are needed
	lent      []uint64            // nil until they are needed
	mounts    *mountTable         // nil until a file may be at another path, too
}

// New returns Paths that have looked up nothing.
func New(node Environment) *Paths {
	return &Paths{node: node, Known: map[string]Place{}, plain: map[string]bool{},
		elsewhere: map[pathQuestion][]Alias{}, positions: map[string]position{}}
}

// Place is the file that a path leads to, or would lead to.
type Place struct {
	host.ResolvedFile
	Exists bool
	Err    error // why it is unknown what is there
}

// Resolve looks up what a path leads to.
func (s *Paths) Resolve(path string) Place {
	if p, known := s.Known[path]; known {
		return p
	}
	t, err := s.walk(path)
	p := Place{ResolvedFile: t, Exists: err == nil}
	switch {
	// some files of /proc are the runtime's alone
	case err == nil, t.Path != "" && !Within(t.Path, "/proc"):
	case isAbsent(err):
		p.ResolvedFile = absent(path)
	default:
		p.Path, p.Err = filepath.Clean(path), err
	}
	s.Known[path] = p
	return p
}

// Real returns the real path of what a path leads to. It is not inlined, nor are Within and Below:
// gpuledger-hook would be 18 kB larger.
//
//go:noinline
func (s *Paths) Real(path string) string { return s.Resolve(path).Path }

// InLedger reports whether a real path is in the ledger's directories.
func (s *Paths) InLedger(path string) bool {
	if s.ledger == nil {
		for _, dir := range s.ledgerDirs() {
			s.ledger = append(s.ledger, s.Real(dir))
		}
	}
	return slices.ContainsFunc(s.ledger, func(dir string) bool { return Within(path, dir) })
}

// ledgerDirs returns the directories of the ledger, as the policy names them.
func (s *Paths) ledgerDirs() []string {
	p := s.node.Policy
	return append([]string{p.StateDir, p.RunDir}, p.DefaultDirs...)
}

// walk looks at a path. If no link led to the directory of an earlier path, only the last name of a
// second path in it is new: a driver has tens of files in a few directories.
func (s *Paths) walk(path string) (host.ResolvedFile, error) {
	dir, name := filepath.Split(path)
	if s.plain[dir] && name != "" && name != "." && name != ".." {
		if t, err := host.ResolveLinkless(path); err == nil {
			return t, nil
		}
	}
	t, err := host.Resolve(path)
	if err == nil && t.Path == path && !t.Shifting && !Within(path, "/proc") {
		s.plain[dir] = true
	}
	return t, err
}

// isAbsent reports whether an error says that nothing is at a path, or nothing of the node's: a
// user's FUSE file system, or an NFS file system that maps root to another user or whose server is
// dead.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || slices.ContainsFunc([]error{unix.ENOTDIR, unix.ELOOP,
		unix.ENAMETOOLONG, unix.EACCES, unix.ESTALE, unix.ENOTCONN, unix.EINVAL},
		func(e error) bool { return errors.Is(err, e) })
}

// maxLinks is how many links the kernel follows in one path (MAXSYMLINKS, include/linux/namei.h).
const maxLinks = 40

// absent returns where a path would lead whose end does not exist: it walks the part that exists,
// and follows links to what does not exist. A path longer than PATH_MAX leads nowhere: no runtime
// can use it.
func absent(path string) host.ResolvedFile {
	if len(path) >= unix.PathMax {
		return host.ResolvedFile{Path: filepath.Clean(path)}
	}
	for range maxLinks {
		there, name, rest := parting(path)
		if Within(there.Path, "/proc") && filepath.Base(there.Path) == "fd" {
			there.Shifting = true // the runtime has this file open, and this process does not
		}
		link, err := os.Readlink(filepath.Join(there.Path, name))
		if err != nil {
			end := filepath.Join(there.Path, name, rest)
			if !slices.Contains(strings.Split(name+"/"+rest, "/"), "..") {
				return host.ResolvedFile{Path: end, Shifting: there.Shifting}
			}
			// once a directory of that name exists, the path leads back out of it, perhaps to a
			// link
			if t, err := host.Resolve(end); err == nil || there.Shifting {
				t.Path, t.Shifting = cmp.Or(t.Path, end), t.Shifting || there.Shifting
				return t
			}
			path = end
			continue
		}
		if !filepath.IsAbs(link) {
			link = there.Path + "/" + link
		}
		path = link + "/" + rest
		if t, err := host.Resolve(path); err == nil {
			return t // another process put it there meanwhile
		}
	}
	return host.ResolvedFile{Path: filepath.Clean(path)}
}

// parting finds where a path stops existing: the last real directory, the name that it lacks, and
// the rest. It looks at few prefixes: if one exists, all shorter ones do.
func parting(path string) (there host.ResolvedFile, name, rest string) {
	cuts := []int{}
	for i := 1; i <= len(path); i++ {
		if i == len(path) || path[i] == '/' {
			cuts = append(cuts, i)
		}
	}
	missing := sort.Search(len(cuts), func(i int) bool {
		_, err := host.Resolve(path[:cuts[i]])
		return err != nil
	})
	if missing == len(cuts) { // all of it exists: another process made it meanwhile
		t, _ := host.Resolve(path)
		return t, "", ""
	}
	there = host.ResolvedFile{Path: "/"}
	from := 0
	if missing > 0 {
		from = cuts[missing-1]
		there, _ = host.Resolve(path[:from])
	}
	return there, strings.TrimLeft(path[from:cuts[missing]], "/"), strings.TrimLeft(path[cuts[missing]:], "/")
}

// Within is host.Within, which is inlined: here are loops, elsewhere it would cost size.
//
//go:noinline
func Within(path, dir string) bool { return host.Within(path, dir) }

// Below returns the rest of a path after a directory that it is within.
//
//go:noinline
func Below(path, dir string) string {
	return strings.TrimPrefix(path[len(strings.TrimSuffix(dir, "/")):], "/")
}

// Join returns what filepath.Join returns for a clean path and the clean rest of one.
func Join(dir, rest string) string {
	if rest == "" {
		return dir
	}
	return strings.TrimSuffix(dir, "/") + "/" + rest
}
