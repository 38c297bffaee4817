package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// layoutVar makes the test binary run the program, in a layout of its own. A process of its own is
// needed, because one that has changed its root to a node cannot come back.
const layoutVar = "GPULEDGER_TEST_SETUP"

// rootVar is the root of the program's file system, if it is not this machine's.
const rootVar = "GPULEDGER_TEST_ROOT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(layoutVar); dir != "" {
		if root := os.Getenv(rootVar); root != "" {
			if err := errors.Join(syscall.Chroot(root), os.Chdir("/")); err != nil {
				panic(err)
			}
		}
		os.Exit(Main(os.Args, Trees{Tree: dir + "/tree", Node: dir + "/node"}))
	}
	os.Exit(m.Run())
}

// machine is an image's tree and a node whose programs record their calls.
type machine struct {
	*testing.T
	dir string
}

// recordsCall is the start of a node's programs: each writes its name and arguments to /calls.
const recordsCall = "#!/bin/busybox sh\necho \"${0##*/} $*\" >>/calls\n"

// gpuledger stands in for the program. configure writes /etc/engine.conf and policy.mode as the
// real one does, --undo removes the first, and --dry-run prints the changes. If /refuses exists, a
// restart fails; if it is empty and /breaks exists, only one with gpuledger's edits. If /waits
// exists, the engine has yet to read an undo. If /keeps exists, an undo fails and changes nothing.
const gpuledger = recordsCall + `
[ "$1" != grants ] || /bin/busybox cat /grants
[ "$1" != check ] || ! /bin/busybox grep -qs damaged /grants || exit 1
[ "$1" = configure ] || exit 0
restart= undo= default= mode=report
for word; do
  case $previous in --mode) mode=$word ;; esac
  case $word in --dry-run) dry=yes ;; --restart) restart=yes ;; --undo) undo=yes ;; --as-default) default=yes ;; esac
  previous=$word
done
action=keep
if [ -n "$undo" ]; then [ ! -e /etc/engine.conf ] || action=remove; else [ -e /etc/engine.conf ] || action=create; fi
was=; ! /bin/busybox grep -qs default /etc/engine.conf || was=yes
[ -z "$default" -o -n "$was" ] || action=create
if [ -n "$dry" ]; then
  echo '{"files": [{"path": "/etc/gpuledger/config.toml", "action": "edit"}, {"path": "/etc/engine.conf", "action": "'$action'"}]'
  [ ! -e /waits ] || echo ', "waits": "the engine calls gpuledger-runtime"'
  echo ', "restart": {"unit": "engine.service", "pids": ['$([ ! -e /pid ] || /bin/busybox cat /pid)']}'
  echo ', "running": {"running": '$(/bin/busybox cat /containers)'}'
  [ -z "$was" -o -n "$undo$default" ] || echo ', "still_default": true'
  echo '}'
  exit
fi
[ -z "$undo" -o ! -e /keeps ] || exit 1
case $action in
  create) echo ours ${default:+default} >/etc/engine.conf ;;
  remove) /bin/busybox rm /etc/engine.conf ;;
esac
/bin/busybox grep -q mode /etc/gpuledger/config.toml || [ -n "$undo" ] || printf '[policy]\nmode = "%s"\n' "$mode" >>/etc/gpuledger/config.toml
[ -z "$restart" ] || /bin/busybox rm -f /waits
[ -z "$restart" ] || [ ! -e /refuses ] || [ -n "$undo" -a ! -s /refuses -a -e /breaks ]
`

// written is the default configuration after gpuledger-setup and the stand-in have changed it.
var written = "# the default\n[policy]\nmode = \"report\"\n" + exempting

// exempting is the text that gpuledger-setup adds to it.
var exempting = func() string {
	more, err := exemptions(nil)
	if err != nil {
		panic(err)
	}
	return more
}()

func newMachine(t *testing.T) machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: that a node is set up from within a container is not shown")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("busybox is not installed: that a node is set up from within a container is not shown")
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	s := machine{t, t.TempDir()}
	s.write("node/bin/busybox", string(program))
	s.write("node/usr/bin/systemctl", recordsCall)
	s.write("node/usr/bin/udevadm", recordsCall)
	s.write("node/run/systemd/system/here", "")
	s.write("tree/usr/bin/gpuledger", gpuledger)
	s.write("node/containers", "31")
	s.write("node/grants", `{"grants": [{"mode": "mps", "state": "free"},
		{"mode": "limit", "state": "bound"}]}`)
	s.write("tree/usr/bin/gpuledger-runtime", "first")
	s.link("tree/usr/bin/gpuledger-runtime.crio", "gpuledger-runtime")
	s.write("tree/usr/lib/gpuledger/shim-1/libcuda.so.1", "first")
	s.link("tree/usr/lib/gpuledger/shim", "shim-1")
	s.write("tree/etc/gpuledger/config.toml", "# the default\n")
	return s
}

