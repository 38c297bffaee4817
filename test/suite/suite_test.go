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
cases=("${CASE:-case-v2}")
has_v1() { false; }
batch() {
  local node=$2 out=$3 filter=$4 number
  number=$(grep -c "^$node " calls || true)
  echo "$node ${filter:-all}" >>calls
  mkdir -p "$out"
  cp "results/$node.$number" "$out/a.bats.tap"
  [ "$node" = bare ] || [ ! -e messages ] || cp messages "$out/a.bats.err"
}
together() { for command; do eval "$command"; done; }
: >calls
all a.bats
`

// laid is a suite as settled runs it. On the node without an inventory one test passes, if nothing
// else is said.
type laid struct {
	bare, inventory, none []string // what each batch prints
	list                  string   // the rows of differences.txt
	messages              string   // what stands beside the results through us
	of                    string   // a case with another name than case-v2
}

// settled runs the suite and returns what it prints and the batches that it asked for.
func settled(t *testing.T, l laid) (out, calls string, passed bool) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "results"), 0o755))
	tests, err := filepath.Abs("..")
	must(t, err)
	must(t, os.Symlink(tests, filepath.Join(dir, "test")))
	write := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("differences.txt", "# known\n"+l.list)
	if l.messages != "" {
		write("messages", l.messages)
	}
	if l.none == nil {
		l.none = []string{"1..1\nok 1 plain\n"}
	}
	nodes := map[string][]string{"bare": l.bare, "inventory": l.inventory, "none": l.none}
	for node, all := range nodes {
		for i, text := range all {
			write(fmt.Sprintf("results/%s.%d", node, i), text)
		}
	}
	c := exec.Command("bash", "-c", made)
	c.Dir, c.Env = dir, append(os.Environ(), "CASE="+l.of)
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

// refused is the result of a test that has met a refusal, and what it prints.
const (
	refused = "refused (privileged-gpu)"
	meets   = "# Error: crun: gpuledger: refused (privileged-gpu): container \"c\" is privileged\n"
)

func TestWhatDiffers(t *testing.T) {
	const once, again, thrice = 1, 2, 3
	of := func(times int, text string) (all []string) { return slices.Repeat([]string{text}, times) }
	row := func(node, result string) string {
		return "a.bats\tprivileged\t" + node + "\t" + result + "\twhy\n"
	}
	const plain, privileged = "1..1\nok 1 plain\n", "1..2\nok 1 plain\nok 2 privileged\n"
	const privilegedFails = "1..2\nok 1 plain\nnot ok 2 privileged\n"
	for _, c := range []struct {
		name string
		laid
		passed bool
		says   string
		calls  []string // of batches that must be there
	}{
		{name: "all pass", passed: true,
			laid: laid{inventory: of(once, "1..2\nok 1 a\nok 2 b in 3ms\n")},
			says: "2     2     0       0     0  0 (0 unexplained)"},
		{name: "the same bare", passed: true,
			laid: laid{
				inventory: of(once, "1..3\nok 1 a\nnot ok 2 b # timeout after 9s\nok 3 c # skip no swap\n"),
				bare:      of(once, "1..2\nnot ok 1 b\nok 2 c # skip no swap\n")},
			says:  "3     1     1       0     1  0 (0 unexplained)",
			calls: []string{"bare ^b$|^c$"}},
		{name: "why a test is skipped", passed: true,
			laid: laid{inventory: of(once, "1..3\nok 1 a\nok 2 b # skip no swap\nok 3 c # skip no swap\n"),
				bare: of(once, "1..2\nok 1 b # skip no swap\nok 2 c # skip no swap\n")},
			says: "skipped: 2 of a.bats: no swap\n"},
		{name: "skipped for another reason",
			laid: laid{inventory: of(thrice, "1..2\nok 1 a\nok 2 b # skip no GPU\n"),
				bare: of(thrice, "1..1\nok 1 b # skip no swap\n")},
			says: "a.bats: b: bare skip (no swap), through us skip (no GPU)"},
		{name: "disturbed", passed: true,
			laid: laid{inventory: []string{"1..2\nok 1 b\nnot ok 2 a [x]\n", "1..1\nok 1 a [x]\n"},
				bare: of(again, "1..1\nok 1 a [x]\n")},
			says:  "a.bats: a [x]: bare pass, through us fail; differed 1 time, then not so",
			calls: []string{`bare ^a \[x\]$`, `inventory ^a \[x\]$`}},
		{name: "disturbed twice", passed: true,
			laid: laid{bare: of(thrice, "1..1\nok 1 a\n"),
				inventory: []string{"1..2\nok 1 b\nnot ok 2 a\n", "1..1\nnot ok 1 a\n", "1..1\nok 1 a\n"}},
			says: "a.bats: a: bare pass, through us fail; differed 2 times, then not so"},
		{name: "fails by chance", passed: true,
			laid: laid{bare: []string{"1..1\nok 1 a\n", "1..1\nnot ok 1 a\n"},
				inventory: []string{"1..2\nok 1 b\nnot ok 2 a\n", "1..1\nok 1 a\n"}},
			says: "a.bats: a: bare pass, through us fail; differed 1 time, then not so"},
		{name: "refused by chance",
			laid: laid{bare: []string{"1..1\nok 1 a\n", "1..1\nnot ok 1 a\n", "1..1\nok 1 a\n"},
				inventory: []string{"1..2\nok 1 b\nnot ok 2 a\n" + meets, "1..1\nok 1 a\n",
					"1..1\nnot ok 1 a\n" + meets}},
			says: "a.bats: a: bare pass, through us refused (privileged-gpu)"},
		{name: "lost on one side, then on the other",
			laid: laid{bare: []string{"1..1\nok 1 a\n", "1..0\n", "1..0\n"},
				inventory: []string{"1..2\nok 1 b\n", "1..2\nok 1 b\nok 2 a\n", "1..2\nok 1 b\nok 2 a\n"}},
			says: "a.bats: a: bare absent, through us pass"},
		{name: "ours alone fails",
			laid: laid{bare: of(thrice, "1..1\nok 1 a\n"),
				inventory: []string{"1..2\nok 1 b\nnot ok 2 a\n", "1..1\nnot ok 1 a\n",
					"1..1\nnot ok 1 a\n"}},
			says: "a.bats: a: bare pass, through us fail"},
		{name: "ours alone is skipped",
			laid: laid{inventory: of(thrice, "1..1\nok 1 a # skip\n"), bare: of(thrice, "1..1\nok 1 a\n")},
			says: "a.bats: a: bare pass, through us skip"},
		{name: "explained", passed: true,
			laid: laid{inventory: of(thrice, privilegedFails+meets), bare: of(thrice, privileged),
				list: row("inventory", refused)},
			says: "1     0       1     0  1 (0 unexplained)"},
		{name: "explained for this case", passed: true,
			laid: laid{inventory: of(thrice, privilegedFails+meets), bare: of(thrice, privileged),
				list: row("case-v2/inventory", refused)},
			says: "1     0       1     0  1 (0 unexplained)"},
		{name: "explained for another case",
			laid: laid{inventory: of(thrice, privilegedFails+meets), bare: of(thrice, privileged),
				list: row("case-v1/inventory", refused)},
			says: "a.bats: privileged: bare pass, through us refused (privileged-gpu)"},
		{name: "explained by a failure that is no refusal", passed: true,
			laid: laid{inventory: of(thrice, privilegedFails), bare: of(thrice, privileged),
				list: row("inventory", "fail")},
			says: "1     1       0     0  1 (0 unexplained)"},
		{name: "explained for the other node",
			laid: laid{inventory: of(thrice, privilegedFails+meets), bare: of(thrice, privileged),
				list: row("none", refused)},
			says: "a.bats: privileged: bare pass, through us refused (privileged-gpu)"},
		{name: "explained by a refusal that it did not meet",
			laid: laid{inventory: of(thrice, privilegedFails), bare: of(thrice, privileged),
				list: row("inventory", refused)},
			says: "a.bats: privileged: bare pass, through us fail"},
		{name: "another test's refusal",
			laid: laid{inventory: of(thrice, "1..3\nok 1 plain\nnot ok 2 b\n"+meets+"not ok 3 privileged\n"),

				bare: of(thrice, "1..3\nok 1 plain\nok 2 b\nok 3 privileged\n"),
				list: row("inventory", refused)},
			says: "a.bats: privileged: bare pass, through us fail"},
		{name: "explained, and does not differ",
			laid: laid{inventory: of(once, privileged), list: row("inventory", refused)},
			says: `a.bats: privileged: not "refused (privileged-gpu)" through us`},
		{name: "explained for this case, and does not differ",
			laid: laid{inventory: of(once, privileged), list: row("case-v2/inventory", refused)},
			says: `a.bats: privileged: not "refused (privileged-gpu)" through us`},
		{name: "explained, and skipped here", passed: true,
			laid: laid{inventory: of(once, "1..2\nok 1 plain\nok 2 privileged # skip needs cgroup v1\n"),
				bare: of(once, "1..1\nok 1 privileged # skip needs cgroup v1\n"),
				list: row("inventory", refused)},
			says: "0 (0 unexplained)"},
		{name: "explained, and fails bare, too", passed: true,
			laid: laid{inventory: of(thrice, privilegedFails+meets), bare: of(thrice, privilegedFails),
				list: row("inventory", refused)},
			says: "1 (0 unexplained)"},
		{name: "fails bare, and is refused through us",
			laid: laid{inventory: of(thrice, privilegedFails+meets), bare: of(thrice, privilegedFails)},
			says: "a.bats: privileged: bare fail, through us refused (privileged-gpu)"},
		{name: "a refusal beside the results",
			laid: laid{inventory: of(once, plain), messages: "gpuledger: refused (gpu-device-rule): it is\n"},
			says: "a.bats: its messages: bare no refusal, through us refused (gpu-device-rule)"},
		{name: "a row without a node",
			laid: laid{inventory: of(once, plain), list: "a.bats\tprivileged\trefused\n"},
			says: "rows of differences.txt that have not FILE, name, inventory or none"},
		{name: "the second of one name",
			laid: laid{inventory: of(thrice, "1..2\nok 1 a\nnot ok 2 a\n"),
				bare: of(thrice, "1..2\nok 1 a\nok 2 a\n")},
			says:  "a.bats: a (2): bare pass, through us fail",
			calls: []string{`bare ^a( \(2\))?$`}},
		{name: "a file ends early",
			laid:  laid{inventory: of(thrice, "1..2\nok 1 a\n"), bare: of(thrice, "1..2\nok 1 a\nok 2 b\n")},
			says:  "a.bats: b: bare pass, through us absent",
			calls: []string{"bare all", "inventory all"}},
		{name: "a file ends early, bare, too",
			laid: laid{inventory: of(thrice, "1..2\nok 1 a\n"), bare: of(thrice, "1..2\nok 1 a\n")},
			says: "a.bats: a result for each test of its plan: bare incomplete, through us incomplete"},
		{name: "a file's set-up fails, bare, too",
			laid: laid{inventory: of(thrice, "1..9\nnot ok 1 setup_file failed\n"),
				bare: of(thrice, "1..9\nnot ok 1 setup_file failed\n")},
			says: "a.bats: a result for each test of its plan: bare incomplete, through us incomplete"},
		{name: "a file does not begin", passed: true,
			laid: laid{inventory: []string{"", "1..1\nok 1 a\n"}, bare: of(again, "1..1\nok 1 a\n")},
			says: "0 (0 unexplained)", calls: []string{"bare all", "inventory all"}},
		{name: "a file does not begin, bare, too",
			laid: laid{inventory: of(thrice, ""), bare: of(thrice, ""), none: of(thrice, "")},
			says: "a.bats: a result for each test of its plan: bare incomplete, through us incomplete"},
		{name: "no bats",
			laid: laid{inventory: of(thrice, "sh: 1: bats: not found\n"),
				bare: of(thrice, "sh: 1: bats: not found\n")},
			says: "a.bats: a result for each test of its plan: bare incomplete, through us incomplete"},
		{name: "no test passes",
			laid: laid{inventory: of(once, "1..1\nnot ok 1 a\n"), bare: of(once, "1..1\nnot ok 1 a\n")},
			says: "no test passes"},
		{name: "a file whose plan is empty",
			laid: laid{inventory: of(once, "1..0\n")}, says: "skipped: all of a.bats: its plan is empty"},
		{name: "no case runs", laid: laid{of: "case-v1", none: []string{}}, says: "test-made: no case ran"},
		{name: "a test that bare lacks",
			laid: laid{inventory: of(thrice, "1..1\nnot ok 1 a\n"), bare: of(thrice, "1..0\n")},
			says: "a.bats: a: bare absent, through us fail"},
		{name: "a test that is not there again",
			laid: laid{inventory: []string{"1..1\nnot ok 1 a\n", "1..0\n", "1..0\n"},
				bare: []string{"1..1\nok 1 a\n", "1..0\n", "1..0\n"}},
			says: "a.bats: a: bare absent, through us absent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, calls, passed := settled(t, c.laid)
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
