// Package layout tells where the programs of an image look for libraries, by reading the image and
// running nothing of it. An image is a tenant's: every path in it may lead anywhere, so it is
// walked with its own root as the root, and what is read is bounded.
package layout

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Image is what is looked at.
type Image struct {
	Root   string   // the root file system as the runtime will find it
	Args   []string // the process's
	Path   string   // its PATH
	Search []string // its LD_LIBRARY_PATH
	Mounts []string // destinations: what lies below them is not the image's

	UIDs, GIDs []specs.LinuxIDMapping // of a user namespace of the container's own; nil: the node's users
}

// loader is a dynamic loader's well-known place.
type loader struct {
	bits int
	path string
	musl string // where musl reads its search path; only of musl's loader
}

// loaders are those of this architecture: glibc's first, because NVIDIA's libraries are built for
// it.
func loaders() []loader {
	if runtime.GOARCH == "arm64" {
		return []loader{{64, "/lib/ld-linux-aarch64.so.1", ""}, {64, "/lib/ld-musl-aarch64.so.1",
			"/etc/ld-musl-aarch64.path"}, {32, "/lib/ld-linux-armhf.so.3", ""}}
	}
	return []loader{{64, "/lib64/ld-linux-x86-64.so.2", ""},
		{64, "/lib/ld-musl-x86_64.so.1", "/etc/ld-musl-x86_64.path"}, {32, "/lib/ld-linux.so.2", ""}}
}

// Of finds the library directories of an image. One that has none, as an image with static programs
// alone, has no problem.
func Of(i Image) grant.Layout {
	r, err := open(i)
	if err != nil {
		return grant.Layout{Problem: err.Error()}
	}
	defer r.root.Close()
	known := loaders()
	if own := r.interpreter(); own != "" { // of a distribution with another place for it, as NixOS
		known = append(known, loader{64, own, ""})
	}
	l := grant.Layout{ReadOnly: r.readOnly()}
	for _, ld := range known {
		dir, cache := r.libraries(ld)
		l.Cache = l.Cache || cache && dir != ""
		switch {
		case ld.bits == 64 && l.Lib64 == "":
			l.Lib64 = dir
		case ld.bits == 32 && l.Lib32 == "":
			l.Lib32 = dir
		}
	}
	return l
}

// File is a regular file of an image.
type File struct {
	Path string // as it was asked for
	Real string // with its links resolved
}

// Files lists those of the paths that lead to regular files of the image. Nothing of it is opened
// for reading.
func Files(i Image, paths []string) []File {
	r, err := open(i)
	if err != nil {
		return nil
	}
	defer r.root.Close()
	var files []File
	for _, path := range paths {
		if real, ok := r.regular(path); ok {
			files = append(files, File{path, real})
		}
	}
	return files
}

