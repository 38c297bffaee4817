package auditlog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

var start = time.Date(2026, 11, 21, 19, 0, 0, 0, time.UTC)

// entry is a line of the log, this many minutes after the start.
func entry(minute int, container string) string {
	return fmt.Sprintf(`{"time":%q,"engine":"containerd","container":%q,"verdict":"refuse",`+
		`"code":"no-capacity","message":"no"}`+"\n",
		start.Add(time.Duration(minute)*time.Minute).Format(time.RFC3339), container)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

func packed(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}

// containers returns the containers of the entries that were read, in order.
func containers(t *testing.T, read func(func(*Entry) error) error) string {
	t.Helper()
	var names []string
	if err := read(func(e *Entry) error { names = append(names, e.Container); return nil }); err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func opened(t *testing.T, path string) *Log {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// TestAllFilesAreRead: the oldest entry first, for the names that gpuledger and logrotate give.
func TestAllFilesAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string // by the suffix of the log's name
		want  string
		warns string
	}{
		"one": {map[string]string{"": entry(0, "a") + entry(1, "b")}, "a b", ""},
		"rotated": {map[string]string{"": entry(0, "d"), ".1": entry(0, "c"), ".2": entry(0, "b"),
			".10": entry(0, "a")}, "a b c d", ""},
		"a gap": {map[string]string{"": entry(0, "c"), ".1": entry(0, "b"), ".3": entry(0, "a")}, "a b c",
			""},
		"no log":  {map[string]string{".1": entry(0, "a")}, "a", ""},
		"no file": {nil, "", ""},
		"packed": {map[string]string{"": entry(0, "c"), ".1": entry(0, "b"),
			".2.gz": packed(entry(0, "a"))}, "a b c", ""},
		"by dates": {map[string]string{"": entry(0, "c"), "-20261102": entry(0, "b"),
			"-20261101.gz": packed(entry(0, "a"))}, "a b c", ""},
		"being packed": {map[string]string{"": entry(0, "c"), ".1": entry(0, "b"), ".2": entry(0, "a"),
			".2.gz": packed(entry(0, "a"))[:9]},
			"a b c", ""},
		"cut off": {map[string]string{"": entry(0, "b"), ".1.gz": packed(entry(0, "a"))[:40]},
			"b", "was read to line 0 only: unexpected EOF"},
		"other names": {map[string]string{"": entry(0, "a"), ".bak": entry(0, "x"), ".1.orig": entry(0, "x"),
			"x.1": entry(0, "x")}, "a", ""},
		"unknown": {map[string]string{"": entry(0, "a"), ".1.xz": "?"}, "a",
			"audit.jsonl.1.xz is not read: gpuledger unpacks only gzip"},
		"broken lines": {map[string]string{"": "garbage\n\n" + entry(0, "a") + "{}\n", ".1": "null\n"}, "a",
			"3 lines cannot be read and were left out; the first is line 1 of "},
		"one broken": {map[string]string{"": entry(0, "a") + "[1,\n"}, "a",
			"1 line cannot be read and was left out; the first is line 2 of "},
		"too long": {map[string]string{"": entry(0, "a") + strings.Repeat("x", 3*maxLine+5) + "\n" +
			entry(0, "b")}, "a b",
			"1 line cannot be read and was left out; the first is line 2 of "},
		"no end": {map[string]string{"": entry(0, "a") + strings.TrimSpace(entry(0, "b"))}, "a b",
			""},
		"half a line": {map[string]string{"": entry(0, "a") + entry(0, "b")[:30]}, "a", ""},
		"rotated, no end": {map[string]string{"": entry(0, "b"), ".1": strings.TrimSpace(entry(0, "a"))},
			"a b", ""},
		"rotated, half": {map[string]string{"": entry(0, "b"), ".1": entry(0, "a")[:30]}, "b",
			"the first is line 1 of "},
		"invalid UTF-8": {map[string]string{"": strings.Replace(entry(0, "a"), `"no"`, "\"\xff\"", 1)},
			"a", ""},
		"NUL": {map[string]string{"": "\x00\x00\x00\n" + entry(0, "a")}, "a", "1 line cannot"},
		"another's fields": {map[string]string{
			"": `{"time":"2026-11-21T19:00:00Z","verdict":"refuse","container":5}` + "\n"},
			"", "1 line cannot"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			for suffix, text := range c.files {
				write(t, path+suffix, text)
			}
			l := opened(t, path)
			if got := containers(t, l.Read); got != c.want {
				t.Errorf("read %q, want %q", got, c.want)
			}
			if got := strings.Join(l.Warnings(), "; "); !strings.Contains(got, c.warns) ||
				c.warns == "" && got != "" {
				t.Errorf("warns %q, want %q", got, c.warns)
			}
		})
	}
}

