package failpoint

import (
	"slices"
	"testing"
)

func TestNamesAreDistinct(t *testing.T) {
	sorted := slices.Sorted(slices.Values(Names))
	if len(slices.Compact(sorted)) != len(Names) {
		t.Errorf("a name stands twice in %q: a torture test would crash at one of two lines only", Names)
	}
}

func TestHitWithoutAChosenNameReturns(t *testing.T) {
	for _, name := range Names {
		Hit(name)
	}
}