func (s machine) write(name, content string) {
	s.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		s.Fatal(err)
	}
}

func (s machine) link(name, target string) {
	s.Helper()
	if err := os.Symlink(target, filepath.Join(s.dir, name)); err != nil {
		s.Fatal(err)
	}
}

// run runs the program and returns its status and its output.
func (s machine) run(args ...string) (int, string) {
	s.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), layoutVar+"="+s.dir)
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

func (s machine) must(args ...string) {
	s.Helper()
	if status, out := s.run(args...); status != 0 {
		s.Fatalf("gpuledger-setup %v: status %d\n%s", args, status, out)
	}
}

// on lists gpuledger's files on the node, with their contents; for a link, its target.
func (s machine) on() []string {
	s.Helper()
	var have []string
	root := filepath.Join(s.dir, "node")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		if err != nil || !strings.Contains(name, "gpuledger") {
			return err
		}
		switch {
		case entry.IsDir():
			have = append(have, name+"/")
		case entry.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			have = append(have, name+" -> "+target)
		case name == "/usr/bin/gpuledger", name == record, name == daemonOptions, name == atBoot:
			have = append(have, name)
		default:
			content, _ := os.ReadFile(path)
			have = append(have, fmt.Sprintf("%s: %s", name, strings.TrimSpace(string(content))))
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return have
}

func (s machine) calls() []string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "node/calls"))
	_ = os.Remove(filepath.Join(s.dir, "node/calls"))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (s machine) wants(what string, got []string, want ...string) {
	s.Helper()
	if !slices.Equal(got, want) {
		s.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDraftsOfAKilledRun are removed by the next one, and by a removal. They may be large.
func TestDraftsOfAKilledRun(t *testing.T) {
	s := newMachine(t)
	drafts := []string{"usr/bin/.gpuledger.1513-0", "usr/bin/.gpuledger-runtime.7-31",
		"usr/bin/gpuledger-runtime.crio.gpuledger-setup", "usr/lib/gpuledger/shim-1/.libcuda.so.1.7-0",
		"etc/gpuledger/.config.toml.7-0"}
	const others = "node/usr/bin/.gpuledger.of-another"
	s.write(others, "")
	for _, args := range [][]string{{"install", "--engine=crio"}, {"remove", "--engine=crio"}} {
		for _, draft := range drafts {
			s.write("node/"+draft, "half")
		}
		if status, out := s.run(args...); status != 0 {
			t.Fatalf("%q: status %d\n%s", args, status, out)
		}
		for _, draft := range drafts {
			if exists(filepath.Join(s.dir, "node", draft)) {
				t.Errorf("%s stays after %q", draft, args)
			}
		}
		if !exists(filepath.Join(s.dir, others)) {
			t.Error("a file of others is gone")
		}
	}
}

// TestARemovalFromANodeOfPackages takes what the cluster set, and nothing of the packages.
func TestARemovalFromANodeOfPackages(t *testing.T) {
	s := newMachine(t)
	s.write("node/usr/bin/gpuledger", gpuledger)
	s.write("node/etc/gpuledger/config.toml", "")
	s.write("node/etc/gpuledger/cluster.toml", "[annotations]\ntrust = \"adopt\"\n")
	if status, out := s.run("remove", "--engine=containerd"); status != 0 {
		t.Fatalf("status %d\n%s", status, out)
	}
	if exists(s.dir + "/node/etc/gpuledger/cluster.toml") {
		t.Error("what the cluster set stays")
	}
	for _, path := range []string{"/usr/bin/gpuledger", "/etc/gpuledger/config.toml"} {
		if !exists(s.dir + "/node" + path) {
			t.Errorf("%s is gone", path)
		}
	}
}

// TestARemovalFinishesAnUndo: an engine's configuration was undone by hand, and the engine was not
// restarted.
func TestARemovalFinishesAnUndo(t *testing.T) {
	s := newMachine(t)
	s.must("install", "--engine=crio")
	if err := os.Remove(s.dir + "/node/etc/engine.conf"); err != nil {
		t.Fatal(err)
	}
	s.write("node/waits", "")
	s.calls()
	s.must("remove", "--engine=crio")
	if called := s.calls(); !slices.Contains(called, "gpuledger configure crio --undo --restart") {
		t.Errorf("called:\n%s\nwant a restart", strings.Join(called, "\n"))
	}
}

func TestInstallUpgradeRemove(t *testing.T) {
	s := newMachine(t)
	s.must("install", "--engine=crio", "--as-default", "--mode=report")
	s.wants("installed", s.on(), "/etc/default/gpuledgerd", "/etc/gpuledger/", "/etc/gpuledger/config.toml: "+
		strings.TrimSpace(written),
		"/usr/bin/gpuledger", "/usr/bin/gpuledger-runtime: first",
		"/usr/bin/gpuledger-runtime.crio -> gpuledger-runtime",
		"/usr/lib/gpuledger/", "/usr/lib/gpuledger/setup.list", "/usr/lib/gpuledger/shim -> shim-1",
		"/usr/lib/gpuledger/shim-1/", "/usr/lib/gpuledger/shim-1/libcuda.so.1: first")
	s.wants("called", s.calls(), "udevadm control --reload",
		"systemctl start gpuledger-inventory.path",
		"gpuledger inventory refresh", "gpuledger configure crio --as-default --mode report --dry-run --json",
		"gpuledger configure crio --as-default --mode report",
		"gpuledger configure crio --as-default --mode report --restart",
		"systemctl show --property=ActiveState,SubState,Result,NRestarts engine.service",
		"systemctl show --property=MainPID,UnitFileState gpuledgerd.service",
		"systemctl enable gpuledgerd.service",
		"systemctl start gpuledgerd.service")

	s.write("tree/usr/bin/gpuledger-runtime", "second")
	lib := s.dir + "/tree/usr/lib/gpuledger/"
	if err := errors.Join(os.Rename(lib+"shim-1", lib+"shim-2"), os.Remove(lib+"shim")); err != nil {
		t.Fatal(err)
	}
	s.link("tree/usr/lib/gpuledger/shim", "shim-2")
	mapped, err := os.Open(s.dir + "/node/usr/bin/gpuledger-runtime")
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	s.write("node/etc/gpuledger/config.toml", "# mine\npolicy.mode = \"enforce\"\n# mode")
	s.must("install", "--engine=crio")
	mine := "/etc/gpuledger/config.toml: " + read(t, s.dir+"/node/etc/gpuledger/config.toml")
	if !strings.HasPrefix(mine, "/etc/gpuledger/config.toml: # mine\n") {
		t.Errorf("the administrator's configuration is %q", mine)
	}
	s.wants("upgraded", s.on(), "/etc/default/gpuledgerd", "/etc/gpuledger/", mine,
		"/usr/bin/gpuledger", "/usr/bin/gpuledger-runtime: second",
		"/usr/bin/gpuledger-runtime.crio -> gpuledger-runtime",
		"/usr/lib/gpuledger/", "/usr/lib/gpuledger/setup.list", "/usr/lib/gpuledger/shim -> shim-2",
		"/usr/lib/gpuledger/shim-2/", "/usr/lib/gpuledger/shim-2/libcuda.so.1: first")
	old := make([]byte, 5)
	if _, err := mapped.ReadAt(old, 0); err != nil || string(old) != "first" {
		t.Errorf("a file in use became %q (%v)", old, err)
	}
	s.calls()

	s.write("node"+daemon, recordsCall)
	s.must("remove", "--engine=crio")
	if err := os.Remove(s.dir + "/node" + daemon); err != nil { // as it is not of the tree
		t.Fatal(err)
	}
	kept := []string{"/etc/gpuledger/", mine, atBoot, "/run/gpuledger-setup.removed: ",
		"/usr/bin/gpuledger-runtime: second",
		"/usr/bin/gpuledger-runtime.crio -> gpuledger-runtime", "/usr/lib/gpuledger/",
		"/usr/lib/gpuledger/setup.list"}
	s.wants("removed, but for what ends containers", s.on(), kept...)
	s.wants("called", s.calls(), "gpuledger configure crio --undo --dry-run --json",
		"gpuledger configure crio --undo", "gpuledger configure crio --undo --restart",
		"systemctl show --property=ActiveState,SubState,Result,NRestarts engine.service",
		"systemctl stop gpuledger-inventory.path", "systemctl disable --now gpuledgerd.service",
		"gpuledger check", "gpuledger grants --json", "systemctl stop gpuledger-mps@*.service",
		"gpuledgerd close-nodes")
	s.must("remove", "--engine=crio")
	s.wants("removed again", s.on(), kept...)
	s.must("install", "--engine=crio")
	s.must("remove", "--engine=crio")
	s.wants("installed and removed again", s.on(), kept...)
	if err := os.Remove(s.dir + "/node" + removedInThisBoot); err != nil { // the next boot
		t.Fatal(err)
	}
	s.must("remove", "--engine=crio")
	s.wants("removed after a boot", s.on(), "/etc/gpuledger/", mine)
	s.must("remove", "--engine=crio")
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestNoLongerTheDefault: --as-default is taken out of the pod's arguments. One restart makes
// gpuledger a handler beside the engine's default, and the next start changes nothing.
func TestNoLongerTheDefault(t *testing.T) {
	s := newMachine(t)
	s.write("node/etc/default/gpuledgerd", "")
	for _, c := range []struct {
		args []string
		want string
		n    int // restarts
	}{
		{[]string{"--as-default"}, "ours default", 1}, {nil, "ours", 1}, {nil, "ours", 0},
		{[]string{"--as-default"}, "ours default", 1}, {[]string{"--as-default"}, "ours default", 0},
	} {
		s.must(append([]string{"install", "--engine=crio"}, c.args...)...)
		if text := read(t, s.dir+"/node/etc/engine.conf"); text != c.want {
			t.Errorf("with %q the engine's file has %q, want %q", c.args, text, c.want)
		}
		if got := restarts(s.calls()); len(got) != c.n {
			t.Errorf("with %q it restarts %q", c.args, got)
		}
	}
	s.write("node/keeps", "")
	if status, out := s.run("install", "--engine=crio"); status != 1 ||
		!strings.Contains(out, "cannot take back that gpuledger is crio's default handler: cannot run "+
			"gpuledger [configure crio --undo]") {
		t.Errorf("an undo that fails: status %d\n%s", status, out)
	}
}

// restarts are the calls that restart an engine or the daemon.
func restarts(calls []string) (found []string) {
	for _, call := range calls {
		if strings.HasSuffix(call, "--restart") || strings.Contains(call, " restart ") {
			found = append(found, call)
		}
	}
	return found
}

// files are the node's files with their inodes. A file that is written again has another inode.
func (s machine) files() []string {
	s.Helper()
	var all []string
	if err := filepath.WalkDir(s.dir+"/node", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		var st syscall.Stat_t
		err = syscall.Lstat(path, &st)
		all = append(all, fmt.Sprintf("%s inode %d", strings.TrimPrefix(path, s.dir), st.Ino))
		return err
	}); err != nil {
		s.Fatal(err)
	}
	return slices.DeleteFunc(all, func(line string) bool {
		return strings.HasPrefix(line, "/node/calls ") || strings.Contains(line, record)
	})
}

// TestStartedTenTimes: the pod starts again with the node, with an update of the DaemonSet, and
// whenever the kubelet restarts it. After the first start, none changes or restarts anything.
func TestStartedTenTimes(t *testing.T) {
	s := newMachine(t)
	args := []string{"install", "--engine=containerd", "--as-default", "--mode=report"}
	s.must(args...)
	if got := restarts(s.calls()); len(got) != 1 {
		t.Errorf("the first start restarts %q", got)
	}
	config := s.dir + "/node" + configFile
	// the administrator enforces once the audit log has no more refusals
	s.write("node"+configFile, strings.Replace(read(t, config), `"report"`, `"enforce"`, 1)+"\n")
	before, files := read(t, config), s.files()
	for range 9 {
		s.must(args...)
		calls := s.calls()
		if got := restarts(calls); len(got) != 0 ||
			!slices.Contains(calls, "gpuledger configure containerd --as-default") ||
			calls[len(calls)-1] != "systemctl start gpuledgerd.service" {
			t.Errorf("a later start calls %q", calls)
		}
	}
	if after := read(t, config); after != before {
		t.Errorf("the configuration was\n%s\nand is\n%s", before, after)
	}
	s.wants("the node's files", s.files(), files...)
}

// TestRemovalLeavesMPSToContainers: an MPS daemon stays if a container may have contexts in it.
func TestRemovalLeavesMPSToContainers(t *testing.T) {
	for grants, stops := range map[string]bool{
		`{"grants": []}`: true,
		`{"grants": [{"mode": "mps", "state": "free"}]}`:     true,
		`{"grants": [{"mode": "mps", "state": "bound"}]}`:    false,
		`{"grants": [{"mode": "mps", "state": "draining"}]}`: false,
		"":                             false, // the ledger cannot be read
		`{"grants": [], "damaged": 1}`: false,
	} {
		s := newMachine(t)
		s.must("install", "--engine=crio")
		s.write("node/grants", grants)
		s.must("remove", "--engine=crio")
		if slices.Contains(s.calls(), "systemctl stop gpuledger-mps@*.service") != stops {
			t.Errorf("with %s MPS daemons are to be stopped: %t", grants, stops)
		}
	}
}

// TestKilledBeforeTheRestart: the engine's files are changed, and the engine has not read them.
func TestKilledBeforeTheRestart(t *testing.T) {
	s := newMachine(t)
	s.write("node/refuses", "")
	for _, args := range [][]string{{"install", "--engine=crio"}, {"remove", "--engine=crio"}} {
		s.write("node/refuses", "")
		if status, out := s.run(args...); status != 1 || !strings.Contains(out, "--restart]") {
			t.Errorf("%v: status %d\n%s", args, status, out)
		}
		s.calls()
		if err := os.Remove(s.dir + "/node/refuses"); err != nil {
			t.Fatal(err)
		}
		if !exists(s.dir + "/node/usr/bin/gpuledger") {
			t.Errorf("%v: the programs are gone, and the engine still calls them", args)
		}
		s.must(args...)
		if got := restarts(s.calls()); len(got) != 1 {
			t.Errorf("%v once more restarts %q", args, got)
		}
		s.must(args...)
		if got := restarts(s.calls()); len(got) != 0 {
			t.Errorf("%v a third time restarts %q", args, got)
		}
	}
}

// TestModeOfTheNode: --mode counts only if the node's configuration sets no mode.
func TestModeOfTheNode(t *testing.T) {
	for config, passed := range map[string]bool{
		"": true, "# mode = \"enforce\"\n[policy]\nprivileged = \"strip\"\n": true,
		"[policy]\nmode = \"enforce\"\n": false, "policy.mode = \"report\"\n": false,
		"policy = {mode = \"enforce\"}\n": false} {
		s := newMachine(t)
		s.write("node"+configFile, config)
		s.must("install", "--engine=crio", "--mode=enforce")
		if got := slices.Contains(s.calls(), "gpuledger configure crio --mode enforce"); got != passed {
			t.Errorf("with %q the mode is passed on: %v, want %v", config, got, passed)
		}
	}
}

// TestAgentsAreExempt: each of gpuledger's agents gets one exemption, nothing else does, and the
// administrator's lines stay.
func TestAgentsAreExempt(t *testing.T) {
	p, err := policy.Parse([]byte(written))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace, pod, container string
		exempt                    bool
	}{
		{namespace, "gpuledger-setup-x7k2p", "install", true},
		{namespace, "gpuledger-remove-x7k2p", "remove", true},
		{namespace, "gpuledger-dra-x7k2p", "agent", true},
		{namespace, "gpuledger-device-plugin-x7k2p", "agent", true},
		{namespace, "gpuledger-setup-x7k2p", "installed", false},
		{namespace, "gpuledger-setup-x7k2p-0", "install", false}, {namespace, "job", "agent", false},
		{namespace, "gpuledger-dra-x7k2p", "", false}, {"team", "gpuledger-setup-x7k2p", "install", false},
		{"", "", "", false},
	} {
		if got := admission.Exempt(grant.Identity{Namespace: c.namespace, Pod: c.pod, Container: c.container},
			p); got != c.exempt {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if more, err := exemptions([]byte(written)); more != "" || err != nil {
		t.Errorf("a second time %q is added (%v)", more, err)
	}
	if more, err := exemptions([]byte("[[policy.exempt]]\nnamespace = \"gpuledger-*\"\n")); more != "" ||
		err != nil {
		t.Errorf("beside the administrator's own %q is added (%v)", more, err)
	}
	if more, err := exemptions([]byte("[[policy.exempt]]\nnamespace = \"gpuledger-system\"\n" +
		"pod = \"gpuledger-setup-*\"\n[audit]\nkeep = 1")); err != nil || strings.Contains(more,
		"gpuledger-setup-") || strings.Count(more, "[[") != 3 {
		t.Errorf("beside the administrator's for one %q is added (%v)", more, err)
	}
	if more, err := exemptions([]byte("policy.exempt = [{namespace = \"a\"}]\n")); err == nil ||
		!strings.Contains(err.Error(), "write there yourself") {
		t.Errorf("to a list in one line %q is added (%v)", more, err)
	}
	s := newMachine(t)
	s.must("install", "--engine=crio")
	if text := read(t, s.dir+"/node"+configFile); strings.Contains(text, "exempt") {
		t.Errorf("where only pods of the RuntimeClass are guarded the configuration is\n%s", text)
	}
}

// agentContainer is a container in a manifest.
type agentContainer struct {
	Name         string
	VolumeMounts []struct{ Name string } `yaml:"volumeMounts"`
}

// TestAgentsAreThoseOfTheManifests: the containers of all of gpuledger's DaemonSets that mount a
// path of the node.
func TestAgentsAreThoseOfTheManifests(t *testing.T) {
	var found []grant.Exemption
	for _, file := range []string{"packaging/kubernetes/install.yaml", "packaging/kubernetes/remove.yaml",
		"kube/manifests/dra/daemonset.yaml", "kube/manifests/device-plugin/daemonset.yaml"} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var d struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Spec     struct {
					Template struct {
						Spec struct {
							InitContainers []agentContainer `yaml:"initContainers"`
							Containers     []agentContainer
						}
					}
				}
			}
			if err := documents.Decode(&d); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			pod := d.Spec.Template.Spec
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				if len(c.VolumeMounts) > 0 {
					found = append(found, grant.Exemption{
						Namespace: d.Metadata.Namespace, Pod: d.Metadata.Name + "-?????", Container: c.Name})
				}
			}
		}
	}
	if !slices.Equal(found, agents) {
		t.Errorf("the manifests have %+v, exempt are %+v", found, agents)
	}
}

