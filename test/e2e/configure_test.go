//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// configure runs `gpuledger configure` for the engine, as its administrator would. The wrapper that
// it finds is a witness.
func (s *site) configure() {
	installed := filepath.Join(s.dir, "installed/gpuledger-runtime")
	must(s.T, os.MkdirAll(filepath.Dir(installed), 0o755))
	for _, name := range []string{"containerd", "crio", "podman", "docker"} {
		must(s.T, os.Symlink(rig.Binary(s.T, "gpuledger-runtime"),
			filepath.Join(s.dir, "gpuledger-runtime."+name)))
	}
	// it records under the name by which it is called
	witness(s.T, installed, filepath.Join(s.dir, "before"), s.dir+"/${0##*/}")
	s.unconfigured = s.configuration()
	s.Must("configure", s.engineName(), "--as-default", "--mode", "enforce", "--privileged", "refuse",
		"--runtime", installed)
	s.configured = s.configuration()
	if len(different(s.unconfigured, s.configured)) < 3 {
		s.T.Errorf("configure has changed no more than %v", different(s.unconfigured, s.configured))
	}
}

// unconfigure undoes the configuration of the engine, which has stopped, and returns the
// differences from before. Files that the engine itself has written meanwhile may differ.
func (s *site) unconfigure(clients []client) (wrong []string) {
	after := s.configuration()
	for _, path := range different(s.configured, after) {
		if s.configured[path] != "" {
			wrong = append(wrong, fmt.Sprintf("%s has become %q while the engine ran, was %q", path,
				after[path], s.configured[path]))
		}
		s.T.Logf("the engine has made %s", path)
		s.unconfigured[path] = after[path]
	}
	if s.engine.trust == grant.Podman {
		wrong = append(wrong, s.undoUnderAContainerOfPodman()...)
	} else {
		wrong = append(wrong, s.undoUnderAContainer(clients)...)
	}
	s.monitorsEnd()
	s.Must("configure", s.engineName(), "--undo")
	is := s.configuration()
	for _, path := range different(s.unconfigured, is) {
		wrong = append(wrong, fmt.Sprintf("after configure --undo, %s is %q, want %q", path, is[path],
			s.unconfigured[path]))
	}
	if m, is := clients[0].(moby); is {
		wrong = append(wrong, s.undoWithoutADefault(m)...)
	}
	return wrong
}

// monitorsEnd waits for the processes between an engine and its containers. One goes on for a
// moment after its container is removed, and an undo keeps what it may call.
func (s *site) monitorsEnd() {
	s.T.Helper()
	eventually(s.T, "the monitors of the removed containers have ended", func() bool {
		names, _ := filepath.Glob("/proc/[0-9]*/comm")
		return !slices.ContainsFunc(names, func(path string) bool {
			name, _ := os.ReadFile(path)
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return err == nil && rig.Lives(pid) && (strings.HasPrefix(string(name), "containerd-shim") ||
				strings.Contains(string(name), "conmon"))
		})
	})
}

// undoWithoutADefault configures Docker and undoes it where its file names no default runtime, or
// no runtimes either. At a reload dockerd keeps what its file does not name.
func (s *site) undoWithoutADefault(m moby) (wrong []string) {
	const file = "/etc/docker/daemon.json"
	d := s.daemons["dockerd"]
	original, err := os.ReadFile(file)
	must(s.T, err)
	defer func() { writeFile(s.T, file, string(original)) }()
	config := object{}
	must(s.T, json.Unmarshal(original, &config))
	for _, key := range []string{"default-runtime", "runtimes"} {
		delete(config, key)
		writeFile(s.T, file, string(encode(s.T, config)))
		before := s.configuration()
		must(s.T, d.start())
		eventually(s.T, "the engine answers again", func() bool { return d.over() || d.answers() })
		was := m.runtimes(s)
		s.Must("configure", "docker", "--as-default", "--restart", "--mode", "enforce", "--privileged",
			"refuse", "--runtime", filepath.Join(s.dir, "installed/gpuledger-runtime"))
		if is := m.runtimes(s); !strings.HasPrefix(is, "gpuledger of ") {
			wrong = append(wrong, "configured with --restart, dockerd has the default "+is)
		}
		s.Must("configure", "docker", "--undo", "--restart")
		if is := m.runtimes(s); is != was {
			wrong = append(wrong, fmt.Sprintf("without %s: undone with --restart, dockerd has the default "+
				"%s, want %s", key, is, was))
		}
		for _, path := range different(before, s.configuration()) {
			wrong = append(wrong, fmt.Sprintf("without %s: undone with --restart, %s has changed", key, path))
		}
		d.stop(20 * time.Second)
	}
	return wrong
}

