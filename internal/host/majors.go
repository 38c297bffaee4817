package host

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// CharacterMajors reads from /proc/devices the majors that drivers have registered for character
// devices.
func (h Host) CharacterMajors() (map[int]bool, error) {
	text, err := ReadFile(filepath.Join(h.Proc, "devices"), maxProc)
	if err != nil {
		return nil, fmt.Errorf("cannot read device majors: %w", err)
	}
	characters, _, _ := strings.Cut(string(text), "Block devices")
	majors := map[int]bool{}
	for line := range strings.Lines(characters) {
		number, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if major, err := strconv.Atoi(number); err == nil {
			majors[major] = true
		}
	}
	return majors, nil
}
