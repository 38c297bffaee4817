package configure

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoLeavesNoPartOfACopy: containerd 1.x takes the last file's section alone, so a rest of
// gpuledger's file would replace everything that the node's own files say.
func TestUndoLeavesNoPartOfACopy(t *testing.T) {
	const state, dir = "/var/lib/gpuledger", "/etc/containerd/conf.d/"
	const source, ours = dir + "10-site.toml", dir + "zz-gpuledger.toml"
	site := func(image string) string {
		return "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"" + image + "\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n" +
			"runtime_type = \"io.containerd.runc.v2\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
	}
	sed := func(t *testing.T, o Options) { // sed -i s/pause:1/pause:2/ conf.d/*
		for _, path := range []string{source, ours} {
			write(t, o.Root, path, strings.ReplaceAll(fileAt(t, o.Root, path), "pause:1", "pause:2"))
		}
	}
	add := func(text string) func(*testing.T, Options) {
		return func(t *testing.T, o Options) { write(t, o.Root, ours, fileAt(t, o.Root, ours)+text) }
	}
	const image = "plugins.\"io.containerd.grpc.v1.cri\".sandbox_image"
	for name, c := range map[string]struct {
		since   func(*testing.T, Options)
		changed string // the keys that the undo names
	}{
		"a value is changed in all files": {sed, image},
		"and one more in the source, and it is configured again": {func(t *testing.T, o Options) {
			sed(t, o)
			write(t, o.Root, source, site("pause:3"))
			applied(t, o)
		}, ""},
		"it is configured again, and killed before the file is written": {func(t *testing.T, o Options) {
			write(t, o.Root, source, site("pause:2"))
			recorded(t, o)
		}, image},
		"a table is added": {add("[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"/c\"\n"),
			"plugins.\"io.containerd.grpc.v1.cri\".registry"},
		"a comment is added": {add("# mine\n"), ""},
		"nothing":            {func(*testing.T, Options) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(newRoot(t, map[string]string{source: site("pause:1"), "/usr/bin/runc": "#!/bin/sh\n",
				"/etc/containerd/config.toml": "version = 2\nimports = [\"" + dir + "*.toml\"]\n"}),
				grant.Containerd)
			before := files(t, o.Root)
			applied(t, o)
			c.since(t, o)
			want := strings.Replace(before, site("pause:1"), fileAt(t, o.Root, source), 1)
			u := undone(t, o, state, nil)
			if after := files(t, o.Root); after != want || u.Kept > 0 {
				t.Errorf("the undo keeps %d files, and leaves\n%s\nwant\n%s", u.Kept, after, want)
			}
			i := slices.IndexFunc(u.Changes, func(c FileChange) bool { return c.Path == ours })
			if i < 0 || u.Changes[i].Action != "remove" ||
				strings.Contains(u.Changes[i].Why, "changed since ("+c.changed+")") != (c.changed != "") {
				t.Fatalf("want %s removed, with %q named; the undo does\n%s", ours, c.changed,
					actions(u.Changes))
			}
		})
	}
}

func actions(changes []FileChange) string {
	var b strings.Builder
	for _, c := range changes {
		b.WriteString(c.Action + " " + c.Path + ": " + c.Why + "\n")
	}
	return b.String()
}

// copied configures a containerd whose CRI section is in a drop-in file, and returns the names of
// that file and of gpuledger's copy.
func copied(t *testing.T) (o Options, source, ours string) {
	t.Helper()
	source, ours = "/etc/containerd/conf.d/10.toml", "/etc/containerd/conf.d/zz-gpuledger.toml"
	o = options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n", source: registry,
		"/etc/containerd/config.toml": "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"}),
		grant.Containerd)
	applied(t, o)
	return o, source, ours
}

// TestConfigureAgainCopiesNoPart: a value that was changed in gpuledger's file was changed in its
// source, too. The copy is made of the sources anew.
func TestConfigureAgainCopiesNoPart(t *testing.T) {
	o, source, ours := copied(t)
	for _, path := range []string{source, ours} {
		write(t, o.Root, path, strings.ReplaceAll(fileAt(t, o.Root, path), "hunter2", "hunter4"))
	}
	applied(t, o)
	if text := fileAt(t, o.Root, ours); !strings.Contains(text, `password = "hunter4"`) ||
		!strings.Contains(text, "hunter3") {
		t.Errorf("the copy is\n%s", text)
	}
}

// TestUndoKeepsWhatIsNoCopy: a table of the administrator's, which replaces nothing of other files.
func TestUndoKeepsWhatIsNoCopy(t *testing.T) {
	o, _, ours := copied(t)
	write(t, o.Root, ours, fileAt(t, o.Root, ours)+"[debug]\nlevel = \"debug\"\n")
	u := undone(t, o, "/var/lib/gpuledger", nil)
	if text := fileAt(t, o.Root, ours); u.Kept > 0 || strings.Contains(text, "plugins") ||
		!strings.Contains(text, "[debug]\nlevel = \"debug\"\n") || !strings.Contains(text, "version = 2") {
		t.Errorf("the undo keeps %d files, and leaves\n%s", u.Kept, text)
	}
}

// TestUndoKeepsACopyThatIsNotValid, because it cannot say what was changed there.
func TestUndoKeepsACopyThatIsNotValid(t *testing.T) {
	o, _, ours := copied(t)
	text := fileAt(t, o.Root, ours) + "[mine\n"
	write(t, o.Root, ours, text)
	if u := undone(t, o, "/var/lib/gpuledger", nil); u.Kept != 1 {
		t.Errorf("it keeps %d files", u.Kept)
	}
	if is, err := os.ReadFile(filepath.Join(o.Root, ours)); err != nil || string(is) != text {
		t.Errorf("the undo has changed it (%v):\n%s", err, is)
	}
}

// recorded configures an engine as far as a configure comes that is killed at the mark
// configure/recorded.
func recorded(t *testing.T, o Options) {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := openStore(p.in.System, p.Policy.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	old, err := s.load(p.in.Engine)
	if err == nil {
		err = s.save(p.next(old))
	}
	if err != nil {
		t.Fatal(err)
	}
}
