//go:build e2e

package e2e

import (
	"encoding/json"
	"html"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// starter is a client that can start a container in the background, through gpuledger's runtime or
// not.
type starter interface {
	client
	start(s *site, c container, past bool) running
}

// running is such a container.
type running struct {
	id   string // the real runtime's name for it
	pid  int
	runs func() bool // the engine reports that it runs
}

func (r running) lives() bool { return rig.Lives(r.pid) }

// goesOn waits until the engine reports that it runs, and reports whether it lives.
func (r running) goesOn(t *testing.T) bool {
	t.Helper()
	eventually(t, "the engine reports that "+r.id+" runs", func() bool { return !r.lives() || r.runs() })
	return r.lives()
}

func (c ctr) start(s *site, what container, past bool) running {
	s.T.Helper()
	runtime := s.runtime()
	if past {
		runtime = s.behind
	}
	args := []string{"run", "--detach", "--log-uri", "file:///dev/null", "--runc-binary", runtime}
	for key, value := range what.annotations {
		args = append(args, "--annotation", key+"="+value)
	}
	for _, device := range what.devices {
		args = append(args, "--device", device)
	}
	s.succeeds(c.path, append(args, image, what.name, "/bin/sh", "-c", what.script)...)
	s.T.Cleanup(func() {
		eventually(s.T, what.name+" is removed", func() bool {
			_ = s.command(c.path, "task", "rm", "--force", what.name)
			return s.command(c.path, "container", "rm", what.name).Code == 0
		})
	})
	var pid int
	var state string
	task := func() (int, string) {
		r := s.command(c.path, "task", "ls")
		if r.Code != 0 { // what was known is still so
			return pid, state
		}
		pid, state = 0, ""
		for line := range strings.Lines(r.Stdout) {
			if words := strings.Fields(line); len(words) == 3 && words[0] == what.name {
				pid, _ = strconv.Atoi(words[1])
				state = words[2]
			}
		}
		return pid, state
	}
	// containerd lists a task without its process where the shim takes 2 s to answer
	eventually(s.T, what.name+" has a process", func() bool {
		pid, _ := task()
		return pid > 0
	})
	return running{id: what.name, pid: pid,
		runs: func() bool { _, state := task(); return state == "RUNNING" }}
}

func (k kubelet) start(s *site, c container, past bool) running {
	s.T.Helper()
	handler := ""
	if past {
		handler = pastHandler
	}
	pod, started := k.startPod(s, c, handler)
	s.T.Cleanup(func() { s.succeeds(crictl, "rmp", "--force", pod) })
	return started
}

// startPod starts a container in a pod of its own, which names a handler; "" for none.
func (k kubelet) startPod(s *site, c container, handler string) (pod string, _ running) {
	s.T.Helper()
	args := []string{"runp"}
	if handler != "" {
		args = append(args, "--runtime", handler)
	}
	pod = s.succeeds(crictl, append(args, k.podFile(s, c))...)
	id := s.succeeds(crictl, "create", pod, k.containerFile(s, c), k.podFile(s, c))
	s.succeeds(crictl, "start", id)
	inspect := func(what string) string {
		return s.succeeds(crictl, "inspect", "--output", "go-template", "--template", "{{"+what+"}}", id)
	}
	pid, err := strconv.Atoi(inspect(".info.pid"))
	must(s.T, err)
	return pod, running{id: id, pid: pid, runs: func() bool {
		return inspect(".status.state") == "CONTAINER_RUNNING"
	}}
}

// outside makes the engine start a container without gpuledger's runtime. It then uses a GPU
// without a grant. The daemon finds it, names it, and ends it if the policy says so. It ends no
// other container: none that uses its grant, and none outside the ledger that uses nothing.
func outside(t *testing.T, s *site, cl starter) {
	config, err := os.ReadFile(s.Config)
	must(t, err)
	t.Cleanup(func() { s.Write("config.toml", string(config)) })
	s.Write("config.toml", strings.Replace(string(config), "[daemon]\nlisten = \"\"\n",
		"[daemon]\nlisten = \"127.0.0.1:0\"\ngrace = \"1s\"\n", 1))
	audit, _ := os.ReadFile(s.Dir + "/audit.jsonl") // there may be none yet
	since, gpu0 := len(audit), s.uuid(0)
	const forever = "sleep 100000 & wait"
	taker := cl.start(s, container{name: named(cl, "taker"), script: forever,
		devices: []string{"/dev/nvidia0"}}, true)
	idler := cl.start(s, container{name: named(cl, "idler"), script: forever}, true)
	honest := container{name: named(cl, "honest"), script: forever}
	s.grantTo(cl, &honest, "--memory", "4GiB", "--gpu", "0")
	granted := cl.start(s, honest, false)
	its := simulated.ProcessReading{PID: granted.pid, Memory: simulated.Memory(3 * grant.GiB)}
	s.uses(its, simulated.ProcessReading{PID: taker.pid, Memory: simulated.Memory(2 * grant.GiB)})
	t.Cleanup(func() { s.uses() })
	_ = os.Remove(s.Dir + "/gpuledgerd.log") // of the client before
	d := s.Daemon("--nri", "off")
	address := served(t, d)

	found := s.findings(t, since, "found")
	want := "container " + taker.id + " of containerd uses 2GiB of GPU 0 without a grant"
	if cl.name() == "CRI" {
		want = `container "main" of pod team/` + named(cl, "taker") + " uses 2GiB of GPU 0 without a grant"
	}
	if f := found[0]; f.Message != want || f.Container != taker.id || f.Engine != string(grant.Containerd) ||
		!slices.Equal(f.PIDs, []int{taker.pid}) || f.Reaction != "report" || f.Grant != "" {
		t.Errorf("the audit log has %+v, want %q of container %s and process %d", f, want,
			taker.id, taker.pid)
	}
	eventually(t, "the page shows it", func() bool {
		return strings.Contains(get(t, address, "/"), html.EscapeString(want))
	})
	eventually(t, "the metrics show it", func() bool {
		text := get(t, address, "/metrics")
		return strings.Contains(text, `gpuledger_findings{gpu="`+gpu0+`",kind="outside-ledger"} 1`) &&
			strings.Contains(text, `gpuledger_gpu_memory_outside_bytes{gpu="`+gpu0+`"} 2.147483648e+09`)
	})
	s.examined(t, address, 3)
	for what, r := range map[string]running{"only reported": taker, "without use": idler,
		"with a grant": granted} {
		if !r.goesOn(t) {
			t.Errorf("%s was stopped where policy only reports", what)
		}
	}

	if found := s.findings(t, since, "found"); len(found) != 1 {
		t.Errorf("found are %+v, want one", found)
	}
	s.policy(`on_outside_ledger = "stop"`)
	stopped := s.findings(t, since, "stopped")
	s.uses(its) // as the driver reports it once a process has ended
	if f := stopped[0]; f.Container != taker.id || !strings.HasSuffix(f.Message, want) {
		t.Errorf("the audit log has %+v, want that %s is stopped", f, taker.id)
	}
	if taker.lives() {
		t.Error("it is reported as stopped and runs")
	}
	eventually(t, "the engine sees that it has ended", func() bool { return !taker.runs() })
	s.examined(t, address, 3)
	for what, r := range map[string]running{"without use": idler, "with a grant": granted} {
		if !r.goesOn(t) {
			t.Errorf("%s was stopped", what)
		}
	}
	found = slices.DeleteFunc(s.findings(t, since, "found"), func(f finding) bool {
		return f.Finding == string(grant.Unexplained) // what the ended process used, until uses was called
	})
	if stopped := s.findings(t, since, "stopped"); len(found) != 1 || len(stopped) != 1 {
		t.Errorf("found are %+v and stopped %+v, want one of each", found, stopped)
	}
}

// uses sets what processes use of the simulated GPUs.
func (s *site) uses(processes ...simulated.ProcessReading) {
	s.T.Helper()
	text, err := json.Marshal(simulated.Use{
		Version: 1, Processes: append([]simulated.ProcessReading{}, processes...)})
	must(s.T, err)
	path := s.Dir + "/node.json" + simulated.UseSuffix
	must(s.T, os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path))
}

