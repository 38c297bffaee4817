package sim

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// ownPID hides this process's pid, which is part of the names of drafts.
var ownPID = strings.NewReplacer("."+strconv.Itoa(os.Getpid())+"-", ".PID-")

const (
	names    = 8 // of containers
	observer = 2 // the pid of the scheduler itself
	card     = 8 * grant.GiB
)

// machine is the virtual node: /proc, cgroups, the boot and the clock.
type machine struct {
	dir    string
	boots  int
	ticks  uint64
	now    time.Time
	latest time.Time // of all times that the clock has shown
	pids   map[int]bool
	gpus   int
	sick   []bool

	divisions []division // of each GPU

	template *node.Node      // with the configuration, which every process has read
	made     map[string]bool // directories that write has made
	changes  int             // of what tells whether containers run
}

func (m *machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// write writes a file as the kernel would show it. No process runs meanwhile.
func (m *machine) write(text string, parts ...string) {
	path := m.path(parts...)
	if dir := filepath.Dir(path); !m.made[dir] {
		must(os.MkdirAll(dir, 0o755))
		m.made[dir] = true
	}
	must(os.WriteFile(path, []byte(text), 0o600))
}

// remove removes a directory with all that is in it.
func (m *machine) remove(parts ...string) {
	path := m.path(parts...)
	must(os.RemoveAll(path))
	for dir := range m.made {
		if dir == path || strings.HasPrefix(dir, path+"/") {
			delete(m.made, dir)
		}
	}
}

const config = `state_dir = %q
run_dir = %q
engine = "containerd"
[inventory]
source = "simulated"
file = "x"
[enforcement]
limit = "library"
shim = %q
[annotations]
trust = "adopt"
[ask]
engines = ["podman"]
modes = ["limit", "exclusive"]
mode = "limit"
[audit]
file = ""
` + quotas

func newMachine(dir string, gpus int) *machine {
	m := &machine{dir: dir, gpus: gpus, made: map[string]bool{}, sick: make([]bool, gpus),
		divisions: make([]division, gpus),
		now:       time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	m.latest = m.now
	m.write(fmt.Sprintf(config, m.path("state"), m.path("run"), m.path("shim")), "config.toml")
	must(os.Mkdir(m.path("state"), 0o700))
	m.write("Character devices:\n", "proc/devices")
	for _, ns := range []string{"pid", "time", "cgroup"} {
		must(os.MkdirAll(m.path("proc/self/ns"), 0o755))
		must(os.MkdirAll(m.path("proc/1/ns"), 0o755))
		must(os.Symlink("/proc/self/ns/"+ns, m.path("proc/self/ns", ns)))
		must(os.Symlink("/proc/self/ns/"+ns, m.path("proc/1/ns", ns)))
	}
	m.write("0::/\n", "proc/self/cgroup")
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		m.write(libraryHead(), "shim", name)
	}
	m.boot()
	return m
}

// libraryHead is the beginning of a library of this architecture, which is all that is looked at.
func libraryHead() string {
	head := []byte("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 13))
	head[16] = byte(elf.ET_DYN)
	head[18] = byte(map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH])
	return string(head)
}

// boot gives the node another boot id. No process survives it.
func (m *machine) boot() {
	m.boots++
	m.ticks = 1
	for pid := range m.pids {
		m.remove("proc", strconv.Itoa(pid))
	}
	m.pids = map[int]bool{}
	m.write(fmt.Sprintf("00000000-0000-0000-0000-%012d\n", m.boots), "proc/sys/kernel/random/boot_id")
	m.remove("runc")
	must(os.Mkdir(m.path("runc"), 0o700))
	for i := range names {
		m.populate(i, 0)
	}
	m.process(1, 1, "/", 0)
	m.process(observer, 1, "/", 1)
}

// populate sets how many processes are in a container's cgroup.
func (m *machine) populate(container, count int) {
	m.changes++
	text := fmt.Sprintf("populated %d\n", min(count, 1))
	m.write(text, "sys/fs/cgroup", cgroupOf(container), "cgroup.events")
}

func nameOf(container int) string   { return fmt.Sprintf("c%d", container) }
func cgroupOf(container int) string { return "/sim/" + nameOf(container) }

func (m *machine) process(pid int, start uint64, cgroup string, parent int) {
	m.write(fmt.Sprintf("%d (x) S %d 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d", pid, parent, start), "proc",
		strconv.Itoa(pid), "stat")
	m.write("0::"+cgroup+"\n", "proc", strconv.Itoa(pid), "cgroup")
}

// fork starts a process with the lowest free pid.
func (m *machine) fork(cgroup string) (pid int, start uint64) { return m.child(cgroup, 1) }

// child starts a process of a parent.
func (m *machine) child(cgroup string, parent int) (pid int, start uint64) {
	for pid = observer + 1; m.pids[pid]; pid++ {
	}
	m.ticks++
	m.pids[pid] = true
	m.process(pid, m.ticks, cgroup, parent)
	return pid, m.ticks
}

func (m *machine) exit(pid int) {
	if m.pids[pid] {
		delete(m.pids, pid)
		m.remove("proc", strconv.Itoa(pid))
	}
}

// node opens the node as a process does.
func (m *machine) node(pid int) *node.Node {
	h := host.Host{Proc: m.path("proc"), Sys: m.path("sys"), Dev: m.path("dev"), PID: pid,
		Now: func() time.Time { return m.now }}
	if m.template == nil {
		m.template = node.Open(m.path("config.toml"), h)
		must(m.template.Broken)
	}
	n := *m.template
	n.Host = h
	n.Ledger = ledger.Open(ledger.Options{State: n.Policy.StateDir, Run: n.Policy.RunDir, Host: h})
	return &n
}

func uuid(i int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i) }

// scan takes the inventory.
func (m *machine) scan(n *node.Node) error {
	boot, err := n.Host.BootID()
	if err != nil {
		return err
	}
	inv := grant.Inventory{Version: 1, BootID: boot, Taken: m.now, Source: "simulated",
		Majors: map[string]int{"nvidia": 195, "nvidia-caps": 238}}
	inv.Driver.Root = "/"
	inv.Driver.Files = []grant.DriverFile{{Path: "/usr/lib/libcuda.so.1", Target: "/usr/lib",
		Kind: grant.FileLibrary, Bits: 64, Names: []string{"libcuda.so.1"}, Capability: grant.Compute}}
	for _, name := range []string{grant.MPSControl, grant.MPSServer} {
		inv.Driver.Files = append(inv.Driver.Files, grant.DriverFile{Kind: grant.FileBinary,
			Path: "/usr/bin/" + name, Target: "/usr/bin/" + name})
	}
	for i := range m.gpus {
		g := grant.GPU{UUID: uuid(i), Index: i, Minor: i, Name: "test", Memory: card, Health: grant.Healthy,
			MIG: m.migDevices(i)}
		if m.sick[i] {
			g.Health = "fell off the bus"
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return gpu.Write(gpu.Path(n.Policy.StateDir), inv)
}
