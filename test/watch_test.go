package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// watches is a daemon's configuration that passes often, and stops what the policy wants stopped
// almost at once.
const watches = "[daemon]\nlisten = \"127.0.0.1:0\"\ninterval = \"10ms\"\ngrace = \"50ms\"\n"

const stops = "[policy]\non_over_grant = \"stop\"\non_outside_ledger = \"stop\"\n"

// gpus is what a simulated driver reports about the use of its GPUs.
type gpus struct {
	t   *testing.T
	n   *rig.Node
	use simulated.Use
}

func gpusOf(t *testing.T, n *rig.Node) *gpus { return &gpus{t, n, simulated.Use{Version: 1}} }

// writeUse replaces the driver's report.
func (g *gpus) writeUse() {
	g.t.Helper()
	text, err := json.Marshal(g.use)
	must(g.t, err)
	g.write(text)
}

// write replaces the report whole, because a daemon reads it all the time.
func (g *gpus) write(text []byte) {
	g.t.Helper()
	path := g.n.Dir + "/node.json" + simulated.UseSuffix
	must(g.t, os.WriteFile(path+".new", text, 0o600))
	must(g.t, os.Rename(path+".new", path))
}

func (g *gpus) runs(pid, gpu int, memory grant.Bytes) {
	g.t.Helper()
	if pid <= 0 {
		g.t.Fatal("there is no such process")
	}
	g.use.Processes = append(g.use.Processes, simulated.ProcessReading{
		PID: pid, GPU: gpu, Memory: simulated.Memory(memory)})
}

// nodeProcess starts a process of the node, of root or of another user. It ends with the test.
func nodeProcess(t *testing.T, uid ...uint32) int {
	t.Helper()
	cmd := exec.Command("busybox", "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if len(uid) > 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid[0], Gid: uid[0]}
	}
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// dockerContainer starts a container of Docker's past the wrapper, as `docker run --gpus all`
// would.
func dockerContainer(t *testing.T, n *rig.Node, edits ...rig.Edit) *rig.Bundle {
	t.Helper()
	id := strings.Repeat("d0c4e5", 10) + "abcd"
	b := n.Bundle(id, append([]rig.Edit{rig.Light, func(s *specs.Spec) {
		s.Linux.CgroupsPath = strings.TrimSuffix(s.Linux.CgroupsPath, id) + "docker/" + id
	}}, edits...)...)
	for _, args := range [][]string{{"create", "--bundle", b.Dir, b.ID}, {"start", b.ID}} {
		if r := rig.Run(n.Real(args...)); r.Code != 0 {
			t.Fatalf("%s: %+v", args[0], r)
		}
	}
	return b
}

// found is a line of the audit log about a finding.
type found struct {
	Action, Finding, Container, Grant, Message, Command, Engine, Reaction string
	GPU                                                                   string
	Bytes                                                                 grant.Bytes
	PIDs                                                                  []int
	Pod                                                                   struct {
		UID, Namespace,
		Name, Container string
	}
}

func findings(t *testing.T, n *rig.Node, action, kind string) (list []found) {
	t.Helper()
	text, err := os.ReadFile(n.Dir + "/audit.jsonl")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var f found
		if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &f) == nil && f.Action == action &&
			f.Finding == kind {
			list = append(list, f)
		}
	}
	return list
}

// passes waits until the daemon has taken this many more samples of the GPUs.
func (s site) passes(more int) {
	s.t.Helper()
	samples := regexp.MustCompile(`(?m)^gpuledger_watch_samples_total (\d+)$`)
	count := func() int {
		m := samples.FindStringSubmatch(s.get("/metrics"))
		if m == nil {
			return 0
		}
		n, _ := strconv.Atoi(m[1])
		return n
	}
	first := count()
	rig.Eventually(s.t, fmt.Sprintf("%d more samples are taken", more),
		func() bool { return count() >= first+more })
}

// TestWatchFinds a process above its grant, a process of the node and a container of another
// runtime, names each, and stops none.
func TestWatchFinds(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			watchFinds(t)
		})
	}
}

