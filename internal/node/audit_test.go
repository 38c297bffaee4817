package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

func audited(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// Many processes append and rotate at once, each with a descriptor of its own as here. No line may
// be torn or lost while the rotated files have room for all.
func TestRotationLosesNoLine(t *testing.T) {
	a := grant.Audit{File: filepath.Join(t.TempDir(), "audit.jsonl"), MaxSize: 8192, Keep: 100}
	const writers, each = 16, 100
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				appendAudit(a, fmt.Appendf(nil, "{\"line\":\"%02d-%03d %s\"}\n", w,
					i, strings.Repeat("x", 200)))
			}
		})
	}
	all.Wait()
	files, err := filepath.Glob(a.File + "*")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files (%v): it was hardly rotated", len(files), err)
	}
	seen := map[string]int{}
	for _, file := range files {
		for _, line := range audited(t, file) {
			var l struct{ Line string }
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Errorf("%s: %q: %v", file, line, err)
			}
			seen[l.Line]++
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d different lines, want %d", len(seen), writers*each)
	}
}

func TestRotationKeepsAFixedNumberOfFiles(t *testing.T) {
	a := grant.Audit{File: filepath.Join(t.TempDir(), "audit.jsonl"), MaxSize: 100, Keep: 2}
	for i := range 10 {
		appendAudit(a, fmt.Appendf(nil, "%02d%s\n", i, strings.Repeat("x", 60)))
	}
	files, _ := filepath.Glob(a.File + "*")
	if len(files) != 3 || audited(t, a.File)[0][:2] != "09" || audited(t, a.File+".1")[0][:2] != "08" ||
		audited(t, a.File+".2")[0][:2] != "07" {
		t.Errorf("files: %v", files)
	}
}

// Another process has the lock: it is rotating, so no append waits for it. If it never ends, the
// log stops growing at a bound.
func TestAHeldLockBlocksNoAppend(t *testing.T) {
	a := grant.Audit{File: filepath.Join(t.TempDir(), "audit.jsonl"), MaxSize: 100, Keep: 2}
	appendAudit(a, []byte("first\n"))
	f, err := os.Open(a.File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		appendAudit(a, []byte(strings.Repeat("x", 50)+"\n"))
	}
	if info, err := os.Stat(a.File); err != nil || info.Size() < 300 || info.Size() > 400 {
		t.Errorf("%d bytes (%v), want what three files of the limit have, and a line", info.Size(), err)
	}
	if _, err := os.Stat(a.File + ".1"); err == nil {
		t.Error("it was rotated without the lock")
	}
}

// Another program may have put something in the log's place. Nothing is written to it, and nothing
// waits.
func TestOtherFilesInTheLogsPlace(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a FIFO":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":      func(path string) error { return os.Symlink("victim", path) },
		"a dead link": func(path string) error { return os.Symlink("nothing", path) },
		"a file below a file": func(path string) error {
			return os.WriteFile(filepath.Dir(path), nil, 0o600)
		},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "audit.jsonl")
		if name == "a file below a file" {
			path = filepath.Join(dir, "file", "audit.jsonl")
		}
		victim := filepath.Join(dir, "victim")
		if err := os.WriteFile(victim, []byte("victim"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := put(path); err != nil {
			t.Fatal(name, err)
		}
		appendAudit(grant.Audit{File: path, MaxSize: 1}, []byte("{}\n"))
		if data, err := os.ReadFile(victim); err != nil || string(data) != "victim" {
			t.Errorf("%s: what it leads to is %q (%v)", name, data, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "nothing")); err == nil {
			t.Errorf("%s: a file was made", name)
		}
	}
}

func TestAMissingDirectoryIsMade(t *testing.T) {
	a := grant.Audit{File: filepath.Join(t.TempDir(), "a", "b", "audit.jsonl")}
	appendAudit(a, []byte("{}\n"))
	if lines := audited(t, a.File); lines[0] != "{}" {
		t.Errorf("%q", lines)
	}
}

