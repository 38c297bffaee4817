//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/gpuledger/gpuledger/test/rig"
)

// toolkitRuntime makes the engine call NVIDIA's runtime. A CDI file of the stand-in driver replaces
// all else of NVIDIA's.
func (s *site) toolkitRuntime() {
	must(s.T, os.Symlink(rig.Toolkit(s.T, "nvidia-container-runtime"), s.runtime()))
	writeFile(s.T, "/etc/nvidia-container-runtime/config.toml",
		fmt.Sprintf("accept-nvidia-visible-devices-as-volume-mounts = true\n"+
			"[nvidia-container-runtime]\nmode = \"cdi\"\nruntimes = [%q]\n"+
			"[nvidia-container-runtime.modes.cdi]\n"+
			"default-kind = \"nvidia.com/gpu\"\nannotation-prefixes = [\"cdi.k8s.io/\"]\n", s.behind))
}

// toolkitCDI writes a short form of nvidia-ctk's CDI file.
func (s *site) toolkitCDI() {
	library := filepath.Join(s.dir, "libcuda.so.999")
	writeFile(s.T, library, "a file of the driver\n")
	device := func(name string, nodes ...string) object {
		list := []object{}
		for _, node := range nodes {
			list = append(list, object{"path": node})
		}
		return object{"name": name, "containerEdits": object{"deviceNodes": list}}
	}
	writeFile(s.T, "/etc/cdi/nvidia.json",
		string(encode(s.T, object{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
			"devices": []object{device("0", "/dev/nvidia0"), device(s.gpu(0), "/dev/nvidia0"),
				device("all", "/dev/nvidia0", "/dev/nvidia1")},
			"containerEdits": object{"env": []string{"NVIDIA_STAND_IN=1"},
				"deviceNodes": []object{{"path": "/dev/nvidiactl"}},
				"mounts": []object{{"hostPath": library, "containerPath": "/usr/lib/libcuda.so.1",
					"options": []string{"ro", "nosuid", "nodev", "bind"}}}}})))
}

// gpu is the UUID of a GPU.
func (s *site) gpu(index int) string {
	s.T.Helper()
	var list struct{ GPUs []struct{ UUID string } }
	must(s.T, json.Unmarshal([]byte(s.Must("gpus", "--json")), &list))
	return list.GPUs[index].UUID
}

// configureToReport runs `gpuledger configure` for an engine whose default runtime is NVIDIA's, as
// its administrator would.
func (s *site) configureToReport() {
	s.toolkitCDI()
	installed := filepath.Join(s.dir, "installed/gpuledger-runtime")
	must(s.T, os.MkdirAll(filepath.Dir(installed), 0o755),
		copyProgram(rig.Binary(s.T, "gpuledger-runtime"), installed))
	s.Must("configure", s.engineName(), "--as-default", "--runtime", installed)
	if config, _ := os.ReadFile(s.Config); !strings.Contains(string(config),
		fmt.Sprintf("unjudged = %q", s.runtime())) {
		s.T.Errorf("configure has not written %s as runtime.unjudged:\n%s", s.runtime(), config)
	}
}

func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	return err
}

// asking are the ways in which a container requests a GPU from NVIDIA's runtime, or does not. A
// free one starts in enforce mode too.
var asking = []struct {
	name string
	free bool
	make func(*site, *container)
}{
	{"env all", false, func(_ *site, c *container) { c.env = []string{"NVIDIA_VISIBLE_DEVICES=all"} }},
	{"env UUID", false, func(s *site, c *container) {
		c.env = []string{
			"NVIDIA_VISIBLE_DEVICES=" + s.gpu(0)}
	}},
	{"env void", true, func(_ *site, c *container) { c.env = []string{"NVIDIA_VISIBLE_DEVICES=void"} }},
	{"image env", false, func(_ *site, c *container) { c.env = []string{"CUDA_VERSION=10.2.89"} }},
	{"volume mount", false, func(s *site, c *container) {
		c.binds = []bind{{"/dev/null", "/var/run/nvidia-container-devices/" + s.gpu(0)}}
	}},
	{"CDI device", false, func(_ *site, c *container) { c.cdi = []string{"nvidia.com/gpu=0"} }},
	{"CDI annotation", false, func(_ *site, c *container) {
		c.forged = true
		c.annotate("cdi.k8s.io/test", "nvidia.com/gpu=0")
	}},
	{"nothing", true, func(*site, *container) {}},
}

// whatItHas prints the devices, mounts and variables of the container that it runs in, and the
// result of opening each GPU.
const whatItHas = `find /dev -type c -o -type b | sort | xargs ls -l | sed 's/ [A-Z][a-z][a-z] .* / /'
awk '{ print $5, $6 }' /proc/self/mountinfo | sort
env | grep -v '^HOSTNAME=' | sort
for node in /dev/nvidia*; do head -c 1 $node 2>&1; done
grep '^Cap\|^Seccomp\|^NoNew' /proc/self/status`

// asBefore runs each container under the engine's former default runtime, which is still a handler,
// and under the default. In every state that does not enforce, both give the container the same.
func asBefore(t *testing.T, s *site, cl client) {
	enforced, _ := os.ReadFile(s.Config)
	for i, c := range asking {
		t.Run(c.name, func(t *testing.T) {
			s := s.in(t)
			b := container{name: fmt.Sprintf("before-%d", i), script: whatItHas}
			c.make(s, &b)
			if why := cl.cannot(b); why != "" {
				note(t, outcome{s.engine.name, cl.name(), s.entry.name, c.name, "-", why})
				return
			}
			b.handler = "plain"
			had := cl.run(s, b)
			b.handler = ""
			if had.Code != 0 || c.name == "env all" && !strings.Contains(had.Stdout, "NVIDIA_STAND_IN=1") {
				t.Fatalf("under NVIDIA's runtime: %+v", had)
			}
			injected := strings.Contains(had.Stdout, "/dev/nvidia0")
			for _, state := range []string{"report", "disabled", "exempt", "enforce"} {
				if state == "exempt" && cl.owner(b) == "" {
					continue // its identity cannot be trusted
				}
				s.enter(state, string(enforced))
				b.name = fmt.Sprintf("%s-%d", state, i) // for a separate log
				has := cl.run(s, b)
				switch {
				case state == "enforce" && !c.free:
					if injected && has.Code == 0 {
						t.Errorf("enforce: it starts and has\n%s", has.Stdout)
					}
				case has.Code != 0 || has.Stdout != had.Stdout:
					t.Errorf("%s: it ends with %d (%s), and what it has differs:\n%s", state,
						has.Code, has.Stderr,
						diff.Diff("under NVIDIA's runtime", []byte(had.Stdout), "through the wrapper",
							[]byte(has.Stdout)))
				}
			}
			o := outcome{Engine: s.engine.name, Client: cl.name(), Entry: s.entry.name, Case: c.name,
				Result: "ok"}
			if t.Failed() {
				o.Result = "FAIL"
			}
			note(t, o)
		})
	}
	s.Write("config.toml", string(enforced))
}

// enter switches the node to report, to an exemption of the client's containers, to disabled, or to
// enforce.
func (s *site) enter(state, config string) {
	s.T.Helper()
	s.Must("enable")
	if state != "report" {
		config = strings.ReplaceAll(config, `mode = "report"`, `mode = "enforce"`)
	}
	if state == "exempt" {
		config += "[[policy.exempt]]\nnamespace = \"team\"\n"
	}
	s.Write("config.toml", config) // as a whole: Podman may be cleaning up
	if state == "disabled" {
		s.Must("disable", "--for", "1h")
	}
}