func watchFinds(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: adopts + watches})
	d := n.Daemon("--nri", "off")
	s := siteOf(t, d)
	over := starts(t, n.Bundle("over", inPod("train"), allocated("train", "0", "4GiB"), rig.Light))
	within := starts(t, n.Bundle("within", with(n.Grant("--memory", "4GiB", "--gpu", "0")), rig.Light))
	other, host := dockerContainer(t, n), nodeProcess(t)
	g := gpusOf(t, n)
	g.runs(over.Init(), 0, 6*grant.GiB)
	g.runs(within.Init(), 0, 4*grant.GiB)
	g.runs(host, 1, grant.GiB)
	g.runs(other.Init(), 1, 2*grant.GiB)
	g.writeUse()
	s.eventually("/metrics", `gpuledger_findings_total{kind="over-grant"} 1`,
		`gpuledger_findings_total{kind="outside-ledger"} 2`, `kind="over-grant"} 2.147483648e+09`,
		`kind="outside-ledger"} 3.221225472e+09`, `container="train",gpu="`, `pod="job-0"} 6.442450944e+09`,
		"gpuledger_watch_working 1")
	owner := grant.ID("")
	for _, listed := range n.Grants() {
		if listed.Source == grant.Adopted {
			owner = listed.ID
		}
	}
	messages := []string{`container "train" of pod team/job-0 uses 6GiB of GPU 0, 2GiB more than the 4GiB ` +
		`of its grant ` + string(owner),
		fmt.Sprintf("process %d (busybox) of the node uses 1GiB of GPU 1 without a grant", host),
		"container " + other.ID[:12] + " of docker uses 2GiB of GPU 1 without a grant"}
	for _, message := range messages {
		s.eventually("/", strings.ReplaceAll(message, `"`, "&#34;"))
	}
	logged := findings(t, n, "found", "over-grant")
	if len(logged) != 1 || logged[0].Message != messages[0] || logged[0].Container != "over" ||
		logged[0].Grant != string(owner) || !slices.Equal(logged[0].PIDs, []int{over.Init()}) ||
		logged[0].Pod.Namespace != "team" || logged[0].Pod.Name != "job-0" ||
		logged[0].Pod.Container != "train" || logged[0].Bytes != 2*grant.GiB ||
		logged[0].Reaction != "report" {
		t.Errorf("the audit log has %+v", logged)
	}
	for _, f := range findings(t, n, "found", "outside-ledger") {
		ofHost := f.Container == "" && slices.Equal(f.PIDs, []int{host}) && f.Message == messages[1] &&
			f.Command == "busybox"
		ofOther := f.Container == other.ID && f.Engine == "docker" &&
			slices.Equal(f.PIDs, []int{other.Init()}) && f.Message == messages[2]
		if !ofHost && !ofOther {
			t.Errorf("the audit log has %+v", f)
		}
	}
	inspected(t, n, "USED GiB", "10.0", "over-grant: "+messages[0], "outside-ledger: "+messages[2])
	s.passes(10)
	for _, pid := range []int{over.Init(), within.Init(), host, other.Init()} {
		if pid == 0 || !rig.Lives(pid) {
			t.Error("a process was stopped though the policy only reports")
		}
	}
	g.use.Processes = nil
	g.writeUse()
	s.eventually("/metrics", `gpuledger_watch_working 1`)
	rig.Eventually(t, "the end of a finding is reported", func() bool {
		return len(findings(t, n, "over", "over-grant")) == 1 &&
			len(findings(t, n, "over", "outside-ledger")) == 2 &&
			!strings.Contains(s.get("/metrics"), "gpuledger_findings{")
	})
}

// inspected waits until `gpuledger inspect` shows all of it. The daemon writes the file that
// inspect reads behind its metrics, and a file of some seconds ago says nothing about now.
func inspected(t *testing.T, n *rig.Node, wanted ...string) {
	t.Helper()
	var r rig.Result
	defer func() {
		if t.Failed() {
			t.Logf("inspect printed at last:\n%s%s", r.Stdout, r.Stderr)
		}
	}()
	rig.Eventually(t, fmt.Sprintf("inspect shows %q", wanted), func() bool {
		r = n.CLI("inspect", "--details")
		text := strings.Join(strings.Fields(r.Stdout), " ")
		return !slices.ContainsFunc(wanted, func(want string) bool { return !strings.Contains(text, want) })
	})
	inColumns(t, r.Stdout)
}

// inColumns compares the output with the width that every terminal has.
func inColumns(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestWatchStops the containers that the policy names, with all of their processes, and none of 200
// others.
func TestWatchStops(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			watchStops(t)
		})
	}
}

