package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// mistakes are changes of the account's and the throttle's code, each with the C test that notices
// it.
var mistakes = []struct{ mistake, file, is, becomes, test string }{
	{"an allocation is not counted as a change", "account.c",
		"    sums_changed(changes, device);\n    if (sum(", "    if (sum(", "two_take_what_one_can_have"},
	{"a change is counted before it is made", "account.c",
		"_fetch_add(&s->used[device], bytes, __ATOMIC_SEQ_CST);\n    sums_changed(changes, device);\n",
		"_thread_fence(__ATOMIC_SEQ_CST);\n    sums_changed(changes, device);\n" +
			"    __atomic_fetch_add(&s->used[device], bytes, __ATOMIC_SEQ_CST);\n",
		"a_sum_in_the_middle_of_a_change_is_not_kept"},
	{"the count is read after the slots", "sums.c", "k->next = next;",
		"k->next = LOAD(&changes_of(h, b)[device]) + 1;", "a_change_in_the_middle_of_a_sum_is_seen"},
	{"what is remembered refuses for ever", "account.c", "    account_reap();\n    sums_forget();\n    for",
		"    account_reap();\n    for", "killed_while_it_gives"},
	{"a free is not counted as a change", "account.c",
		"__ATOMIC_SEQ_CST));\n    sums_changed(changes, device);\n", "__ATOMIC_SEQ_CST));\n",
		"killed_while_it_gives"},
	{"an older shim's changes are taken for counted", "sums.c",
		"LOAD(&h->slots) != (RECORD_SLOTS | RECORD_COUNTED) || ", "", "an_older_region_is_read_slot_by_slot"},
	{"a window does not end with the gate", "throttle.c", "(left < WINDOW ? left - 1 : WINDOW)", "WINDOW",
		"a_window_ends_with_the_gate"},
	{"a window ends however far ahead", "throttle.h", " - os_ticks() - 1 < length", " > os_ticks() && length",
		"counters_that_jump_open_nothing"},
}

// programs compile the test program of a file in shim/.
var programs = map[string]string{
	"account.c":  "test/account_test.c account.c sums.c track.c os.c -ldl",
	"sums.c":     "test/account_test.c account.c sums.c track.c os.c -ldl",
	"throttle.c": "-DOS_TICKS_OF_TEST test/throttle_test.c throttle.c",
	"throttle.h": "-DOS_TICKS_OF_TEST test/throttle_test.c throttle.c",
}

// TestMistakesAreFound: each of the mistakes fails its test, so the test would notice it.
func TestMistakesAreFound(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the tests that stop a process after each instruction are for x86-64: that they find " +
			"mistakes in the account is not shown")
	}
	for _, m := range mistakes {
		t.Run(m.mistake, func(t *testing.T) {
			dir := t.TempDir()
			sh(t, "cp -r ../../shim "+dir)
			path := filepath.Join(dir, "shim", m.file)
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.is); n != 1 {
				t.Fatalf("%s has %q %d times", m.file, m.is, n)
			}
			changed := strings.Replace(string(source), m.is, m.becomes, 1)
			if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			sh(t, "cd "+dir+"/shim; cc -O2 -std=gnu11 -pthread -o mistaken "+programs[m.file])
			cmd := exec.Command(dir+"/shim/mistaken", m.test)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "not ok ") {
				t.Errorf("%s does not notice it: %v\n%s", m.test, err, out)
			}
		})
	}
}
