package doctor

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpuledger/gpuledger/internal/engines"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestParentDirectoriesThatOthersCanWrite(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "a/b/file"), "")
	if p := at(path); len(p.Above) > 0 && filepath.Dir(p.Above[0].Path) == dir {
		t.Errorf("only root can write to %v", p.Above)
	}
	if err := os.Chmod(filepath.Join(dir, "a"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, filepath.Join(dir, "a/b/c/d/missing")} {
		p := at(name)
		if len(p.Above) == 0 || p.Above[0].Path != filepath.Join(dir, "a") {
			t.Errorf("%s: every user can replace %s/a/b, but that is not among %v", name, dir, p.Above)
		}
		if !p.Writable || p.Missing != (name != path) {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "a"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if p := at(path); slices.ContainsFunc(p.Above,
		func(a PathFacts) bool { return a.Path == filepath.Join(dir, "a") }) {
		t.Error("in a sticky directory other users cannot replace root's files")
	}
}

func TestARelativeNameIsInTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "file", "")
	here, _ := os.Getwd()
	if p := at("file"); p.Missing || p.Path != filepath.Join(here, "file") {
		t.Errorf("%+v", p)
	}
}

func TestSpecsAreRecognizedByTheirKind(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, kind string }{
		"a.json": {`{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu"}`, "nvidia.com/gpu"},
		"b.yaml": {"---\ncdiVersion: 0.6.0\nkind: \"management.nvidia.com/gpu\"\ndevices:\n- name: all\n" +
			"  kind: no\n", "management.nvidia.com/gpu"},
		"c.json": {`{"kind":`, ""},
		"d.yaml": {"devices: []\n", ""},
	} {
		s := readSpec(write(t, filepath.Join(dir, name), c.text))
		if s.Kind != c.kind || (s.Error != nil) != (c.kind == "") {
			t.Errorf("%s: kind %q, %v", name, s.Kind, s.Error)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if files := filesIn([]string{dir, link, dir + "/none"}, ".json"); len(files) != 2 {
		t.Errorf("two files under two names: %v", files)
	}
}

// A directory that two engines read is listed twice.
func TestOnlyConfiguredCDIDirectoriesAreRead(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	write(t, filepath.Join(here, "mine.json"), `{"kind":"vendor.example/gpu"}`)
	shared := t.TempDir()
	write(t, filepath.Join(shared, "a.json"), `{"kind":"nvidia.com/gpu"}`)
	f := Facts{Engines: []engines.Presence{{CDIDirs: []string{shared}}, {CDIDirs: []string{shared}}}}
	f.Policy.CDI.Dir = shared
	f.gatherInjectors()
	var found []string
	for _, s := range f.CDI {
		switch filepath.Dir(s.Path) {
		case here:
			t.Errorf("%s is in no directory of CDI files", s.Path)
		case shared:
			found = append(found, s.Path)
		}
	}
	if len(found) != 1 {
		t.Errorf("one file in a directory that is named three times: %v", found)
	}
}

func TestHooksAreRecognizedByTheirProgram(t *testing.T) {
	dir := t.TempDir()
	h := readHook(write(t, dir+"/a.json", `{"version":"1.0.0","hook":{"path":"/nowhere/gpuledger-hook"}}`))
	if h.Program != "/nowhere/gpuledger-hook" || !h.Gone || h.Error != nil {
		t.Errorf("%+v", h)
	}
	if h := readHook(write(t, dir+"/b.json", "no")); h.Error == nil {
		t.Error("no JSON is no hook")
	}
}

// TestCgroup reads the layout of this machine. On a node without cgroups none of the tests could
// run.
func TestCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to query device programs")
	}
	if c := cgroup("/sys/fs/cgroup"); c.Version == 0 || c.Error != nil {
		t.Errorf("%+v", c)
	}
	if c := cgroup(t.TempDir()); c.Version != 0 {
		t.Errorf("an empty directory: %+v", c)
	}
	if deviceProgramsOf(t.TempDir()) == nil {
		t.Error("a directory that is no cgroup has no device programs")
	}
}

// TestOnlyPluginsThatListenCount: a plugin that was killed leaves its socket.
func TestOnlyPluginsThatListenCount(t *testing.T) {
	t.Chdir(t.TempDir()) // a socket's path is short
	const root = "."
	socket := func(name string) *net.UnixListener {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { l.Close() })
		return l
	}
	socket("var/lib/kubelet/device-plugins/kubelet.sock")
	socket("var/lib/kubelet/device-plugins/gpuledger-memory.sock")
	socket("var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
	socket("var/lib/k0s/kubelet/device-plugins/nvidia-gpu.sock").Close()
	want := []string{filepath.Join(root, "var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")}
	if got := pluginsBelow(root); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
