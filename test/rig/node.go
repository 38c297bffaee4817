package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Node is a simulated GPU node in a directory of its own, with the real command line and wrapper.
type Node struct {
	T       testing.TB
	Dir     string
	Config  string   // its configuration file
	Root    string   // the real runtime's --root
	Runtime string   // "runc" or "crun"
	Tags    []string // build tags of its binaries
	// a directory with binaries of another version; "": those that are built from this module
	Bin string
	Env []string // added to its programs' environment
}

// Setup describes a node. The zero value has two GPUs of 16160 MiB, uses runc, and trusts no
// engine.
type Setup struct {
	GPUs    int
	Memory  string
	Engine  string
	Runtime string
	Config  string // more TOML, at the end
	Tags    []string
}

// NewNode makes a node and takes its inventory. At the end of the test it is removed with its
// containers and cgroups.
func NewNode(t testing.TB, s Setup) *Node {
	t.Helper()
	if s.GPUs == 0 {
		s.GPUs = 2
	}
	if s.Memory == "" {
		s.Memory = "16160MiB"
	}
	if s.Engine == "" {
		s.Engine = "none"
	}
	if s.Runtime == "" {
		s.Runtime = "runc"
	}
	Need(t, s.Runtime, "busybox")
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{T: t, Dir: dir, Config: filepath.Join(dir, "config.toml"), Root: filepath.Join(dir, "runtime"),
		Runtime: s.Runtime, Tags: s.Tags}
	t.Cleanup(n.end)
	daemon := "[daemon]\nlisten = \"\"\n" // tests of other nodes use the usual port at the same time
	if strings.Contains(s.Config, "[daemon]") {
		daemon = ""
	}
	n.Write("config.toml", fmt.Sprintf("state_dir = %q\nrun_dir = %q\nengine = %q\n", dir+"/state",
		dir+"/run", s.Engine)+
		fmt.Sprintf("[runtime]\npath = [%q]\n[inventory]\nsource = \"simulated\"\nfile = %q\n", s.Runtime,
			dir+"/node.json")+
		fmt.Sprintf("[cdi]\ndir = %q\nhook = %q\n%s[audit]\nfile = %q\n", dir+"/cdi", dir+"/hook", daemon,
			dir+"/audit.jsonl")+s.Config)
	n.Must("inventory", "simulate", "--gpus", fmt.Sprint(s.GPUs), "--memory", s.Memory, "--out",
		dir+"/node.json")
	n.Must("inventory", "refresh")
	return n
}

// Write writes a file into the node's directory and returns its path. It replaces a configuration
// whole, because a daemon may be reading it, or what Podman starts behind a container. An empty
// configuration would mean the directories of the machine.
func (n *Node) Write(name, content string) string {
	n.T.Helper()
	path := filepath.Join(n.Dir, name)
	draft := path
	if path == n.Config || name == podmanConfig {
		draft += ".new"
	}
	err := writeFile(draft, []byte(content), 0o600)
	if err == nil && draft != path {
		err = os.Rename(draft, path)
	}
	if err != nil {
		n.T.Fatal(err)
	}
	return path
}

// writeFile is os.WriteFile while no other goroutine starts a program. A child has the file open
// until it executes its own program, and until then the kernel executes none from the file
// (ETXTBSY).
func writeFile(path string, data []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, mode)
}

// Result is the output and the status of a program that has ended.
type Result struct {
	Stdout, Stderr string
	Code           int // 128 + N if signal N ended it
}

// Run runs a command to its end and returns its output. The output goes to files, because a created
// container keeps a pipe open as long as it lives.
func Run(cmd *exec.Cmd) Result {
	r, _ := RunKilled(cmd, 0)
	return r
}

// RunKilled is Run for a program that is killed after a time, unless it has ended or the time is 0.
// It returns the name of the program that was killed: a wrapper may have become the real runtime.
func RunKilled(cmd *exec.Cmd, after time.Duration) (r Result, killed string) {
	stdout, read := output()
	stderr, readErr := output()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Start()
	if err == nil {
		done := make(chan string)
		if after > 0 {
			go func() { done <- killAfter(cmd.Process, after) }()
		}
		err = cmd.Wait()
		if after > 0 {
			killed = <-done
		}
		if name := filepath.Base(cmd.Path); killed != "" && strings.HasPrefix(name, killed) {
			killed = name // the kernel keeps 15 bytes
		}
	}
	r = Result{Stdout: read(), Stderr: readErr()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			r.Code = 128 + int(status.Signal())
		}
	case err != nil:
		r.Code, r.Stderr = -1, err.Error()
	}
	if !r.Killed() {
		killed = ""
	}
	return r, killed
}

