package ledger

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// The file is read by people, backup tools and other versions of gpuledger: its bytes are fixed.
func TestGrantFile(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	g.Secret, g.Label, g.Compute, g.Expires, g.Draining = "ab12", "night run", 25, noon.Add(time.Hour), true
	g.For = []grant.Tie{"namespace:team", "pod:uid-1"}
	g.User, g.MinimumStrength = 1000, grant.StrengthLibrary
	b.put(g)
	const want = `{
  "sum": "e064e1f9",
  "version": 1,
  "id": "g-aaaaaaaaaaab",
  "owner": "pod:uid-1/train",
  "secret_sha256": "ab12",
  "label": "night run",
  "mode": "limit",
  "strength": "library",
  "gpus": [
    {
      "uuid": "` + gpu0 + `",
      "index": 0,
      "memory": 4294967296
    }
  ],
  "compute": 25,
  "source": "cli",
  "created": "2026-03-01T12:00:01Z",
  "expires": "2026-03-01T13:00:00Z",
  "draining": true,
  "for": [
    "namespace:team",
    "pod:uid-1"
  ],
  "user": 1000,
  "minimum_strength": "library"
}
`
	if got := b.file(g.ID); got != want {
		t.Errorf("file:\n%s\nwant:\n%s", got, want)
	}
	g = sample(2)
	b.put(g)
	for _, key := range []string{"secret", "label", "compute", "expires", "draining", "for", "user",
		"minimum"} {
		if got := b.file(g.ID); strings.Contains(got, key) {
			t.Errorf("a grant without %s writes it:\n%s", key, got)
		}
	}
}