// TestDaemonRuns: gpuledgerd runs the installed program.
func TestDaemonRuns(t *testing.T) {
	s := newMachine(t)
	s.write("tree/usr/bin/gpuledgerd", "second")
	s.write("node/usr/bin/systemctl", recordsCall+
		"[ \"$1\" != show ] || printf 'UnitFileState=enabled\\nMainPID=4711\\n'\n")
	s.write("node/old", "first")
	s.link("node/exe", "/old")
	if err := errors.Join(os.MkdirAll(s.dir+"/node/proc/4711", 0o755),
		os.Rename(s.dir+"/node/exe", s.dir+"/node/proc/4711/exe")); err != nil {
		t.Fatal(err)
	}
	s.must("install", "--engine=crio")
	if calls := s.calls(); calls[len(calls)-1] != "systemctl restart gpuledgerd.service" {
		t.Errorf("beside an older daemon: %q", calls)
	}
	if err := os.Remove(s.dir + "/node/proc/4711/exe"); err != nil {
		t.Fatal(err)
	}
	s.link("node/proc/4711/exe", "/usr/bin/gpuledgerd")
	s.must("install", "--engine=crio")
	if calls := s.calls(); calls[len(calls)-1] != "systemctl start gpuledgerd.service" {
		t.Errorf("beside the one that is installed: %q", calls)
	}
	s.write("node/usr/bin/systemctl", recordsCall+"[ \"$1\" != show ] || echo UnitFileState=masked\n")
	s.must("install", "--engine=crio")
	if calls := s.calls(); slices.Contains(calls, "systemctl enable gpuledgerd.service") ||
		slices.Contains(calls, "systemctl start gpuledgerd.service") {
		t.Errorf("where it is masked: %q", calls)
	}
	s.write("node"+daemonOptions, "GPULEDGERD_OPTIONS=--nri off\n")
	s.must("install", "--engine=crio")
	s.must("remove", "--engine=crio")
	if text := read(t, s.dir+"/node"+daemonOptions); text != "GPULEDGERD_OPTIONS=--nri off" {
		t.Errorf("the administrator's options became %q", text)
	}
}

