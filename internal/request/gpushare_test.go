package request

import (
	"bytes"
	"maps"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// TestSharesAreReadAsTheLibraryReadsThem: the member of a container, and its cards.
func TestSharesAreReadAsTheLibraryReadsThem(t *testing.T) {
	for _, text := range []string{``, `null`, `{}`, `[]`, `1`, `{"c":{"0":4}}`, ` { "c" : { "0" : 4 } } `,
		`{"C":{}}`, `{"\u0063":{"0":4,"1":4}}`, `{"c":null}`, `{"c":{}}`, `{"c":{"0":null}}`,
		`{"c":{"0":1.0}}`, `{"c":{"0":"1"}}`, `{"c":{"0":1,"0":1}}`, `{"c":{"0":1},"c":{"0":1}}`,
		`{"d":{"0":1,"0":1},"c":{}}`, `{"d":7,"c":{"0":-1}}`, `{"d":1}`, `{"c":[]}`,
		`{"c":{"0":9223372036854775808}}`, `{"c":{"0":1}`, `{"c":{"0":1}}}`, `{"c":{"0":1}} `,
		"{\"c\":{\"\xff\":1}}", "{\"\xff\":{},\"c\":{}}", `{"c":{"\ud800":1}}`, `{"":{"0":1}}`} {
		var containers map[string]jsontext.Value
		theirs := json.Unmarshal([]byte(text), &containers)
		own, ours := memberOf([]byte(text), "c")
		if (ours == nil) != (theirs == nil) ||
			ours == nil && (!bytes.Equal(own, containers["c"]) || (own == nil) != (containers["c"] == nil)) {
			t.Errorf("%q: %q (%v), by the library %q (%v)", text, own, ours, containers["c"], theirs)
		}
		if own == nil {
			continue
		}
		var want map[string]int
		theirs = json.Unmarshal(own, &want)
		got, ours := readCards(own)
		if (ours == nil) != (theirs == nil) || ours == nil && !maps.Equal(got, want) {
			t.Errorf("%q: %v (%v), by the library %v (%v)", own, got, ours, want, theirs)
		}
	}
}
