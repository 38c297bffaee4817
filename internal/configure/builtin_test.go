package configure

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoKeepsRuncBesideOtherHandlers: a list of handlers replaces the built-in one of containerd
// 1.x. Without its default handler runc the CRI plugin fails.
func TestUndoKeepsRuncBesideOtherHandlers(t *testing.T) {
	const v1, v2 = "cri", engines.CRIPlugin
	kata := func(plugin string) string {
		return "[plugins.\"" + plugin + "\".containerd.runtimes.kata]\n" +
			"runtime_type = \"io.containerd.kata.v2\"\n"
	}
	for name, row := range map[string]struct {
		plugin, before, added string
		again, runc           bool
	}{
		"another handler":           {v2, "version = 2\n", kata(v2), false, true},
		"format version 1":          {v1, "oom_score = 0\n", kata(v1), false, true},
		"configure runs again":      {v2, "version = 2\n", kata(v2), true, true},
		"options of runc":           {v2, "version = 2\n", runcOptions, false, true},
		"no file before":            {v2, "", kata(v2), false, true},
		"an empty file before":      {v2, "# mine\n", kata(v2), false, true},
		"nothing else":              {v2, "version = 2\n", "", false, false},
		"another default":           {v2, "version = 2\n", byDefault("kata") + kata(v2), false, false},
		"an own handler runc stays": {v2, "version = 2\n" + runcType, "# mine\n", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			const file = "/etc/containerd/config.toml"
			given := map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}
			if row.before != "" {
				given[file] = row.before
			}
			o := options(newRoot(t, given), grant.Containerd)
			o.AsDefault = !strings.Contains(row.added, "default")
			applied(t, o)
			write(t, o.Root, file, fileAt(t, o.Root, file)+row.added)
			if row.again {
				applied(t, o)
			}
			u, err := Undo(o, "/var/lib/gpuledger", false)
			if err != nil || u.Kept > 0 || len(u.Named) > 0 {
				t.Fatalf("%+v, %v", u, err)
			}
			text := fileAt(t, o.Root, file)
			d, err := configfile.ParseTOML([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			is := configfile.Text(d.Tree(), "plugins", row.plugin, "containerd", "runtimes", "runc",
				"runtime_type")
			if (is == engines.RuncShim) != row.runc || strings.Contains(text, "runtimes."+engines.Handler) {
				t.Errorf("the undo leaves\n%s", text)
			}
			if d.Tree()["version"] == nil && row.plugin == v2 {
				t.Errorf("the undo leaves no version in\n%s", text)
			}
			said := strings.Contains(u.Changes[0].Why, "the handler runc stays")
			if wants := row.runc && !strings.Contains(row.before, "runc"); said != wants && !row.again {
				t.Errorf("it says %q", u.Changes[0].Why)
			}
		})
	}
}

const (
	section  = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n"
	runcType = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n" +
		"runtime_type = \"io.containerd.runc.v2\"\n"
	runcOptions = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n" +
		"SystemdCgroup = true\n"
)

func byDefault(name string) string { return section + "default_runtime_name = \"" + name + "\"\n" }