// killAfter kills a process after a time and returns the name of its program.
func killAfter(p *os.Process, after time.Duration) string {
	for end := time.Now().Add(after); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !Lives(p.Pid) {
			return ""
		}
	}
	program, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.Pid))
	_ = p.Kill()
	return strings.TrimSpace(string(program))
}

// output is a file without a name, and a function that reads what was written to it.
func output() (*os.File, func() string) {
	f, err := os.CreateTemp("", "output-")
	if err != nil {
		panic(err)
	}
	_ = os.Remove(f.Name())
	return f, func() string {
		defer f.Close()
		_, _ = f.Seek(0, io.SeekStart)
		text, _ := io.ReadAll(f)
		return string(text)
	}
}

// Of is the node with the binaries of another version, which lie in a directory.
func (n *Node) Of(bin string) *Node {
	other := *n
	other.Bin = bin
	return &other
}

func (n *Node) binary(name string) string {
	n.T.Helper()
	if n.Bin != "" {
		return filepath.Join(n.Bin, name)
	}
	return Binary(n.T, name, n.Tags...)
}

// CLI runs gpuledger.
func (n *Node) CLI(args ...string) Result {
	n.T.Helper()
	return Run(n.Command(n.binary("gpuledger"), args...))
}

// Command is a program with this node's configuration.
func (n *Node) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = append(append(os.Environ(), "GPULEDGER_CONFIG="+n.Config), n.Env...)
	return cmd
}

