//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// site is a simulated GPU node in a machine, with an engine that calls gpuledger-runtime. A witness
// on either side records what the engine wrote and what the real runtime got. Every engine has
// hooks in /etc/containers/oci/hooks.d (if it reads them), CDI files in /etc/cdi and NRI at its
// default socket.
type site struct {
	*rig.Node
	engine engine
	entry  entry
	dir    string // a short path, and the machine's own
	behind string // the real runtime, with its witness
	images map[string]string

	daemons map[string]*daemon // by name

	// the machine's files before and after `gpuledger configure`
	unconfigured, configured map[string]string
}

const (
	image      = "localhost/busybox:1"
	pauseImage = "localhost/pause:1"
	webImage   = "localhost/web:1"
)

func newSite(t *testing.T) *site {
	e, at := thisMachine(t)
	needs := append([]string{"busybox", "jq", e.runtime}, e.needs...)
	for _, tool := range needs {
		if _, err := exec.LookPath(tool); err != nil && at.asked {
			t.Fatalf("%s is named in %s and needs %s, which is not installed", at.name, entriesVar, tool)
		}
	}
	rig.Need(t, needs...)
	s := &site{engine: e, entry: at, dir: "/run/e2e", daemons: map[string]*daemon{}}
	for _, dir := range []string{"behind", "before", "after", "log"} {
		must(t, os.MkdirAll(filepath.Join(s.dir, dir), 0o755))
	}
	real, err := exec.LookPath(e.runtime)
	must(t, err)
	// It has the name of the runtime behind it, because gpuledger-runtime finds crun's state
	// directory by the name.
	s.behind = filepath.Join(s.dir, "behind", filepath.Base(real))
	if e.weakRoot {
		real = s.weakRoot(t, real)
	}
	witness(t, s.behind, filepath.Join(s.dir, "after"), real)
	s.Node = rig.NewNode(t, rig.Setup{Engine: string(e.trust), Runtime: s.behind,
		Config: "[ask]\nengines = [\"podman\", \"docker\"]\n"})
	must(t, os.MkdirAll("/etc/gpuledger", 0o755))
	must(t, os.Symlink(s.Config, "/etc/gpuledger/config.toml")) // so engines need not pass an environment on
	s.offerGPUs()
	at.prepare(s)
	s.images = archives(t, filepath.Join(s.dir, "images"), s.clientOfMPS())
	writeFile(t, "/etc/cdi/nvidia.json", cdiSpec)
	return s
}

// wrapRuntime makes the engine call gpuledger-runtime. As with the links of `gpuledger configure`,
// the name says which engine calls.
func (s *site) wrapRuntime() {
	link := filepath.Join(s.dir, "gpuledger-runtime."+s.engineName())
	must(s.T, os.Symlink(rig.Binary(s.T, "gpuledger-runtime"), link))
	witness(s.T, s.runtime(), filepath.Join(s.dir, "before"), link)
}

// bareRuntime makes the engine call the real runtime, as before gpuledger's installation.
func (s *site) bareRuntime() { must(s.T, os.Symlink(s.behind, s.runtime())) }

// settled must be called after an engine's configuration is written and before the engine starts.
func (s *site) settled() {
	if s.entry.settle != nil {
		s.entry.settle(s)
	}
}

// in is the site for a subtest, whose failures are its own.
func (s *site) in(t *testing.T) *site {
	node, there := *s.Node, *s
	node.T, there.Node = t, &node
	return &there
}

// cdiSpec is a CDI file as another vendor's generator would have left it on the node.
const cdiSpec = `{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [
  {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
  {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]}}]}`

// runtime is the path that the engine calls.
func (s *site) runtime() string { return filepath.Join(s.dir, cmp.Or(s.entry.former, "runtime")) }

// witness is an OCI runtime that copies config.json at a create, and then runs another.
func witness(t testing.TB, path, into, next string) {
	t.Helper()
	script(t, path, fmt.Sprintf(`bundle=. previous= create= word=
for word; do
  case $previous in --bundle | -b) bundle=$word ;; esac
  case $word in --bundle=*) bundle=${word#*=} ;; create | run) create=yes ;; esac
  previous=$word
done
[ -z "$create" ] || cp "$bundle/config.json" %q/"$word.json"
exec "%s" "$@"
`, into, next))
}

// weakRoot is an OCI runtime for a root without CAP_SYS_RESOURCE, which containers and sandboxes
// have. CRI-O and Docker 20.10 cannot switch off what needs it. It runs behind the witness.
func (s *site) weakRoot(t *testing.T, next string) string {
	t.Helper()
	path := filepath.Join(s.dir, "weak-root")
	script(t, path, fmt.Sprintf(`bundle=. previous= create=
for word; do
  case $previous in --bundle | -b) bundle=$word ;; esac
  case $word in --bundle=*) bundle=${word#*=} ;; create | run) create=yes ;; esac
  previous=$word
done
if [ -n "$create" ]; then
  jq 'if (.process.oomScoreAdj // 0) < 0 then .process.oomScoreAdj = 0 else . end
    | del(.process.rlimits, .linux.resources.hugepageLimits)
    | (.process.capabilities // empty) |= map_values(map(select(. != "CAP_SYS_RESOURCE")))' "$bundle/config.json" >"$bundle/config.json.weak"
  mv "$bundle/config.json.weak" "$bundle/config.json"
fi
exec %q "$@"
`, next))
	return path
}

func script(t testing.TB, path, text string) {
	t.Helper()
	writeFile(t, path, "#!/bin/sh\n"+text)
	must(t, os.Chmod(path, 0o755))
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// seen is a container's config.json, as the engine wrote it and as the real runtime got it. The
// second is nil if the runtime never got one.
func (s *site) seen(id string) (before, after []byte) {
	before, _ = os.ReadFile(filepath.Join(s.dir, "before", id+".json"))
	after, _ = os.ReadFile(filepath.Join(s.dir, "after", id+".json"))
	return before, after
}

func tail(file string) string {
	text, _ := os.ReadFile(file)
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// eventually is rig.Eventually with the patience that an engine on a slow machine needs.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	within(t, 4*time.Minute, what, is)
}

func within(t testing.TB, patience time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// command runs a program of the engine that ends by itself.
func (s *site) command(program string, args ...string) rig.Result {
	return rig.Run(exec.Command(program, args...))
}

// succeeds runs a program and fails the test if that fails.
func (s *site) succeeds(program string, args ...string) string {
	s.T.Helper()
	r := s.command(program, args...)
	if r.Code != 0 {
		s.T.Fatalf("%s %s: %+v", program, strings.Join(args, " "), r)
	}
	return strings.TrimSpace(r.Stdout)
}
