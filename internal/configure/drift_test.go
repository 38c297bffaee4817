package configure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// configured makes a system with one configured engine. The function that it returns calls
// Defaults.
func configured(t *testing.T, o Options) func() []Default {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(); err != nil {
		t.Fatal(err)
	}
	return func() []Default {
		t.Helper()
		all, err := Defaults(o.Root, "/var/lib/gpuledger")
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
}

// others are engines' files after another program has changed them, and the expected problem.
var others = map[grant.Engine][]struct{ file, text, says string }{
	grant.Containerd: {
		{"/etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
			"default_runtime_name = \"nvidia\"\n", `names "nvidia" as its default handler`},
		{"/etc/containerd/config.toml", "version = 2\n", "names no default handler any more"},
		{"/etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
			"default_runtime_name = \"gpuledger\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.gpuledger.options]\n" +
			"BinaryName = \"/usr/bin/runc\"\n",
			`its default handler gpuledger runs "/usr/bin/runc" by /etc/containerd/config.toml`},
	},
	grant.CRIO: {{"/etc/crio/crio.conf.d/zzz.conf", "[crio.runtime]\ndefault_runtime = \"nvidia\"\n",
		`/etc/crio/crio.conf names "nvidia"`}},
	grant.Podman: {{"/etc/containers/containers.conf.d/zzz.conf", "[engine]\nruntime = \"crun\"\n",
		`/etc/containers/containers.conf names "crun"`}},
	grant.Docker: {{"/etc/docker/daemon.json", `{"default-runtime": "nvidia"}`,
		`/etc/docker/daemon.json names "nvidia"`}},
}

// TestDefaultsSeeWhatOthersChange, for engines that were configured with --as-default only.
func TestDefaultsSeeWhatOthersChange(t *testing.T) {
	for engine, changes := range others {
		o := options(newRoot(t, nil), engine)
		o.AsDefault = false
		if all := configured(t, o)(); len(all) != 0 {
			t.Errorf("%s, configured without --as-default: %+v", engine, all)
		}
		o.AsDefault = true
		look := configured(t, o)
		for _, c := range changes {
			if all := look(); len(all) != 1 || all[0].Engine != engine || !all[0].Ours ||
				all[0].Problem() != "" || all[0].Err != nil {
				t.Fatalf("%s, configured: %+v", engine, all)
			}
			before, err := os.ReadFile(filepath.Join(o.Root, c.file))
			write(t, o.Root, c.file, c.text)
			all := look()
			if len(all) != 1 || all[0].Ours || !strings.Contains(all[0].Problem(), c.says) ||
				!strings.Contains(all[0].Hint(), "gpuledger configure "+engines.Of(engine).Name+
					" --as-default") {
				t.Errorf("%s, changed: %+v %q, want %q", engine, all, all[0].Problem(), c.says)
			}
			write(t, o.Root, c.file, "{ \"")
			if all := look(); len(all) != 1 || all[0].Err == nil || all[0].Problem() != "" {
				t.Errorf("%s, broken: %+v", engine, all)
			}
			if err != nil {
				_ = os.Remove(filepath.Join(o.Root, c.file))
				continue
			}
			write(t, o.Root, c.file, string(before))
		}
		if _, err := Undo(o, "/var/lib/gpuledger", false); err != nil {
			t.Fatal(err)
		}
		if all := look(); len(all) != 0 {
			t.Errorf("%s, undone: %+v", engine, all)
		}
	}
}

// TestDefaultsReadTheFileThatWasConfigured, in whichever path the engine has it.
func TestDefaultsReadTheFileThatWasConfigured(t *testing.T) {
	for engine, file := range map[grant.Engine]string{grant.Containerd: "/srv/containerd/config.toml",
		grant.CRIO:   "/srv/crio/crio.conf",
		grant.Podman: "/srv/podman.conf", grant.Docker: "/srv/docker.json"} {
		o := options(newRoot(t, nil), engine)
		o.File = file
		if all := configured(t, o)(); len(all) != 1 || all[0].File != file || !all[0].Ours {
			t.Errorf("%s: %+v", engine, all)
		}
	}
	for _, config := range []string{"version = 3\nimports = [\"conf.d/*.toml\"]\n",
		"version = 2\nimports = [\"/etc/containerd/conf.d/99-nvidia.toml\"]\n",
		"version = 2\nimports = [\"nvidia.toml\"]\n"} {
		section := "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
			"default_runtime_name = \"nvidia\"\n"
		o := options(newRoot(t, map[string]string{
			"/etc/containerd/config.toml": config, "/etc/containerd/conf.d/99-nvidia.toml": section,
			"/etc/containerd/nvidia.toml": section}), grant.Containerd)
		look := configured(t, o)
		if all := look(); len(all) != 1 || all[0].File != "/etc/containerd/config.toml" || !all[0].Ours {
			t.Errorf("%q: %+v", config, all)
		}
		write(t, o.Root, "/etc/containerd/config.toml", "version = 2\n") // it imports nothing any more
		if all := look(); len(all) != 1 || all[0].Ours || all[0].Problem() == "" {
			t.Errorf("%q, cut off: %+v", config, all)
		}
	}
	if !setsDefault(grant.Containerd, []byte("{{ template \"base\" . }}\n"+
		"  default_runtime_name = \"gpuledger\" # ours\n")) || setsDefault(grant.Containerd,
		[]byte("# default_runtime_name = \"gpuledger\"\n")) {
		t.Error("a template's line is not told from a comment")
	}
}

// TestDefaultsOfAnEngineWithoutCRI: Docker, not containerd, chooses the handler of containers that
// containerd runs for it.
func TestDefaultsOfAnEngineWithoutCRI(t *testing.T) {
	o := options(newRoot(t, nil), grant.Containerd)
	look := configured(t, o)
	write(t, o.Root, "/etc/containerd/config.toml", "version = 2\ndisabled_plugins = [\"cri\"]\n")
	if all := look(); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	write(t, o.Root, "/var/lib/gpuledger/configure/containerd/record.json", "{")
	if all := look(); len(all) != 1 || all[0].Err == nil {
		t.Errorf("a record that cannot be read: %+v", all)
	}
}

// TestSetsDefault covers each kind of file in which an engine reads its default handler.
func TestSetsDefault(t *testing.T) {
	for text, want := range map[string]bool{
		"  default_runtime_name = \"gpuledger\" # for all\n": true, "default-runtime: gpuledger\n": true,
		"default-runtime: gpuledger":     true,
		"# default-runtime: gpuledger\n": false, "default_runtime_name = \"gpuledger-other\"\n": false,
		"[runtimes.gpuledger]\n": false,
	} {
		if got := setsDefault(grant.Containerd, []byte(text)); got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
}
