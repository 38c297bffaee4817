package configure

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// standInDockerd reloads as dockerd does (reloadPlatform in moby's daemon/reload_unix.go): it keeps
// what its file does not name.
type standInDockerd struct {
	file   string
	modern bool // refuses a file without the default; an older one ends
	deaf   bool // refuses every file
	ended  bool
	has    engines.Settings
}

func (d *standInDockerd) reload() error {
	text, err := os.ReadFile(d.file)
	if err != nil {
		text = []byte("{}")
	}
	var says struct {
		Default  string `json:"default-runtime"`
		Runtimes map[string]struct{ Path string }
	}
	if err := json.Unmarshal(text, &says); err != nil || d.deaf {
		return err
	}
	next := engines.Settings{Default: d.has.Default, Handlers: maps.Clone(d.has.Handlers)}
	if says.Runtimes != nil {
		next.Handlers = map[string]string{"runc": "runc"}
		for name, r := range says.Runtimes {
			next.Handlers[name] = r.Path
		}
	}
	if says.Default != "" {
		next.Default = says.Default
	}
	if _, found := next.Handlers[next.Default]; found {
		d.has = next
	} else {
		d.ended = !d.modern
	}
	return nil
}

// runs lets the stand-in be the only dockerd.
func (d *standInDockerd) runs(t *testing.T) {
	daemons, ask, limit := daemonsOf, askDocker, reloadTime
	t.Cleanup(func() { daemonsOf, askDocker, reloadTime = daemons, ask, limit })
	reloadTime = 300 * time.Millisecond
	d.has = engines.Settings{Default: "runc", Handlers: map[string]string{"runc": "runc"}}
	daemonsOf = func(engines.Installation) []grant.Process {
		if d.ended {
			return nil
		}
		return []grant.Process{{PID: 7, Start: 70}}
	}
	askDocker = func(int) (engines.Settings, error) { return d.has, nil }
}

func (d *standInDockerd) knowsUs() bool {
	_, found := d.has.Handlers[engines.Handler]
	return found || d.has.Default == engines.Handler
}

// TestUndoUnderDockerd: dockerd keeps its default runtime and its runtimes where its file does not
// name them. After an undo with --restart it has none of gpuledger's, and the files are as before.
// The same holds where the undo was killed while dockerd read its file.
func TestUndoUnderDockerd(t *testing.T) {
	const state = "/var/lib/gpuledger"
	for name, original := range map[string]string{
		"no file":                 "",
		"an empty one":            "{}\n",
		"another key":             "{\"debug\": false}\n",
		"on several lines":        "{\n    \"debug\": false\n}\n",
		"runtimes, no default":    `{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}`,
		"a default and no others": `{"default-runtime": "runc"}`,
		"NVIDIA's default": `{"default-runtime": "nvidia", "runtimes": {"nvidia": ` +
			`{"path": "/usr/bin/nvidia-container-runtime"}}}`,
	} {
		for _, modern := range []bool{false, true} {
			has := map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}
			if original != "" {
				has["/etc/docker/daemon.json"] = original
			}
			o := options(newRoot(t, has), grant.Docker)
			before := files(t, o.Root)
			d := &standInDockerd{file: filepath.Join(o.Root, "/etc/docker/daemon.json"), modern: modern}
			d.runs(t)
			_ = d.reload()
			was := d.has
			applied(t, o)
			if err := Reload(o, state, d.reload); err != nil || d.has.Default != engines.Handler {
				t.Fatalf("%s: configured, dockerd has %+v: %v", name, d.has, err)
			}

			undone(t, o, state, nil)
			killed := o
			killed.Root = filepath.Join(t.TempDir(), "killed")
			if err := Reload(o, state, func() error {
				if out, err := exec.Command("cp", "-a", o.Root, killed.Root).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return d.reload()
			}); err != nil {
				t.Errorf("%s, modern %v: %v", name, modern, err)
			}
			if d.ended || d.knowsUs() || d.has.Default != was.Default {
				t.Errorf("%s, modern %v: undone, dockerd has %+v, ended: %v", name, modern, d.has, d.ended)
			}
			for what, o := range map[string]Options{"undone": o, "killed and undone": killed} {
				o.Restarted = true
				undone(t, o, state, nil)
				if after := files(t, o.Root); after != before {
					t.Errorf("%s: %s it leaves\n%s\nwant\n%s", name, what, after, before)
				}
				if r, _, err := readRecord(o.Installation(), state); err != nil || !r.isOver() {
					t.Errorf("%s: %s, the record is %+v, %v", name, what, r, err)
				}
			}
		}
	}
}

