package node_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// TestTheStateOfAnMPSDaemonIsVerified: what gpuledgerd wrote about an MPS daemon counts only if it
// is of this boot and this format, and if the kernel agrees.
func TestTheStateOfAnMPSDaemonIsVerified(t *testing.T) {
	m := newModel(t)
	g, reference, err := grants.Enter(m.node, admission.Ask{
		Mode: grant.MPS, Owner: grant.Bearer, Memory: grant.GiB})
	m.must(err)
	dir := grant.MPSDir(m.node.Policy.RunDir, grant.MPSName(g.UUIDs()))
	m.must(os.MkdirAll(filepath.Join(dir, "pipe"), 0o755))
	t.Chdir(filepath.Join(dir, "pipe")) // a socket's path is short
	listener, err := net.Listen("unix", "control")
	m.must(err)
	defer listener.Close()
	privileged, err := net.Listen("unix", "control_privileged")
	m.must(err)
	defer privileged.Close()
	self, err := m.node.Host.Self()
	m.must(err)
	dead := exec.Command("true")
	m.must(dead.Run())
	good := grant.MPSDaemon{GPUs: g.UUIDs(), Daemon: self, Servers: []grant.Process{self},
		Limits: map[string]grant.Bytes{uuid(0): grant.GiB}, Threads: 100}
	forAll := good
	forAll.Anybody = true
	m.must(os.Chmod("control", 0o777))
	file := filepath.Join(dir, "state.json")
	rewrite := func(old, new string) {
		data, err := os.ReadFile(file)
		m.must(err)
		text := strings.Replace(string(data), old, new, 1)
		if text == string(data) {
			t.Fatalf("%s is not in %s", old, data)
		}
		m.must(os.WriteFile(file, []byte(text), 0o600))
	}
	config := fmt.Sprintf(`{"annotations":{"gpuledger.dev/grant":%q},"process":{},`+
		`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, reference)
	for _, c := range []struct {
		name   string
		change func()
		want   string
	}{
		{"as written", func() {}, ""},
		{"a dead daemon", func() {
			gone := good
			gone.Daemon = grant.Process{PID: dead.Process.Pid, Start: 1}
			m.must(mpsstate.Write(m.node.Host, dir, gone))
		}, "has ended"},
		{"a dead server", func() {
			gone := good
			gone.Servers = append(gone.Servers, grant.Process{PID: self.PID, Start: self.Start + 1})
			m.must(mpsstate.Write(m.node.Host, dir, gone))
		}, "has ended"},
		{"a problem", func() { rewrite(`"problem": ""`, `"problem": "deaf"`) }, "deaf"},
		{"a newer format", func() { rewrite(`"version": 1`, `"version": 2`) }, "no daemon runs"},
		{"another boot", func() { rewrite(`"boot_id": "`, `"boot_id": "9`) }, "no daemon runs"},
		{"half a file", func() { rewrite("}", "") }, "no daemon runs"},
		{"the control socket that it was", func() {
			known := good
			known.Socket, _, _ = mpsstate.Socket(mpsstate.SocketPath(dir))
			m.must(mpsstate.Write(m.node.Host, dir, known))
		}, ""},
		{"another control socket", func() {
			other := good
			other.Socket, _, _ = mpsstate.Socket(mpsstate.SocketPath(dir))
			other.Socket[1]++
			m.must(mpsstate.Write(m.node.Host, dir, other))
		}, "its control socket was replaced by another"},
		{"the control socket for root that it was", func() {
			known := good
			known.Privileged, _, _ = mpsstate.Socket(mpsstate.PrivilegedPath(dir))
			m.must(mpsstate.Write(m.node.Host, dir, known))
		}, ""},
		{"another control socket for root", func() {
			other := good
			other.Privileged, _, _ = mpsstate.Socket(mpsstate.PrivilegedPath(dir))
			other.Privileged[1]++
			m.must(mpsstate.Write(m.node.Host, dir, other))
		}, "its control socket for root was replaced by another"},
		{"for all users", func() { m.must(mpsstate.Write(m.node.Host, dir, forAll)) }, ""},
		{"for all users, and closed to them", func() {
			m.must(mpsstate.Write(m.node.Host, dir, forAll))
			m.must(os.Chmod("control", 0o700))
		}, "users other than root do not reach its control socket"},
		{"for all users, in a directory that is closed to them", func() {
			m.must(mpsstate.Write(m.node.Host, dir, forAll))
			m.must(os.Chmod("control", 0o777))
			m.must(os.Chmod(".", 0o700))
		}, "users other than root do not reach its control socket"},
		{"closed to users that it is not for", func() { m.must(os.Chmod("control", 0o700)) }, ""},
		{"no control socket", func() { m.must(os.Remove("control")) }, "no control socket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.must(mpsstate.Write(m.node.Host, dir, good))
			c.change()
			d := m.node.Explain(node.Create{Caller: request.Caller{
				Container: grant.Container{ID: "c", RuntimeRoot: m.dir + "/none", Bundle: m.dir}},
				Config: []byte(config)})
			if c.want == "" && d.Kind != grant.Admit || c.want != "" &&
				(d.Code != grant.MPSNotReady || !strings.Contains(d.Message, c.want)) {
				t.Errorf("%s %s: %s, want %q", d.Kind, d.Code, d.Message, c.want)
			}
		})
	}
}

// TestACreateWaitsForItsMPSDaemon: a container may come with the first grant of its GPU. A daemon
// that does not work, and one that no gpuledgerd starts, are not waited for.
func TestACreateWaitsForItsMPSDaemon(t *testing.T) {
	m := newModel(t)
	_, reference, err := grants.Enter(m.node, admission.Ask{
		Mode: grant.MPS, Owner: grant.Bearer, Memory: grant.GiB})
	m.must(err)
	c := m.referring("early", reference)
	refused := func(why string, late bool) {
		t.Helper()
		if d := m.node.Admit(c); d.Code != grant.MPSNotReady || d.Late != late {
			t.Errorf("%s: %s (%s) %s, late: %v", why, d.Kind, d.Code, d.Message, d.Late)
		}
	}
	c.Timeout = 1 << 62 // it would hang
	refused("no gpuledgerd", true)
	m.runDaemon()
	m.serve(&holding{gpus: []int{0}})
	dir := grant.MPSDir(m.node.Policy.RunDir, grant.MPSName([]string{uuid(0)}))
	state, _ := mpsstate.Read(m.node.Host, dir)
	state.Problem = "cannot find a GPU"
	m.must(mpsstate.Write(m.node.Host, dir, state))
	refused("a daemon that does not work", false)
	state.Starting = true
	m.must(mpsstate.Write(m.node.Host, dir, state))
	c.Timeout = 0
	refused("without a timeout", true)
	c.Timeout = time.Hour
	served := make(chan bool)
	c.OnReading(m.node, sync.OnceFunc(func() { // it reads at each try
		go func() {
			defer close(served)
			m.serve(&holding{gpus: []int{0}})
		}()
	}))
	if d := m.node.Admit(c); !d.Bound {
		t.Errorf("started meanwhile: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	select {
	case <-served:
	case <-time.After(time.Minute):
		t.Error("it has not read")
	}
}

// runDaemon makes the node one on which gpuledgerd runs.
func (m *model) runDaemon() {
	lock := filepath.Join(m.node.Policy.RunDir, "gpuledgerd.lock")
	m.must(os.MkdirAll(m.node.Policy.RunDir, 0o755))
	m.must(os.WriteFile(lock, []byte("7\n"), 0o600))
	var held syscall.Stat_t
	m.must(syscall.Stat(lock, &held))
	m.must(os.WriteFile(filepath.Join(m.node.Host.Proc, "locks"),
		fmt.Appendf(nil, "1: FLOCK  ADVISORY  WRITE 7 fe:00:%d 0 EOF\n", held.Ino), 0o600))
}

// TestAGPUThatFailsBeforeItsMPSDaemonServes: a create that adopts a grant waits for the daemon of
// another GPU, once the inventory says that the first one's has failed.
func TestAGPUThatFailsBeforeItsMPSDaemonServes(t *testing.T) {
	m := newAdoptingModel(t)
	m.runDaemon()
	create := m.adopting("a")
	create.Config = bytes.Replace(create.Config, []byte(`"gpuledger.dev/memory.c"`),
		[]byte(`"gpuledger.dev/mode.c":"mps","gpuledger.dev/memory.c"`), 1)
	create.Timeout = time.Minute
	wanted := func() string {
		all := mpsstate.Wanted(m.node.Host, m.node.Policy.RunDir)
		if len(all) != 1 || len(all[0].GPUs) != 1 {
			return ""
		}
		return all[0].GPUs[0].UUID
	}
	card := func(id string) (i int) {
		_, err := fmt.Sscanf(id, "GPU-%d", &i)
		m.must(err)
		return i
	}
	decided := make(chan node.Decision, 1)
	go func() { decided <- m.node.Admit(create) }()
	first, served := "", ""
	for {
		select {
		case d := <-decided:
			if !d.Bound || served == "" || d.Grant.GPUs[0].UUID != served || wanted() != "" {
				t.Errorf("%s (%s) %s; served is %q, and still wanted %q", d.Kind, d.Code, d.Message, served,
					wanted())
			}
			return
		case <-time.After(time.Millisecond):
		}
		switch now := wanted(); {
		case now == "" || served != "":
		case first == "":
			first = now
			m.sick[card(first)] = true
			m.scan()
		case now != first:
			served = now
			m.serve(&holding{gpus: []int{card(served)}})
		}
	}
}

// TestMPSServes: a server is a process that gpuledgerd found, or that its daemon has started since,
// for the daemon's GPUs and as long as pid and start time match. Its name does not count.
func TestMPSServes(t *testing.T) {
	n := &node.Node{Host: host.Default(), Policy: grant.Policy{RunDir: t.TempDir()}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	self, err := n.Host.Self()
	must(err)
	cmd := exec.Command("sleep", "1000")
	must(cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	child, _, err := n.Host.Process(cmd.Process.Pid)
	must(err)
	above := exec.Command("sh", "-c", "sleep 1000 & echo $!; wait")
	out, err := above.StdoutPipe()
	must(err)
	must(above.Start())
	t.Cleanup(func() { _ = above.Process.Kill(); _ = above.Wait() })
	pid := 0
	_, err = fmt.Fscan(out, &pid)
	must(err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	grandchild, _, err := n.Host.Process(pid)
	must(err)
	first, _, err := n.Host.Process(1)
	must(err)
	later := func(p grant.Process) grant.Process { p.Start++; return p }
	dir := grant.MPSDir(n.Policy.RunDir, "0123")
	must(os.MkdirAll(dir, 0o755))
	for _, c := range []struct {
		name  string
		state grant.MPSDaemon
		p     grant.Process
		gpu   int
		want  bool
	}{
		{"one that is known", grant.MPSDaemon{Servers: []grant.Process{child}}, child, 0, true},
		{"on another GPU", grant.MPSDaemon{Servers: []grant.Process{child}}, child, 1, false},
		{"another of its pid", grant.MPSDaemon{Servers: []grant.Process{later(child)}}, child, 0, false},
		{"one that the daemon has started since", grant.MPSDaemon{Daemon: self}, child, 0, true},
		{"one that a child of the daemon has started", grant.MPSDaemon{Daemon: self}, grandchild, 0, true},
		{"a child of the process that has the daemon's pid now", grant.MPSDaemon{Daemon: later(self)}, child, 0, false},
		{"one that had the pid of the daemon's child", grant.MPSDaemon{Daemon: self}, later(child), 0, false},
		{"a process without a parent", grant.MPSDaemon{Daemon: self}, first, 0, false},
		{"the daemon itself", grant.MPSDaemon{Daemon: self}, self, 0, false},
		{"no daemon", grant.MPSDaemon{}, child, 0, false},
	} {
		c.state.GPUs = []string{uuid(0)}
		must(mpsstate.Write(n.Host, dir, c.state))
		if got := mpsstate.Serves(n.Host, n.Policy.RunDir, uuid(c.gpu), c.p); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
