package configure

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoKeepsThePolicyThatOthersObey: gpuledgerd's NRI plugin and the hook read the policy at
// each create, and without it they would refuse pods right after the undo.
func TestUndoKeepsThePolicyThatOthersObey(t *testing.T) {
	const state, config = "/var/lib/gpuledger", "/etc/gpuledger/config.toml"
	holdLock := func(t *testing.T, root string) (end func()) {
		path := filepath.Join(root, "/run/gpuledger/gpuledgerd.lock")
		write(t, root, "/run/gpuledger/gpuledgerd.lock", fmt.Sprintln(os.Getpid()))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Flock(fd, unix.LOCK_EX)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() { unix.Close(fd) }
	}
	hook := func(dir string) func(*testing.T, string) func() {
		return func(t *testing.T, root string) func() {
			write(t, root, dir+"/x.json", `{"hook": {"path": "/usr/bin/gpuledger-hook"}}`)
			return func() {
				if err := os.Remove(filepath.Join(root, dir, "x.json")); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for name, row := range map[string]struct {
		files map[string]string
		start func(t *testing.T, root string) (end func())
		mode  grant.RulesMode
		why   string // "": it is restored at once
	}{
		"gpuledgerd with NRI": {map[string]string{"/var/run/nri/nri.sock": ""}, holdLock, "",
			fmt.Sprintf("gpuledgerd (pid %d) obeys it", os.Getpid())},
		"gpuledgerd, and no engine has NRI": {nil, holdLock, "", ""},
		"gpuledgerd, and the policy stays as strict": {map[string]string{"/var/run/nri/nri.sock": "",
			config: packaged + "privileged = \"strip\"\n"}, holdLock, grant.Enforce, ""},
		"a hook in the usual place": {nil, hook("/usr/share/containers/oci/hooks.d"), "",
			"/usr/share/containers/oci/hooks.d/x.json names gpuledger-hook"},
		"a hook where CRI-O's files say": {
			map[string]string{"/etc/crio/crio.conf": "[crio.runtime]\nhooks_dir = [\"/h\"]\n"},
			hook("/h"), "", "/h/x.json names gpuledger-hook"},
	} {
		t.Run(name, func(t *testing.T) {
			has := map[string]string{"/usr/bin/runc": "#!/bin/sh\n", "/etc/crio/crio.conf": "",
				config: packaged, "/h/other.json": "{}",
				"/usr/share/containers/oci/hooks.d/other.json": "{}"}
			for path, text := range row.files {
				has[path] = text
			}
			o := options(newRoot(t, has), grant.CRIO)
			o.Mode = row.mode
			before := fileAt(t, o.Root, config)
			applied(t, o)
			end := row.start(t, o.Root)
			for range 2 { // it can be repeated
				u := undone(t, o, state, nil)
				own, err := readOwnConfig(o.Installation().System, config)
				if err != nil {
					t.Fatal(err)
				}
				why := ""
				for _, c := range u.Changes {
					if c.Path == config && c.Action == "keep" {
						why = c.Why
					}
				}
				if row.why != "" && own.policy.Rules.Mode != grant.Report ||
					!strings.HasPrefix(why, row.why) || (why == "") != (row.why == "") {
					t.Errorf("policy.mode is %s, and the undo says %q; want %q", own.policy.Rules.Mode, why,
						row.why)
				}
				if _, err := os.Stat(o.Root + "/etc/crio/crio.conf.d/zz-gpuledger.conf"); err == nil {
					t.Error("the engine's files are not restored")
				}
			}
			end()
			undone(t, o, state, nil)
			if after := fileAt(t, o.Root, config); after != before {
				t.Errorf("the undo leaves\n%s\nwant\n%s", after, before)
			}
			if r, _, err := readRecord(o.Installation(), state); err != nil || !r.isOver() {
				t.Errorf("the record is %+v, %v", r, err)
			}
		})
	}
}

// TestAnObservingDaemonRefusesNothing, so an undo need not wait for it.
func TestAnObservingDaemonRefusesNothing(t *testing.T) {
	for line, want := range map[string]string{"gpuledgerd": "", "gpuledgerd --nri observe": "observe",
		"gpuledgerd -nri=off --log-level debug": "off", "gpuledgerd --nri-socket /s --nri": "",
		"gpuledgerd --nri observe --nri enforce": "enforce"} {
		if got := flagOf(strings.Fields(line), "nri"); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