// TestOnlyRegularFilesAreRead: others are not waited for, either.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	write(t, path+".1", entry(0, "a"))
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || err.Error() != "cannot read the audit log: "+path+
		" is no regular file" {
		t.Errorf("a FIFO: %v", err)
	}
	_ = os.Remove(path)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || err.Error() != "cannot read the audit log: "+path+
		" is a link, and gpuledger follows none" {
		t.Errorf("a link: %v", err)
	}
	_ = os.Remove(path)
	if err := os.Symlink("/etc/passwd", path+".2"); err != nil {
		t.Fatal(err)
	}
	l := opened(t, path)
	if got := containers(t, l.Read); got != "a" || len(l.Warnings()) != 1 {
		t.Errorf("beside a rotated link: %q, %q", got, l.Warnings())
	}
}

func TestReadingEndsWithAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	write(t, path, strings.Repeat(entry(0, "a"), 3))
	write(t, path+".1", strings.Repeat(entry(0, "a"), 3))
	enough, n := errors.New("enough"), 0
	if err := opened(t, path).Read(func(*Entry) error { n++; return enough }); err != enough || n != 1 {
		t.Errorf("%v after %d entries", err, n)
	}
}

func TestWants(t *testing.T) {
	parsed := func(text string) *Entry {
		e, ok := parse([]byte(text))
		if !ok {
			t.Fatal(text)
		}
		return e
	}
	decision := parsed(`{"time":"2026-11-21T19:10:00Z","container":"3f0c1a2b","pod":{"uid":"u",` +
		`"namespace":"team","name":"job-0","container":"train"},` +
		`"verdict":"refuse","code":"mode-conflict","message":"held by g-abcdefghijkl"}`)
	finding := parsed(`{"time":"2026-11-21T19:10:00Z","action":"found","finding":"over-grant",` +
		`"grant":"g-xqnwqhgdjfmr"}`)
	at := func(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }
	for name, c := range map[string]struct {
		filter            Filter
		decision, finding bool
	}{
		"all":               {Filter{}, true, true},
		"since":             {Filter{Since: at(10)}, true, true},
		"since later":       {Filter{Since: at(11)}, false, false},
		"until":             {Filter{Until: at(11)}, true, true},
		"until then":        {Filter{Until: at(10)}, false, false},
		"code":              {Filter{Code: "mode-conflict"}, true, false},
		"another code":      {Filter{Code: "no-capacity"}, false, false},
		"finding":           {Filter{Code: "over-grant"}, false, true},
		"container":         {Filter{Container: "3f0c1a2b"}, true, false},
		"its beginning":     {Filter{Container: "3f0c"}, true, false},
		"its end":           {Filter{Container: "1a2b"}, false, false},
		"pod":               {Filter{Container: "team/job-0"}, true, false},
		"pod and container": {Filter{Container: "team/job-0/train"}, true, false},
		"another pod":       {Filter{Container: "team/job"}, false, false},
		"grant":             {Filter{Grant: "g-xqnwqhgdjfmr"}, false, true},
		"grant in words":    {Filter{Grant: "g-abcdefghijkl"}, true, false},
		"both":              {Filter{Since: at(1), Code: "mode-conflict", Container: "3f", Grant: grant.ID("g-abcdefghijkl")}, true, false},
		"one is wrong":      {Filter{Since: at(1), Code: "mode-conflict", Container: "4f"}, false, false},
	} {
		if got := [2]bool{c.filter.Wants(decision), c.filter.Wants(finding)}; got != [2]bool{
			c.decision, c.finding} {
			t.Errorf("%s: %v", name, got)
		}
	}
	if decision.PodName() != "team/job-0/train" || finding.PodName() != "" {
		t.Errorf("%q, %q", decision.PodName(), finding.PodName())
	}
}

