package configure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// registry is a file whose section gpuledger's file copies, with a registry's password.
const registry = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r\".auth]\n" +
	"username = \"me\"\npassword = \"hunter2\"\nidentitytoken = 'hunter3'\n"

// TestCopiedSecretsStayClosed: who cannot read the file that has a registry's password cannot read
// gpuledger's copy of it, and no diff shows it.
func TestCopiedSecretsStayClosed(t *testing.T) {
	const source, ours = "/etc/containerd/conf.d/10-registry.toml", "/etc/containerd/conf.d/zz-gpuledger.toml"
	o := options(newRoot(t, map[string]string{source: registry, "/usr/bin/runc": "#!/bin/sh\n",
		"/etc/containerd/config.toml": "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"}),
		grant.Containerd)
	for _, row := range []struct{ source, want os.FileMode }{
		{0o644, 0o644}, {0o640, 0o640}, {0o600, 0o600}, {0o644, 0o600}} { // it is not opened again
		if err := os.Chmod(filepath.Join(o.Root, source), row.source); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(o.Root, source), 0, 64000); err != nil {
			t.Fatal(err)
		}
		p, err := New(o)
		if err == nil {
			err = p.Apply()
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Changes {
			if strings.Contains(c.Diff, "hunter") {
				t.Errorf("the diff shows a password:\n%s", c.Diff)
			}
		}
		_, is, err := o.Installation().System.Load(ours)
		if err != nil || is.Mode != row.want || is.Mode == 0o640 && is.GID != 64000 {
			t.Errorf("the source has mode %o, and its copy %o, group %d; want %o (%v)", row.source, is.Mode,
				is.GID, row.want, err)
		}
	}
	if text := fileAt(t, o.Root, ours); !strings.Contains(text, `password = "hunter2"`) {
		t.Errorf("the file has no password:\n%s", text)
	}
}

// TestDiffsShowNoSecrets, whatever the layout of the file.
func TestDiffsShowNoSecrets(t *testing.T) {
	for _, text := range []string{
		`password = "hunter2"`, `  auth.password="hun\"ter2"`,
		`auth = { username = "me", password = 'hunter2' }`,
		`"identitytoken": "hunter2",`, `Authorization = ["Basic hunter2"]`, `# client_secret = "hunter2"`,
		`{"auths": {"r": {"auth": "hunter2"}}}`, "Authorization = [\n  \"Basic hunter2\",\n]",
		"password = \"\"\"\nhunter2\"\"\"", "password = [\nhunter2",
	} {
		if got := diff("/f", nil, []byte(text+"\n")); strings.Contains(got, "ter2") ||
			!strings.Contains(got, `"(not shown)"`) {
			t.Errorf("%s: the diff is\n%s", text, got)
		}
	}
	got := diff("/f", nil, []byte("password = [\n\"x\",\n]\nuser = \"me\"\n"))
	if !strings.Contains(got, `user = "me"`) || strings.Contains(got, `"x"`) {
		t.Errorf("after a secret of several lines the diff is\n%s", got)
	}
	const plain = "[registry.configs.\"r\".auth]\nusername = \"me\"\nauthor = \"me\"\n"
	if got = diff("/f", nil, []byte(plain)); strings.Contains(got, "not shown") {
		t.Errorf("the diff is\n%s", got)
	}
}

// TestUndoLeavesNoImportOfOurFile: containerd does not start with an import that is missing. In
// place of the patterns `containerd config dump` of 1.x prints the names of all imported files.
func TestUndoLeavesNoImportOfOurFile(t *testing.T) {
	const main, runc = "/etc/containerd/config.toml", "[plugins.\"io.containerd.grpc.v1.cri\".containerd." +
		"runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"
	type story struct {
		again bool   // another configure after the dump
		name  string // of our file, as the dump has it
	}
	for _, c := range []story{{false, "/etc/containerd/conf.d/"}, {true, "/etc/containerd/conf.d/"},
		{false, "conf.d/"}} {
		o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n",
			main: "version = 2\nimports = [\"conf.d/*.toml\"]\n" + runc}), grant.Containerd)
		applied(t, o)
		ours := fileAt(t, o.Root, "/etc/containerd/conf.d/zz-gpuledger.toml")
		_, copied, _ := strings.Cut(ours, "version = 2\n")
		write(t, o.Root, main, "version = 2\nimports = [\"/etc/containerd/config.toml\", "+
			"\""+c.name+"zz-gpuledger.toml\"]\n"+copied)
		if c.again {
			applied(t, o)
		}
		u := undone(t, o, "/var/lib/gpuledger", nil)
		left := files(t, o.Root+"/etc/containerd")
		if strings.Contains(left, "gpuledger") || len(u.Named) > 0 {
			t.Errorf("%+v: the undo leaves %v\n%s", c, u.Named, left)
		}
	}
}
