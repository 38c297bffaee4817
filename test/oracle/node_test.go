package oracle_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/test/oracle"
)

// Majors of the test node's driver beside 195.
const majorUVM, majorCaps, majorIMEX, majorSwitch = 508, 509, 510, 507

// testNode is a node of four GPUs with a guard and an oracle for it.
type testNode struct {
	dir    string
	world  oracle.World
	guards map[string]*node.Node // by policy
	grants []held                // the first is none
	gpus   []grant.GPU

	mounted []string // the mounts that the kubelet has made for a pod
}

// held is a grant, and what it gives.
type held struct {
	reference grant.Reference
	gives     map[string]bool // as oracle.Way.Needs
}

var policies = []string{"default", "hide", "strip", "lenient"}

var rules = map[string]string{
	"hide":    "[policy]\nungranted = \"hide\"\n",
	"strip":   "[policy]\nprivileged = \"strip\"\n",
	"lenient": "[policy]\nungranted = \"hide\"\nprivileged = \"strip\"\n",
}

func newTestNode(t testing.TB) *testNode {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	s := &testNode{dir: dir, guards: map[string]*node.Node{}, grants: []held{{}}}
	h := s.host(t)
	d, err := simulated.Describe(4, 16*grant.GiB, "", nil)
	must(t, err)
	inv, err := simulated.Scan(d, h, "/")
	must(t, err)
	must(t, os.MkdirAll(dir+"/state", 0o700), os.MkdirAll(dir+"/run", 0o700),
		gpu.Write(gpu.Path(dir+"/state"), inv))
	s.gpus = inv.GPUs
	for _, policy := range policies {
		config := filepath.Join(dir, policy+".toml")
		text := fmt.Sprintf("state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\n"+
			"file = \"/dev/null\"\n[audit]\nfile = \"\"\n", dir+"/state", dir+"/run")
		must(t, os.WriteFile(config, []byte(text+rules[policy]), 0o600))
		s.guards[policy] = node.Open(config, h)
		must(t, s.guards[policy].Broken)
	}
	s.devices(t)
	s.volumes(t)
	s.grant(t, grant.Limit, 0)
	s.grant(t, grant.Limit, 0, 1)
	s.grant(t, grant.Exclusive, 2)
	return s
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// host is a machine with a driver in /proc/devices.
func (s *testNode) host(t testing.TB) host.Host {
	must(t, os.MkdirAll(s.dir+"/proc/sys/kernel/random", 0o755), os.MkdirAll(s.dir+"/sys", 0o755),
		os.MkdirAll(s.dir+"/bundle", 0o755),
		os.WriteFile(s.dir+"/proc/sys/kernel/random/boot_id",
			[]byte("11111111-2222-3333-4444-555555555555\n"), 0o644),
		os.WriteFile(s.dir+"/proc/devices",
			[]byte(fmt.Sprintf("Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n%d nvidia-uvm\n"+
				"%d nvidia-caps\n%d nvidia-caps-imex-channels\n%d nvidia-nvswitch\n\nBlock devices:\n"+
				"  7 loop\n",
				majorUVM, majorCaps, majorIMEX, majorSwitch)), 0o644),
		os.Symlink("/proc/self", s.dir+"/proc/self"),
		os.Symlink("/proc/thread-self", s.dir+"/proc/thread-self"))
	return host.Host{Proc: s.dir + "/proc", Sys: s.dir + "/sys", Dev: s.dir + "/dev", Now: time.Now}
}

// devices gives the oracle the node's devices, and makes nodes in the host's /dev.
func (s *testNode) devices(t testing.TB) {
	devices := map[oracle.Device]string{{Major: 195, Minor: 255}: oracle.Driver,
		{Major: majorUVM, Minor: 0}: oracle.Driver, {Major: majorUVM, Minor: 1}: oracle.Driver,
		{Major: 195, Minor: 254}: oracle.Display}
	for _, d := range []oracle.Device{{Major: 195, Minor: 77}, {Major: majorCaps, Minor: 1},
		{Major: majorIMEX, Minor: 0}, {Major: majorSwitch, Minor: 255}} {
		devices[d] = oracle.Nothing
	}
	for _, g := range s.gpus {
		devices[oracle.Device{Major: 195, Minor: int64(g.Minor)}] = g.UUID
		devices[oracle.Device{Major: 226, Minor: int64(128 + g.Index)}] = g.UUID
	}
	s.world = oracle.World{Devices: devices,
		Majors:  []int64{195, majorUVM, majorCaps, majorIMEX, majorSwitch},
		Private: []string{s.dir + "/state", s.dir + "/run"}, Bundle: s.dir + "/bundle"}
	dev := s.dir + "/dev"
	must(t, os.MkdirAll(dev+"/plain", 0o755))
	for name, d := range map[string]oracle.Device{"nvidia0": {Major: 195}, "nvidia1": {Major: 195, Minor: 1},
		"nvidiactl": {Major: 195, Minor: 255}, "innocent": {Major: 195, Minor: 2},
		"null": {Major: 1, Minor: 3}} {
		if err := syscall.Mknod(filepath.Join(dev, name), syscall.S_IFCHR|0o666,
			int(d.Major<<8|d.Minor)); err != nil {
			t.Skipf("cannot make device nodes, so what mounts of them lead to is not tested: %v", err)
		}
	}
	must(t, os.Symlink("nvidia1", dev+"/link"), os.Symlink("../run", dev+"/torun"))
}

// volumes are directories of a pod in which the kubelet has mounted what pods named. They are in a
// mount namespace of the test's thread, so no other goroutine may read a mount.
func (s *testNode) volumes(t testing.TB) {
	runtime.LockOSThread() // never unlocked: the thread ends with its namespace
	if err := errors.Join(syscall.Unshare(syscall.CLONE_NEWNS),
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("tmpfs", "/var/lib", "tmpfs", 0, "")); err != nil {
		t.Fatalf("cannot make a mount namespace: %v", err)
	}
	mount := func(source, target string) {
		must(t, syscall.Mount(s.dir+"/"+source, target, "", syscall.MS_BIND, ""))
		s.mounted = append(s.mounted, target)
	}
	for _, source := range []string{"run", "state", "dev", "bundle"} {
		target := "/var/lib/kubelet/pods/u/volume-subpaths/v/" + source + "/0"
		must(t, os.MkdirAll(target, 0o755))
		mount(source, target)
	}
	for _, source := range []string{"state/inventory.json", "dev/nvidia1", "dev/null", "default.toml"} {
		target := "/var/lib/kubelet/pods/u/volume-subpaths/v/" + filepath.Base(source)
		must(t, os.WriteFile(target, nil, 0o600))
		mount(source, target)
	}
	must(t, os.MkdirAll("/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v", 0o755))
	s.mounted = append(s.mounted, "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v",
		"/var/lib/kubelet/pods/u/volume-subpaths/v/dev/0/nvidia0")
}

// grant makes a grant of 1 GiB on each of these GPUs.
func (s *testNode) grant(t testing.TB, mode grant.Mode, gpus ...int) {
	ask := admission.Ask{Mode: mode, Owner: grant.Bearer, Source: "test"}
	gives := map[string]bool{oracle.Driver: true}
	for _, i := range gpus {
		ask.Names = append(ask.Names, s.gpus[i].UUID)
		gives[s.gpus[i].UUID], gives[fmt.Sprint(i)] = true, true
	}
	if gives[oracle.Display] = mode == grant.Exclusive; mode != grant.Exclusive {
		ask.Memory = grant.Bytes(len(gpus)) * grant.GiB
	}
	_, reference, err := grants.Enter(s.guards["default"], ask)
	must(t, err)
	s.grants = append(s.grants, held{reference, gives})
}

// judge is the guard's decision about a create.
func (s *testNode) judge(policy string, engine grant.Engine, config []byte) node.Decision {
	c := grant.Container{Engine: engine, RuntimeRoot: s.dir + "/runtime", ID: "c1", Bundle: s.dir + "/bundle"}
	return s.guards[policy].Explain(node.Create{Caller: request.Caller{Container: c}, Config: config})
}

// escape is what a container that may start reaches beyond its grant; "" if nothing.
func (s *testNode) escape(d node.Decision, config []byte) string {
	if d.Kind == grant.Refused {
		return ""
	}
	if d.Config != nil {
		config = d.Config
	}
	ways, err := s.world.Ways(config)
	if err != nil {
		return "" // no runtime starts it
	}
	gives := map[string]bool{}
	if d.Grant != nil {
		for _, h := range s.grants {
			if h.reference.ID == d.Grant.ID {
				gives = h.gives
			}
		}
	}
	var beyond []string
	for _, w := range ways {
		if !gives[w.Needs] {
			beyond = append(beyond, w.How+" needs "+w.Needs)
		}
	}
	if len(beyond) == 0 {
		return ""
	}
	return fmt.Sprintf("%s although: %s\n%s", d.Kind, strings.Join(beyond, "; "), config)
}

// engines are all engines that can call.
var engines = []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker, grant.NoEngine}
