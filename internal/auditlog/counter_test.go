package auditlog

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

type log struct {
	*testing.T
	path string
	c    Counter
}

func newLog(t *testing.T) *log {
	l := &log{T: t, path: filepath.Join(t.TempDir(), "audit.jsonl")}
	t.Cleanup(l.c.Close)
	return l
}

func refusal(code, container string) string {
	return fmt.Sprintf(`{"time":"2026-11-21T19:10:31Z","engine":"containerd","container":%q,`+
		`"pod":{"uid":"u","namespace":"team","name":"job","container":"train"},"verdict":"refuse",`+
		`"code":%q,"message":"no"}`, container, code)
}

func (l *log) write(lines ...string) { l.writeTo(l.path, strings.Join(lines, "\n")+"\n") }

func (l *log) writeTo(path, text string) {
	l.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err != nil {
		l.Fatal(err)
	}
	_ = f.Close()
}

func (l *log) rotate() {
	l.Helper()
	for i := 5; i >= 1; i-- {
		_ = os.Rename(fmt.Sprintf("%s.%d", l.path, i), fmt.Sprintf("%s.%d", l.path, i+1))
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		l.Fatal(err)
	}
}

// poll wants this many enforced refusals of code no-capacity in total.
func (l *log) poll(want uint64) {
	l.Helper()
	if err := l.c.Poll(); err != nil {
		l.Fatal(err)
	}
	if got := l.c.Counts().Refusals[RefusalKind{"no-capacity", Enforced}]; got != want {
		l.Fatalf("%d refusals are counted, want %d (%+v)", got, want, l.c.Counts())
	}
}

var noCapacity = refusal("no-capacity", "c")

func TestFollow(t *testing.T) {
	l := newLog(t)
	l.write(noCapacity, noCapacity)
	l.c.Follow(l.path)
	l.poll(0) // another process may have counted these lines
	if recent := l.c.Recent(); len(recent) != 2 ||
		recent[0].Pod != (grant.Identity{UID: "u", Namespace: "team", Pod: "job", Container: "train"}) {
		t.Errorf("remembered: %+v", recent)
	}
	l.write(noCapacity, `{"time":"2026-11-21T19:10:31Z","verdict":"admit","grant":"g-abcdefghijkl"}`,
		`{"time":"2026-11-21T19:10:31Z","verdict":"pass"}`,
		`{"time":"2026-11-21T19:10:31Z","action":"disabled"}`, "garbage",
		`{"time":"2026-11-21T19:10:31Z","verdict":"refuse","code":"made-up","mode":"report"}`)
	l.poll(1)
	c := l.c.Counts()
	if c.Admissions != 1 || c.Passes != 1 || c.Unreadable != 1 ||
		c.Refusals[RefusalKind{Other, "report"}] != 1 || len(c.Refusals) != 2 {
		t.Errorf("counted: %+v", c)
	}
	half := noCapacity[:40]
	l.writeTo(l.path, half)
	l.poll(1)
	l.writeTo(l.path, noCapacity[40:]+"\n")
	l.poll(2)
	l.c.Follow(l.path) // the same again
	l.poll(2)
	if err := os.Truncate(l.path, 0); err != nil {
		t.Fatal(err)
	}
	l.poll(2)
	l.write(noCapacity)
	l.poll(3)
}

func TestALogThatDoesNotExistYet(t *testing.T) {
	l := newLog(t)
	l.c.Follow(l.path)
	l.poll(0)
	l.write(noCapacity)
	l.poll(1)
}

func TestRotations(t *testing.T) {
	l := newLog(t)
	l.write(noCapacity)
	l.c.Follow(l.path)
	l.write(noCapacity)
	l.rotate()
	l.poll(1) // there is no new log yet
	l.write(noCapacity)
	l.poll(2)
	l.writeTo(l.path+".1", noCapacity+"\n") // by a process that opened it before
	l.poll(3)
	for range 3 { // more than one between two polls
		l.write(noCapacity)
		l.rotate()
	}
	l.write(noCapacity)
	l.poll(7)
	for range 4 {
		l.poll(7)
	}
	if len(l.c.files.open) != 1 || l.c.Counts().Gaps != 0 {
		t.Errorf("%d files are open, want 1; %d gaps, want 0", len(l.c.files.open), l.c.Counts().Gaps)
	}
	l.write(noCapacity)
	for i := 1; i < 9; i++ {
		_ = os.Remove(fmt.Sprintf("%s.%d", l.path, i))
	}
	l.rotate()
	_ = os.Rename(l.path+".1", l.path+".elsewhere")
	l.write(noCapacity)
	l.poll(9) // the open file is read to its end, even if it was renamed; entries after it are unknown
	if l.c.Counts().Gaps != 1 {
		t.Errorf("%d gaps, want 1", l.c.Counts().Gaps)
	}
}

