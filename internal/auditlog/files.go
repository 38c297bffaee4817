package auditlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// files holds the open files of a log: the log itself and its rotated files.
type files struct {
	path   string
	open   []*file  // oldest first
	unread []string // which files could not be opened, and why
}

// maxTries is how often the files are opened again because a rotation happened meanwhile.
const maxTries = 5

// openFiles opens the log at path and its rotated files. Without any file there is an empty log.
func openFiles(path string) (*files, error) {
	for try := 1; ; try++ {
		l := &files{path: path}
		incomplete, err := l.openAll()
		if err == nil && (!incomplete || try == maxTries) {
			return l, nil
		}
		l.close()
		if err != nil {
			return nil, err
		}
	}
}

// openAll reports whether a rotation happened meanwhile: files may be missing then.
func (l *files) openAll() (incomplete bool, err error) {
	names, err := listRotated(l.path)
	if err != nil {
		return false, err
	}
	for _, r := range names {
		if r.compression != "" && r.compression != ".gz" {
			l.unread = append(l.unread, fmt.Sprintf("%s is not read: gpuledger unpacks only gzip", r.name))
			continue
		}
		f, err := open(r.name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			incomplete = true
		case err != nil:
			l.unread = append(l.unread, "a rotated file is not read: "+err.Error())
		default:
			l.open = append(l.open, f)
		}
	}
	current, err := open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return incomplete || l.rotatedSince(names), nil
	}
	if err != nil {
		return false, err
	}
	l.open = append(l.open, current)
	return incomplete || l.rotatedSince(names), nil
}

// rotatedSince reports whether the directory lists other names than before the files were opened,
// or one of the names now leads to another file.
func (l *files) rotatedSince(before []rotated) bool {
	now, err := listRotated(l.path)
	if err != nil || !slices.Equal(now, before) {
		return true
	}
	for _, f := range l.open {
		if info, err := os.Lstat(f.name); err != nil || !os.SameFile(info, f.info) {
			return true
		}
	}
	return false
}

// openNewer opens the files that are newer than the newest one that is open. It reports whether one
// of them may be missing: a rotation removed or compressed it before it could be opened.
func (l *files) openNewer() (missing bool, err error) {
	info, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // nothing was recorded yet, or a rotation is under way
	}
	if err != nil || len(l.open) > 0 && os.SameFile(info, l.last().info) {
		return false, err
	}
	now, err := openFiles(l.path)
	if err != nil {
		return false, err
	}
	newer, missing := now.after(l)
	for _, f := range now.open {
		switch {
		case !slices.Contains(newer, f):
			f.close()
		case f.gzipped:
			f.close()
			missing = true
		default:
			if len(l.open) > 0 {
				l.last().endReached = 0 // a process that has it open may write one more line to it
			}
			l.open = append(l.open, f)
		}
	}
	return missing, nil
}

// after returns the files that are newer than the newest one of before. If that one is gone, only
// the newest file is known to be newer, and others may be missing.
func (l *files) after(before *files) (newer []*file, missing bool) {
	if len(before.open) == 0 {
		return l.open, false
	}
	from := 1 + slices.IndexFunc(l.open, before.last().same)
	if missing = from == 0; missing {
		from = max(0, len(l.open)-1)
	}
	for _, f := range l.open[from:] {
		if !slices.ContainsFunc(before.open, f.same) {
			newer = append(newer, f)
		}
	}
	return newer, missing
}

func (l *files) last() *file { return l.open[len(l.open)-1] }

// closeOldest closes the n oldest files.
func (l *files) closeOldest(n int) {
	for _, f := range l.open[:n] {
		f.close()
	}
	l.open = slices.Delete(l.open, 0, n)
}

func (l *files) close() { l.closeOldest(len(l.open)) }