// many is a container's program with four processes beside its first.
var many = rig.Shell("for i in 1 2 3 4; do /bin/busybox sleep 1000 & done; wait")

func watchStops(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: watches + stops})
	s := siteOf(t, n.Daemon("--nri", "off"))
	g := gpusOf(t, n)
	var allowed []int
	for i := range 150 {
		pid := nodeProcess(t)
		allowed = append(allowed, pid)
		if i%3 == 0 { // outside the ledger, and of the node
			g.runs(pid, 1, 16*grant.MiB)
		}
	}
	full := func(b *rig.Bundle) []int {
		rig.Eventually(t, "its processes are there", func() bool { return len(b.Processes()) == 5 })
		return b.Processes()
	}
	for i := range 5 {
		b := starts(t, n.Bundle(fmt.Sprintf("within%d", i),
			with(n.Grant("--memory", "1GiB", "--gpu", "0")), rig.Light, many))
		g.runs(b.Init(), 0, 900*grant.MiB)
		allowed = append(allowed, full(b)...)
		allowed = append(allowed, full(starts(t, n.Bundle(fmt.Sprintf("without%d", i),
			rig.Light, many)))...)
	}
	over := starts(t, n.Bundle("over", with(n.Grant("--memory", "1GiB", "--gpu", "0")), rig.Light, many))
	context := starts(t, n.Bundle("context", with(n.Grant("--memory", "1GiB", "--gpu", "0")), rig.Light,
		many))
	allowed = append(allowed, full(context)...)
	other := dockerContainer(t, n, many)
	offenders := full(over)
	rig.Eventually(t, "the other runtime's processes are there", func() bool {
		return len(below(n, other)) == 5
	})
	offenders = append(offenders, below(n, other)...)
	if len(allowed) < 200 {
		t.Fatalf("%d allowed processes", len(allowed))
	}
	g.runs(over.Init(), 0, 3*grant.GiB)
	g.runs(context.Init(), 0, 1400*grant.MiB) // 1 GiB and what a context takes
	g.runs(other.Init(), 1, grant.GiB)
	g.writeUse()
	rig.Eventually(t, "both are stopped, with all that is in them", func() bool {
		return !slices.ContainsFunc(offenders, rig.Lives)
	})
	rig.Eventually(t, "that is in the audit log", func() bool {
		return len(findings(t, n, "stopped", "over-grant")) == 1 &&
			len(findings(t, n, "stopped", "outside-ledger")) == 1
	})
	s.eventually("/metrics", `gpuledger_containers_stopped_total{kind="over-grant"} 1`,
		`gpuledger_containers_stopped_total{kind="outside-ledger"} 1`)
	if f := findings(t, n, "stopped", "over-grant")[0]; f.Container != "over" || f.Reaction != "stop" ||
		!strings.Contains(f.Message, "stopped, 5 processes, after ") {
		t.Errorf("the audit log has %+v", f)
	}
	s.passes(10)
	for _, pid := range allowed {
		if !rig.Lives(pid) {
			t.Errorf("process %d was stopped too", pid)
		}
	}
	if f := findings(t, n, "stopped", "outside-ledger"); len(f) != 1 || f[0].Container != other.ID {
		t.Errorf("stopped were %+v", f)
	}
}

// TestWatchStopsAPausedContainer: on cgroup v1 its processes do not end before it goes on. Until
// then it is recorded as not stopped, and as stopped then.
func TestWatchStopsAPausedContainer(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: watches + stops})
	s := siteOf(t, n.Daemon("--nri", "off"))
	b := starts(t, n.Bundle("paused", with(n.Grant("--memory", "1GiB", "--gpu", "0")), rig.Light, many))
	rig.Eventually(t, "its processes are there", func() bool { return len(b.Processes()) == 5 })
	succeeds(t, rig.Run(n.Real("pause", b.ID)))
	g := gpusOf(t, n)
	g.runs(b.Init(), 0, 3*grant.GiB)
	g.writeUse()
	recorded := func(action string) bool { return len(findings(t, n, action, "over-grant")) == 1 }
	rig.Eventually(t, "it is recorded as not stopped", func() bool { return recorded("not-stopped") })
	if recorded("stopped") || !rig.Lives(b.Init()) {
		t.Error("it is stopped while it is paused")
	}
	succeeds(t, rig.Run(n.Real("resume", b.ID)))
	rig.Eventually(t, "it is recorded as stopped", func() bool { return recorded("stopped") })
	s.eventually("/metrics", `gpuledger_containers_stopped_total{kind="over-grant"} 1`)
	if f := findings(t, n, "stopped", "over-grant")[0]; f.Container != "paused" ||
		!strings.Contains(f.Message, "stopped, 5 processes, after ") {
		t.Errorf("the audit log has %+v", f)
	}
}

