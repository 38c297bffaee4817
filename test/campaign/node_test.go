package campaign

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

const (
	gpus     = 8
	memory   = 16160 * grant.MiB // of each
	clockVar = "GPULEDGER_CLOCK" // internal/host, in a build with failpoints
)

// node is a node with a driver, MPS programs and engines, as seen by each runtime and engine.
type node struct {
	*rig.Node // runc, and containerd's identities
	crun      *rig.Node
	podman    *rig.Node
	hooks     string // Podman's directory of hooks
	ctr       *rig.Containerd
	image     string // a root file system whose files every container gets
	uuids     []string
	bootID    string // a file
	clock     string // a file
	daemon    *exec.Cmd
	mark      string // at which the daemon kills itself
	logged    int64  // how much of its log was read
}

const config = `
[daemon]
listen = "unix:{dir}/page.sock"
interval = "200ms"
[ask]
engines = ["containerd"]
max_memory = "2GiB"
[enforcement]
shim = "{dir}/shim"
`

// newNode makes the node. Its ledger lies on two small file systems, which faults can fill.
func newNode(t *testing.T) *node {
	t.Helper()
	rig.Need(t, "gcc")
	rig.Mount(t, "tmpfs", "/mnt", "tmpfs", 0, "mode=755")
	t.Setenv("TMPDIR", "/mnt") // short enough for sockets, and open to every user
	n := &node{Node: rig.NewNode(t, rig.Setup{GPUs: gpus, Memory: memory.String(), Engine: "containerd",
		Tags: tags})}
	for name, size := range map[string]string{
		"state": "size=2m,nr_inodes=600", "run": "size=24m,nr_inodes=4k"} {
		small := filepath.Join(n.Dir, name)
		must(t, os.MkdirAll(small, 0o700), os.Rename(small, small+".was"), os.Mkdir(small, 0o700))
		rig.Mount(t, "tmpfs", small, "tmpfs", 0, "mode=700,"+size)
		must(t, os.CopyFS(small, os.DirFS(small+".was")))
	}
	n.build(t)
	text := strings.Replace(read(t, n.Config), "[inventory]\n",
		"[inventory]\ndriver_root = \""+n.Dir+"/driver\"\n", 1)
	text = strings.Replace(text, "[daemon]\nlisten = \"\"\n", "", 1) +
		strings.ReplaceAll(config, "{dir}", n.Dir)
	n.Write("config.toml", text)
	n.crun = n.as("crun", strings.Replace(text, `path = ["runc"]`, `path = ["crun"]`, 1))
	n.podman = n.as("podman", strings.Replace(text, `engine = "containerd"`, `engine = "podman"`, 1))
	n.podman.Runtime, n.crun.Runtime = "runc", "crun"
	n.clock = n.Write("clock", "0s")
	n.bootID = n.Write("boot_id", read(t, "/proc/sys/kernel/random/boot_id"))
	rig.Mount(t, n.bootID, "/proc/sys/kernel/random/boot_id", "", syscall.MS_BIND, "")
	for _, view := range []*rig.Node{n.Node, n.crun, n.podman} {
		view.Env = append(view.Env, clockVar+"="+n.clock)
	}
	n.takeInventory(t)
	n.ctr = n.Containerd()
	n.hooksDirectory(t)
	t.Cleanup(n.killMPS)
	return n
}

// as is the node with another configuration and a directory of its own for the runtime's states.
func (n *node) as(name, text string) *rig.Node {
	other := *n.Node
	other.Config = n.Write(name+".toml", text)
	other.Root = filepath.Join(n.Dir, "runtime-"+name)
	return &other
}