func (b *testLedger) file(id grant.ID) string {
	b.t.Helper()
	data, err := os.ReadFile(b.files.grants.path(id))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

// withoutSum is a file as a person changes it, or as an older gpuledger writes it.
func withoutSum(text string) string {
	if !strings.HasPrefix(text, sumStart) {
		return text
	}
	return "{" + text[len(sumStart)+sumSize+len(sumEnd):]
}

func (b *testLedger) setFile(id grant.ID, text string) {
	b.t.Helper()
	if err := os.WriteFile(b.files.grants.path(id), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func TestDamagedEntryIsNamedAndTheRestGoesOn(t *testing.T) {
	edit := func(from, to string) func(*testLedger) {
		return func(b *testLedger) {
			text := withoutSum(b.file(id(1)))
			if !strings.Contains(text, from) {
				b.t.Fatalf("no %q in %s", from, text)
			}
			b.setFile(id(1), strings.Replace(text, from, to, 1))
		}
	}
	inPlace := func(make func(path string) error) func(*testLedger) {
		return func(b *testLedger) {
			path := b.files.grants.path(id(1))
			if err := errors.Join(os.Remove(path), make(path)); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	for name, row := range map[string]struct {
		damage func(*testLedger)
		says   string
	}{
		"empty":          {func(b *testLedger) { b.setFile(id(1), "") }, "empty"},
		"garbage":        {func(b *testLedger) { b.setFile(id(1), "\x00\x00\x00") }, "invalid character"},
		"truncated":      {func(b *testLedger) { b.setFile(id(1), b.file(id(1))[:100]) }, "unexpected EOF"},
		"two documents":  {func(b *testLedger) { b.setFile(id(1), b.file(id(1))+"{}") }, "after top-level value"},
		"huge":           {func(b *testLedger) { b.setFile(id(1), strings.Repeat(" ", maxFile+1)) }, "bytes, more than"},
		"newer version":  {edit(`"version": 1`, `"version": 2`), "format version 2, this gpuledger reads up to 1"},
		"newer shape":    {func(b *testLedger) { b.setFile(id(1), `{"version":7,"id":["x"]}`) }, "format version 7"},
		"version 0":      {edit(`"version": 1`, `"version": 0`), "format version 0, which"},
		"no version":     {edit(`"version": 1,`, ``), "format version 0, which"},
		"duplicate key":  {edit(`"mode"`, `"id": "g-aaaaaaaaaaab", "mode"`), "duplicate"},
		"invalid UTF-8":  {edit(`"cli"`, "\"\xff\""), "UTF-8"},
		"another id":     {edit("g-aaaaaaaaaaab", "g-zzzzzzzzzzzz"), `says that it is grant "g-zzzzzzzzzzzz"`},
		"no owner":       {edit("pod:uid-1/train", "nobody"), "owner"},
		"unknown tie":    {edit(`"source"`, `"for": ["nobody"], "source"`), "pod:UID or namespace:NAME"},
		"unknown mode":   {edit(`"limit"`, `"half"`), "mode"},
		"negative bytes": {edit("4294967296", "-1"), "memory"},
		"GPU is a way":   {edit(gpu0, "../../x"), "UUID"},
		"directory":      {inPlace(func(p string) error { return os.Mkdir(p, 0o700) }), "not a regular file"},
		"fifo":           {inPlace(func(p string) error { return syscall.Mkfifo(p, 0o600) }), "not a regular file"},
		"link":           {inPlace(func(p string) error { return os.Symlink("/etc/passwd", p) }), "symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLedger(t)
			b.put(sample(1), sample(2))
			row.damage(b)
			var damage *DamagedError
			_, err := b.get(id(1))
			if !errors.As(err, &damage) || !strings.Contains(err.Error(), row.says) {
				t.Fatalf("Get: %v, want a DamagedError that says %q", err, row.says)
			}
			want := grant.Damage{ID: id(1), Path: b.files.grants.path(id(1)), GPUs: []string{gpu0},
				Err: damage.Err}
			if !reflect.DeepEqual(damage.Damage, want) {
				t.Errorf("Get: damage %+v, want %+v", damage.Damage, want)
			}
			if _, err := b.byOwner(sample(1).Owner); !errors.As(err, &damage) {
				t.Errorf("ByOwner: %v, want a DamagedError", err)
			}
			grants, damaged := b.all()
			if len(grants) != 1 || grants[0].ID != id(2) ||
				!reflect.DeepEqual(damaged, []grant.Damage{want}) {
				t.Errorf("All: %+v, %+v", grants, damaged)
			}
			if err := b.Update(func(tx *Tx) error { return tx.Put(sample(1)) }); !errors.As(err, &damage) {
				t.Errorf("Put over it: %v, want a DamagedError", err)
			}
			report, err := b.Check(nil)
			if err != nil || report.Sound() || len(report.Damaged) != 1 || report.Grants != 1 {
				t.Errorf("Check: %+v (%v), want it not sound", report, err)
			}
			b.update(func(tx *Tx) error { return tx.Delete(id(1)) })
			if _, err := b.get(id(1)); !errors.Is(err, ErrNotFound) {
				t.Errorf("after Delete: %v", err)
			}
			b.put(sample(1))
		})
	}
}

func TestDamageWithoutAnIndexClosesEveryGPU(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	if err := os.RemoveAll(string(b.files.gpus)); err != nil {
		t.Fatal(err)
	}
	b.setFile(id(1), "")
	_, damaged := b.all()
	if len(damaged) != 1 || damaged[0].GPUs != nil {
		t.Errorf("All: %+v, want damage on unknown GPUs", damaged)
	}
	b.unsound()
}

func TestADirectoryWithContentIsNotDeleted(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	inside := b.files.grants.path(id(1)) + "/keep"
	if err := errors.Join(os.Remove(b.files.grants.path(id(1))), os.MkdirAll(inside, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(func(tx *Tx) error { return tx.Delete(id(1)) }); err == nil {
		t.Error("Delete: no error")
	}
	if _, err := os.Stat(inside); err != nil {
		t.Errorf("what was there is gone: %v", err)
	}
	b.unsound()
}

func TestUnknownMembersSurviveARewrite(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	g.GPUs = append(g.GPUs, grant.Share{UUID: gpu1, Index: 1, Memory: grant.GiB})
	b.put(g)
	text := strings.Replace(withoutSum(b.file(g.ID)), `"mode"`, `"numa": {"strict": [1, 2]}, "mode"`, 1)
	text = strings.Replace(text, `"memory": 1073741824`, `"memory": 1073741824, "lane": 7`, 1)
	b.setFile(g.ID, text)
	read, err := b.get(g.ID)
	if err != nil {
		t.Fatal(err)
	}
	read.Label, read.GPUs = "changed", read.GPUs[1:]
	b.put(read)
	rec, err := grantFormat.decode([]byte(b.file(g.ID)), g.ID)
	if err != nil || rec.Label != "changed" {
		t.Fatalf("after the rewrite: %+v, %v", rec, err)
	}
	compact := func(v jsontext.Value) string { _ = v.Compact(); return string(v) }
	if got := compact(rec.Unknown); got != `{"numa":{"strict":[1,2]}}` {
		t.Errorf("the grant's unknown members: %s", got)
	}
	if got := compact(rec.GPUs[0].Unknown); got != `{"lane":7}` {
		t.Errorf("the share's unknown members: %s", got)
	}
}

// No older format exists yet. This proves that the first one will be read.
func TestOlderVersionsAreUpgradedStepByStep(t *testing.T) {
	rename := func(from, to string) func(jsontext.Value) (jsontext.Value, error) {
		return func(v jsontext.Value) (jsontext.Value, error) {
			return jsontext.Value(strings.Replace(string(v), from, to, 1)), nil
		}
	}
	b := newLedger(t)
	b.put(sample(1))
	oldest := []byte(strings.Replace(withoutSum(b.file(id(1))), `"owner"`, `"tenant"`, 1))
	steps := map[int]func(jsontext.Value) (jsontext.Value, error){
		1: rename(`"tenant"`, `"holder"`), 2: rename(`"holder"`, `"owner"`),
	}
	next := format{version: 3, steps: steps}
	rec, err := next.decode(oldest, id(1))
	if err != nil || rec.Owner != sample(1).Owner {
		t.Fatalf("decode: %+v, %v", rec, err)
	}
	data, err := next.encode(rec.grant(), rec)
	if err != nil || !strings.Contains(string(data), `"version": 3`) {
		t.Errorf("the rewrite has not the new version: %s (%v)", data, err)
	}
	steps[2] = func(jsontext.Value) (jsontext.Value, error) { return nil, errors.New("no such holder") }
	if _, err := next.decode(oldest, id(1)); err == nil ||
		!strings.Contains(err.Error(), "version 2: no such holder") {
		t.Errorf("a step that fails: %v", err)
	}
	delete(steps, 2)
	if _, err := next.decode(oldest, id(1)); err == nil ||
		!strings.Contains(err.Error(), "version 2, which") {
		t.Errorf("a step that is missing: %v", err)
	}
	steps[2] = func(jsontext.Value) (jsontext.Value, error) { return jsontext.Value("null"), nil }
	if _, err := next.decode(oldest, id(1)); err == nil {
		t.Error("a step that makes nothing of it: no error")
	}
}

func FuzzDecode(f *testing.F) {
	data, err := grantFormat.encode(sample(1), record{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var read, want record
		err := tokens.Whole(data, read.read)
		if e := json.Unmarshal(data, &want); (err == nil) != (e == nil) ||
			err == nil && !reflect.DeepEqual(read, want) {
			t.Errorf("read %+v (%v), by the library %+v (%v)", read, err, want, e)
		}
		rec, err := grantFormat.decode(data, id(1))
		if err != nil {
			return
		}
		again, err := grantFormat.encode(rec.grant(), rec)
		if err != nil {
			t.Skip(err) // a year beyond 9999 parses and does not print
		}
		back, err := grantFormat.decode(again, id(1))
		if err != nil || !reflect.DeepEqual(back.grant(), rec.grant()) {
			t.Errorf("%s\nreads back as %+v (%v)", again, back, err)
		}
	})
}
