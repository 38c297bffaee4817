package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const sample = `package sample

func fits(a, b int, sound bool) (bool, error) {
	if a < b && sound {
		return sound, nil
	}
	switch {
	case a == 7:
		return false, fail(a)
	}
	return true, nil
}

func (s scale) weight() string { return s.name }
`

func TestMutantsOfASample(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sample.go")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	var found []mutant
	text, err := instrument("sample", path, &found, map[string]int{})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, m := range found {
		keys = append(keys, m.key)
	}
	slices.Sort(keys)
	want := []string{
		"sample fits: `a < b && sound` is false",
		"sample fits: `a < b` is `a <= b`",
		"sample fits: `a < b` is true",
		"sample fits: `a == 7` is false",
		"sample fits: `a == 7` is true",
		"sample fits: `false` is true",
		"sample fits: `sound` is false",
		"sample fits: `sound` is true",
		"sample fits: `sound` is true (2)",
		"sample fits: `true` is false",
		"sample fits: returns no `fail(a)`",
		"sample scale.weight: returns no `s.name`",
	}
	if !slices.Equal(keys, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(keys, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range []string{
		"if mutating.Bool(0, 1, mutating.Bool(2, 0, mutating.Other(4, func() bool { return a < b }, func() " +
			"bool { return a <= b })) && " +
			"mutating.Bool(3, 0, sound)) {",
		"return mutating.Zero[string](12, s.name)",
	} {
		if !strings.Contains(string(text), line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
}

// TestExplainedSurvivorsAreMutants: an explanation of code that has changed is taken out.
func TestExplainedSurvivorsAreMutants(t *testing.T) {
	t.Chdir("../..")
	var packages []string
	for key := range explanations(survivorsFile) {
		pkg, _, _ := strings.Cut(key, " ")
		packages = append(packages, pkg)
	}
	slices.Sort(packages)
	found, _, err := instrumented(slices.Compact(packages), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, m := range found {
		keys[m.key] = true
	}
	for key := range explanations(survivorsFile) {
		if !keys[key] {
			t.Errorf("survivors.txt explains what is no mutant: %s", key)
		}
	}
}

func TestSurvivorsOfAnEarlierRun(t *testing.T) {
	printed :=
		"5 mutants of sample; seed 7\nsurvives: sample fits: `a < b` is true (2) (sample.go:4)\n   1 " +
			"s: 5 of 5\nsurvives: sample f: returns no `g(a)` (sample.go:9)\nsample 5 run, 3 killed\n"
	want := map[string]bool{"sample fits: `a < b` is true (2)": true, "sample f: returns no `g(a)`": true}
	if got := survivors(printed); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
