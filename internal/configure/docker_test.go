package configure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestFlagsOfDockerd: with a directive in both its arguments and its file dockerd does not start.
func TestFlagsOfDockerd(t *testing.T) {
	for words, want := range map[string][2]string{ // without and with --as-default
		"dockerd -H fd:// --containerd=/run/containerd/containerd.sock": {},
		"dockerd --default-runtime=nvidia":                              {"", "--default-runtime"},
		"dockerd --default-runtime nvidia":                              {"", "--default-runtime"},
		"dockerd --add-runtime kata=/usr/bin/kata":                      {"--add-runtime", "--add-runtime"},
		"dockerd --feature containerd-snapshotter=true":                 {"--feature", "--feature"},
		`ExecStart=dockerd "--feature=cdi"`:                             {"--feature", "--feature"},
		`Environment="DOCKER_OPTS=--default-runtime=nvidia"`:            {"", "--default-runtime"},
		`DOCKER_OPTS="--debug --feature=cdi"`:                           {"--feature", "--feature"},
		`DOCKER_OPTS='--feature=cdi'`:                                   {"--feature", "--feature"},
		`Environment=DOCKER_OPTS=--exec-opt=--feature`:                  {},
	} {
		for i, asDefault := range []bool{false, true} {
			if got := conflicting(strings.Fields(words), asDefault); got != want[i] {
				t.Errorf("%s, as default: %v: %q, want %q", words, asDefault, got, want[i])
			}
		}
	}
}

// TestFlagsInDockersUnit: dockerd does not run, so only systemd's files show its flags.
func TestFlagsInDockersUnit(t *testing.T) {
	const unit, opts, extra = "/lib/systemd/system/docker.service", "/etc/default/docker",
		"/etc/systemd/system/docker.service.d/mine.conf"
	const start = "[Service]\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n"
	const names, flag = "EnvironmentFile=-/etc/default/docker\n", "DOCKER_OPTS=\"--default-runtime=nvidia\"\n"
	for name, row := range map[string]struct {
		files map[string]string
		where string // the file that the error names; "" for none
	}{
		"in the unit": {map[string]string{
			unit: start + "Environment=\"DOCKER_OPTS=--default-runtime=nvidia\"\n"}, unit},
		"in a file of the unit": {map[string]string{unit: start + names, opts: flag}, opts},
		"in a file of a drop-in": {map[string]string{unit: start, opts: flag,
			extra: "[Service]\nEnvironmentFile = /etc/default/docker\n"}, opts},
		"in a file that no unit names": {map[string]string{unit: start, opts: flag}, ""},
		"in comments": {map[string]string{opts: "# " + flag,
			unit: start + "#ExecStart=dockerd --default-runtime=nvidia\n" + names}, ""},
		"the file is missing":     {map[string]string{unit: start + names}, ""},
		"the file is a directory": {map[string]string{unit: start + "EnvironmentFile=-/etc\n"}, ""},
	} {
		row.files["/usr/bin/runc"] = "#!/bin/sh\n"
		_, err := New(options(newRoot(t, row.files), grant.Docker))
		want := row.where + " starts dockerd with --default-runtime"
		if (err != nil) != (row.where != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUndoLeavesDockerTheHandlerOfStoredContainers: Docker stores the handler's name with each
// container, and could not start a stopped one without it.
func TestUndoLeavesDockerTheHandlerOfStoredContainers(t *testing.T) {
	const file, state = "/etc/docker/daemon.json", "/var/lib/gpuledger"
	for name, original := range map[string]string{"no file": "", "an empty one": "{}\n",
		"NVIDIA's default": `{
    "default-runtime": "nvidia",
    "runtimes": {
        "nvidia": {
            "path": "/usr/bin/nvidia-container-runtime"
        }
    },
    "data-root": "/srv/docker"
}
`} {
		t.Run(name, func(t *testing.T) {
			has := map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}
			root := "/var/lib/docker/"
			if original != "" {
				has[file] = original
			}
			if strings.Contains(original, "data-root") {
				root = "/srv/docker/1000.1000/"
			}
			o := options(newRoot(t, has), grant.Docker)
			before := files(t, o.Root)
			applied(t, o)
			for path, text := range map[string]string{
				"ours/hostconfig.json":   `{"Runtime":"gpuledger","NetworkMode":"none"}`,
				"ours/config.v2.json":    `{"Name":"/trial"}`,
				"theirs/hostconfig.json": `{"Runtime":"runc"}`,
			} {
				write(t, o.Root, root+"containers/"+path, text)
			}
			for range 2 { // it can be repeated
				u := undone(t, o, state, nil)
				if len(u.Stored) != 1 || !strings.Contains(u.neededFor(), "now: trial;") {
					t.Errorf("the undo waits for %q: %s", u.Stored, u.neededFor())
				}
				c, err := o.Installation().Read()
				if err != nil {
					t.Fatal(err)
				}
				is := c.InForce()
				if is.Default == engines.Handler || is.Handlers[engines.Handler] == "" ||
					strings.Contains(original, "nvidia") != (is.Default == "nvidia") {
					t.Errorf("while a container is stored, the undo leaves\n%s", fileAt(t, o.Root, file))
				}
				for _, path := range []string{"/usr/bin/gpuledger-runtime.docker", o.Config} {
					if _, err := os.Stat(o.Root + path); err != nil {
						t.Error(err)
					}
				}
			}
			if err := os.RemoveAll(filepath.Join(o.Root, root)); err != nil {
				t.Fatal(err)
			}
			_ = os.RemoveAll(o.Root + "/srv")
			undone(t, o, state, nil)
			if after := files(t, o.Root); after != before {
				t.Errorf("when the container is removed, the undo leaves\n%s\nwant\n%s", after, before)
			}
			if r, _, err := readRecord(o.Installation(), state); err != nil || !r.isOver() {
				t.Errorf("the record is %+v, %v", r, err)
			}
		})
	}
}
