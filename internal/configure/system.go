package configure

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

// system is the tree of files to configure: this machine's, or an image's below a directory. Names
// are as the engine sees them.
type system struct {
	root    string
	overlay map[string]content // contents to use in place of the files, by name without links
}

// maxConfig is the largest size of a configuration file, in bytes.
const maxConfig = 4 << 20

// maxLinks is the largest number of symbolic links in a name, the same as the kernel's limit.
const maxLinks = 40

// resolve follows the symbolic links of a name within the root and returns the name without links.
// A part that does not exist stays as it is.
func (s system) resolve(name string) (string, error) {
	if !filepath.IsAbs(name) {
		return "", fmt.Errorf("cannot find %q: want an absolute path", name)
	}
	done, todo := "/", strings.Split(filepath.Clean(name), "/")
	for links := 0; len(todo) > 0; {
		step := filepath.Join(done, todo[0]) // ".." in a link's target stops at the root, as in a chroot
		todo = todo[1:]
		target, err := os.Readlink(s.host(step))
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

// host is the path on this machine of a name without links.
func (s system) host(name string) string { return filepath.Join(s.root, name) }

// content is what a name holds: nothing, a file or a link.
type content struct {
	Kind   contentKind `json:"kind"`
	Target string      `json:"target,omitempty"` // for a link
	SHA256 string      `json:"sha256,omitempty"` // for a file
	Mode   os.FileMode `json:"mode,omitempty"`
	UID    int         `json:"uid,omitempty"`
	GID    int         `json:"gid,omitempty"`

	data []byte
}

type contentKind string

const (
	nothing contentKind = "nothing"
	file    contentKind = "file"
	linked  contentKind = "link"
)

// same compares kind, target and hash. It leaves out owner and mode, because an administrator may
// change those.
func (c content) same(o content) bool {
	return c.Kind == o.Kind && c.Target == o.Target && c.SHA256 == o.SHA256
}

func newFile(data []byte, like content) content {
	c := content{Kind: file, Mode: 0o644, data: data, SHA256: hash(data)}
	if like.Kind == file {
		c.Mode, c.UID, c.GID = like.Mode, like.UID, like.GID
	}
	return c
}

// read is the content at a name without links.
func (s system) read(name string) (content, error) {
	if c, found := s.overlay[name]; found {
		return c, nil
	}
	path := s.host(name)
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return content{Kind: nothing}, nil
	case err != nil:
		return content{}, fmt.Errorf("cannot read %s: %w", name, err)
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		target, err := os.Readlink(path)
		return content{Kind: linked, Target: target}, err
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return content{}, fmt.Errorf("cannot read %s: it is no regular file", name)
	case st.Size > maxConfig:
		return content{}, fmt.Errorf("cannot read %s: it has %d bytes, more than %d", name,
			st.Size, maxConfig)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return content{}, fmt.Errorf("cannot read %s: %w", name, errors.Unwrap(err))
	}
	return content{Kind: file, Mode: os.FileMode(st.Mode & 0o7777), UID: int(st.Uid), GID: int(st.Gid),
		SHA256: hash(data), data: data}, nil
}

// write stores a content at a name without links, whole and durable. Its directory must exist.
func (s system) write(name string, c content) error {
	path := s.host(name)
	err := os.Remove(s.temporary(name)) // from a call that was killed
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot write %s: %w", name, cause(err))
	}
	switch c.Kind {
	case nothing:
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	default:
		err = s.replace(name, c)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", name, cause(err))
	}
	return nil
}

// replace writes a temporary file and renames it. The temporary file always has the same name, so a
// crash leaves at most one, which the next call removes. It never lies in a directory of drop-in
// files, because some engines read every file there.
func (s system) replace(name string, c content) error {
	path, tmp := s.host(name), s.temporary(name)
	err := fill(tmp, c)
	if err == nil {
		keepLabel(path, tmp)
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

func (s system) temporary(name string) string {
	dir, base := filepath.Split(s.host(name))
	if strings.HasSuffix(dir, ".d/") {
		dir = filepath.Dir(filepath.Clean(dir))
	}
	return filepath.Join(dir, "."+base+".gpuledger")
}

func fill(path string, c content) error {
	if c.Kind == linked {
		return os.Symlink(c.Target, path)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(c.data)
	if err == nil {
		err = f.Chown(c.UID, c.GID)
	}
	if err == nil {
		err = f.Chmod(c.Mode)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// selinuxLabel is the extended attribute of a file's label. A new file gets the label of its
// directory, which can differ from that of the file it replaces.
const selinuxLabel = "security.selinux"

func keepLabel(from, to string) {
	label := make([]byte, 1024)
	if n, err := unix.Lgetxattr(from, selinuxLabel, label); err == nil {
		_ = unix.Lsetxattr(to, selinuxLabel, label[:n], 0)
	}
}

// missingDirs are the directories above a name without links that do not exist, the outermost
// first.
func (s system) missingDirs(name string) []string {
	var missing []string
	for dir := filepath.Dir(name); dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(s.host(dir)); err == nil {
			break
		}
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	return missing
}

func (s system) exists(name string) bool {
	resolved, err := s.resolve(name)
	if err != nil {
		return false
	}
	_, err = os.Lstat(s.host(resolved))
	return err == nil
}

// glob lists the names that match a pattern, sorted.
func (s system) glob(pattern string) []string {
	dir, err := s.resolve(filepath.Dir(pattern))
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(s.host(dir))
	var names []string
	for _, e := range entries {
		if match, _ := filepath.Match(filepath.Base(pattern), e.Name()); match && !e.IsDir() &&
			s.overlay[filepath.Join(dir, e.Name())].Kind != nothing {
			names = append(names, filepath.Join(filepath.Dir(pattern), e.Name()))
		}
	}
	return names
}

// cause is the system's error without the path. The sentence around it names the file.
func cause(err error) error {
	var path *fs.PathError
	var renaming *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &renaming):
		return renaming.Err
	}
	return err
}
