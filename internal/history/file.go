package history

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// file is one file of the log, read as far as it was there.
type file struct {
	name    string
	f       *os.File
	r       *bufio.Reader
	info    os.FileInfo
	at      int64  // bytes that were read of a file that is not compressed
	line    int    // of which that is the number
	begun   []byte // a line that has no end yet
	tooLong bool   // the line that is being read, which is none of ours
	packed  bool
}

// longest is the length of a line that is read, in bytes. Ours have at most 4 KiB.
const longest = 64 << 10

// open waits for nothing and follows no link, whatever stands in the file's place.
func open(name string) (*file, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%s is a link, and gpuledger writes into none", name)
		}
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &file{name: name, f: f, info: info, r: bufio.NewReaderSize(f, longest), packed: strings.HasSuffix(name, ".gz")}, nil
}

func (f *file) close() { _ = f.f.Close() }

// lines calls fn with each line that has come, until it gives false. With end, a line without its end is one, too. Of a line that
// is too long there is nil.
func (f *file) lines(end bool, fn func([]byte) bool) error {
	if err := f.begin(); err != nil {
		return err
	}
	for {
		piece, err := f.r.ReadSlice('\n')
		f.at += int64(len(piece))
		whole := err == nil
		f.add(piece)
		if err != nil && err != bufio.ErrBufferFull && err != io.EOF {
			return err
		}
		if whole || err == io.EOF && end && (len(f.begun) > 0 || f.tooLong) {
			f.line++
			line := f.begun
			if f.tooLong {
				line = nil
			}
			again := fn(line)
			f.begun, f.tooLong = f.begun[:0], false
			if !again {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

// add puts a piece to the line that is being read.
func (f *file) add(piece []byte) {
	f.tooLong = f.tooLong || len(f.begun)+len(piece) > longest
	if f.tooLong {
		f.begun = f.begun[:0]
		return
	}
	f.begun = append(f.begun, piece...)
	if n := len(f.begun); n > 0 && f.begun[n-1] == '\n' {
		f.begun = f.begun[:n-1]
	}
}

// begin unpacks a file that is compressed, and begins anew where one was emptied in place, as logrotate's copytruncate does.
func (f *file) begin() error {
	if f.packed {
		unpacked, err := gzip.NewReader(f.f)
		if err != nil {
			return err
		}
		f.r.Reset(unpacked)
		return nil
	}
	info, err := f.f.Stat()
	if err != nil || info.Size() >= f.at {
		return err
	}
	f.at, f.line, f.begun, f.tooLong = 0, 0, f.begun[:0], false
	f.r.Reset(f.f)
	_, err = f.f.Seek(0, io.SeekStart)
	return err
}

// Names of rotated files: gpuledger's own and logrotate's numbers, logrotate's dates, and what compresses them.
var rotatedName = regexp.MustCompile(`^(?:\.([0-9]{1,6})|(-[0-9][0-9-]*))(\.gz|\.bz2|\.xz|\.zst|\.lz4)?$`)

// rotated is a name with what it is sorted by.
type rotated struct {
	name   string
	number int    // 0: it has a date
	date   string // "": it has a number
	packed string // how it is compressed
}

// older sorts files: dates before numbers, the older date and the higher number first.
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
	return len(a.packed) - len(b.packed)
}

// list gives the rotated files of a log, oldest first. Of one that is being compressed both are there: the compressed one is left out.
func list(path string) ([]rotated, error) {
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
	return slices.CompactFunc(found, func(a, b rotated) bool { return a.number == b.number && a.date == b.date }), err
}

// tries is how often the files are opened anew because a rotation came in between.
const tries = 5

// Open opens the log at path with its rotated files. Without any file there is an empty log. An error says why the log at the path
// cannot be read; what else cannot is told by Warnings.
func Open(path string) (*Log, error) {
	for try := 1; ; try++ {
		l := &Log{path: path}
		again, err := l.open()
		if err == nil && (!again || try == tries) {
			return l, nil
		}
		l.Close()
		if err != nil {
			return nil, fmt.Errorf("cannot read the audit log: %w", err)
		}
	}
}

// open reports whether a rotation came in between: files may be missing then.
func (l *Log) open() (again bool, err error) {
	names, err := list(l.path)
	if err != nil {
		return false, err
	}
	for _, r := range names {
		if r.packed != "" && r.packed != ".gz" {
			l.unread = append(l.unread, fmt.Sprintf("%s is not read: gpuledger unpacks gzip alone", r.name))
			continue
		}
		f, err := open(r.name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			again = true
		case err != nil:
			l.unread = append(l.unread, "a rotated file is not read: "+err.Error())
		default:
			l.files = append(l.files, f)
		}
	}
	now, err := open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return again || l.moved(names), nil
	}
	if err != nil {
		return false, err
	}
	l.files, l.last = append(l.files, now), true
	return again || l.moved(names), nil
}

// moved reports whether the names are others than those that were read before the files were opened, or lead elsewhere.
func (l *Log) moved(before []rotated) bool {
	now, err := list(l.path)
	if err != nil || !slices.Equal(now, before) {
		return true
	}
	for _, f := range l.files {
		if info, err := os.Lstat(f.name); err != nil || !os.SameFile(info, f.info) {
			return true
		}
	}
	return false
}