// runtimes are the default runtime of dockerd, those that it has, and the one that a new container
// gets.
func (m moby) runtimes(s *site) string {
	var info struct {
		DefaultRuntime string
		Runtimes       map[string]any
	}
	must(s.T, m.decoded(&info, "GET", "/info", nil))
	// dockerd adds this name for runc, and leaves it out after a reload
	maps.DeleteFunc(info.Runtimes, func(name string, _ any) bool {
		return strings.HasPrefix(name, "io.containerd.")
	})
	var created struct{ Id string }
	must(s.T, m.decoded(&created, "POST", "/containers/create", m.body(s, container{script: "true"})))
	var made struct{ HostConfig struct{ Runtime string } }
	must(s.T, m.decoded(&made, "GET", "/containers/"+created.Id+"/json", nil))
	_, err := m.call("DELETE", "/containers/"+created.Id+"?force=1", nil)
	must(s.T, err)
	return fmt.Sprintf("%s of %v, and a container gets %s", info.DefaultRuntime,
		slices.Sorted(maps.Keys(info.Runtimes)), made.HostConfig.Runtime)
}

// undoUnderAContainer undoes the configuration while a container runs, which its engine can stop
// only by the link that configure made, or CRI-O by the handler. The engine has read its files anew
// when it stops it.
func (s *site) undoUnderAContainer(clients []client) (wrong []string) {
	d := s.daemons[map[grant.Engine]string{grant.Docker: "dockerd"}[s.engine.trust]]
	if d == nil {
		d = s.daemons[s.engineName()]
	}
	start := func() {
		must(s.T, d.start())
		eventually(s.T, "the engine answers again", func() bool { return d.over() || s.serves(d) })
	}
	undo := func(args ...string) {
		r := s.CLI(append([]string{"configure", s.engineName(), "--undo"}, args...)...)
		only := "gpuledger-runtime"
		if s.engine.trust == grant.CRIO {
			only = "the handler gpuledger"
		}
		if !strings.Contains(r.Stdout, "can stop running containers only by "+only+" (their monitors: pid ") {
			wrong = append(wrong, fmt.Sprintf("undone under a running container, configure says %+v", r))
		}
	}
	start()
	pid, remove := s.background(clients)
	if s.engine.trust == grant.Docker { // a stop of dockerd would end the container
		undo("--restart")
		if is := clients[0].(moby).runtimes(s); !strings.HasPrefix(is, s.entry.handler+" of ") {
			wrong = append(wrong, "undone under a running container, dockerd has the default "+is)
		}
	} else {
		d.stop(20 * time.Second)
		undo()
		undo()
		start()
	}
	if !rig.Lives(pid) {
		wrong = append(wrong, "the container has ended before its engine removed it")
	}
	remove()
	if rig.Lives(pid) {
		wrong = append(wrong, "the container lives on after its engine removed it")
	}
	d.stop(20 * time.Second)
	return wrong
}

// serves reports whether an engine that was started again serves its clients: containerd's CRI does
// not yet when containerd answers first.
func (s *site) serves(d *daemon) bool {
	return d.answers() && (s.engine.trust == grant.Docker || s.command(crictl, "version").Code == 0)
}

