package mps

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestPlan: what a pass does about each daemon, by what it knows of all.
func TestPlan(t *testing.T) {
	now := time.Unix(1e9, 0)
	over := func(gpus ...string) want { return want{uuids: gpus} }
	for _, c := range []struct {
		name    string
		all     []facts
		wanted  map[string]want
		damaged bool
		steps   string
	}{
		{"nothing is there and nothing is wanted", nil, nil, false, ""},
		{"a grant has come", []facts{{name: "a"}}, map[string]want{"a": over("GPU-0")}, false, "a start"},
		{"it runs and is wanted", []facts{{name: "a", runs: true}},
			map[string]want{"a": over("GPU-0")}, false, "a serve"},
		{"it is wanted again after it was told to end", []facts{
			{name: "a", runs: true, toldToEnd: now.Add(-time.Hour)}},
			map[string]want{"a": over("GPU-0")}, false, "a serve"},
		{"it did not answer a moment ago", []facts{{name: "a", runs: true, askedAgain: now.Add(1)}},
			map[string]want{"a": over("GPU-0")}, false, "a report-not-ready"},
		{"it did not answer a while ago", []facts{{name: "a", runs: true, askedAgain: now}},
			map[string]want{"a": over("GPU-0")}, false, "a serve"},
		{"one that has ended is started though it did not answer",
			[]facts{{name: "a", askedAgain: now.Add(1)}},
			map[string]want{"a": over("GPU-0")}, false, "a start"},
		{"its last grant is gone", []facts{{name: "a", runs: true}}, nil, false, "a dismiss"},
		{"its last grant is gone and it does not answer", []facts{
			{name: "a", runs: true, askedAgain: now.Add(1)}}, nil, false, "a report-silent"},
		{"it was told to end a moment ago", []facts{
			{name: "a", runs: true, toldToEnd: now.Add(1 - endTimeout),
				toldAgain: now.Add(1 - endTimeout)}}, nil, false, "a await-end"},
		{"it was told to end long ago", []facts{{name: "a", runs: true,
			toldToEnd: now.Add(-endTimeout), toldAgain: now.Add(-endTimeout)}}, nil, false, "a dismiss"},
		{"it was told to end long ago, and again a moment ago", []facts{{name: "a", runs: true,
			toldToEnd: now.Add(-endTimeout), toldAgain: now.Add(1 - endTimeout)}},
			nil, false, "a report-not-ended"},
		{"it was told to end long ago and does not answer", []facts{{name: "a", runs: true,
			toldToEnd: now.Add(-endTimeout), toldAgain: now.Add(-endTimeout), askedAgain: now.Add(1)}},
			nil, false, "a report-silent"},
		{"it has ended and is not wanted", []facts{{name: "a", toldToEnd: now.Add(-time.Hour)}}, nil,
			false, "a remove"},
		{"an entry cannot be read that may need it", []facts{
			{name: "a", runs: true, gpus: []string{"GPU-0"}}, {name: "b"}, {name: "c", runs: true},
			{name: "d"}},
			map[string]want{"c": over("GPU-2"), "d": over("GPU-3")}, true,
			"a keep, b keep, c serve, d start"},
		{"those without grants come first, and may be in the way",
			[]facts{{name: "a"}, {name: "b", runs: true, gpus: []string{"GPU-0", "GPU-1"}}, {name: "c"}},
			map[string]want{"a": over("GPU-1", "GPU-2")}, false, "b dismiss, c remove, a start after [b]"},
		{"it runs, and its GPUs are not known", []facts{{name: "a"}, {name: "b", runs: true}},
			map[string]want{"a": over("GPU-0")}, false, "b dismiss, a start after [b]"},
		{"one of two with a GPU in common is started", []facts{
			{name: "a"}, {name: "b"}, {name: "c", runs: true, gpus: []string{"GPU-5"}}},
			map[string]want{"a": over("GPU-0"), "b": over("GPU-0", "GPU-1"), "c": over("GPU-5")}, false,
			"a start after [b], b start after [a], c serve"},
	} {
		var got []string
		for _, s := range plan(c.all, c.wanted, c.damaged, now) {
			text := s.name + " " + string(s.action)
			if len(s.after) > 0 {
				text += fmt.Sprint(" after ", s.after)
			}
			got = append(got, text)
		}
		if strings.Join(got, ", ") != c.steps {
			t.Errorf("%s: %v, want %s", c.name, got, c.steps)
		}
	}
}
