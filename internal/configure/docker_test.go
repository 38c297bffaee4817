package configure

import (
	"strings"
	"testing"

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
