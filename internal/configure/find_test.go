package configure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestFindSeesWhatWasConfigured: engines.Find finds what New plans, for every engine, with
// --as-default and without.
func TestFindSeesWhatWasConfigured(t *testing.T) {
	for _, engine := range engines.All {
		e := engines.Of(engine)
		for _, asDefault := range []bool{false, true} {
			root := newRoot(t, map[string]string{"/usr/bin/" + e.Program: ""})
			seen := engines.Find(root)
			if len(seen) != 1 || seen[0].Engine != engine || seen[0].Handlers[engines.Handler] != "" ||
				seen[0].Default == engines.Handler || seen[0].Err != nil {
				t.Fatalf("%s, not configured: %+v", engine, seen)
			}
			o := options(root, engine)
			o.AsDefault = asDefault
			p, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(); err != nil {
				t.Fatal(err)
			}
			seen = engines.Find(root)
			if len(seen) != 1 || seen[0].Err != nil || (seen[0].Default == engines.Handler) != asDefault ||
				filepath.Base(seen[0].Handlers[engines.Handler]) != "gpuledger-runtime."+e.Name {
				t.Errorf("%s, configured (as default: %v): %+v", engine, asDefault, seen)
			}
		}
	}
}

// TestAFileThatWasFound counts until containerd is started with another one. A file that the user
// has named counts as long as it is recorded.
func TestAFileThatWasFound(t *testing.T) {
	was := startedWith
	t.Cleanup(func() { startedWith = was })
	in := engines.Installation{Engine: grant.Containerd, System: filetree.System{Root: t.TempDir()}}
	for _, row := range []struct {
		r         engineRecord
		named     string
		now, want string // now: "-" if it does not run
	}{
		{engineRecord{Main: "/etc/x.toml", Found: true}, "", "/etc/x.toml", "/etc/x.toml"},
		{engineRecord{Main: "/etc/x.toml", Found: true}, "", "", ""},
		{engineRecord{Main: "/etc/x.toml", Found: true}, "", "/etc/y.toml", "/etc/y.toml"},
		{engineRecord{Main: "/etc/x.toml", Found: true}, "", "-", "/etc/x.toml"},
		{engineRecord{Main: "/etc/x.toml", Found: true}, "/named.toml", "", "/named.toml"},
		{engineRecord{Main: "/etc/x.toml"}, "", "", "/etc/x.toml"},
	} {
		startedWith = func(engines.Installation) (string, bool) { return row.now, row.now != "-" }
		in.File = row.named
		if got, err := row.r.mainFile(in); err != nil || got != row.want {
			t.Errorf("%+v, named %q, started with %q: %q (%v), want %q", row.r, row.named, row.now, got, err,
				row.want)
		}
	}
}

// TestWhoNamedTheFileIsRecorded: a file that was found stays one, until the user names a file.
func TestWhoNamedTheFileIsRecorded(t *testing.T) {
	was := startedWith
	t.Cleanup(func() { startedWith = was })
	startedWith = func(engines.Installation) (string, bool) { return "/etc/other.toml", true }
	o := options(newRoot(t, map[string]string{"/usr/bin/containerd": "", "/usr/bin/runc": "#!/bin/sh\n",
		"/etc/other.toml": "version = 2\n"}), grant.Containerd)
	record := func() (r engineRecord) {
		t.Helper()
		r, _, err := readRecord(o.Installation(), "/var/lib/gpuledger")
		if err != nil || r.Main != "/etc/other.toml" {
			t.Fatalf("%+v, %v", r, err)
		}
		return r
	}
	o.File, o.AsDefault = "/etc/other.toml", false
	applied(t, o)
	if r := record(); r.Found {
		t.Error("a file that was named counts as found")
	}
	path := filepath.Join(o.Root, "/var/lib/gpuledger/configure/containerd/record.json")
	text, err := os.ReadFile(path)
	if err == nil {
		found := strings.Replace(string(text), `"main": "/etc/other.toml",`,
			`"main": "/etc/other.toml", "found": true,`, 1)
		err = os.WriteFile(path, []byte(found), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	o.File, o.AsDefault = "", true
	applied(t, o)
	if r := record(); !r.Found {
		t.Error("a file that was found counts as named")
	}
}