func (r reader) regular(path string) (string, bool) {
	f, err := host.OpenInRoot(r.root, path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	return r.below(f)
}

// below is an open file's path in the image.
func (r reader) below(f *os.File) (string, bool) {
	path, err := pathOf(f)
	below, inside := strings.CutPrefix(path, strings.TrimSuffix(r.real, "/"))
	return below, err == nil && inside && strings.HasPrefix(below, "/") && below != "/"
}

// open opens an image's root, without the runtime's poller, which has no part in files and costs a
// create 50 microseconds.
func open(i Image) (reader, error) {
	fd, err := unix.Open(i.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return reader{}, &fs.PathError{Op: "open", Path: i.Root, Err: err}
	}
	r := reader{Image: i, root: os.NewFile(uintptr(fd), i.Root)}
	if r.real, err = pathOf(r.root); err != nil {
		r.root.Close()
	}
	return r, err
}

// readOnly asks how the root file system is mounted.
func (r reader) readOnly() bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(r.root.Fd()), &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// reader is an image that is being read.
type reader struct {
	Image
	root *os.File
	real string // the root's path
}

// libraries is the first directory that the loader searches and the image has, with its links
// resolved; "" without one. It tells, too, whether the loader asks glibc's cache before.
func (r reader) libraries(ld loader) (dir string, cache bool) {
	content, err := r.read(ld.path)
	if err != nil {
		return "", false
	}
	var dirs []string
	if ld.musl != "" {
		dirs = r.muslPath(ld.musl)
	} else {
		dirs, cache = systemDirs(content), bytes.Contains(content, []byte("\x00/etc/ld.so.cache\x00"))
	}
	for _, dir := range dirs {
		if real, ok := r.directory(dir); ok {
			return real, cache
		}
	}
	return "", false
}

// muslPath is where musl's loader searches: what its file says, else what is built in
// (ldso/dynlink.c).
func (r reader) muslPath(file string) []string {
	content, err := r.read(file)
	if err != nil {
		return []string{"/lib", "/usr/local/lib", "/usr/lib"}
	}
	return strings.FieldsFunc(string(content), func(c rune) bool { return c == ':' || c == '\n' })
}

const (
	maxRead = 4 << 20 // a loader has some hundred kilobytes
	maxPath = 1024
	maxDirs = 16
)

// systemDirs reads the directories that are built into glibc's loader: strings one after another,
// each ending in a slash (elf/dl-load.c, system_dirs). Distributions set them: Debian's has the
// multiarch directories there, NixOS's its own store path.
func systemDirs(loader []byte) []string {
	for {
		i := bytes.Index(loader, []byte("\x00/"))
		if i < 0 {
			return nil
		}
		var dirs []string
		dirs, loader = directories(loader[i+1:])
		if slices.ContainsFunc(dirs, func(d string) bool { return strings.Contains(d+"/", "/lib") }) {
			return dirs
		}
	}
}

// directories reads paths of directories, one after another, and returns what follows them.
func directories(text []byte) (dirs []string, rest []byte) {
	for len(dirs) < maxDirs {
		dir, _, found := bytes.Cut(text[:min(len(text), maxPath)], []byte{0})
		if !found || !isDirectory(dir) {
			break
		}
		dirs = append(dirs, filepath.Clean(string(dir)))
		text = text[len(dir)+1:]
	}
	return dirs, text
}

// isDirectory reports whether a string is an absolute path with a slash at its end, of ordinary
// letters.
func isDirectory(s []byte) bool {
	if len(s) < 3 || s[0] != '/' || s[len(s)-1] != '/' {
		return false
	}
	for _, c := range s {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c &&
			c <= '9', strings.IndexByte("/._+-", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// directory resolves one in the image. What is mounted over by the container's own mounts is not
// the image's: a runtime would make our mount points there, in somebody's volume.
func (r reader) directory(dir string) (string, bool) {
	f, err := host.OpenInRoot(r.root, dir)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.IsDir() {
		return "", false
	}
	below, inside := r.below(f)
	if !inside {
		return "", false
	}
	covered := slices.ContainsFunc(r.Mounts, func(m string) bool {
		m = filepath.Clean("/" + m)
		return m != "/" && (below == m || strings.HasPrefix(below, m+"/"))
	})
	return below, !covered
}

// interpreter is the loader that the process's program names, "" for a script, a static program, or
// none.
func (r reader) interpreter() string {
	if len(r.Args) == 0 {
		return ""
	}
	for _, path := range candidates(r.Args[0], r.Path) {
		f, err := r.open(path)
		if err != nil {
			continue
		}
		name := interp(f)
		f.Close()
		return name
	}
	return ""
}

// candidates are where a program may lie that is called by name.
func candidates(name, path string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var all []string
	for _, dir := range strings.Split(path, ":") {
		if dir != "" && len(all) < maxDirs {
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

// open opens a regular file of the image, and nothing else: opening a pipe would wait.
func (r reader) open(path string) (*os.File, error) {
	f, err := host.OpenInRoot(r.root, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fs.ErrInvalid)
	}
	return host.Reopen(f)
}

// read reads the beginning of a file, which of a loader is all.
func (r reader) read(path string) ([]byte, error) {
	f, err := r.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	content := make([]byte, min(info.Size(), maxRead))
	n, err := io.ReadFull(f, content)
	if errors.Is(err, io.ErrUnexpectedEOF) { // it was cut short meanwhile
		err = nil
	}
	return content[:n], err
}

func pathOf(f *os.File) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}
