package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// file is one file of the log. What is before offset has been read.
type file struct {
	f        *os.File
	dev, ino uint64
	offset   int64
	inLine   bool // offset is within a line
	endsSeen int  // how often its end was reached, since the last line or since its rotation
}

// open opens a file without waiting for anything, and follows no link.
func open(path string) (*file, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot follow the audit log: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = f.Close()
		return nil, fmt.Errorf("cannot follow the audit log: %s is no regular file", path)
	}
	return &file{f: f, dev: uint64(st.Dev), ino: st.Ino}, nil
}

func (f *file) close()            { _ = f.f.Close() }
func (f *file) same(o *file) bool { return f.dev == o.dev && f.ino == o.ino }

// skipTo skips all but the last bytes of the file.
func (f *file) skipTo(last int64) {
	if info, err := f.f.Stat(); err == nil && info.Size() > last {
		f.offset, f.inLine = info.Size()-last, true
	}
}

// chunkSize is how much is read at once, in bytes. A line has at most 4 KiB.
const chunkSize = 64 << 10

// lines calls fn with each new whole line until limit bytes are read, and returns how many bytes it
// read. It skips lines that are longer than a chunk: gpuledger writes none.
func (f *file) lines(limit int, fn func([]byte)) (read int, err error) {
	f.rewind()
	buffer := make([]byte, chunkSize)
	for read < limit {
		n, err := f.f.ReadAt(buffer, f.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return read, fmt.Errorf("cannot follow the audit log: %w", err)
		}
		used := f.split(buffer[:n], fn)
		f.offset += int64(used)
		read += used
		if used == 0 {
			f.endsSeen++
			return read, nil
		}
		f.endsSeen = 0
	}
	return read, nil
}

// split calls fn with the whole lines of a piece, and returns how many bytes are done.
func (f *file) split(piece []byte, fn func([]byte)) (used int) {
	for {
		end := bytes.IndexByte(piece[used:], '\n')
		if end < 0 {
			break
		}
		if !f.inLine {
			fn(piece[used : used+end])
		}
		f.inLine = false
		used += end + 1
	}
	if used == 0 && len(piece) == chunkSize {
		f.inLine = true
		return chunkSize
	}
	return used
}

// rewind starts again at the beginning if the file was emptied in place, as logrotate does with
// copytruncate.
func (f *file) rewind() {
	if info, err := f.f.Stat(); err == nil && info.Size() < f.offset {
		f.offset, f.inLine = 0, false
	}
}
