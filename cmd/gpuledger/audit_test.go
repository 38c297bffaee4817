package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/auditlog"
)

// logged is a line of the audit log.
func logged(container, code string) string {
	return fmt.Sprintf(`{"time":"2026-11-21T19:10:31.5Z","engine":"containerd","container":%q,`+
		`"verdict":"refuse","code":%q,"message":"no"}`, container, code)
}

func writeLog(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// rows prints the entries of a log as gpuledger audit does.
func rows(t *testing.T, filter auditlog.Filter, lines ...string) string {
	t.Helper()
	path := t.TempDir() + "/audit.jsonl"
	writeLog(t, path, lines...)
	log, err := auditlog.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var text strings.Builder
	p := &entryPrinter{filter: filter, table: rollingTable{w: &text}}
	if err := log.Read(p.entry); err != nil {
		t.Fatal(err)
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// TestEntriesAsATable: each kind of entry shows what an administrator needs to know about it.
func TestEntriesAsATable(t *testing.T) {
	const at = `{"time":"2026-11-21T19:10:31.5Z",`
	id := strings.Repeat("3f0c1a2b", 8)
	for name, c := range map[string]struct{ line, want string }{
		"a refusal": {at + `"engine":"containerd","container":"` + id +
			`","pod":{"uid":"u","namespace":"team","name":"job-0","container":"train"},"verdict":"refuse",` +
			`"code":"no-capacity","message":"it is full"}`,
			"refuse no-capacity 3f0c1a2b3f0c team/job-0/train containerd it is full"},
		"only reported": {at + `"container":"c","verdict":"refuse","mode":"report","code":"no-capacity",` +
			`"message":"it is full","removed":["env A"],"recorded":["adopts nothing: x"]}`,
			"refuse (report) no-capacity c - - it is full; recorded: adopts nothing: x"},
		"an admission": {at + `"container":"c","verdict":"admit","grant":"g-a","strength":"library"}`,
			"admit - c - - grant g-a; strength library"},
		"hidden": {at + `"container":"c","verdict":"pass","removed":["env A","env B"]}`,
			"pass - c - - taken out: env A, env B"},
		"would be hidden": {at + `"container":"c","verdict":"pass","mode":"report","removed":["env A"]}`,
			"pass (report) - c - - would be taken out: env A"},
		"exempt": {at + `"container":"c","verdict":"pass","recorded":["exempt gpu-hook"]}`,
			"pass - c - - recorded: exempt gpu-hook"},
		"a finding": {at + `"action":"found","finding":"over-grant","grant":"g-a",` +
			`"message":"too much"}`, "found over-grant - - - too much"},
		"disabled": {at + `"action":"disabled","until":"2026-11-21T20:10:31Z"}`,
			"disabled - - - - until 2026-11-21T20:10:31Z"},
		"disabled for good": {at + `"action":"disabled"}`, "disabled - - - - until `gpuledger enable`"},
		"enabled":           {at + `"action":"enabled"}`, "enabled - - - -"},
		"a user's grant": {at + `"action":"granted","user":0,"grant":"g-a"}`,
			"granted - - - - grant g-a; user root"},
		"a user without a name": {at + `"action":"released","user":4000000001,"grant":"g-a"}`,
			"released - - - - grant g-a; user 4000000001"},
		"a user's refusal": {at + `"action":"refused","user":0,"code":"quota-exceeded",` +
			`"message":"refused (quota-exceeded): cannot grant 9GiB"}`,
			"refused quota-exceeded - - - cannot grant 9GiB; user root"},
		"more refusals": {at + `"action":"refused","times":7,"message":"7 more requests"}`,
			"refused - - - - 7 more requests"},
		"a later version's": {at + `"verdict":"defer","code":"new-code","news":{"a":1}}`,
			"defer new-code - - -"},
		"for a terminal": {at + `"container":"a\u001b[2J\nb","verdict":"refuse","message":"\u202ec"}`,
			"refuse - a\uFFFD[2J\uFFFDb - - \uFFFDc"},
		"a long name": {at + `"container":"` + strings.Repeat("n", 60) + `","verdict":"pass"}`,
			"pass - " + strings.Repeat("n", 23) + "… - -"},
	} {
		lines := strings.Split(rows(t, auditlog.Filter{}, c.line), "\n")
		if len(lines) != 3 || !strings.HasPrefix(lines[0], "TIME  ") {
			t.Fatalf("%s: %q", name, lines)
		}
		if got := strings.Join(strings.Fields(lines[1]), " "); got != "2026-11-21T19:10:31Z "+c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := rows(t, auditlog.Filter{Code: "gpu-hook"}, logged("c", "no-capacity")); got != "no entries\n" {
		t.Errorf("of nothing: %q", got)
	}
}

// TestALongTable is printed in blocks: rows do not wait in memory, and columns keep their width or
// change it once.
func TestALongTable(t *testing.T) {
	var lines []string
	for i := range 3*block + 7 {
		lines = append(lines, logged(fmt.Sprintf("c%d", i), "no-capacity"))
	}
	lines = append(lines, logged("a-longer-name", "visible-devices-outside-grant"))
	all := strings.Split(strings.TrimSuffix(rows(t, auditlog.Filter{}, lines...), "\n"), "\n")
	if len(all) != len(lines)+1 {
		t.Fatalf("%d lines of %d entries", len(all), len(lines))
	}
	offsets := map[int]bool{}
	for _, line := range all[1:] {
		offsets[strings.Index(line, " containerd ")] = true
	}
	if len(offsets) > 3 || offsets[-1] {
		t.Errorf("columns begin at %v", offsets)
	}
	var table rollingTable
	table.w = &strings.Builder{}
	for range 10 * block {
		if err := table.add([]string{"a", "b"}); err != nil || len(table.rows) > block {
			t.Fatalf("%d rows wait (%v)", len(table.rows), err)
		}
	}
}

func TestMoment(t *testing.T) {
	now := time.Date(2026, 11, 21, 19, 10, 31, 0, time.UTC)
	for text, want := range map[string]string{
		"90m": "2026-11-21T17:40:31Z", "1h30m": "2026-11-21T17:40:31Z", "0s": "2026-11-21T19:10:31Z",
		"7d":         "2026-11-14T19:10:31Z",
		"2026-11-20": "2026-11-20T00:00:00Z", "2026-11-20 08:05": "2026-11-20T08:05:00Z",
		"2026-11-20T08:05:06":  "2026-11-20T08:05:06Z",
		"2026-11-20T08:05:06Z": "2026-11-20T08:05:06Z", "2026-11-20T08:05:06.5+02:00": "2026-11-20T06:05:06Z",
		"": "", "7": "", "-1h": "", "d": "", "-1d": "", "999999d": "", "yesterday": "",
		"2026-13-01": "", "19:10": "",
	} {
		at, err := moment(text, now)
		got := at.UTC().Format(time.RFC3339)
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%q is %q, want %q (%v)", text, got, want, err)
		}
	}
}
