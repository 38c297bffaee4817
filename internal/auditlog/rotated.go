package auditlog

import (
	"errors"
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

// rotated is the name of a rotated file, and the parts by which names are sorted.
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
