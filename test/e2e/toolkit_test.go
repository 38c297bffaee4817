//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/test/rig"
)

// knowsToolkit reports whether NVIDIA's toolkit configures an engine, whose daemon can be started
// again.
func knowsToolkit(e engine) bool {
	return e.name == "containerd2" || e.name == "containerd1.7" || e.name == "containerd1.6" ||
		e.name == "crio"
}

// besideToolkit runs `nvidia-ctk runtime configure` before, after and between `gpuledger configure`
// and its undo. After each step the engine starts anew, as at a boot, and runs a container. After
// the undo it runs as it did before configure.
func besideToolkit(t *testing.T, s *site, cl client) {
	ctk, nvidia := rig.Toolkit(t, "nvidia-ctk"), rig.Toolkit(t, "nvidia-container-runtime")
	writeFile(t, "/etc/nvidia-container-runtime/config.toml",
		fmt.Sprintf("[nvidia-container-runtime]\nmode = \"cdi\"\nruntimes = [%q]\n", s.behind))
	installed := filepath.Join(s.dir, "installed/gpuledger-runtime")
	must(t, os.MkdirAll(filepath.Dir(installed), 0o755),
		copyProgram(rig.Binary(t, "gpuledger-runtime"), installed))
	ours, _ := os.ReadFile(s.Config)

	toolkit := func(more ...string) func() {
		return func() {
			s.succeeds(ctk, append([]string{"runtime", "configure", "--runtime=" + s.engineName(),
				"--nvidia-runtime-path=" + nvidia}, more...)...)
		}
	}
	configure := func(more ...string) func() {
		return func() {
			s.Must(append([]string{"configure", s.engineName(), "--runtime", installed},
				more...)...)
		}
	}
	boots := 0
	boot := func(t *testing.T, step string) {
		t.Helper()
		boots++
		s.startAnew(t)
		r := cl.run(s, container{name: fmt.Sprintf("boot-%d", boots), script: "echo here"})
		if r.Code != 0 || r.Stdout != "here\n" {
			t.Fatalf("after %s no container starts: %+v", step, r)
		}
	}
	for _, order := range []struct {
		name   string
		before []func()
		after  []func()
	}{
		{"before", []func(){toolkit("--set-as-default")}, nil},
		{"after", nil, []func(){toolkit("--set-as-default")}},
		{"between", []func(){toolkit()},
			[]func(){toolkit("--set-as-default"), configure("--as-default"), toolkit()}},
	} {
		o := outcome{Engine: s.engine.name, Client: cl.name(), Entry: s.entry.name, Case: "nvidia-ctk " +
			order.name, Result: "FAIL"}
		t.Run(order.name, func(t *testing.T) {
			s := s.in(t)
			for i, step := range order.before {
				step()
				boot(t, fmt.Sprintf("nvidia-ctk %d", i))
			}
			had := s.engineFiles()
			configure("--as-default")()
			boot(t, "configure")
			if len(order.after) == 0 {
				configure("--as-default")() // as an upgrade does
				boot(t, "configure again")
			}
			for i, step := range order.after {
				step()
				boot(t, fmt.Sprintf("step %d after configure", i))
			}
			configure("--undo")()
			boot(t, "configure --undo")
			// gpuledger's own configuration stayed as long as the engine could call its runtime
			configure("--undo")()
			has := s.engineFiles()
			for path, text := range has {
				if strings.Contains(text, "gpuledger-runtime") {
					t.Errorf("after the undo %s names gpuledger:\n%s", path, text)
				}
			}
			for _, path := range different(had, has) {
				if len(order.after) == 0 {
					t.Errorf("after the undo %s is\n%s\nwant\n%s", path, has[path], had[path])
				}
			}
			if is, _ := os.ReadFile(s.Config); string(is) != string(ours) {
				t.Errorf("after the undo gpuledger's configuration is\n%s\nwant\n%s", is, ours)
			}
			must(t, os.RemoveAll(filepath.Dir(s.mainFile())+"/conf.d"),
				os.RemoveAll("/etc/crio/crio.conf.d/99-nvidia.toml"))
			o.Result = "ok"
		})
		if t.Failed() {
			o.Result = "FAIL"
		}
		note(t, o)
	}
}

// mainFile is the engine's main configuration file.
func (s *site) mainFile() string {
	if s.engineName() == "crio" {
		return "/etc/crio/crio.conf"
	}
	return "/etc/containerd/config.toml"
}

// engineFiles are the contents of the engine's files.
func (s *site) engineFiles() map[string]string {
	files := map[string]string{}
	for _, pattern := range []string{"/*.toml", "/*.conf", "/*.d/*"} {
		paths, _ := filepath.Glob(filepath.Dir(s.mainFile()) + pattern)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			must(s.T, err)
			files[path] = string(text)
		}
	}
	return files
}

// startAnew restarts the engine.
func (s *site) startAnew(t *testing.T) {
	t.Helper()
	name := s.engineName()
	d := s.daemons[name]
	d.stop(20 * time.Second)
	must(t, d.start())
	eventually(t, name+" answers again", func() bool {
		if d.over() {
			t.Fatalf("%s has ended:\n%s", name, tail(d.log))
		}
		return s.serves(d)
	})
}