// TestUndoUnderDockerdThatDoesNotObey: it still calls gpuledger-runtime, so the link and the
// configuration stay until it is another process.
func TestUndoUnderDockerdThatDoesNotObey(t *testing.T) {
	const state = "/var/lib/gpuledger"
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Docker)
	before := files(t, o.Root)
	d := &standInDockerd{file: filepath.Join(o.Root, "/etc/docker/daemon.json")}
	d.runs(t)
	applied(t, o)
	if err := Reload(o, state, d.reload); err != nil {
		t.Fatal(err)
	}
	d.deaf = true
	for range 2 {
		undone(t, o, state, nil)
		const want = "dockerd (pid 7) does not obey /etc/docker/daemon.json after the reload: its default " +
			"runtime is gpuledger, not runc; restart it (`systemctl restart docker`), and run this again"
		if err := Reload(o, state, d.reload); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := os.Lstat(filepath.Join(o.Root, "/usr/bin/gpuledger-runtime.docker")); err != nil {
			t.Errorf("dockerd calls it: %v", err)
		}
		if _, err := os.Lstat(d.file); err == nil {
			t.Errorf("there was no daemon.json, and it is\n%s", fileAt(t, o.Root, "/etc/docker/daemon.json"))
		}
	}
	daemonsOf = func(engines.Installation) []grant.Process { return []grant.Process{{PID: 8, Start: 80}} }
	undone(t, o, state, nil)
	if after := files(t, o.Root); after != before {
		t.Errorf("dockerd was restarted, and the undo leaves\n%s\nwant\n%s", after, before)
	}
}

// TestDockerdThatCannotBeAsked has read its file all the same, so a configure only prints a note.
func TestDockerdThatCannotBeAsked(t *testing.T) {
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Docker)
	d := &standInDockerd{file: filepath.Join(o.Root, "/etc/docker/daemon.json")}
	d.runs(t)
	askDocker = func(int) (engines.Settings, error) { return engines.Settings{}, errors.New("no socket") }
	applied(t, o)
	var unknown *UnknownError
	if err := Reload(o, "/var/lib/gpuledger", d.reload); !errors.As(err, &unknown) || unknown.PID != 7 {
		t.Errorf("got %v", err)
	}
	if d.has.Default != "gpuledger" {
		t.Errorf("it has not read its file: %+v", d.has)
	}
}

// TestDockerdThatEndsAtAReload is named, because then nothing is known of its containers.
func TestDockerdThatEndsAtAReload(t *testing.T) {
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Docker)
	d := &standInDockerd{}
	d.runs(t)
	applied(t, o)
	err := Reload(o, "/var/lib/gpuledger", func() error { d.ended = true; return nil })
	if err == nil || !strings.Contains(err.Error(), "dockerd (pid 7) has ended at the reload") {
		t.Errorf("got %v", err)
	}
}

// TestTheDefaultIsGoneFromDockerd although the handler stays: for a stored container, and where
// gpuledger was the default and is configured anew without that.
func TestTheDefaultIsGoneFromDockerd(t *testing.T) {
	const state, stored = "/var/lib/gpuledger", "/var/lib/docker/containers/c/hostconfig.json"
	for name, again := range map[string]bool{"a stored container": false, "configured anew": true} {
		o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n",
			"/etc/docker/daemon.json": "{\"debug\": false}\n"}), grant.Docker)
		d := &standInDockerd{file: filepath.Join(o.Root, "/etc/docker/daemon.json")}
		d.runs(t)
		applied(t, o)
		if err := Reload(o, state, d.reload); err != nil {
			t.Fatal(err)
		}
		if !again {
			write(t, o.Root, stored, `{"Runtime":"gpuledger"}`)
		}
		undone(t, o, state, nil)
		if again {
			o.AsDefault = false
			applied(t, o)
		}
		wants := fileAt(t, o.Root, "/etc/docker/daemon.json")
		if err := Reload(o, state, d.reload); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if is := slices.Sorted(maps.Keys(d.has.Handlers)); d.has.Default != "runc" ||
			!slices.Equal(is, []string{"gpuledger", "runc"}) {
			t.Errorf("%s: dockerd has %+v", name, d.has)
		}
		if is := fileAt(t, o.Root, "/etc/docker/daemon.json"); is != wants {
			t.Errorf("%s: daemon.json has become\n%s\nwas\n%s", name, is, wants)
		}
	}
}
