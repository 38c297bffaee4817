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

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/host"
)

// syncDir is host.SyncDir. A test replaces it to make it fail.
var syncDir = host.SyncDir

// writeContent stores a content at a name without links, whole and durable. Its directory must
// exist.
func writeContent(in filetree.System, name string, c filetree.FileContent) error {
	path := in.Host(name)
	err := os.Remove(temporary(in, name)) // from a call that was killed
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot write %s: %w", name, cause(err))
	}
	switch c.Kind {
	case filetree.Nothing:
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	default:
		err = replace(in, name, c)
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
func replace(in filetree.System, name string, c filetree.FileContent) error {
	path, tmp := in.Host(name), temporary(in, name)
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

func temporary(in filetree.System, name string) string {
	dir, base := filepath.Split(in.Host(name))
	if strings.HasSuffix(dir, ".d/") {
		dir = filepath.Dir(filepath.Clean(dir))
	}
	return filepath.Join(dir, "."+base+".gpuledger")
}

func fill(path string, c filetree.FileContent) error {
	if c.Kind == filetree.Link {
		return os.Symlink(c.Target, path)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(c.Data)
	if err == nil {
		err = f.Chown(c.UID, c.GID)
	}
	if err == nil {
		err = setACL(int(f.Fd()), c.ACL) // the mode then sets its mask
	}
	if err == nil {
		err = f.Chmod(c.Mode)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// setACL gives a new file an ACL, or takes the one away that it has from its directory's default.
func setACL(fd int, acl []byte) error {
	if acl != nil {
		return unix.Fsetxattr(fd, filetree.ACLName, acl, 0)
	}
	err := unix.Fremovexattr(fd, filetree.ACLName)
	if err == unix.ENODATA || err == unix.EOPNOTSUPP {
		return nil
	}
	return err
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

// makeDirs makes the directories above a name without links that do not exist. Their mode does not
// depend on the umask, because users without root must be able to read Podman's files and
// gpuledger's.
func makeDirs(in filetree.System, name string) error {
	for _, dir := range missingDirs(in, name) {
		err := os.Mkdir(in.Host(dir), 0o755)
		if err == nil {
			err = os.Chmod(in.Host(dir), 0o755)
		}
		if err == nil {
			err = syncDir(filepath.Dir(in.Host(dir)))
		}
		if err != nil {
			return fmt.Errorf("cannot make %s: %w", dir, cause(err))
		}
	}
	return nil
}

// missingDirs are the directories above a name without links that do not exist, the outermost
// first.
func missingDirs(in filetree.System, name string) []string {
	var missing []string
	for dir := filepath.Dir(name); dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(in.Host(dir)); err == nil {
			break
		}
		missing = append(missing, dir)
	}
	slices.Reverse(missing)
	return missing
}

// removeDirs removes those of the directories that are empty, the innermost first. configure made
// all of them. It leaves the directories in except, and a link that has taken a directory's place.
func removeDirs(in filetree.System, dirs, except []string) {
	for _, dir := range slices.Backward(dirs) {
		if !slices.Contains(except, dir) && unix.Rmdir(in.Host(dir)) == nil {
			_ = syncDir(filepath.Dir(in.Host(dir)))
		}
	}
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