// build makes what a container and a driver have: the stand-ins of libcuda, NVML and MPS, the shim,
// a client, and the program that opens the nodes.
func (n *node) build(t *testing.T) {
	t.Helper()
	n.image = filepath.Join(n.Dir, "image")
	bin := filepath.Join(n.image, "bin")
	must(t, os.MkdirAll(bin, 0o755))
	control := n.Dir + "/driver/usr/bin/nvidia-cuda-mps-control"
	for _, args := range [][]string{
		{"../fakedriver/build.sh", n.Dir + "/driver"},
		{"../../shim/build.sh", n.Dir + "/shim"},
		{"gcc", "-O1", "-Wall", "-o", bin + "/gpu", "../testdata/gpu.c"},
		{"gcc", "-O1", "-Wall", "-static", "-o", bin + "/opens", "testdata/opens.c"},
		{"go", "build", "-p", "2", "-trimpath", "-o", control, "../fakemps"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	must(t, os.Link(control, filepath.Join(filepath.Dir(control), grant.MPSServer)),
		os.Link(control, bin+"/client"))
	loader, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
	must(t, err)
	libc := filepath.Dir(loader)
	image := strings.TrimPrefix(libc, "/usr")
	must(t, os.MkdirAll(filepath.Join(n.image, image), 0o755), os.MkdirAll(n.image+"/lib64", 0o755))
	for _, name := range []string{filepath.Base(loader), "libc.so.6", "libdl.so.2", "libpthread.so.0"} {
		must(t, os.WriteFile(filepath.Join(n.image, image, name), []byte(read(t, filepath.Join(libc, name))),
			0o755))
	}
	must(t, os.Symlink(filepath.Join(image, filepath.Base(loader)), n.image+"/lib64/ld-linux-x86-64.so.2"))
}

// takeInventory scans the node and notes the UUIDs of its GPUs.
func (n *node) takeInventory(t *testing.T) {
	t.Helper()
	n.Must("inventory", "refresh")
	var inv grant.Inventory
	must(t, json.Unmarshal([]byte(read(t, n.Dir+"/state/inventory.json")), &inv))
	n.uuids = make([]string, len(inv.GPUs))
	for i, g := range inv.GPUs {
		n.uuids[i] = g.UUID
	}
}

// hooksDirectory is the one that gpuledger ships for Podman, with this node's program and
// configuration.
func (n *node) hooksDirectory(t *testing.T) {
	t.Helper()
	n.hooks = filepath.Join(n.Dir, "hooks.d")
	must(t, os.MkdirAll(n.hooks, 0o755))
	files, err := filepath.Glob("../../configs/hooks.d/podman/*.json")
	must(t, err)
	for _, path := range files {
		text := strings.NewReplacer("/usr/bin/gpuledger-hook", rig.Binary(t, "gpuledger-hook", n.Tags...),
			`"GPULEDGER_CONFIG=/etc/gpuledger/config.toml"`,
			fmt.Sprintf("%q, %q", "GPULEDGER_CONFIG="+n.podman.Config, clockVar+"="+n.clock)).
			Replace(read(t, path))
		must(t, os.WriteFile(filepath.Join(n.hooks, filepath.Base(path)), []byte(text), 0o600))
	}
}

// bundle is a container's, with the image's files and the nodes that it tries to open.
func (n *node) bundle(view *rig.Node, id string, edits ...rig.Edit) *rig.Bundle {
	b := view.Bundle(id, append([]rig.Edit{rig.Light, n.book(id)}, edits...)...)
	rootfs := filepath.Join(b.Dir, "rootfs")
	if _, err := os.Stat(rootfs + "/tmp/nodes"); err == nil {
		return b
	}
	_ = filepath.WalkDir(n.image, func(path string, entry os.DirEntry, err error) error {
		to := filepath.Join(rootfs, strings.TrimPrefix(path, n.image))
		switch {
		case err != nil:
		case entry.IsDir():
			_ = os.MkdirAll(to, 0o755)
		case entry.Type().IsRegular():
			_ = os.Link(path, to)
		default:
			target, _ := os.Readlink(path)
			_ = os.Symlink(target, to)
		}
		return nil
	})
	_ = os.MkdirAll(rootfs+"/run", 0o755)
	_ = os.Mkdir(rootfs+"/tmp/nodes", 0o755)
	for _, minor := range append(every(gpus), controlMinor) {
		_ = syscall.Mknod(fmt.Sprintf("%s/tmp/nodes/%d", rootfs, minor), syscall.S_IFCHR|0o666, 195<<8|minor)
	}
	return b
}

// controlMinor is nvidiactl's: a container has it with its GPUs.
const controlMinor = 255

func every(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// book mounts the stand-in driver's record of a container's own GPUs.
func (n *node) book(id string) rig.Edit {
	dir := n.bookOf(id)
	_ = os.MkdirAll(dir, 0o777)
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/run/fakedriver", Type: "bind", Source: dir,
			Options: []string{"bind", "rw"}})
	}
}

