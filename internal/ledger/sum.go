package ledger

import (
	"bytes"
	"errors"
	"fmt"
)

// A file of the ledger begins with a line that has a checksum of all that follows. Without it a
// single bit that flips on a disk can make another GPU, another size or another owner of a grant,
// and the file still reads well.
//
// Only the first line counts. A gpuledger that does not know the member keeps it, as every unknown
// one, but writes it at the end of the file, where it is not compared. A file without the line is
// read as it stands.
const (
	sumStart = "{\n  \"sum\": \""
	sumEnd   = "\","
	sumSize  = 8 // hexadecimal digits of a CRC-32C, which finds every flip of up to 32 neighbours
)

var errSum = errors.New(`its "sum" is not that of its content: the file is damaged, or was changed by hand ` +
	`(then remove the line)`)

// withSum adds the line to an indented object.
func withSum(text []byte) []byte {
	rest := bytes.TrimPrefix(text, []byte("{"))
	head := fmt.Appendf(make([]byte, 0, len(sumStart)+sumSize+len(sumEnd)+len(rest)), "%s%0*x%s", sumStart,
		sumSize, crc32c(rest), sumEnd)
	return append(head, rest...)
}

// checkSum compares a file with its checksum, if it has one.
func checkSum(data []byte) error {
	rest, has := bytes.CutPrefix(data, []byte(sumStart))
	if !has {
		return nil
	}
	if len(rest) < sumSize+len(sumEnd) {
		return errSum
	}
	sum, rest := rest[:sumSize+len(sumEnd)], rest[sumSize+len(sumEnd):]
	if string(sum) != fmt.Sprintf("%0*x%s", sumSize, crc32c(rest), sumEnd) {
		return errSum
	}
	return nil
}

// crc32c is the CRC-32C of some data. Half a kilobyte takes 3 us, and nothing has to be prepared:
// hash/crc32 makes its tables for this polynomial when the package is initialised, which took
// 0.25 ms of each start of each program.
func crc32c(data []byte) uint32 {
	crc := ^uint32(0)
	for _, b := range data {
		crc ^= uint32(b)
		crc = castagnoli[crc&15] ^ crc>>4
		crc = castagnoli[crc&15] ^ crc>>4
	}
	return ^crc
}

// castagnoli has, for each half of a byte, what the polynomial 0x82f63b78 (in reversed order, as
// hash/crc32 names it) makes of it.
var castagnoli = [16]uint32{
	0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
	0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
}
