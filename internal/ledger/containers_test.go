package ledger

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Containers of real runtimes, each in a mount namespace of its own inside one made for the test: a
// spec that mounts in a wrong place must not reach the machine.

const cgroupRoot = "/sys/fs/cgroup"

// privateMounts moves the test into a mount namespace that ends with it. The thread is not given
// back, so Go ends it with the goroutine; t.Run inside would leave the namespace.
func privateMounts(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount")
	}
	runtime.LockOSThread()
	before := mountNS(t)
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skip("misses a mount namespace of its own: ", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil || mountNS(t) == before {
		t.Fatalf("cannot make mounts private: %v", err)
	}
}

func mountNS(t *testing.T) string {
	ns, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// cgroupViews are the ways in which a node can have its cgroups; crun refuses the mixed one.
var cgroupViews = map[string]func() error{
	"as it is": func() error { return nil },
	"v1": func() error {
		if _, err := os.Stat(cgroupRoot + "/devices"); err != nil {
			return err
		}
		if err := unix.Unmount(cgroupRoot+"/unified", unix.MNT_DETACH); err != nil {
			return ignoreAbsent(err)
		}
		// crun takes what is left of the mount point for a controller and fills it with plain
		// files.
		return unix.Mount("tmpfs", cgroupRoot+"/unified", "tmpfs", 0, "")
	},
	"v2": func() error {
		if err := unix.Unmount(cgroupRoot, unix.MNT_DETACH); err != nil {
			return err
		}
		return unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, "")
	},
}

func ignoreAbsent(err error) error {
	if err == unix.EINVAL || err == unix.ENOENT {
		return nil
	}
	return err
}

// stage is a runtime, a bundle and a ledger with a binding of one container.
type stage struct {
	*testLedger
	runtime, root, bundle, cgroup string
	binding                       grant.Binding
}

const spec = `{"ociVersion": "1.0.0", "root": {"path": "rootfs"}, "hostname": "",
 "process": {"terminal": false, "user": {"uid": 0, "gid": 0}, "args": ["/bin/busybox", "sh", "-c", %q], "env": ["PATH=/bin"], "cwd": "/"},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
 "annotations": {"bundle": "/the/annotations"},
 %s
 "linux": {"cgroupsPath": %q, "namespaces": [{"type": "mount"} %s]}}`

const (
	ownPIDs  = `, {"type": "pid"}`
	nodePIDs = ``
	noHooks  = ``
)