// finding is a line of the audit log about what the watch has found.
type finding struct {
	Action, Finding, Container, Engine, Grant, Message, Reaction string
	PIDs                                                         []int
}

// findings waits until the audit log has a finding with an action. It returns all findings from an
// offset on.
func (s *site) findings(t *testing.T, since int, action string) (list []finding) {
	t.Helper()
	eventually(t, "the audit log has one that is "+action, func() bool {
		list = nil
		text, _ := os.ReadFile(s.Dir + "/audit.jsonl")
		for line := range strings.Lines(string(text[min(since, len(text)):])) {
			var f finding
			if json.Unmarshal([]byte(line), &f) == nil && f.Action == action {
				list = append(list, f)
			}
		}
		return len(list) > 0
	})
	return list
}

// served is the address of a daemon that was configured to use any port.
func served(t *testing.T, d *rig.Daemon) string {
	t.Helper()
	serving := regexp.MustCompile(`serving metrics and the status page" address="?([0-9.:]+)`)
	var found []string
	eventually(t, "it serves", func() bool {
		found = serving.FindStringSubmatch(d.Log())
		return found != nil
	})
	return found[1]
}

func get(t *testing.T, address, path string) string {
	t.Helper()
	r, err := http.Get("http://" + address + path)
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	return string(text)
}

// examined waits until the daemon has examined the GPUs this many more times.
func (s *site) examined(t *testing.T, address string, more int) {
	t.Helper()
	samples := regexp.MustCompile(`(?m)^gpuledger_watch_samples_total (\d+)$`)
	count := func() (n int) {
		if m := samples.FindStringSubmatch(get(t, address, "/metrics")); m != nil {
			n, _ = strconv.Atoi(m[1])
		}
		return n
	}
	first := count()
	eventually(t, "it examines again", func() bool { return count() >= first+more })
}