// A tenant chooses how many ways to a GPU its spec has and how long their names are, in any script.
func TestALineIsBounded(t *testing.T) {
	for _, text := range []string{"x", `"`, "\x00", "\xff", "ü", "\U0001f600", `\`} {
		long := strings.Repeat(text, 5_000)
		d := Decision{Verdict: grant.Verdict{Kind: grant.Refused, Code: grant.GPUEnv,
			Message: "container \"" + grant.Printable(long) + "\"",
			Grant:   &grant.Grant{ID: "g-aaaaaaaaaaaa"}}}
		for range 1000 {
			d.Details = append(d.Details, grant.Detail{Vector: "env:" + grant.Printable(long),
				Value: grant.Printable(long), Code: grant.GPUEnv})
			d.Removed = append(d.Removed, grant.Removal{Kind: grant.RemoveEnv, Name: long})
			d.Recorded = append(d.Recorded, long)
		}
		c := grant.Container{Engine: grant.Containerd, ID: long, Bundle: long}
		d.pod = grant.Identity{UID: long, Namespace: long, Pod: long, Container: long}
		line := newAuditLine(time.Now().UTC(), c, d).encode()
		var got struct {
			Code    string
			Grant   string
			Details []any
			Removed []any
			Record  []any `json:"recorded"`
			LeftOut int   `json:"left_out"`
		}
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if len(line) > maxLine || bytes.Count(line, []byte("\n")) != 1 || got.Code != "gpu-env" ||
			got.Grant != "g-aaaaaaaaaaaa" {
			t.Errorf("%q: %d bytes: %s", text, len(line), line)
		}
		if kept := len(got.Details) + len(got.Removed) + len(got.Record); kept+got.LeftOut != 3000 {
			t.Errorf("%q: %d entries are there and %d left out, of 3000", text, kept, got.LeftOut)
		}
	}
}

func TestAShortLineIsWhole(t *testing.T) {
	d := Decision{Verdict: grant.Verdict{Kind: grant.Refused, Code: grant.GPUEnv, Message: "m",
		Details: []grant.Detail{{Vector: "v", Value: "x", Code: grant.GPUEnv}}}}
	line := string(newAuditLine(time.Unix(0, 0).UTC(), grant.Container{
		Engine: grant.Docker, ID: "c", Bundle: "/b"}, d).encode())
	if want := `{"time":"1970-01-01T00:00:00Z","engine":"docker","container":"c","bundle":"/b",` +
		`"verdict":"refuse","code":"gpu-env","message":"m","details":[{"vector":"v","value":"x",` +
		`"code":"gpu-env"}]}` + "\n"; line != want {
		t.Errorf("got  %swant %s", line, want)
	}
}

// TestAuditLinesFollowTheTags: with every field full, and with every field empty.
func TestAuditLinesFollowTheTags(t *testing.T) {
	full := tokenstest.Filled[auditLine](nil)
	full.Container = "c\n\u2028\""
	tokenstest.Writes(t, auditLine.json, nil, full, auditLine{}, tokenstest.Empty[auditLine](),
		auditLine{Took: 1e-9}, auditLine{Message: "\xff"})
	tokenstest.Writes(t, foundLine.json, nil, tokenstest.Filled[foundLine](nil), foundLine{},
		tokenstest.Empty[foundLine](), foundLine{Index: -1, Message: "\"\u2028<"}, foundLine{GPU: "\xff"})
	tokenstest.Writes(t, switchLine.json, nil, tokenstest.Filled[switchLine](nil), switchLine{},
		switchLine{Action: "\xff"}, switchLine{Until: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)})
	tokenstest.Writes(t, Pause.encode, nil, tokenstest.Filled[Pause](nil), Pause{},
		Pause{BootID: "\"\u2028<"}, Pause{BootID: "\xff"})
}

func TestPausesAreReadAsTheLibraryReadsThem(t *testing.T) {
	tokenstest.Reads(t, tokenstest.Whole((*Pause).read), nil, tokenstest.Filled[Pause](nil))
	zone := time.FixedZone("", -3600)
	tokenstest.Reads(t, tokenstest.Whole((*Pause).read), nil, Pause{Since: time.Unix(5, 0).In(zone)})
}
