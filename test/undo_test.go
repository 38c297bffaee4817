package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestUndoKeepsTheConfigurationOfARunningEngine: an engine calls gpuledger-runtime until it is
// restarted. Without gpuledger's configuration the default policy would refuse what ran before,
// because that policy is "enforce".
func TestUndoKeepsTheConfigurationOfARunningEngine(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	before := read(t, n.Config)
	c := n.Containerd()
	file := filepath.Join(n.Dir, "c/config.toml")
	n.Write("c/config.toml", strings.Replace(read(t, file), `"io.containerd.grpc.v1.cri", `, "", 1))
	engine := read(t, file)
	wrapper := program(t, n)
	configure := func() string {
		t.Helper()
		return n.Must("configure", "containerd", "--file", file, "--runtime", wrapper, "--as-default",
			"--mode", "report")
	}
	undo := func() string {
		t.Helper()
		out := n.Must("configure", "containerd", "--file", file, "--runtime", wrapper, "--undo")
		if text := read(t, file); text != engine {
			t.Fatalf("after the undo %s is\n%s\nwant\n%s", file, text, engine)
		}
		return out
	}
	kept := func(what, out string) {
		t.Helper()
		if text := read(t, n.Config); !strings.Contains(text, `"report"`) ||
			!strings.Contains(out, "keep "+n.Config+": containerd (pid ") {
			t.Errorf("%s: gpuledger's configuration is\n%s\nand the undo printed\n%s", what, text, out)
		}
	}
	gone := func(what, out string) {
		t.Helper()
		if text := read(t, n.Config); text != before || strings.Contains(out, "keep ") {
			t.Errorf("%s: gpuledger's configuration is\n%s\nwant\n%s\nand the undo printed\n%s", what, text,
				before, out)
		}
	}

	configure()
	gone("containerd has not read what configure wrote", undo())

	configure()
	const unread = "nothing to change, but containerd has run since before the last change\n" +
		"for containerd to read it, restart its process (pid "
	if out := configure(); !strings.Contains(out, unread) {
		t.Errorf("containerd has not read its file, and the second configure printed\n%s", out)
	}
	c.Kill()
	c.Start()
	if out := configure(); !strings.HasSuffix(out, "nothing to change\n") {
		t.Errorf("containerd was restarted, and the third configure printed\n%s", out)
	}
	kept("containerd runs and has read it", undo())
	kept("nothing has changed since", undo())
	configure()
	kept("configured and undone again meanwhile", undo())
	c.Kill()
	c.Start()
	gone("containerd was restarted after the undo", undo())

	configure()
	c.Kill()
	gone("containerd does not run", undo())
	c.Start()

	// If gpuledger's configuration and the link existed before, as packages install them, the undo
	// still prints which engine calls gpuledger-runtime.
	configure()
	ours := read(t, n.Config)
	c.Kill()
	undo()
	n.Write(filepath.Base(n.Config), ours)
	must(t, os.Symlink("gpuledger-runtime", wrapper+".containerd"))
	c.Start()
	configure()
	c.Kill()
	c.Start()
	for range 2 {
		if out := undo(); !strings.Contains(out, "note: containerd (pid ") {
			t.Errorf("containerd calls gpuledger-runtime, and the undo printed\n%s", out)
		}
	}
	c.Kill()
	c.Start()
	if out := undo(); strings.Contains(out, "containerd (pid ") {
		t.Errorf("no engine calls gpuledger-runtime, and the undo printed\n%s", out)
	}
}
