package filetree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// System is the files of this machine, or of an image below a directory.
type System struct {
	Root string
	// contents to use in place of the files, by name without links
	Overlay map[string]FileContent
}

// MaxSize is the largest size of a file, in bytes.
const MaxSize = 4 << 20

// maxLinks is the largest number of symbolic links in a name, the same as the kernel's limit.
const maxLinks = 40

// Resolve follows the symbolic links of a name within the root and returns the name without links.
// A part that does not exist stays as it is.
func (s System) Resolve(name string) (string, error) {
	if !filepath.IsAbs(name) {
		return "", fmt.Errorf("cannot find %q: want an absolute path", name)
	}
	done, todo := "/", strings.Split(filepath.Clean(name), "/")
	for links := 0; len(todo) > 0; {
		step := filepath.Join(done, todo[0]) // ".." in a link's target stops at the root, as in a chroot
		todo = todo[1:]
		target, err := os.Readlink(s.Host(step))
		if err != nil { // no link, or no such file
			done = step
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("cannot find %s: too many symbolic links", name)
		}
		if filepath.IsAbs(target) {
			done = "/"
		}
		todo = slices.Concat(strings.Split(target, "/"), todo)
	}
	return done, nil
}

// Host is the path on this machine of a name without links.
func (s System) Host(name string) string { return filepath.Join(s.Root, name) }

// Read is the content at a name without links.
func (s System) Read(name string) (FileContent, error) {
	if c, found := s.Overlay[name]; found {
		return c, nil
	}
	path := s.Host(name)
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return FileContent{Kind: Nothing}, nil
	case err != nil:
		return FileContent{}, fmt.Errorf("cannot read %s: %w", name, err)
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		target, err := os.Readlink(path)
		return FileContent{Kind: Link, Target: target}, err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return FileContent{}, fmt.Errorf("cannot read %s: it is no regular file", name)
	case st.Size > MaxSize:
		return FileContent{}, fmt.Errorf("cannot read %s: it has %d bytes, more than %d", name,
			st.Size, MaxSize)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return FileContent{}, fmt.Errorf("cannot read %s: %w", name, errors.Unwrap(err))
	}
	return FileContent{Kind: Regular, Mode: os.FileMode(st.Mode & 0o7777), UID: int(st.Uid), GID: int(st.Gid),
		ACL: acl(path), SHA256: Hash(data), Data: data}, nil
}

// acl is a file's ACL, nil if it has none.
func acl(path string) []byte {
	value := make([]byte, 64<<10) // the kernel's largest size of an attribute
	n, err := unix.Lgetxattr(path, ACLName, value)
	if err != nil {
		return nil
	}
	return slices.Clone(value[:n])
}

// Exists reports whether a name, or the target of its link, exists.
func (s System) Exists(name string) bool {
	resolved, err := s.Resolve(name)
	if err != nil {
		return false
	}
	_, err = os.Lstat(s.Host(resolved))
	return err == nil
}

// IsLink reports whether a name is a symbolic link. Links above it do not count.
func (s System) IsLink(name string) bool {
	dir, err := s.Resolve(filepath.Dir(name))
	if err != nil {
		return false
	}
	_, err = os.Readlink(s.Host(filepath.Join(dir, filepath.Base(name))))
	return err == nil
}

// Glob lists the names that match a pattern, sorted.
func (s System) Glob(pattern string) []string {
	dir, err := s.Resolve(filepath.Dir(pattern))
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(s.Host(dir))
	var names []string
	for _, e := range entries {
		if match, _ := filepath.Match(filepath.Base(pattern), e.Name()); match && !e.IsDir() &&
			s.Overlay[filepath.Join(dir, e.Name())].Kind != Nothing {
			names = append(names, filepath.Join(filepath.Dir(pattern), e.Name()))
		}
	}
	return names
}

// Load reads a file and follows links. name is the path without links.
func (s System) Load(path string) (name string, c FileContent, err error) {
	if name, err = s.Resolve(path); err == nil {
		c, err = s.Read(name)
	}
	return name, c, err
}

// Program is the path of a program, as firstProgram finds it.
func (s System) Program(name string) string { return s.FirstProgram([]string{name}) }

// FirstProgram is the first of several names or paths that exists; "" if none does. The wrapper
// finds runtime.path in the same way.
func (s System) FirstProgram(paths []string) string {
	for _, path := range paths {
		all := candidates(path)
		if i := slices.IndexFunc(all, s.Exists); i >= 0 {
			return all[i]
		}
	}
	return ""
}

// Programs are all programs of a name, by their paths without links, in the order in which Program
// finds them.
func (s System) Programs(name string) (all []string) {
	for _, path := range candidates(name) {
		program, err := s.Resolve(path)
		if err == nil && s.Exists(program) && !slices.Contains(all, program) {
			all = append(all, program)
		}
	}
	return all
}

// candidates are the paths where a program is searched.
func candidates(name string) (paths []string) {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin",
		"/sbin", "/bin"} {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}