// TestSystemdReadsItsFilesAgain only after a unit has changed, also if setup was killed before it
// could: a daemon-reload takes the GPUs from containers of NVIDIA's legacy hook.
func TestSystemdReadsItsFilesAgain(t *testing.T) {
	s := newMachine(t)
	const unit = units + "gpuledgerd.service"
	const link = units + "multi-user.target.wants/gpuledger-inventory.path"
	s.write("tree"+unit, "first")
	s.write("node/usr/bin/systemctl", recordsCall+`
case $1 in
  enable) >/enabled ;;
  show) [ ! -e /enabled ] || echo UnitFileState=enabled ;;
  daemon-reload) [ ! -e /fails ] ;;
esac
`)
	drop := func(name string) {
		if err := os.Remove(s.dir + "/" + name); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		name   string
		change func()
		do     string
		want   []string
	}{
		{"the first start", func() {}, "install", []string{"daemon-reload", "enable gpuledgerd.service"}},
		{"the next", func() {}, "install", nil},
		{"another program", func() { s.write("tree"+wrapper, "second") }, "install", nil},
		{"another unit", func() { s.write("tree"+unit, "second") }, "install", []string{"daemon-reload"}},
		{"one more link", func() {
			s.write("tree"+link, "")
			drop("tree" + link)
			s.link("tree"+link, "../gpuledger-inventory.path")
		}, "install", []string{"daemon-reload"}},
		{"a link less", func() { drop("tree" + link) }, "install", []string{"daemon-reload"}},
		{"a reload that fails", func() {
			s.write("tree"+unit, "third")
			s.write("node/fails", "")
		}, "install", []string{"daemon-reload"}},
		{"the next after that", func() { drop("node/fails") }, "install", []string{"daemon-reload"}},
		{"a removal", func() {}, "remove", []string{"daemon-reload"}},
		{"one more", func() {}, "remove", nil},
	} {
		step.change()
		status, out := s.run(step.do, "--engine=crio")
		if failed := exists(s.dir + "/node/fails"); (status != 0) != failed {
			t.Errorf("%s: status %d\n%s", step.name, status, out)
		}
		var got []string
		for _, call := range s.calls() {
			if what, is := strings.CutPrefix(call, "systemctl "); is &&
				(what == "daemon-reload" || strings.HasPrefix(what, "enable")) {
				got = append(got, what)
			}
		}
		s.wants(step.name, got, step.want...)
	}
}

