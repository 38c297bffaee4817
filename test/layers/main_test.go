package main

import (
	"os"
	"testing"
)

// TestArchitectureShowsTheImports: the picture of docs/ARCHITECTURE.md is what the command draws.
func TestArchitectureShowsTheImports(t *testing.T) {
	g, err := imports("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(g) < 40 {
		t.Fatalf("only %d packages are known", len(g))
	}
	text, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := withPicture(string(text), draw(g))
	if err != nil {
		t.Fatal(err)
	}
	if drawn != string(text) {
		t.Errorf("%s shows other imports than there are; run `go run ./test/layers -w`", page)
	}
}

func TestDraw(t *testing.T) {
	g := graph{
		"cmd/program":      {"internal/middle", "internal/other", "internal/bottom"},
		"internal/middle":  {"internal/bottom"},
		"internal/other":   nil,
		"internal/bottom":  nil,
		"internal/unused":  {"internal/middle"},
		"internal/another": {"internal/unused", "internal/bottom"},
	}
	const want = "" +
		" 3  another      -> unused\n" +
		" 2  cmd/program  -> middle, other\n" +
		"    unused       -> middle\n" +
		" 1  middle       -> bottom\n" +
		" 0  bottom\n" +
		"    other\n"
	if got := draw(g); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestWithPicture(t *testing.T) {
	got, err := withPicture("text\n"+begin+"```\nold\n```\n"+end+"more\n", "new\n")
	if want := "text\n" + begin + "```\nnew\n```\n" + end + "more\n"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := withPicture("text without a place\n", "new\n"); err == nil {
		t.Error("a page without a place for the picture gets one")
	}
}
