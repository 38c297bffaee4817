package layout

import (
	"bytes"
	"encoding/binary"
	"io"
	"path/filepath"
)

// The parts of ELF that name a program's loader (elf(5)). debug/elf would add a tenth to the size
// of the programs that every create runs.
const (
	headerSize  = 64
	segmentSize = 56
	maxSegments = 128
	segmentKind = 3 // PT_INTERP
)

// interp returns the path of the loader that a 64-bit little-endian program names; "" if it names
// none.
func interp(r io.ReaderAt) string {
	var header [headerSize]byte
	if _, err := r.ReadAt(header[:], 0); err != nil ||
		!bytes.HasPrefix(header[:], []byte("\x7fELF\x02\x01")) {
		return ""
	}
	at, size, count := binary.LittleEndian.Uint64(header[32:]), binary.LittleEndian.Uint16(header[54:]),
		binary.LittleEndian.Uint16(header[56:])
	if size != segmentSize || count > maxSegments || at > 1<<40 {
		return ""
	}
	segments := make([]byte, segmentSize*int(count))
	if _, err := r.ReadAt(segments, int64(at)); err != nil {
		return ""
	}
	for ; len(segments) > 0; segments = segments[segmentSize:] {
		if binary.LittleEndian.Uint32(segments) == segmentKind {
			return text(r, binary.LittleEndian.Uint64(segments[8:]),
				binary.LittleEndian.Uint64(segments[32:]))
		}
	}
	return ""
}

func text(r io.ReaderAt, at, size uint64) string {
	if size > maxPath || at > 1<<40 {
		return ""
	}
	b := make([]byte, size)
	if _, err := r.ReadAt(b, int64(at)); err != nil {
		return ""
	}
	path, _, _ := bytes.Cut(b, []byte{0})
	if !filepath.IsAbs(string(path)) {
		return ""
	}
	return string(path)
}
