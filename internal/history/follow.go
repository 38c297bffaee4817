package history

import (
	"os"
	"slices"
)

// More calls fn with what was written since the log was read, across rotations. It does not wait.
func (l *Log) More(fn func(*Entry) error) error {
	if n := len(l.files); n > 2 { // a rotated file may get a line from who opened it before, and no more after that
		for _, f := range l.files[:n-2] {
			f.close()
		}
		l.files = slices.Delete(l.files, 0, n-2)
	}
	for _, f := range l.files {
		if f.packed {
			continue
		}
		if err := l.read(f, false, fn); err != nil {
			return err
		}
	}
	return l.next(fn)
}

// next goes on to the files that have come.
func (l *Log) next(fn func(*Entry) error) error {
	info, err := os.Lstat(l.path)
	if err != nil || l.last && os.SameFile(info, l.files[len(l.files)-1].info) {
		return nil // a rotation is on its way, or there was none
	}
	now, err := Open(l.path)
	if err != nil {
		return err
	}
	for _, f := range now.files {
		known := slices.ContainsFunc(l.files, func(o *file) bool { return os.SameFile(f.info, o.info) })
		if known || f.packed || !l.newer(f, now.files) {
			f.close()
			continue
		}
		l.files, l.last = append(l.files, f), true
		if err := l.read(f, false, fn); err != nil {
			return err
		}
	}
	return nil
}

// newer reports whether a file became the log after those that were read: it comes behind the last of them, or that is gone.
func (l *Log) newer(f *file, all []*file) bool {
	if len(l.files) == 0 {
		return true
	}
	last := l.files[len(l.files)-1].info
	at := slices.IndexFunc(all, func(o *file) bool { return os.SameFile(o.info, last) })
	if at < 0 {
		return f == all[len(all)-1]
	}
	return slices.Index(all, f) > at
}
