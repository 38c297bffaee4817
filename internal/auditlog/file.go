package auditlog

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// file is one open file of the log. It keeps its position between two calls of lines, and the
// beginning of a line whose end is not written yet.
type file struct {
	name       string
	f          *os.File
	info       os.FileInfo
	gzipped    bool
	r          *bufio.Reader
	offset     int64  // bytes read; it means nothing for a compressed file
	line       int    // number of the last line that was read
	partial    []byte // the line that has no end yet
	skipping   bool   // the rest of the line is dropped: it is too long, or reading began within it
	endReached int    // how often the end was reached, since the last byte or since the rotation
}

// maxLine is the longest line that is read, in bytes. gpuledger's own have at most 4 KiB.
const maxLine = 64 << 10

// noLimit lets lines read to the end of the file.
const noLimit = math.MaxInt64

// open opens a file without waiting for anything, and follows no link.
func open(name string) (*file, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%s is a link, and gpuledger follows none", name)
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
	return &file{name: name, f: f, info: info, r: bufio.NewReaderSize(f, maxLine),
		gzipped: strings.HasSuffix(name, ".gz")}, nil
}

func (f *file) close() { _ = f.f.Close() }

func (f *file) same(o *file) bool { return os.SameFile(f.info, o.info) }

// skipTo skips all but the last bytes of the file, and the line in which these begin.
func (f *file) skipTo(last int64) error {
	if f.info.Size() <= last {
		return nil
	}
	f.offset, f.skipping = f.info.Size()-last, true
	_, err := f.f.Seek(f.offset, io.SeekStart)
	return err
}

// lines calls fn with each new line until fn returns false, limit bytes are read or the file ends.
// It returns how many bytes it read. With final, an unfinished last line counts as a line, too. A
// line that is too long is nil.
func (f *file) lines(limit int64, final bool, fn func([]byte) bool) (read int64, err error) {
	if err := f.begin(); err != nil {
		return 0, err
	}
	for read < limit {
		piece, err := f.r.ReadSlice('\n')
		read += int64(len(piece))
		f.add(piece)
		switch {
		case err == nil || err == io.EOF && final && (len(f.partial) > 0 || f.skipping):
			if !fn(f.endLine()) {
				return read, nil
			}
		case err != bufio.ErrBufferFull && err != io.EOF:
			return read, err
		}
		if err == io.EOF {
			f.endReached++
			return read, nil
		}
	}
	return read, nil
}

// add appends a piece to the line that is being read.
func (f *file) add(piece []byte) {
	if len(piece) > 0 {
		f.endReached = 0
	}
	f.offset += int64(len(piece))
	f.skipping = f.skipping || len(f.partial)+len(piece) > maxLine
	if f.skipping {
		f.partial = f.partial[:0]
		return
	}
	f.partial = append(f.partial, piece...)
	if n := len(f.partial); n > 0 && f.partial[n-1] == '\n' {
		f.partial = f.partial[:n-1]
	}
}

// endLine returns the line that was read, which is valid until the next byte is read.
func (f *file) endLine() []byte {
	line := f.partial
	if f.skipping {
		line = nil
	}
	f.line++
	f.partial, f.skipping = f.partial[:0], false
	return line
}

// begin unpacks a compressed file. It starts again at the beginning of a file that was emptied in
// place, as logrotate does with copytruncate.
func (f *file) begin() error {
	if f.gzipped {
		unpacked, err := gzip.NewReader(f.f)
		if err != nil {
			return err
		}
		f.r.Reset(unpacked)
		return nil
	}
	info, err := f.f.Stat()
	if err != nil || info.Size() >= f.offset {
		return err
	}
	f.offset, f.line, f.partial, f.skipping = 0, 0, f.partial[:0], false
	f.r.Reset(f.f)
	_, err = f.f.Seek(0, io.SeekStart)
	return err
}