func (n *node) bookOf(id string) string { return filepath.Join(n.Dir, "books", id) }

// showGPUs has the stand-in driver show a container these GPUs, of which nothing is allocated.
func (n *node) showGPUs(id string, indexes []int) {
	dir := n.bookOf(id)
	_ = os.MkdirAll(dir, 0o777)
	left, _ := os.ReadDir(dir)
	for _, e := range left {
		_ = os.RemoveAll(filepath.Join(dir, e.Name()))
	}
	n.listGPUs(id, indexes)
}

// listGPUs has it show these to programs that start from now on.
func (n *node) listGPUs(id string, indexes []int) {
	devices := "context 1\n"
	for _, i := range indexes {
		devices += fmt.Sprintf("%s %d Stand-in\n", n.uuids[i], memory/grant.MiB)
	}
	_ = os.WriteFile(n.bookOf(id)+"/devices", []byte(devices), 0o644)
}

// startDaemon starts gpuledgerd; at a point it kills itself. Without one it has taken its lock when
// startDaemon returns: one that starts while the run directory is read-only ends, rightly.
func (n *node) startDaemon(point string) {
	n.T.Helper()
	view := n.Node
	n.mark = point
	if point != "" {
		view = n.Dying(point)
	}
	log, err := os.OpenFile(n.Dir+"/gpuledgerd.log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		n.T.Fatal(err)
	}
	defer log.Close()
	n.daemon = view.Command(rig.Binary(n.T, "gpuledgerd", n.Tags...), "--nri", "off",
		"--runtime-root", n.Root, "--runtime-root", n.crun.Root)
	n.daemon.Stdout, n.daemon.Stderr = log, log
	n.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.daemon.Start(); err != nil {
		n.T.Fatal(err)
	}
	if point == "" {
		rig.Within(n.T, time.Minute, "gpuledgerd has its lock", func() bool {
			pid, _ := os.ReadFile(n.Dir + "/run/gpuledgerd.lock")
			return string(pid) == fmt.Sprintln(n.daemon.Process.Pid)
		})
	}
}

// killDaemon reports whether it still ran, and how it has ended.
func (n *node) killDaemon() (ran bool, how string) {
	if n.daemon == nil {
		return false, "it was not started"
	}
	ran = rig.Lives(n.daemon.Process.Pid)
	_ = n.daemon.Process.Kill()
	_ = n.daemon.Wait()
	how = n.daemon.ProcessState.String()
	n.daemon = nil
	return ran, how
}

// killMPS ends gpuledgerd, and what runs of MPS, which outlives it.
func (n *node) killMPS() {
	n.killDaemon()
	n.EndMPS()
}

// processesOf are the living processes of a program; all its hard links count.
func processesOf(program string) (pids []int) {
	is, err := os.Stat(program)
	if err != nil {
		return nil
	}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		of, err := os.Stat(link)
		var pid int
		if err != nil || !os.SameFile(is, of) {
			continue
		}
		if _, err := fmt.Sscanf(link, "/proc/%d/exe", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