// TestNodeWithoutSystemd: setup prints what it cannot start and restart there.
func TestNodeWithoutSystemd(t *testing.T) {
	s := newMachine(t)
	if err := os.RemoveAll(s.dir + "/node/run/systemd"); err != nil {
		t.Fatal(err)
	}
	status, out := s.run("install", "--engine=containerd")
	if status != 0 || !strings.Contains(out, "restart containerd by hand") ||
		!strings.Contains(out, "start `gpuledgerd --nri observe` by hand") {
		t.Errorf("status %d\n%s", status, out)
	}
	s.wants("called", s.calls(), "gpuledger inventory refresh",
		"gpuledger configure containerd --dry-run --json",
		"gpuledger configure containerd --dry-run --json", "gpuledger configure containerd")
	if status, out := s.run("install", "--engine=containerd"); status != 0 ||
		strings.Contains(out, "restart containerd") {
		t.Errorf("again: status %d\n%s", status, out)
	}
}

// TestProgramsThatAreNamedStay: an engine whose file names a missing program starts no container.
func TestProgramsThatAreNamedStay(t *testing.T) {
	for file, text := range map[string]string{
		"/etc/containerd/conf.d/mine.toml": "version = 2\n" +
			"BinaryName = \"/usr/bin/gpuledger-runtime.containerd\"\n",
		"/etc/containers/oci/hooks.d/gpuledger.json": `{"hook": {"path": "/usr/bin/gpuledger-hook"}}`,
		"/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl": "BinaryName = " +
			"\"/usr/bin/gpuledger-runtime\"\n",
		"/var/lib/rancher/rke2/agent/etc/containerd/conf.d/zz-us.toml": "BinaryName = " +
			"\"/usr/bin/gpuledger-runtime\"\n",
		"/var/lib/gpuledger/configure/podman/record.json": "{}",
	} {
		s := newMachine(t)
		s.must("install", "--engine=containerd")
		s.write("node"+file, text)
		status, out := s.run("remove", "--engine=containerd")
		if status != 1 || !strings.Contains(out, "they stay until nothing names them") ||
			!strings.Contains(out, file) {
			t.Errorf("%s: status %d\n%s", file, status, out)
		}
		if have := s.on(); !slices.Contains(have, "/usr/bin/gpuledger-runtime: first") ||
			!slices.Contains(have, "/usr/bin/gpuledger") {
			t.Errorf("%s: the node has %q", file, have)
		}
		s.write("node"+file, "# gpuledger-runtime\n")
		if strings.HasSuffix(file, "record.json") {
			_ = os.Remove(s.dir + "/node" + file)
		}
		s.must("remove", "--engine=containerd")
	}
}