// below are the processes of a container that is not in the rig's cgroup.
func below(n *rig.Node, b *rig.Bundle) (pids []int) {
	init := b.Init()
	if init == 0 {
		return nil
	}
	pids = append(pids, init)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", init, init))
	for field := range strings.FieldsSeq(string(children)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestWatchStopsContainersOfAnyRuntime: a container that was started by hand, in a cgroup of any
// name; but not a process that only has a pid namespace.
func TestWatchStopsContainersOfAnyRuntime(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: watches + stops})
	s := siteOf(t, n.Daemon("--nri", "off"))
	b := n.Bundle("byhand", rig.Light)
	for _, args := range [][]string{{"create", "--bundle", b.Dir, b.ID}, {"start", b.ID}} {
		if r := rig.Run(n.Real(args...)); r.Code != 0 {
			t.Fatalf("%s: %+v", args[0], r)
		}
	}
	alone := exec.Command("unshare", "--pid", "--fork", "--kill-child", "busybox", "sleep", "1000")
	alone.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, alone.Start())
	t.Cleanup(func() { _ = alone.Process.Kill(); _ = alone.Wait() })
	child := 0
	rig.Eventually(t, "it has a child", func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", alone.Process.Pid, alone.Process.Pid))
		_, err := fmt.Sscan(string(text), &child)
		return err == nil
	})
	g := gpusOf(t, n)
	g.runs(b.Init(), 0, grant.GiB)
	g.runs(child, 1, grant.GiB)
	g.writeUse()
	rig.Eventually(t, "the container is stopped", func() bool { return b.Init() == 0 })
	s.eventually("/metrics", `gpuledger_containers_stopped_total{kind="outside-ledger"} 1`)
	s.passes(10)
	if !rig.Lives(child) || !rig.Lives(alone.Process.Pid) {
		t.Error("a process in a private pid namespace was stopped")
	}
}

// TestWatchStopsNoExemptContainer, nor any where refusals are only recorded, or while the grace
// time lasts.
func TestWatchStopsNoExemptContainer(t *testing.T) {
	for name, c := range map[string]struct{ config, reaction string }{
		"report mode": {watches + stops + "mode = \"report\"\n", "report"},
		"grace":       {strings.Replace(watches, "50ms", "1h", 1) + stops, "stop"},
	} {
		t.Run(name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Config: c.config})
			s := siteOf(t, n.Daemon("--nri", "off"))
			other := dockerContainer(t, n)
			g := gpusOf(t, n)
			g.runs(other.Init(), 0, grant.GiB)
			g.writeUse()
			s.eventually("/metrics", `gpuledger_findings_total{kind="outside-ledger"} 1`)
			s.passes(10)
			if f := findings(t, n, "found", "outside-ledger"); len(f) != 1 || f[0].Reaction != c.reaction {
				t.Errorf("the audit log has %+v", f)
			}
			if other.Init() == 0 {
				t.Error("it was stopped")
			}
		})
	}
}