// Must runs gpuledger and ends the test if it fails.
func (n *Node) Must(args ...string) string {
	n.T.Helper()
	r := n.CLI(args...)
	if r.Code != 0 {
		n.T.Fatalf("gpuledger %s: status %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Grant makes a grant and returns its reference.
func (n *Node) Grant(args ...string) grant.Reference {
	n.T.Helper()
	reference, err := grant.ParseReference(strings.TrimSpace(n.Must(append([]string{"grant"}, args...)...)))
	if err != nil {
		n.T.Fatal(err)
	}
	return reference
}

// Listed is a grant as `grants --json` shows it.
type Listed struct {
	ID       grant.ID       `json:"id"`
	Owner    grant.Owner    `json:"owner"`
	For      []grant.Tie    `json:"for"`
	User     uint32         `json:"user"`
	Source   string         `json:"source"`
	State    grant.State    `json:"state"`
	Mode     grant.Mode     `json:"mode"`
	Compute  int            `json:"compute"` // percent
	Strength grant.Strength `json:"strength"`
	GPUs     []grant.Share  `json:"gpus"`
	Bindings []struct {
		Container string `json:"container"`
		PID       int    `json:"pid"`
	} `json:"bindings"`
}

// Grants lists the ledger.
func (n *Node) Grants() []Listed {
	n.T.Helper()
	var out struct{ Grants []Listed }
	if err := json.Unmarshal([]byte(n.Must("grants", "--json")), &out); err != nil {
		n.T.Fatal(err)
	}
	return out.Grants
}

// State is a grant's state; "" if the ledger does not list it.
func (n *Node) State(id grant.ID) grant.State {
	n.T.Helper()
	all := n.Grants()
	if i := slices.IndexFunc(all, func(g Listed) bool { return g.ID == id }); i >= 0 {
		return all[i].State
	}
	return ""
}

// Wrapper is gpuledger-runtime with the node's runtime root.
func (n *Node) Wrapper(args ...string) *exec.Cmd {
	n.T.Helper()
	return n.Command(n.binary("gpuledger-runtime"), append([]string{"--root", n.Root}, args...)...)
}

// Real is the real runtime with the same root.
func (n *Node) Real(args ...string) *exec.Cmd {
	return n.Command(n.Runtime, append([]string{"--root", n.Root}, args...)...)
}

// Eventually waits until a condition is true. Its limit bounds how long a failure takes; it
// measures no time.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	Within(t, 20*time.Second, what, is)
}

// Within is Eventually with another time limit.
func Within(t testing.TB, patience time.Duration, what string, is func() bool) {
	t.Helper()
	if !comesTrue(patience, is) {
		t.Fatalf("never came true: %s", what)
	}
}

// comesTrue reports whether a condition comes true. It makes a least number of tries, because a
// machine such as a guest can stand still meanwhile.
func comesTrue(patience time.Duration, is func() bool) bool {
	for end, tries := time.Now().Add(patience), 0; !is(); tries++ {
		if tries >= leastTries && time.Now().After(end) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return true
}

const leastTries = 300

// end removes containers, cgroups and mounts, then the directory. If a mount is left below the
// directory, it removes nothing.
func (n *Node) end() {
	containers, _ := os.ReadDir(n.Root)
	for _, c := range containers {
		_ = n.Real("delete", "--force", c.Name()).Run()
	}
	n.removeCgroups()
	for _, mount := range mountsBelow(n.Dir) {
		_ = syscall.Unmount(mount, syscall.MNT_DETACH)
	}
	if left := mountsBelow(n.Dir); len(left) > 0 {
		n.T.Errorf("mounts are left, so nothing is removed: %v", left)
		return
	}
	// What a killed gpuledgerd has started to read the driver ends a moment later, and may write:
	// an inventory makes its directory again.
	Eventually(n.T, "what reads the driver has ended", func() bool { return !n.isRead() })
	Eventually(n.T, "the removal of "+n.Dir, func() bool { return os.RemoveAll(n.Dir) == nil })
}

// isRead reports whether a gpuledgerd of the node runs, or what reads the driver for it. Before
// that executes its program it has the daemon's command line.
func (n *Node) isRead() bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(lines, func(line string) bool {
		args, _ := os.ReadFile(line)
		program, _, _ := strings.Cut(string(args), "\x00")
		if filepath.Base(program) != "gpuledgerd" && !strings.Contains(string(args), "\x00inventory\x00") {
			return false
		}
		env, _ := os.ReadFile(filepath.Join(filepath.Dir(line), "environ"))
		return strings.Contains(string(env), "GPULEDGER_CONFIG="+n.Dir+"/")
	})
}

// mountsBelow lists mount points at and below a directory, the innermost first.
func mountsBelow(dir string) []string {
	info, _ := os.ReadFile("/proc/self/mountinfo")
	var mounts []string
	for _, line := range strings.Split(string(info), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 &&
			(fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			mounts = append(mounts, fields[4])
		}
	}
	slices.Reverse(mounts)
	return mounts
}

// cgroup is the parent of all cgroups of the node's containers.
func (n *Node) cgroup() string { return "/gpuledger-" + filepath.Base(n.Dir) }

// removeCgroups kills what is left in them; a cgroup stays busy for a moment after its last
// process.
func (n *Node) removeCgroups() {
	gone := func() bool {
		busy := false
		for _, pattern := range []string{"/sys/fs/cgroup" + n.cgroup(), "/sys/fs/cgroup/*" + n.cgroup()} {
			roots, _ := filepath.Glob(pattern)
			for _, root := range roots {
				if !onCgroups(root) {
					continue
				}
				busy = true
				removeCgroup(root)
			}
		}
		return !busy
	}
	if !comesTrue(20*time.Second, gone) {
		n.T.Errorf("cgroups are left: %s", n.cgroup())
	}
}

// onCgroups reports whether a directory is a cgroup, and not a plain directory that crun 1.8 has
// made in place of one.
func onCgroups(dir string) bool {
	var st syscall.Statfs_t
	const v1, v2 = 0x27e0eb, 0x63677270 // linux/magic.h
	return syscall.Statfs(dir, &st) == nil && (st.Type == v1 || st.Type == v2)
}

func removeCgroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeCgroup(filepath.Join(dir, e.Name()))
		}
	}
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, pid := range strings.Fields(string(procs)) {
		var p int
		if _, err := fmt.Sscan(pid, &p); err == nil && p != os.Getpid() {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
	}
	_ = syscall.Rmdir(dir)
}