// TestLinksLeadSomewhere at any moment of an upgrade: a container that starts meanwhile finds the
// old shim or the new one.
func TestLinksLeadSomewhere(t *testing.T) {
	s := newMachine(t)
	root, err := os.OpenRoot(s.dir + "/tree")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files, err := (&node{tree: root.FS()}).files()
	if err != nil {
		t.Fatal(err)
	}
	s.wants("in the order of installing", files, "/etc/gpuledger/config.toml", "/usr/bin/gpuledger",
		"/usr/bin/gpuledger-runtime",
		"/usr/lib/gpuledger/shim-1/libcuda.so.1", "/usr/bin/gpuledger-runtime.crio",
		"/usr/lib/gpuledger/shim")
}

// TestKilledWhileItRemoves: the program that undoes an engine's configuration is already gone, and
// the rest is removed.
func TestKilledWhileItRemoves(t *testing.T) {
	s := newMachine(t)
	s.must("install", "--engine=crio")
	s.must("remove", "--engine=crio")
	s.write("node"+record, "/usr/bin/gpuledger\n/usr/bin/gpuledger-runtime\n"+
		"/usr/lib/gpuledger/shim-1/libcuda.so.1\n")
	s.write("node/usr/lib/gpuledger/shim-1/libcuda.so.1", "first")
	s.must("remove", "--engine=crio")
	if have := s.on(); slices.Contains(have, "/usr/lib/gpuledger/shim-1/") ||
		!slices.Contains(have, "/usr/bin/gpuledger-runtime: first") {
		t.Errorf("%v", have)
	}
}

