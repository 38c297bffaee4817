package request

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

	"github.com/gpuledger/gpuledger/internal/host"
)

// place is what a path of the host leads to, or would lead to.
type place struct {
	host.Target
	exists bool
	err    error // why it cannot be told
}

// look walks a path, each one once.
func (f *finder) look(path string) place {
	if p, known := f.seen.places[path]; known {
		return p
	}
	t, err := f.walk(path)
	p := place{Target: t, exists: err == nil}
	switch {
	case err == nil, t.Path != "" && !within(t.Path, "/proc"): // of whose files some are the runtime's alone
	case isAbsent(err):
		p.Target = f.absent(path)
	default:
		p.Path, p.err = filepath.Clean(path), err
	}
	f.seen.places[path] = p
	return p
}

// walk looks at a path. Of a second one in a directory to which no link led, only the last name is new: a driver's files are tens in a few
// directories.
func (f *finder) walk(path string) (host.Target, error) {
	dir, name := filepath.Split(path)
	if f.seen.plain[dir] && name != "" && name != "." && name != ".." {
		if t, err := host.LookAt(path); err == nil {
			return t, nil
		}
	}
	t, err := host.Look(path)
	if err == nil && t.Path == path && !t.Shifting && !within(path, "/proc") {
		f.seen.plain[dir] = true
	}
	return t, err
}

// isAbsent reports whether an error says that nothing is at a path, or nothing of the node's: a user's FUSE, a squashed or
// dead NFS.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || slices.ContainsFunc([]error{unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EACCES, unix.ESTALE, unix.ENOTCONN, unix.EINVAL},
		func(e error) bool { return errors.Is(err, e) })
}

// maxLinks is how many links the kernel follows in one path (MAXSYMLINKS, include/linux/namei.h).
const maxLinks = 40

// absent tells where a path would lead whose end is not there: the part that is there is walked, and links that lead nowhere
// are followed. What a path of more than PATH_MAX would lead to, no runtime asks.
func (f *finder) absent(path string) host.Target {
	if len(path) >= unix.PathMax {
		return host.Target{Path: filepath.Clean(path)}
	}
	for range maxLinks {
		there, name, rest := f.parting(path)
		if within(there.Path, "/proc") && filepath.Base(there.Path) == "fd" {
			there.Shifting = true // a file that the runtime has open, and we have not
		}
		link, err := os.Readlink(filepath.Join(there.Path, name))
		if err != nil {
			end := filepath.Join(there.Path, name, rest)
			if !slices.Contains(strings.Split(name+"/"+rest, "/"), "..") {
				return host.Target{Path: end, Shifting: there.Shifting}
			}
			// as soon as a directory of the name is there, the path leads back out of it, perhaps to a link
			if t, err := host.Look(end); err == nil || there.Shifting {
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
		if t, err := host.Look(path); err == nil {
			return t // another process put it there meanwhile
		}
	}
	return host.Target{Path: filepath.Clean(path)}
}

// parting finds where a path stops being there: the real directory, the name that it lacks, and the rest. It asks of few
// prefixes, because of all that begin it those that are there are the shorter ones.
func (f *finder) parting(path string) (there host.Target, name, rest string) {
	cuts := []int{}
	for i := 1; i <= len(path); i++ {
		if i == len(path) || path[i] == '/' {
			cuts = append(cuts, i)
		}
	}
	missing := sort.Search(len(cuts), func(i int) bool { _, err := host.Look(path[:cuts[i]]); return err != nil })
	if missing == len(cuts) { // all of it: it came to be meanwhile
		t, _ := host.Look(path)
		return t, "", ""
	}
	there = host.Target{Path: "/"}
	from := 0
	if missing > 0 {
		from = cuts[missing-1]
		there, _ = host.Look(path[:from])
	}
	return there, strings.TrimLeft(path[from:cuts[missing]], "/"), strings.TrimLeft(path[cuts[missing]:], "/")
}

// walks are the paths that a runtime may take an option's path for, or a device's: those of a bind mount's source (crun), or in the root
// file system (runc).
func (f *finder) walks(path string) []string {
	if filepath.IsAbs(path) {
		return []string{path}
	}
	return append(f.sourcePaths(path), f.root()+"/"+path)
}

// named are the places of the node that a path in a mount of another kind than a bind mount may lead to.
func (f *finder) named(path string) (places []place) {
	if !filepath.IsAbs(path) && f.caller.Container.Bundle == "" {
		return unbundled(path)
	}
	for _, path := range f.walks(path) {
		places = append(places, f.look(path))
	}
	return places
}

// sourcePaths are the paths that a runtime may take a bind mount's source for. Both take a relative one from the bundle, runc after
// shortening it by its text, crun as the kernel walks.
func (f *finder) sourcePaths(source string) []string {
	if filepath.IsAbs(source) {
		return []string{source}
	}
	bundle := f.caller.Container.Bundle
	return slices.Compact([]string{filepath.Join(bundle, source), bundle + "/" + source})
}

// root is the container's root file system, "" without one.
func (f *finder) root() string {
	r := f.spec.Root
	switch {
	case r == nil || r.Path == "":
		return ""
	case filepath.IsAbs(r.Path):
		return r.Path
	}
	return filepath.Join(f.caller.Container.Bundle, r.Path)
}

// real is the real path of what a path leads to.
//
//go:noinline
func (f *finder) real(path string) string { return f.look(path).Path }

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	dir = strings.TrimSuffix(dir, "/") // and no concatenation: each mount is held against each guard
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}
