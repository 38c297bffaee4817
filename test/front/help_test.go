package front

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestOptionsAreTheRuntimes: the installed runc and crun have each option of the front's tables,
// with a value or without one as the tables say. A runtime that lacks a subcommand refuses it.
func TestOptionsAreTheRuntimes(t *testing.T) {
	tables := map[string]string{} // by subcommand; "": before it
	source, err := os.ReadFile("../../front/read.c")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^#define (\w+)_OPTIONS "(.*)"$|^    \{"(\w+)", \d, \d, "(.*)"\},$`)
	for _, m := range rows.FindAllStringSubmatch(string(source), -1) {
		switch m[1] {
		case "GLOBAL":
			tables[""] = m[2]
		case "EXEC":
			tables["exec"] = m[2]
		default:
			tables[m[3]] = m[4]
		}
	}
	if len(tables) < 9 || tables[""] == "" || tables["exec"] == "" {
		t.Fatalf("only %q are tables: this test looks in the wrong place", tables)
	}
	for _, runtime := range []string{"runc", "crun"} {
		if _, err := exec.LookPath(runtime); err != nil {
			t.Logf("%s is not installed: what this test shows about it is not shown", runtime)
			continue
		}
		for command, options := range tables {
			out, err := exec.Command(runtime, strings.Fields(command+" --help")...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), command) {
				t.Logf("%s has no %s", runtime, command)
				continue
			}
			for _, option := range strings.Fields(options) {
				name, valued := strings.CutSuffix(option, "=")
				// runc: "--root value", "--format value, -f value"; crun: "--root=DIR"
				after := regexp.MustCompile(name + `(=[A-Z]+| value|\[=[A-Z]+\]|[ ,\n])`)
				m := after.FindStringSubmatch(string(out))
				if m == nil {
					t.Errorf("%s %s has no %s\n%s", runtime, command, name, out)
				} else if takes := m[1][0] == '=' || m[1] == " value"; takes != valued {
					t.Errorf("%s %s: %s takes a value: %v", runtime, command, name, takes)
				}
			}
		}
	}
}