func TestReadingIsBounded(t *testing.T) {
	l := newLog(t)
	l.write(noCapacity)
	l.c.Follow(l.path)
	l.writeTo(l.path, strings.Repeat("x", 3*maxLine)+"\n")
	lines := pollBytes/len(noCapacity) + 100
	l.writeTo(l.path, strings.Repeat(noCapacity+"\n", lines))
	if err := l.c.Poll(); err != nil {
		t.Fatal(err)
	}
	if got := l.c.Counts().Refusals[RefusalKind{"no-capacity", Enforced}]; got == 0 || got >= uint64(lines) {
		t.Errorf("one poll read %d of %d lines", got, lines)
	}
	l.poll(uint64(lines))
	if len(l.c.Recent()) != maxRecent {
		t.Errorf("%d refusals are remembered, want %d", len(l.c.Recent()), maxRecent)
	}
	again := Counter{}
	defer again.Close()
	again.Follow(l.path)
	if len(again.Recent()) != maxRecent || again.Counts().Unreadable != 0 {
		t.Errorf("of a large log %d are remembered (%+v)", len(again.Recent()), again.Counts())
	}
}

func TestAFIFOIsNotWaitedFor(t *testing.T) {
	l := newLog(t)
	if err := unix.Mkfifo(l.path, 0o600); err != nil {
		t.Fatal(err)
	}
	l.c.Follow(l.path)
	if err := l.c.Poll(); err == nil || !strings.HasPrefix(err.Error(), "cannot read the audit log: ") {
		t.Errorf("of a FIFO: %v", err)
	}
	_ = os.Remove(l.path)
	if err := os.Symlink("/etc/passwd", l.path); err != nil {
		t.Fatal(err)
	}
	if err := l.c.Poll(); err == nil {
		t.Error("a link is followed")
	}
}

func TestClean(t *testing.T) {
	for text, want := range map[string]string{
		"container \"a\"":                "container \"a\"",
		"a\x1b[2Jb\u202ec\nd\xff":        "a\uFFFD[2Jb\uFFFDc\uFFFDd\uFFFD",
		"g-abcdefghijkl":                 "g-abcdefghijkl",
		"x g-abcdefghijkl.0123456789ab!": "x g-abcdefghijkl.(secret)!",
	} {
		if got := Clean(text); got != want {
			t.Errorf("Clean(%q) is %q, want %q", text, got, want)
		}
	}
	if got := Clean(strings.Repeat("x", 5000)); len(got) > maxText+3 {
		t.Errorf("%d bytes are left", len(got))
	}
}

// FuzzReadEntry: no text in the log makes reading it panic, and what is kept can be shown.
func FuzzReadEntry(f *testing.F) {
	f.Add([]byte(noCapacity))
	f.Add([]byte(`{"time":"2026-11-21T19:10:31Z","verdict":"refuse","code":"x","message":"\u0000\u202e"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var counter Counter
		for part := range bytes.Lines(text) {
			counter.readEntry(part, true)
		}
		for _, r := range counter.Recent() {
			if len(r.Message) > 4*maxText || strings.ContainsAny(r.Message+r.Container+
				r.Pod.Pod, "\x00\x1b\n") {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestLogrotate: its rotated files have dates. A file that it compressed before it was read is a
// gap.
func TestLogrotate(t *testing.T) {
	l := newLog(t)
	l.write(noCapacity)
	l.c.Follow(l.path)
	rotate := func(to string) {
		t.Helper()
		if err := os.Rename(l.path, l.path+to); err != nil {
			t.Fatal(err)
		}
	}
	l.write(noCapacity)
	rotate("-20261121")
	l.write(noCapacity)
	rotate("-20261122")
	l.write(noCapacity)
	l.poll(3)
	if gaps := l.c.Counts().Gaps; gaps != 0 {
		t.Errorf("%d gaps, want 0", gaps)
	}
	rotate("-20261123")
	l.writeTo(l.path+"-20261124.gz", packed(noCapacity))
	l.write(noCapacity)
	l.poll(4)
	if gaps := l.c.Counts().Gaps; gaps != 1 {
		t.Errorf("%d gaps, want 1", gaps)
	}
}

// TestALineThatIsTooLong counts as one that cannot be read.
func TestALineThatIsTooLong(t *testing.T) {
	l := newLog(t)
	l.write("")
	l.c.Follow(l.path)
	l.write(strings.Repeat("x", maxLine+1), noCapacity)
	l.poll(1)
	if n := l.c.Counts().Unreadable; n != 1 {
		t.Errorf("%d lines are unreadable, want 1", n)
	}
}