// TestOthersPackageStays: files from another installation are not replaced, and their engine is not
// changed.
func TestOthersPackageStays(t *testing.T) {
	s := newMachine(t)
	s.write("node/usr/bin/gpuledger-runtime", "the package's")
	before := s.on()
	status, out := s.run("install", "--engine=containerd")
	if status != 1 || !strings.Contains(out, "/usr/bin/gpuledger-runtime is there already") {
		t.Errorf("status %d: %s", status, out)
	}
	s.wants("touched", s.on(), before...)
	s.wants("called", s.calls(), "")
}

// TestPackageThatIsNotPurged: a later purge would delete the configuration, so nothing is
// installed. What is installed already goes on.
func TestPackageThatIsNotPurged(t *testing.T) {
	s := newMachine(t)
	s.write("node"+purgeScript, "")
	before := s.on()
	status, out := s.run("install", "--engine=containerd")
	if status != 1 || !strings.Contains(out, "run `apt purge gpuledger` on this node first") {
		t.Errorf("status %d: %s", status, out)
	}
	s.wants("touched", s.on(), before...)
	s.wants("called", s.calls(), "")
	if err := os.Remove(s.dir + "/node" + purgeScript); err != nil {
		t.Fatal(err)
	}
	s.must("install", "--engine=containerd")
	s.write("node"+purgeScript, "")
	if status, out := s.run("install", "--engine=containerd"); status != 0 ||
		!strings.Contains(out, "warning: the package gpuledger was removed and not purged") {
		t.Errorf("beside an installation: status %d: %s", status, out)
	}
	s.must("remove", "--engine=containerd")
	if status, _ := s.run("install", "--engine=containerd"); status != 1 {
		t.Errorf("after a removal: status %d", status)
	}
}

