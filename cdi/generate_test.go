package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/host"
)

// TestAFileIsNewerThanThePlan: what another process has done with a file since the plan was made
// stays, and a note says so.
func TestAFileIsNewerThanThePlan(t *testing.T) {
	replace := func(text string) func(string) error {
		return func(path string) error {
			return host.ReplaceFile(path, []byte(text), grantMode, host.Durable)
		}
	}
	const left What = "left alone"
	nothing := func(string) error { return nil }
	for name, row := range map[string]struct {
		have, want string // "": no file
		meanwhile  func(path string) error
		what       What
		there      string
	}{
		"nothing happens, and it is removed": {"old", "", nothing, Removed, ""},
		"nothing happens, and it is written": {"old", "planned", nothing, Written, "planned"},
		"nothing happens, and it is made":    {"", "planned", nothing, Written, "planned"},
		"one to be removed is renewed":       {"old", "", replace("new"), left, "new"},
		"with the same content":              {"old", "", replace("old"), left, "old"},
		"one to be written is renewed":       {"old", "planned", replace("new"), left, "new"},
		"one to be written is removed":       {"old", "planned", os.Remove, left, ""},
		"one to be made is made by another":  {"", "planned", replace("new"), left, "new"},
		"what was planned is done already":   {"old", "planned", replace("planned"), Unchanged, "planned"},
		"one to be removed is removed":       {"old", "", os.Remove, Absent, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if row.have != "" {
				if err := replace(row.have)(path); err != nil {
					t.Fatal(err)
				}
			}
			planned := inspect(path, grantMode)
			planned.unchanged = false
			if row.want != "" {
				planned.want = []byte(row.want)
			}
			if err := row.meanwhile(path); err != nil {
				t.Fatal(err)
			}
			changes, notes, err := applyAll([]cdiFile{planned})
			did := What("")
			for _, c := range changes {
				did += c.What
			}
			for _, note := range notes {
				if strings.HasPrefix(note, path+" is left as it is: ") {
					did += left
				}
			}
			if err != nil || did != row.what {
				t.Errorf("%v, %q, %v", changes, notes, err)
			}
			if now, err := os.ReadFile(path); string(now) != row.there ||
				err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file has %q, %v", now, err)
			}
		})
	}
}
