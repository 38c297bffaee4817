// Package suite tests what the suites of other projects share: which results count as different.
package suite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// made is a suite of one file, a.bats. Each batch copies results that the test has laid out, and
// logs which tests it is asked for.
const made = `
set -euo pipefail
name=made known='.*' here=$PWD
. test/suite/suite.sh
cases=(case-v2)
batch() {
  local node=$2 out=$3 filter=$4 number
  number=$(grep -c "^$node " calls || true)
  echo "$node ${filter:-all}" >>calls
  mkdir -p "$out"
  cp "results/$node.$number" "$out/a.bats.tap"
}
together() { for command; do eval "$command"; done; }
: >calls
all a.bats
`

// settled runs the suite. What a node's batches print is in their order; on the node without an
// inventory the one test passes.
func settled(t *testing.T, bare, inventory []string) (out, calls string, passed bool) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "results"), 0o755))
	tests, err := filepath.Abs("..")
	must(t, err)
	must(t, os.Symlink(tests, filepath.Join(dir, "test")))
	write := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("differences.txt", "# known\na.bats\tprivileged\trefused\n")
	write("results/none.0", "1..1\nok 1 plain\n")
	for node, all := range map[string][]string{"bare": bare, "inventory": inventory} {
		for i, text := range all {
			write(fmt.Sprintf("results/%s.%d", node, i), text)
		}
	}
	c := exec.Command("bash", "-c", made)
	c.Dir = dir
	text, err := c.CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(dir, "calls"))
	return string(text), string(log), err == nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatDiffers(t *testing.T) {
	const once, again, thrice = 1, 2, 3
	of := func(times int, text string) (all []string) { return slices.Repeat([]string{text}, times) }
	for _, c := range []struct {
		name            string
		bare, inventory []string // what each batch prints
		passed          bool
		says            string
		calls           []string // of batches that must be there
	}{
		{name: "all pass", passed: true,
			inventory: of(once, "1..2\nok 1 a\nok 2 b in 3ms\n"),
			says:      "2     2     0     0  0 (0 unexplained)"},
		{name: "the same bare", passed: true,
			inventory: of(once, "1..3\nok 1 a\nnot ok 2 b # timeout after 9s\nok 3 c # skip no swap\n"),
			bare:      of(once, "1..2\nnot ok 1 b\nok 2 c # skip no swap\n"),
			says:      "3     1     1     1  0 (0 unexplained)", calls: []string{"bare ^b$|^c$"}},
		{name: "disturbed", passed: true,
			inventory: []string{"1..1\nnot ok 1 a [x]\n", "1..1\nok 1 a [x]\n"},
			bare:      of(again, "1..1\nok 1 a [x]\n"),
			says:      "0 (0 unexplained)", calls: []string{`bare ^a \[x\]$`, `inventory ^a \[x\]$`}},
		{name: "ours alone fails",
			inventory: []string{"1..2\nok 1 b\nnot ok 2 a\n", "1..1\nnot ok 1 a\n", "1..1\nnot ok 1 a\n"},
			bare:      of(thrice, "1..1\nok 1 a\n"), says: "a.bats: a: bare pass, through us fail"},
		{name: "ours alone is skipped",
			inventory: of(thrice, "1..1\nok 1 a # skip\n"),
			bare:      of(thrice, "1..1\nok 1 a\n"), says: "a.bats: a: bare pass, through us skip"},
		{name: "explained", passed: true,
			inventory: of(thrice, "1..1\nnot ok 1 privileged\n"),
			bare:      of(thrice, "1..1\nok 1 privileged\n"), says: "1 (0 unexplained)"},
		{name: "the second of one name",
			inventory: of(thrice, "1..2\nok 1 a\nnot ok 2 a\n"),
			bare:      of(thrice, "1..2\nok 1 a\nok 2 a\n"),
			says:      "a.bats: a (2): bare pass, through us fail",
			calls:     []string{`bare ^a( \(2\))?$`}},
		{name: "a file ends early",
			inventory: of(thrice, "1..2\nok 1 a\n"),
			bare:      of(thrice, "1..2\nok 1 a\nok 2 b\n"),
			says:      "a.bats: b: bare pass, through us absent",
			calls:     []string{"bare all", "inventory ^b$"}},
		{name: "a file does not begin", passed: true,
			inventory: []string{"", "1..1\nok 1 a\n"},
			bare:      of(again, "1..1\nok 1 a\n"),
			says:      "0 (0 unexplained)", calls: []string{"bare all", "inventory ^a$"}},
		{name: "a test that bare lacks",
			inventory: of(thrice, "1..1\nnot ok 1 a\n"),
			bare:      of(thrice, "1..0\n"), says: "a.bats: a: bare absent, through us fail"},
		{name: "a test that is not there again",
			inventory: []string{"1..1\nnot ok 1 a\n", "1..0\n", "1..0\n"},
			bare:      []string{"1..1\nok 1 a\n", "1..0\n", "1..0\n"},
			says:      "a.bats: a: bare absent, through us absent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, calls, passed := settled(t, c.bare, c.inventory)
			if passed != c.passed || !strings.Contains(out, c.says) {
				t.Errorf("passed %v, %v expected; it says %s and shall say %q", passed, c.passed, out, c.says)
			}
			for _, call := range c.calls {
				if !strings.Contains(calls, call+"\n") {
					t.Errorf("the batches were\n%s, and %q is not among them", calls, call)
				}
			}
			if c.bare == nil && strings.Contains(calls, "bare") {
				t.Errorf("all pass, and bare was asked:\n%s", calls)
			}
		})
	}
}

// TestWhatRefuses: the check before each batch takes for gpuledger only what refuses a container
// as gpuledger does on that node.
func TestWhatRefuses(t *testing.T) {
	for _, c := range []struct {
		name, node, program string
		passed              bool
	}{
		{"refuses", "inventory", "echo 'gpuledger: refused (privileged-gpu): it is' >&2; exit 1", true},
		{"has no inventory", "inventory",
			"echo 'gpuledger: refused (inventory-missing): none' >&2; exit 1", false},
		{"refuses on a node without an inventory", "none",
			"echo 'gpuledger: refused (inventory-missing): none' >&2; exit 1", true},
		{"has an inventory where there is none", "none",
			"echo 'gpuledger: refused (gpu-device-rule): it is' >&2; exit 1", false},
		{"starts it", "inventory", "exit 0", false},
		{"says so and starts it", "inventory", "echo 'gpuledger: refused (privileged-gpu)' >&2", false},
		{"fails otherwise", "inventory", "echo 'runc: no such program' >&2; exit 1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime := filepath.Join(t.TempDir(), "runc")
			must(t, os.WriteFile(runtime, []byte("#!/bin/sh\n"+c.program+"\n"), 0o755))
			out, err := exec.Command("./refuses.sh", runtime, c.node).CombinedOutput()
			if passed := err == nil; passed != c.passed {
				t.Errorf("passed %v, %v expected: %s", passed, c.passed, out)
			}
		})
	}
}
