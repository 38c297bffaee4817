package configure

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// newRoot makes a system below a temporary directory, with the wrapper and the given files.
func newRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	write(t, root, "/usr/bin/gpuledger-runtime", "#!/bin/sh\n")
	for name, text := range files {
		write(t, root, name, text)
	}
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func options(root string, engine grant.Engine) Options {
	return Options{Engine: engine, Root: root, Runtime: "/usr/bin/gpuledger-runtime",
		Config: "/etc/gpuledger/config.toml", AsDefault: true}
}

// applied configures the engine.
func applied(t *testing.T, o Options) {
	t.Helper()
	p, err := New(o)
	if err == nil {
		err = p.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// files lists every file, link and directory of a system, without the records.
func files(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if name == "/var" {
			return fs.SkipDir
		}
		text, _ := os.ReadFile(path)
		target, _ := os.Readlink(path)
		b.WriteString(name + " " + target + "\n" + string(text))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestAllOrNothing makes every single write fail in turn. Each time all files, and the record, must
// be as before.
func TestAllOrNothing(t *testing.T) {
	for _, engine := range []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker} {
		t.Run(string(engine), func(t *testing.T) {
			root := newRoot(t, map[string]string{
				"/etc/docker/daemon.json": "{}", "/etc/containerd/config.toml": "version = 2\n"})
			before := files(t, root)
			failed := 0
			for nth := 1; failing(t, nth, func() error {
				p, err := New(options(root, engine))
				if err != nil {
					t.Fatal(err)
				}
				return p.Apply()
			}); nth++ {
				failed++
				if got := files(t, root); got != before {
					t.Fatalf("after write %d failed the files are\n%s\nwant\n%s", nth, got, before)
				}
				in := options(root, engine).Installation()
				if r, _, err := readRecord(in, "/var/lib/gpuledger"); err != nil || len(r.Files) != 0 {
					t.Fatalf("after write %d failed the record is there (%v)", nth, err)
				}
			}
			if failed < 4 {
				t.Errorf("only %d writes could fail", failed)
			}
			if _, err := Undo(options(root, engine), "/var/lib/gpuledger", false); err != nil {
				t.Fatal(err)
			}
			if got := files(t, root); got != before {
				t.Errorf("after the undo the files are\n%s\nwant\n%s", got, before)
			}
		})
	}
}

// failing runs fn and makes its nth sync of a directory fail. It reports whether there was an nth
// sync.
func failing(t *testing.T, nth int, fn func() error) bool {
	t.Helper()
	passed := 0
	syncDir = func(dir string) error {
		if passed++; passed == nth {
			return &fs.PathError{Op: "sync", Path: dir, Err: errors.New("input/output error")}
		}
		return host.SyncDir(dir)
	}
	defer func() { syncDir = host.SyncDir }()
	err := fn()
	if (err != nil) != (passed >= nth) {
		t.Fatalf("the sync %d of %d failed, and configure says: %v", nth, passed, err)
	}
	return err != nil
}

func TestApplyRefusesWhatChangedMeanwhile(t *testing.T) {
	root := newRoot(t, map[string]string{"/etc/docker/daemon.json": "{}"})
	p, err := New(options(root, grant.Docker))
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, "/etc/docker/daemon.json", `{"debug": true}`)
	before := files(t, root)
	if err := p.Apply(); err == nil || !strings.Contains(err.Error(),
		"cannot write /etc/docker/daemon.json: another program has changed it in this moment") {
		t.Errorf("got %v", err)
	}
	if got := files(t, root); got != before {
		t.Errorf("the files are\n%s\nwant\n%s", got, before)
	}
}

func TestOnlyOneAtATime(t *testing.T) {
	root := newRoot(t, nil)
	s, err := openStore(filetree.System{Root: root}, "/var/lib/gpuledger")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(options(root, grant.Docker))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(); err == nil || !strings.Contains(err.Error(), "another `gpuledger configure` runs") {
		t.Errorf("got %v", err)
	}
	s.close()
	if err := p.Apply(); err != nil {
		t.Error(err)
	}
}

// TestAFileThatCannotBeWritten at first, nor in the rollback: nothing was changed, so nothing needs
// an undo.
func TestAFileThatCannotBeWritten(t *testing.T) {
	for _, name := range []string{"/etc/gpuledger/config.toml", "/etc/docker/daemon.json"} {
		root := newRoot(t, map[string]string{"/etc/docker/daemon.json": "{}", "/etc/gpuledger/other": ""})
		write(t, root, strings.TrimPrefix(temporary(filetree.System{}, name), "/")+"/in-the-way", "")
		before := files(t, root)
		p, err := New(options(root, grant.Docker))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(); err == nil || !strings.Contains(err.Error(), "cannot write "+name) ||
			!strings.HasSuffix(err.Error(), "; nothing was changed") {
			t.Errorf("%s: got %v", name, err)
		}
		if got := files(t, root); got != before {
			t.Errorf("%s: the files are\n%s\nwant\n%s", name, got, before)
		}
		in := options(root, grant.Docker).Installation()
		if r, _, err := readRecord(in, "/var/lib/gpuledger"); err != nil || len(r.Files) != 0 {
			t.Errorf("%s: the record is there (%v)", name, err)
		}
	}
}

// TestRollBackRestoresTheMode, also of a file of which nothing else was changed.
func TestRollBackRestoresTheMode(t *testing.T) {
	root := newRoot(t, map[string]string{"/etc/docker/daemon.json": "{}"})
	p, err := New(options(root, grant.Docker))
	if err != nil {
		t.Fatal(err)
	}
	s, err := openStore(p.in.System, p.Policy.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	const name = "/etc/docker/daemon.json"
	before, err := p.in.System.Read(name)
	if err := errors.Join(err, os.Chmod(root+name, 0o600)); err != nil {
		t.Fatal(err)
	}
	p.Changes = []FileChange{{name: name, before: before}}
	_ = p.rollBack(s, engineRecord{}, engineRecord{}, 0, errors.New("the disk is full"))
	if now, err := p.in.System.Read(name); err != nil || !now.SameAll(before) {
		t.Errorf("it is %+v (%v), want %+v", now, err, before)
	}
}