// rotate rotates the log as gpuledger does.
func rotate(t *testing.T, path string) {
	t.Helper()
	for i := 5; i >= 1; i-- {
		_ = os.Rename(fmt.Sprintf("%s.%d", path, i), fmt.Sprintf("%s.%d", path, i+1))
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
}

// TestMore: each new entry is returned once, across rotations.
func TestMore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := opened(t, path)
	more := func(want string) {
		t.Helper()
		if got := containers(t, l.More); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := containers(t, l.Read); got != "" {
		t.Errorf("of nothing there is %q", got)
	}
	more("")
	write(t, path, entry(0, "a"))
	more("a")
	more("")
	write(t, path, entry(1, "b")[:20])
	more("")
	write(t, path, entry(1, "b")[20:]+entry(2, "c"))
	more("b c")
	write(t, path, entry(3, "d"))
	rotate(t, path)
	more("d") // there is no new log yet
	write(t, path, entry(4, "f"))
	write(t, path+".1", entry(4, "e")) // by a process that opened it before
	more("e f")
	write(t, path+".1", entry(4, "e2")) // and again
	more("e2")
	for _, name := range []string{"g", "h", "i"} {
		write(t, path, entry(5, name))
		rotate(t, path)
	}
	write(t, path, entry(6, "j"))
	more("g h i j")
	more("")
	rotate(t, path)
	write(t, path, entry(6, "j2"))
	more("j2") // and no older file again
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	more("")
	write(t, path, entry(7, "k"))
	more("k")
	rotate(t, path)
	_ = os.Remove(path + ".1")
	write(t, path, entry(8, "l"))
	more("l")
	if len(l.files.open) > 2 || len(l.Warnings()) != 0 {
		t.Errorf("%d files are open; %q", len(l.files.open), l.Warnings())
	}
}

// TestReadThenMore: an entry without the end of its line is returned once.
func TestReadThenMore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	write(t, path, strings.TrimSpace(entry(0, "a")))
	l := opened(t, path)
	if got := containers(t, l.Read); got != "a" {
		t.Errorf("read %q", got)
	}
	write(t, path, "\n"+entry(1, "b"))
	if got := containers(t, l.More); got != "b" {
		t.Errorf("more: %q", got)
	}
}

// TestARotationInBetween: a rotation while the files are opened is noticed.
func TestARotationInBetween(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	write(t, path, entry(1, "b"))
	write(t, path+".1", entry(0, "a"))
	l := opened(t, path)
	names, err := listRotated(path)
	if err != nil || l.files.rotatedSince(names) {
		t.Fatalf("nothing has moved (%v)", err)
	}
	rotate(t, path)
	if !l.files.rotatedSince(names) {
		t.Error("a rotation is overlooked")
	}
	l = opened(t, path)
	if !l.files.rotatedSince(names) {
		t.Error("a rotation before the first file was opened is overlooked")
	}
	names, _ = listRotated(path)
	_ = os.Rename(path+".1", path+".9")
	_ = os.Rename(path+".2", path+".1")
	_ = os.Rename(path+".9", path+".2")
	if !l.files.rotatedSince(names) {
		t.Error("other files with the same names are overlooked")
	}
}

// FuzzParse: no text in the log makes reading it panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(entry(0, "a")))
	f.Add([]byte(`{"time":"2026-11-21T19:10:00Z","action":"found","pod":{"name":"\u0000"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, ok := parse(line)
		if ok && e.Time.IsZero() {
			t.Error("an entry without a time")
		}
		(Filter{Code: "x", Container: "y", Grant: "z"}).Wants(e)
		_ = e.PodName()
	})
}
