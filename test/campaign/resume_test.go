package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestOnlyTheSameProgramsGoOn: the figures of a campaign are of one build, its failures stay, and a
// file that cannot be read is not taken for none.
func TestOnlyTheSameProgramsGoOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "campaign.json")
	first, err := resume(path, "these", "a commit", "7")
	must(t, err)
	first.Round = 5
	first.failed(t)
	first.failed(t)
	must(t, first.save(path))
	for name, c := range map[string]struct {
		programs, seed string
		rounds         int
		failures       string
	}{
		"the same":                 {"these", "", 5, fmt.Sprint(first.Failed)},
		"the same, and their seed": {"these", "7", 5, fmt.Sprint(first.Failed)},
		"another seed":             {"these", "8", 0, "[]"},
		"other programs":           {"others", "", 0, "[]"},
	} {
		got, err := resume(path, c.programs, "a commit", c.seed)
		if err != nil || got.Round != c.rounds || fmt.Sprint(got.Failed) != c.failures ||
			got.Programs != c.programs {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if len(first.Failed) != 1 {
		t.Errorf("one test has failed, and noted is %q", first.Failed)
	}
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if got, err := resume(path, "these", "a commit", ""); err == nil {
		t.Errorf("half a file is read as %+v", got)
	}
}