// TestWatchExempts the containers that the policy lets use GPUs without a grant: by the spec that
// the real runtime got, and the identity from its engine.
func TestWatchExempts(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: watches + stops +
		"[[policy.exempt]]\nnamespace = \"gpu-operator\"\n"})
	s := siteOf(t, n.Daemon("--nri", "off"))
	id := strings.Repeat("ab", 32)
	exempt := starts(t, n.Bundle(id, rig.Identity("7a1c0000-0000-4000-8000-00000000000b", "gpu-operator",
		"dcgm", "exporter"), rig.Light))
	g := gpusOf(t, n)
	g.runs(exempt.Init(), 0, grant.GiB)
	g.writeUse()
	s.eventually("/metrics", `"} 1.073741824e+09`)
	s.passes(10)
	if found := findings(t, n, "found", "outside-ledger"); len(found) != 0 || exempt.Init() == 0 {
		t.Errorf("found %+v", found)
	}
	// A user of the node gives its own cgroup the exempt container's name.
	pretender := nodeProcess(t)
	own := filepath.Join(filepath.Dir(cgroupOf(t, exempt)), "session", "docker-"+id+".scope")
	must(t, os.MkdirAll(own, 0o755), os.WriteFile(own+"/cgroup.procs", fmt.Append(nil, pretender), 0o600))
	g.runs(pretender, 1, 2*grant.GiB)
	g.writeUse()
	rig.Eventually(t, "it is found, and ended by its own cgroup", func() bool {
		return len(findings(t, n, "found", "outside-ledger")) == 1 && !rig.Lives(pretender)
	})
	s.passes(5)
	if exempt.Init() == 0 {
		t.Error("the container whose name was used was stopped")
	}
}

// cgroupOf is the cgroup of a container's processes, in the hierarchy that guards the devices.
func cgroupOf(t *testing.T, b *rig.Bundle) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/devices/cgroup.procs"); err == nil {
		root += "/devices"
	}
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/cgroup", b.Init()))) {
		if _, path, found := strings.Cut(line, ":devices:"); found {
			return root + strings.TrimSpace(path)
		}
	}
	_, path, _ := strings.Cut(read(t, fmt.Sprintf("/proc/%d/cgroup", b.Init())), "0::")
	return root + strings.TrimSpace(path)
}

// TestMemoryInUseIsNotGranted: memory that is in use outside the ledger is granted to no container,
// also while no daemon runs, until a sample shows that it is free.
func TestMemoryInUseIsNotGranted(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: watches})
	d := n.Daemon("--nri", "off")
	g := gpusOf(t, n)
	g.runs(nodeProcess(t), 0, 12*grant.GiB)
	g.writeUse()
	ask := func() int { return n.CLI("grant", "--memory", "8GiB", "--gpu", "0", "--ttl", "1h").Code }
	free := func(want grant.Bytes) func() bool {
		return func() bool {
			var list struct{ GPUs []struct{ Free grant.Bytes } }
			must(t, json.Unmarshal([]byte(n.Must("gpus", "--json")), &list))
			return list.GPUs[0].Free == want
		}
	}
	rig.Eventually(t, "what is used counts as taken", free(16160*grant.MiB-12*grant.GiB))
	if code := ask(); code != 5 {
		t.Errorf("a grant that does not fit beside it: status %d", code)
	}
	d.End(syscall.SIGKILL)
	if code := ask(); code != 5 {
		t.Errorf("while no daemon watches: status %d", code)
	}
	g.use.Processes = nil
	g.writeUse()
	n.Daemon("--nri", "off")
	rig.Eventually(t, "it is free again", free(16160*grant.MiB))
	if code := ask(); code != 0 {
		t.Errorf("a grant that fits: status %d", code)
	}
}

// TestWatchReportsThatItIsBlind, keeps the known use as taken, serves, and samples again later.
func TestWatchReportsThatItIsBlind(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: watches})
	d := n.Daemon("--nri", "off")
	s := siteOf(t, d)
	g := gpusOf(t, n)
	g.use.GPUs = []simulated.GPUReading{{GPU: 0, Hidden: simulated.Memory(4 * grant.GiB)},
		{GPU: 1, XIDs: []int{79}, Health: "it fell off the bus"}}
	g.writeUse()
	s.eventually("/metrics", `gpuledger_findings_total{kind="unexplained"} 1`,
		`gpuledger_findings_total{kind="gpu-lost"} 1`, `kind="unexplained"} 4.294967296e+09`)
	s.eventually("/", "GPU 1 does not answer: it fell off the bus",
		"4GiB of GPU 0 are in use and no process accounts for them")
	g.write([]byte("{garbage"))
	s.eventually("/metrics", "gpuledger_watch_working 0", `gpuledger_manager_failing{manager="watch"} 1`)
	s.eventually("/", "cannot tell what is used of the GPUs: cannot read what is used of simulated GPUs")
	if code := n.CLI("grant", "--memory", "14GiB", "--gpu", "0").Code; code != 5 {
		t.Errorf("what was known to be used is granted: status %d", code)
	}
	g.use.GPUs = nil
	g.writeUse()
	s.eventually("/metrics", "gpuledger_watch_working 1", `gpuledger_manager_failing{manager="watch"} 0`)
	if got := strings.Count(d.Log(), "cannot tell what is used"); got != 1 {
		t.Errorf("it is logged %d times", got)
	}
}

