package auditlog

import (
	"fmt"
	"slices"
)

// Log is an audit log with its rotated files.
type Log struct {
	files     *files
	cut       []string // which files could not be read to their end, and why
	broken    int      // lines that are no entries
	firstName string   // where the first of them is
	firstLine int
}

// Open opens the log at path with its rotated files. Without any file there is an empty log. An
// error says why the log at the path cannot be read; Warnings says which other files cannot.
func Open(path string) (*Log, error) {
	files, err := openFiles(path)
	if err != nil {
		return nil, cannotRead(err)
	}
	return &Log{files: files}, nil
}

// OpenEnd opens only the last bytes of the log at path, without an entry that begins before them.
func OpenEnd(path string, last int64) (*Log, error) {
	f, err := open(path)
	if err != nil {
		return nil, cannotRead(err)
	}
	return &Log{files: &files{path: path, open: []*file{f}}}, f.skipTo(last)
}

func cannotRead(err error) error { return fmt.Errorf("cannot read the audit log: %w", err) }

// Files returns how many there are to read.
func (l *Log) Files() int { return len(l.files.open) }

// Close closes the files.
func (l *Log) Close() { l.files.close() }

// Warnings returns which parts of the log could not be read so far.
func (l *Log) Warnings() []string {
	list := slices.Concat(l.files.unread, l.cut)
	switch {
	case l.broken == 1:
		list = append(list, fmt.Sprintf("1 line cannot be read and was left out; the first is line %d of %s",
			l.firstLine, l.firstName))
	case l.broken > 1:
		list = append(list, fmt.Sprintf("%d lines cannot be read and were left out; the first is "+
			"line %d of %s",
			l.broken, l.firstLine, l.firstName))
	}
	return list
}

// Read calls fn with each entry, oldest file first, until it fails. Warnings names a file that
// cannot be read to its end.
func (l *Log) Read(fn func(*Entry) error) error {
	for _, f := range l.files.open {
		grows := f.name == l.files.path
		if err := l.read(f, !grows, fn); err != nil {
			return err
		}
		if grows {
			return l.readUnended(f, fn)
		}
	}
	return nil
}

// readUnended reads the entry at the end of the log whose line has no end. If it is no entry,
// another process is writing it at this moment.
func (l *Log) readUnended(f *file, fn func(*Entry) error) error {
	e, ok := parse(f.partial)
	if !ok {
		return nil
	}
	err := fn(e)
	f.endLine()
	return err
}

// read calls fn with the entries of one file. With final, an unfinished last line counts as a line,
// too.
func (l *Log) read(f *file, final bool, fn func(*Entry) error) error {
	var failed error
	_, err := f.lines(noLimit, final, func(line []byte) bool {
		if isBlank(line) {
			return true
		}
		e, ok := parse(line)
		if !ok {
			if l.broken++; l.broken == 1 {
				l.firstName, l.firstLine = f.name, f.line
			}
			return true
		}
		failed = fn(e)
		return failed == nil
	})
	if err != nil && failed == nil {
		l.cut = append(l.cut, fmt.Sprintf("%s was read to line %d only: %v", f.name, f.line, err))
	}
	return failed
}

// More calls fn with the entries that were recorded since the log was read, across rotations. It
// does not wait.
func (l *Log) More(fn func(*Entry) error) error {
	if _, err := l.files.openNewer(); err != nil {
		return cannotRead(err)
	}
	for _, f := range l.files.open {
		if f.gzipped {
			continue
		}
		if err := l.read(f, false, fn); err != nil {
			return err
		}
	}
	// A process that has the last rotated file open may write one more line to it.
	l.files.closeOldest(max(0, len(l.files.open)-2))
	return nil
}
