package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestThePathsOfTheShimHaveNoLinks: a package's link may have another target tomorrow, and a mount
// stays. A file that is missing, or for another architecture, is a problem with a reason.
func TestThePathsOfTheShimHaveNoLinks(t *testing.T) {
	dir := t.TempDir()
	head := func(machine byte) []byte {
		b := append([]byte("\x7fELF\x02\x01"), make([]byte, 58)...)
		b[16], b[18] = 3, machine
		return b
	}
	for name, content := range map[string][]byte{"whole": head(elfMachine()),
		"foreign": head(elfMachine() ^ 1), "text": []byte(strings.Repeat("text", 20)),
		"short": []byte("\x7fELF")} {
		for _, library := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
			must(t, os.MkdirAll(filepath.Join(dir, name), 0o755),
				os.WriteFile(filepath.Join(dir, name, library), content, 0o644))
		}
	}
	must(t, os.MkdirAll(dir+"/half", 0o755), os.WriteFile(dir+"/half/libcuda.so.1", head(elfMachine()),
		0o644), os.Symlink("whole", dir+"/link"))
	for name, problem := range map[string]string{"whole": "", "link": "", "foreign": "architecture",
		"text": "architecture", "short": "no library", "half": "libnvidia-ml.so.1",
		"nowhere": "no such file"} {
		n := &Node{Policy: grant.Policy{Enforcement: grant.Enforcement{Shim: filepath.Join(dir, name)}}}
		got := n.Shim()
		real, _ := filepath.EvalSymlinks(filepath.Join(dir, "whole"))
		if problem == "" && got != (grant.Shim{Dir: real}) ||
			problem != "" && (got.Dir != "" || !strings.Contains(got.Problem, problem)) {
			t.Errorf("%s: %+v, want %q", name, got, problem)
		}
	}
}

// TestMountOverTheRecords: the last mount over their directory is found, whatever its source.
func TestMountOverTheRecords(t *testing.T) {
	mount := func(destination, kind string, options ...string) specs.Mount {
		return specs.Mount{Destination: destination, Type: kind, Options: options}
	}
	for name, c := range map[string]struct {
		mounts []specs.Mount
		want   cover
	}{
		"nothing":           {[]specs.Mount{mount("/proc", "proc"), mount("/runner", "bind", "bind"), mount("/run/gpuledger/limits", "bind", "bind"), mount("/run/secrets", "tmpfs")}, cover{}},
		"a tmpfs":           {[]specs.Mount{mount("/run", "tmpfs")}, cover{true, "/run", true}},
		"a volume":          {[]specs.Mount{mount("/run", "bind", "rbind")}, cover{true, "/run", false}},
		"by the other name": {[]specs.Mount{mount("/var/run/", "bind", "bind")}, cover{true, "/var/run/", false}},
		"not clean":         {[]specs.Mount{mount("run/./gpuledger", "none", "bind")}, cover{true, "run/./gpuledger", false}},
		"a bind of a tmpfs": {[]specs.Mount{mount("/run", "tmpfs", "bind")}, cover{true, "/run", false}},
		"the last counts":   {[]specs.Mount{mount("/run", "bind", "bind"), mount("/run", "tmpfs")}, cover{true, "/run", true}},
		"all":               {[]specs.Mount{mount("/", "bind", "bind")}, cover{true, "/", false}},
	} {
		if got := coverOf(c.mounts); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