func newStage(t *testing.T, runtime, command, pidns, hooks string) *stage {
	dir := t.TempDir()
	s := &stage{testLedger: newLedger(t), runtime: runtime, root: filepath.Join(dir, "root"),
		bundle: filepath.Join(dir, "bundle")}
	s.cgroup = "/gpuledger-test-" + strconv.Itoa(os.Getpid()) + "-" + filepath.Base(filepath.Dir(dir))
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(s.bundle, "rootfs/bin")
	text := fmt.Sprintf(spec, command, hooks, s.cgroup, pidns)
	for _, err := range []error{
		os.MkdirAll(bin, 0o755), os.MkdirAll(s.root, 0o700),
		os.WriteFile(filepath.Join(bin, "busybox"), busybox, 0o755),
		os.WriteFile(filepath.Join(s.bundle, "config.json"), []byte(text), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(s.tidy)
	s.put(sample(1))
	return s
}

// create binds as the wrapper does: a process records itself and becomes the runtime.
func (s *stage) create() *exec.Cmd {
	s.t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer null.Close()
	script := `read go; exec "$@" <"` + os.DevNull + `"`
	cmd := exec.Command("/bin/sh", "-c", script, "sh", s.runtime, "--root", s.root, "create", "--bundle",
		s.bundle, "c")
	log, err := os.Create(filepath.Join(s.bundle, "log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log // a pipe would be kept open by the container
	gate, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	creator, err := startOf(cmd.Process.Pid)
	if err != nil {
		s.t.Fatal(err)
	}
	s.binding = grant.Binding{Grant: id(1), RuntimeRoot: s.root, Container: "c", Bundle: s.bundle,
		Creator: creator}
	s.bind(s.binding)
	s.want("before the create", grant.Alive)
	gate.Close()
	return cmd
}

func (s *stage) created() {
	s.t.Helper()
	if err := s.create().Wait(); err != nil {
		log, _ := os.ReadFile(filepath.Join(s.bundle, "log"))
		s.t.Fatalf("%s create: %v: %s", s.runtime, err, log)
	}
}

func (s *stage) run(args ...string) {
	s.t.Helper()
	if out, err := exec.Command(s.runtime, append([]string{"--root", s.root},
		args...)...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s %v: %v: %s", s.runtime, args, err, out)
	}
}

func (s *stage) want(when string, want grant.Life) grant.Binding {
	s.t.Helper()
	got := s.life(s.binding)
	if got.Life != want {
		s.t.Errorf("%s: life %d, want %d", when, got.Life, want)
	}
	if used := s.usedBy(id(1)) != ""; used != (want != grant.Dead) {
		s.t.Errorf("%s: the grant is in use: %v", when, used)
	}
	return got
}

func (s *stage) becomes(when string, want grant.Life) {
	s.t.Helper()
	waitFor(s.t, when, func() bool { return s.life(s.binding).Life == want })
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// cgroups are the container's in each hierarchy that is mounted here.
func (s *stage) cgroups() (dirs []string) {
	for _, root := range []string{cgroupRoot + s.cgroup, cgroupRoot + "/*" + s.cgroup} {
		found, _ := filepath.Glob(root)
		for _, dir := range found {
			if isCgroup(dir) { // not the tmpfs that stands in for v2
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

func isCgroup(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil &&
		(st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC)
}

func (s *stage) processes() (pids []int) {
	for _, dir := range s.cgroups() {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, line := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(line); err == nil && pid > 0 { // 0 would be killed as "my own group"
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// tidy kills the processes in the test's own cgroups, then removes these.
func (s *stage) tidy() {
	_ = exec.Command(s.runtime, "--root", s.root, "delete", "--force", "c").Run()
	waitFor(s.t, "the container's processes to end", func() bool {
		for _, pid := range s.processes() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(s.processes()) == 0
	})
	waitFor(s.t, "the container's cgroups to go", func() bool {
		for _, dir := range s.cgroups() {
			_ = os.Remove(dir)
		}
		return len(s.cgroups()) == 0
	})
}

const sleeper = "exec /bin/busybox sleep 600"

var containerCases = map[string]func(t *testing.T, runtime string){
	"created, running, killed, deleted": func(t *testing.T, runtime string) {
		s := newStage(t, runtime, sleeper, ownPIDs, noHooks)
		s.created()
		init := s.want("created", grant.Alive).PID
		if init == 0 || s.Containers.Life(s.root, "c") != grant.Alive {
			t.Fatalf("created: pid %d, want the init's", init) // 0 would be killed as "my own group"
		}
		if got := containers.Bundle(s.root, "c"); got != s.bundle {
			t.Errorf("bundle %q, want %q", got, s.bundle)
		}
		s.run("start", "c")
		if got := s.want("running", grant.Alive).PID; got != init {
			t.Errorf("running: pid %d, want %d", got, init)
		}
		if err := unix.Kill(init, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.becomes("the killed container to be dead", grant.Dead)
		s.run("delete", "c")
		s.want("deleted", grant.Dead)
		s.update(func(tx *Tx) error { return tx.Sweep() })
		if s.Bindings.Has(s.root, "c") {
			t.Error("Sweep left the binding of a deleted container")
		}
	},
	"a child outlives init": func(t *testing.T, runtime string) {
		// The child leaves init's session, as a daemon does; only the cgroup still shows whose it
		// is.
		s := newStage(t, runtime, "/bin/busybox setsid /bin/busybox sleep 600 </dev/null >/dev/null 2>&1 & "+
			"exec /bin/busybox sleep 600", nodePIDs, noHooks)
		s.created()
		s.run("start", "c")
		init := s.want("running", grant.Alive).PID
		waitFor(t, "the child", func() bool { return len(unique(s.processes())) >= 2 })
		if init == 0 {
			t.Fatal("no init")
		}
		if err := unix.Kill(init, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "init to end", func() bool { return s.life(s.binding).PID == 0 })
		s.want("init is gone, its child is not", grant.Alive)
		for _, pid := range s.processes() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		s.becomes("the container to be dead with its last process", grant.Dead)
		for _, dir := range s.cgroups() {
			_ = os.Remove(dir)
		}
		s.want("its cgroup is gone", grant.Dead)
	},
	"the runtime is killed in its create": func(t *testing.T, runtime string) {
		s := newStage(t, runtime, sleeper, ownPIDs,
			`"hooks": {"prestart": [{"path": "/bin/sleep", "args": ["sleep", "600"]}]},`)
		cmd := s.create()
		hook := 0
		waitFor(t, "the hook", func() bool { hook = childNamed(cmd.Process.Pid, "sleep"); return hook != 0 })
		s.want("in its create", grant.Alive)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		defer func() { _ = unix.Kill(hook, unix.SIGKILL) }()
		if _, err := os.Stat(filepath.Join(s.root, "c")); err != nil {
			t.Errorf("the killed runtime left no state directory, so this proves nothing: %v", err)
		}
		_ = unix.Kill(hook, unix.SIGKILL)
		s.becomes("the container that never was to be dead", grant.Dead)
	},
	"bound in another boot or pid namespace": func(t *testing.T, runtime string) {
		s := newStage(t, runtime, sleeper, ownPIDs, noHooks)
		s.created()
		reused := s.binding
		reused.Creator.PID, reused.Creator.Start = os.Getpid(), 1
		s.bind(reused)
		s.want("the creator's pid is another process's, the container runs", grant.Alive)
		cmd := helperCommand("/usr/bin/unshare", "life", filepath.Dir(s.State), 0)
		cmd.Args = []string{"unshare", "--pid", "--fork", "--mount-proc", os.Args[0]}
		cmd.Env = append(cmd.Env, "LEDGER_ROOT="+s.root)
		if out, err := cmd.Output(); err != nil ||
			string(bytes.TrimSpace(out)) != strconv.Itoa(int(grant.LifeUnknown)) {
			t.Errorf("seen from another pid namespace: life %s (%v), want unknown", out, err)
		}
		other := s.binding
		other.BootID = "another"
		s.bind(other)
		s.want("bound in another boot", grant.Dead)
	},
}

func unique(pids []int) map[int]bool {
	set := map[int]bool{}
	for _, pid := range pids {
		set[pid] = true
	}
	return set
}

// childNamed finds a process below parent, of any depth, by its command's name.
func childNamed(parent int, name string) int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(text)) {
			pid, _ := strconv.Atoi(field)
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if strings.TrimSpace(string(comm)) == name {
				return pid
			}
			if found := childNamed(pid, name); found != 0 {
				return found
			}
		}
	}
	return 0
}

func TestLifeOfRealContainers(t *testing.T) {
	for view, mount := range cgroupViews {
		for _, name := range []string{"runc", "crun"} {
			if view == "as it is" && name == "crun" && isHybrid() {
				continue // crun refuses it
			}
			for what, test := range containerCases {
				t.Run(name+", cgroups "+view+", "+what, func(t *testing.T) {
					for _, tool := range []string{name, "/bin/busybox", "/usr/bin/unshare"} {
						if _, err := exec.LookPath(tool); err != nil {
							t.Skip("misses ", tool)
						}
					}
					privateMounts(t)
					if err := mount(); err != nil {
						t.Skip("misses cgroups ", view, ": ", err)
					}
					test(t, name)
				})
			}
		}
	}
}

func isHybrid() bool {
	var st unix.Statfs_t
	_, err := os.Stat(cgroupRoot + "/devices")
	return err == nil && unix.Statfs(cgroupRoot+"/unified", &st) == nil
}
