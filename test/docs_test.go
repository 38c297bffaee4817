package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestEveryRefusalIsExplained holds docs/refusals.md to the closed list, in its order: where several codes apply, the
// first is told.
func TestEveryRefusalIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(line, "## `"); found {
			sections = append(sections, strings.TrimSuffix(strings.TrimSpace(name), "`"))
		}
	}
	var codes []string
	for _, code := range grant.Codes {
		codes = append(codes, string(code))
	}
	if got, want := strings.Join(sections, " "), strings.Join(codes, " "); got != want {
		t.Errorf("docs/refusals.md explains\n%s\nbut the codes are\n%s", got, want)
	}
}

// link is a relative link of Markdown.
var link = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)

func TestDocumentsLinkToWhatIsThere(t *testing.T) {
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	decisions, _ := filepath.Glob("../docs/adr/*.md")
	for _, document := range append(append(documents, decisions...), "../README.md", "../CHANGELOG.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(document), found[1])); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
	}
}