// TestMeasure: what the daemon measures can be measured by hand.
func TestMeasure(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	g := gpusOf(t, n)
	g.runs(os.Getpid(), 1, grant.GiB)
	g.writeUse()
	var sample grant.Sample
	must(t, json.Unmarshal([]byte(n.Must("inventory", "measure")), &sample))
	if len(sample.GPUs) != 2 || sample.GPUs[1].Used != grant.GiB ||
		sample.GPUs[1].Processes[0].PID != os.Getpid() || time.Since(sample.Taken) > time.Hour {
		t.Errorf("%+v", sample)
	}
}

// TestPowerAndTemperature: power and temperature from NVML reach the metrics and the page through
// the child that samples NVML.
func TestPowerAndTemperature(t *testing.T) {
	n := nodeOfDriver(t, "580.65.06", rig.Setup{Config: shows("127.0.0.1:0")})
	s := siteOf(t, n.Daemon("--nri", "off"))
	gpu := `{gpu="GPU-00000000-fa4e-d41e-0000-000000000002"} `
	s.eventually("/metrics", "gpuledger_gpu_power_watts"+gpu+"61.5\n", "gpuledger_gpu_temperature_celsius"+
		gpu+"41\n")
	s.eventually("/", "61 W", "40 °C")
}

// TestTheWatchReplacesARecordThatCannotBeRead of what is in use outside the ledger. Nothing can be
// granted by it, and the watch itself reads it with the ledger. At no time is a GPU granted that is
// in use.
func TestTheWatchReplacesARecordThatCannotBeRead(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{GPUs: 2, Config: watches})
	s := siteOf(t, n.Daemon("--nri", "off"))
	g := gpusOf(t, n)
	g.runs(nodeProcess(t), 0, grant.GiB)
	g.writeUse()
	whole := func(gpu string) rig.Result { return n.CLI("grant", "--mode", "exclusive", "--gpu", gpu) }
	s.eventually("/metrics", `kind="outside-ledger"} 1`)
	for name, text := range map[string]string{"garbage": "garbage", "too long": strings.Repeat(" ", 2<<20),
		"the ledger has changed, too": ""} {
		// the pass that has replaced the record has also looked at what it wrote
		s.passes(2)
		if text == "" { // so that the watch reads it again
			n.Write("state/grants/.changed", "")
		}
		n.Write("run/outside.json", text)
		granted := false
		rig.Eventually(t, "a GPU that is free is granted", func() bool {
			if r := whole("0"); r.Code == 0 {
				granted = true
			}
			return whole("1").Code == 0
		})
		if granted {
			t.Errorf("%s: a GPU is granted that is in use", name)
		}
		for _, g := range n.Grants() {
			must(t, errorOf(n.CLI("release", string(g.ID))))
		}
	}
}

func errorOf(r rig.Result) error {
	if r.Code != 0 {
		return fmt.Errorf("%+v", r)
	}
	return nil
}

// TestWatchStopsNoAdmittedContainer: the entry of its grant cannot be read, or is missing since the
// state directory was restored. The container was admitted, so it is reported and not stopped. One
// that was not is stopped meanwhile.
func TestWatchStopsNoAdmittedContainer(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{"missing": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }} {
		t.Run(name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Config: watches + stops})
			grant := n.Grant("--memory", "4GiB")
			admitted := starts(t, n.Bundle("admitted", with(grant), rig.Light))
			other := dockerContainer(t, n)
			must(t, spoil(n.Dir+"/state/grants/"+string(grant.ID)+".json"))
			s := siteOf(t, n.Daemon("--nri", "off"))
			g := gpusOf(t, n)
			g.runs(admitted.Init(), 0, 1<<30)
			g.runs(other.Init(), 0, 1<<30)
			g.writeUse()
			rig.Eventually(t, "the other container is stopped", func() bool { return other.Init() == 0 })
			s.passes(20)
			if admitted.Init() == 0 {
				t.Error("it is stopped")
			}
			s.eventually("/metrics", `kind="outside-ledger"} 1`)
		})
	}
}