// TestKilledHalfWay: the files that a killed set-up left behind are recognized as its own.
func TestKilledHalfWay(t *testing.T) {
	s := newMachine(t)
	s.write("node"+record, "/usr/bin/gpuledger\n/usr/bin/gpuledger-runtime\n")
	s.write("node/usr/bin/gpuledger-runtime", "fi")
	s.must("install", "--engine=containerd")
	if have := s.on(); !slices.Contains(have, "/usr/bin/gpuledger-runtime: first") {
		t.Errorf("%v", have)
	}
}

// TestEngineThatRefusesKeepsTheFiles: they cannot be removed while an engine calls them.
func TestEngineThatRefusesKeepsTheFiles(t *testing.T) {
	s := newMachine(t)
	s.must("install", "--engine=containerd")
	s.write("node/usr/bin/gpuledger", "#!/bin/busybox sh\nexit 1\n")
	before := s.on()
	if status, out := s.run("remove", "--engine=containerd"); status != 1 ||
		!strings.Contains(out, "cannot run gpuledger [configure containerd --undo --dry-run --json]") ||
		!strings.Contains(out, "gpuledger's programs stay") {
		t.Errorf("status %d: %s", status, out)
	}
	s.wants("left", s.on(), before...)
}

func TestUsage(t *testing.T) {
	s := newMachine(t)
	for _, args := range [][]string{{}, {"install"}, {"remove"}, {"install", "--engine=crio", "more"},
		{"remove", "--engine=crio", "--as-default"}, {"wait", "--engine=crio"}, {"upgrade"}, {"config"},
		{"remove", "--engine=crio", "--cluster=x"}, {"ready", "--cluster=x", "--mode=report"},
		{"leave", "--cluster=x"}} {
		if status, out := s.run(args...); status != 2 || !strings.HasPrefix(out, "usage: ") {
			t.Errorf("%v: status %d\n%s", args, status, out)
		}
	}
}
