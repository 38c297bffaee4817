package auditlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rotatedName matches what follows the log's name in the name of a rotated file: a number, as
// gpuledger and logrotate write it, or logrotate's date, and the suffix of a program that
// compresses.
var rotatedName = regexp.MustCompile(`^(?:\.([0-9]{1,6})|(-[0-9][0-9-]*))(\.gz|\.bz2|\.xz|\.zst|\.lz4)?$`)

// rotated is the name of a rotated file, and what names are sorted by.
type rotated struct {
	name        string
	number      int    // 0: it has a date
	date        string // "": it has a number
	compression string // the suffix
}

// older sorts names: dates before numbers, the older date and the higher number first.
func older(a, b rotated) int {
	if a.date != b.date {
		switch {
		case a.date == "":
			return 1
		case b.date == "":
			return -1
		}
		return strings.Compare(a.date, b.date)
	}
	if a.number != b.number {
		return b.number - a.number
	}
	return len(a.compression) - len(b.compression)
}

// listRotated returns the rotated files of a log, oldest first. While a file is being compressed,
// two files have its content: the compressed one is left out.
func listRotated(path string) ([]rotated, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var found []rotated
	for _, e := range entries {
		rest, is := strings.CutPrefix(e.Name(), filepath.Base(path))
		if m := rotatedName.FindStringSubmatch(rest); is && m != nil {
			number, _ := strconv.Atoi(m[1])
			found = append(found, rotated{filepath.Join(filepath.Dir(path), e.Name()), number, m[2], m[3]})
		}
	}
	slices.SortFunc(found, older)
	sameContent := func(a, b rotated) bool { return a.number == b.number && a.date == b.date }
	return slices.CompactFunc(found, sameContent), err
}

// files are the open files of a log.
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
			l.unread = append(l.unread, fmt.Sprintf("%s is not read: gpuledger unpacks gzip alone", r.name))
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
		return incomplete || l.moved(names), nil
	}
	if err != nil {
		return false, err
	}
	l.open = append(l.open, current)
	return incomplete || l.moved(names), nil
}

// moved reports whether the directory lists other names than before the files were opened, or one
// of the names now leads to another file.
func (l *files) moved(before []rotated) bool {
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

// openNewer opens the files that became the log after the last one that is open. It reports whether
// one of them may be missing: a rotation removed or compressed it before it could be opened.
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
				l.last().endsSeen = 0 // a process that has it open may write one more line to it
			}
			l.open = append(l.open, f)
		}
	}
	return missing, nil
}

// after returns the files that became the log after the last one of before. If that is gone, only
// the newest file is known to have done so, and others may be missing.
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
