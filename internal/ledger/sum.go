package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
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

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errSum = errors.New(`its "sum" is not that of its content: the file is damaged, or was changed by hand ` +
	`(then remove the line)`)

// withSum adds the line to an indented object.
func withSum(text []byte) []byte {
	rest := bytes.TrimPrefix(text, []byte("{"))
	head := fmt.Appendf(make([]byte, 0, len(sumStart)+sumSize+len(sumEnd)+len(rest)), "%s%0*x%s", sumStart,
		sumSize, crc32.Checksum(rest, castagnoli), sumEnd)
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
	if string(sum) != fmt.Sprintf("%0*x%s", sumSize, crc32.Checksum(rest, castagnoli), sumEnd) {
		return errSum
	}
	return nil
}
