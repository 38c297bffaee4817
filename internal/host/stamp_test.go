package host

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestStamp: every change of a file or directory gives another stamp, or a stamp that is too recent
// to be trusted.
func TestStamp(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(file, "one")
	for _, c := range []struct {
		name, path string
		do         func()
	}{
		{"written in place, as long as before", file, func() { put(file, "two") }},
		{"replaced", file, func() { put(file+".new", "two"); _ = os.Rename(file+".new", file) }},
		{"written and dated back", file, func() {
			info, _ := os.Stat(file)
			put(file, "six")
			_ = os.Chtimes(file, info.ModTime(), info.ModTime())
		}},
		{"removed", file, func() { _ = os.Remove(file) }},
		{"a name more", dir, func() { put(dir+"/other", "") }},
		{"a name less", dir, func() { _ = os.Remove(dir + "/other") }},
	} {
		before, read := StampOf(c.path), time.Now()
		c.do()
		if after := StampOf(c.path); after == before && before.Before(read) {
			t.Errorf("%s: %+v is believed, and still so afterwards", c.name, before)
		}
	}
	if s := StampOf(file); s != (Stamp{}) || !s.Before(time.Now()) {
		t.Errorf("of what is not there: %+v", s)
	}
}

// TestWhatIsBefore: a change does not count that may be followed by one at the same time. A change
// that is far in the future was made before the clock was set back, and what follows has another
// time.
func TestWhatIsBefore(t *testing.T) {
	read := time.Now()
	for name, c := range map[string]struct {
		newer time.Duration // the change, than the read
		read  time.Time
		want  bool
	}{
		"long ago":                      {-time.Hour, read, true},
		"in the tick of the read":       {-tick, read, false},
		"at another machine's clock":    {time.Second, read, false},
		"before the clock was set back": {2 * time.Hour, read, true},
		"nothing was read yet":          {-time.Hour, time.Time{}, false},
	} {
		s := Stamp{device: 1, changed: read.Add(c.newer).UnixNano()}
		if got := s.Before(c.read); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
