package page

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestEveryWordHasAMeaning: no state, mode or strength is shown without one.
func TestEveryWordHasAMeaning(t *testing.T) {
	all := map[string][]string{"state": {string(grant.Free), string(grant.Bound), string(grant.Draining),
		string(grant.Unknown)}}
	for _, mode := range grant.Modes {
		all["mode"] = append(all["mode"], string(mode))
	}
	for _, strength := range grant.Strengths {
		all["strength"] = append(all["strength"], string(strength))
	}
	n := 0
	for kind, list := range all {
		for _, w := range list {
			if n++; meaning(kind, w) == "" {
				t.Errorf("%s %s has no meaning", kind, w)
			}
		}
	}
	if n != len(words) {
		t.Errorf("%d words are explained, and the page can show %d", len(words), n)
	}
	for _, mode := range []grant.RulesMode{grant.Enforce, grant.Report, grant.Disabled} {
		if policyText(mode) == "" {
			t.Errorf("mode %s is not explained", mode)
		}
	}
}

// TestOnlyShownWordsAreExplained.
func TestOnlyShownWordsAreExplained(t *testing.T) {
	page := drawn(t, sample(1))
	for _, want := range []string{"state free", "state bound", "mode limit", "strength library"} {
		if !strings.Contains(page, "<dt>"+want+"</dt><dd>") {
			t.Errorf("%s is not explained", want)
		}
	}
	if strings.Contains(page, "<dt>mode mig") || strings.Contains(page, "<dt>state unknown") {
		t.Error("a word that the page does not have is explained")
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[grant.Bytes]string{0: "0.0 GiB", 1: "<0.1 GiB", grant.MiB: "<0.1 GiB",
		16160 * grant.MiB: "15.8 GiB"} {
		if got := size(bytes); got != want {
			t.Errorf("%d bytes are %q, want %q", uint64(bytes), got, want)
		}
	}
	if watts(0)+celsius(0) != "" || watts(60_499) != "60 W" || celsius(43) != "43 °C" {
		t.Errorf("%q, %q, %q", watts(0), watts(60_499), celsius(43))
	}
}
