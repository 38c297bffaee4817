// Package layout reads an image's root file system for what an injection needs: the directories in
// which the image's own loaders look for libraries (Of), which of some paths are its files (Files),
// what a directory has by a prefix (Named), and at which places no mount point can be made
// (Unmakeable). It runs nothing of the image. A
// tenant makes the image, and every path in it may lead anywhere. So paths are resolved with the
// image's root as root, and reads have limits.
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

// Image is an image and the process that will run in it.
type Image struct {
	Root   string   // the path of the root file system that the runtime uses
	Args   []string // the arguments of the process
	Path   string   // its PATH
	Search []string // its LD_LIBRARY_PATH
	Mounts []string // destinations of mounts; files below them do not belong to the image

	UIDs, GIDs []specs.LinuxIDMapping // of the container's own user namespace; nil: the node's users
}

// loader is a dynamic loader at a well-known path.
type loader struct {
	bits int
	path string
	musl string // the file with musl's search path; only for musl's loader
}

// loaders returns the loaders of this architecture: glibc's first, because NVIDIA's libraries are
// built for it.
func loaders() []loader {
	if runtime.GOARCH == "arm64" {
		return []loader{{64, "/lib/ld-linux-aarch64.so.1", ""}, {64, "/lib/ld-musl-aarch64.so.1",
			"/etc/ld-musl-aarch64.path"}, {32, "/lib/ld-linux-armhf.so.3", ""}}
	}
	return []loader{{64, "/lib64/ld-linux-x86-64.so.2", ""},
		{64, "/lib/ld-musl-x86_64.so.1", "/etc/ld-musl-x86_64.path"}, {32, "/lib/ld-linux.so.2", ""}}
}

// Of finds the library directories of an image. An image without any is not a problem: it may have
// only static programs.
func Of(i Image) grant.Layout {
	r, err := open(i)
	if err != nil {
		return grant.Layout{Problem: err.Error()}
	}
	defer r.root.Close()
	known := loaders()
	if own := r.interpreter(); own != "" { // a distribution with another path for it, as NixOS
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
	Path string // the requested path
	Real string // the path without links
}

// Files returns those of the paths that lead to regular files of the image. It opens none of them
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

// maxEntries and maxNamed bound how long a search by name can take. An image's /usr/local has some
// ten entries, and few of them are versions of CUDA.
const (
	maxEntries = 4096
	maxNamed   = 16
)

// Named returns the paths in a directory of an image whose names have the prefix, sorted. Of a very
// large directory it reads the beginning.
func Named(i Image, dir, prefix string) (paths []string) {
	r, err := open(i)
	if err != nil {
		return nil
	}
	defer r.root.Close()
	f, err := host.OpenInRoot(r.root, dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := host.NamesIn(f, maxEntries)
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	slices.Sort(paths)
	return paths[:min(len(paths), maxNamed)]
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

// below returns the path of an open file in the image.
func (r reader) below(f *os.File) (string, bool) {
	path, err := pathOf(f)
	below, inside := strings.CutPrefix(path, strings.TrimSuffix(r.real, "/"))
	return below, err == nil && inside && strings.HasPrefix(below, "/") && below != "/"
}

// open opens an image's root, without Go's network poller, which files do not use and which takes
// 50 microseconds of a create.
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

// readOnly reports whether the root file system is mounted read-only.
func (r reader) readOnly() bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(r.root.Fd()), &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// reader is an open image.
type reader struct {
	Image
	root *os.File
	real string // the root's path
}

// libraries returns the first directory that the loader searches and the image has, without links;
// "" if there is none. cache says that the loader reads glibc's cache first.
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

// muslPath returns the directories that musl's loader searches: those of its file, otherwise the
// built-in ones (ldso/dynlink.c).
func (r reader) muslPath(file string) []string {
	content, err := r.read(file)
	if err != nil {
		return []string{"/lib", "/usr/local/lib", "/usr/lib"}
	}
	return strings.FieldsFunc(string(content), func(c rune) bool { return c == ':' || c == '\n' })
}

const (
	maxRead = 4 << 20 // bytes; a loader has some hundred kilobytes
	maxPath = 1024
	maxDirs = 16
)

// systemDirs returns the directories that are built into glibc's loader: consecutive strings, each
// with a slash at its end (elf/dl-load.c, system_dirs). Distributions set them: Debian's has the
// multiarch directories, NixOS's its own store path.
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

// directories parses consecutive paths of directories, and returns what follows them.
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

// isDirectory reports whether a string is an absolute path of ordinary characters with a slash at
// its end.
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

// directory resolves a directory in the image. A directory below one of the container's own mounts
// is not the image's: a runtime would make the mount points in a volume.
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
		return m != "/" && host.Within(below, m)
	})
	return below, !covered
}

// interpreter returns the loader that the process's program names; "" for a script, a static
// program, or none.
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

// candidates returns the possible paths of a program that is called by name.
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

// read reads the beginning of a file; for a loader that is the whole file.
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
	if errors.Is(err, io.ErrUnexpectedEOF) { // another process cut it meanwhile
		err = nil
	}
	return content[:n], err
}

func pathOf(f *os.File) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}
