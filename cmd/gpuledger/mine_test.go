package main

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/users"
)

// TestMineSaysWhyThereIsNoQuota: no user reads that the administrator gives nothing where the
// user's groups cannot be read.
func TestMineSaysWhyThereIsNoQuota(t *testing.T) {
	for problem, want := range map[string]string{"": "nothing without the administrator",
		"the groups cannot be read": "nothing now: the groups cannot be read\n"} {
		v := view{asked: &users.NodeView{User: 60001, QuotaProblem: problem}}
		var text strings.Builder
		if err := printMine(&text, mineOf(v), v); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%v\n%s", err, text.String())
		}
	}
}