// background starts a container, and returns its process and what removes it.
func (s *site) background(clients []client) (pid int, remove func()) {
	what := container{name: "at-the-undo", script: "sleep 100000 & wait"}
	if m, is := clients[0].(moby); is {
		var created struct{ Id string }
		must(s.T, m.decoded(&created, "POST", "/containers/create?name="+what.name, m.body(s, what)))
		_, err := m.call("POST", "/containers/"+created.Id+"/start", nil)
		must(s.T, err)
		var info struct{ State struct{ Pid int } }
		must(s.T, m.decoded(&info, "GET", "/containers/"+created.Id+"/json", nil))
		return info.State.Pid, func() {
			_, err := m.call("DELETE", "/containers/"+created.Id+"?force=1", nil)
			must(s.T, err)
		}
	}
	handler := ""
	if s.engine.trust == grant.CRIO {
		handler = "gpuledger"
	}
	pod, started := kubelet{}.startPod(s, what, handler)
	return started.pid, func() { s.succeeds(crictl, "rmp", "--force", pod) }
}

// undoUnderAContainerOfPodman undoes Podman's configuration while a container runs. Podman knows a
// container's runtime by the handler's name: without the handler it could not stop the container.
func (s *site) undoUnderAContainerOfPodman() (wrong []string) {
	former := s.succeeds("podman", "info", "--format", "{{.Host.OCIRuntime.Name}}")
	told := filepath.Join(s.dir, "told")
	must(s.T, os.MkdirAll(told, 0o755))
	id := s.succeeds("podman", "run", "--detach", "--network", "none", "--volume", told+":/told", image,
		"/bin/sh", "-c", "trap 'exit 7' TERM; : >/told/traps; while :; do sleep 0.1; done")
	eventually(s.T, "the container traps its signal", func() bool {
		return there(filepath.Join(told, "traps"))
	})
	for range 2 {
		said := s.Must("configure", "podman", "--undo")
		if !strings.Contains(said, "only by the handler gpuledger (their monitors: pid ") {
			wrong = append(wrong, "undone under a running container, configure says "+said)
		}
		if is := s.succeeds("podman", "info", "--format", "{{.Host.OCIRuntime.Name}}"); is == former {
			wrong = append(wrong, "after the undo the default is still "+is)
		}
	}
	s.succeeds("podman", "stop", "--time", "200", id)
	if code := s.succeeds("podman", "inspect", "--format", "{{.State.ExitCode}}", id); code != "7" {
		wrong = append(wrong, "the container that was stopped after the undo ended with "+code)
	}
	s.succeeds("podman", "rm", id)
	return wrong
}

// engineName is the engine's name on the command line.
func (s *site) engineName() string { return strings.ReplaceAll(string(s.engine.trust), "-", "") }

// configuration is every configuration file on the machine, with its kind, mode, owner and content.
func (s *site) configuration() map[string]string {
	files := map[string]string{}
	for _, root := range []string{"/etc", filepath.Join(s.dir, "installed"), s.Config} {
		must(s.T, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			content := ""
			switch {
			case entry.Type() == fs.ModeSymlink:
				content, err = os.Readlink(path)
			case entry.Type().IsRegular():
				var data []byte
				data, err = os.ReadFile(path)
				content = fmt.Sprintf("%x", sha256.Sum256(data))
			}
			owner := info.Sys().(*syscall.Stat_t)
			files[path] = fmt.Sprintf("%s %d:%d %s", info.Mode(), owner.Uid, owner.Gid, content)
			return err
		}))
	}
	return files
}

// different are the paths of which two configurations differ.
func different(a, b map[string]string) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	maps.DeleteFunc(all, func(path, _ string) bool { return a[path] == b[path] })
	return slices.Sorted(maps.Keys(all))
}
