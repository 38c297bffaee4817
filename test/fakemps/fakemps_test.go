package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// standIn is the stand-in below a driver root, with a daemon that runs.
type standIn struct {
	t          *testing.T
	root, pipe string
	daemon     *exec.Cmd
}

// start builds the stand-in as the driver of this version has it, and starts its daemon.
func start(t *testing.T, version string, args ...string) standIn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can ask as other users: what the stand-in refuses them is not shown")
	}
	root, err := os.MkdirTemp("/tmp", "fakemps") // other users reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	s := standIn{t: t, root: root, pipe: filepath.Join(root, "pipe")}
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib/x/nvidia/current", "pipe", "log"} {
		s.must(os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	s.must(os.Chmod(root, 0o755))
	s.must(os.WriteFile(filepath.Join(root, "usr/lib/x/nvidia/current/libcuda.so."+version), nil, 0o644))
	build := exec.Command("go", "build", "-p", "2", "-o", filepath.Join(root, "usr/bin", controlProgram), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build fakemps: %v\n%s", err, out)
	}
	s.must(os.Link(filepath.Join(root, "usr/bin", controlProgram),
		filepath.Join(root, "usr/sbin", serverProgram)))
	s.daemon = s.command(args...)
	s.must(s.daemon.Start())
	t.Cleanup(func() { _ = s.daemon.Process.Kill(); _ = s.daemon.Wait() })
	for range 200 {
		if s.ask(0, "get_server_list") == "" {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return s
}

func (s standIn) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s standIn) command(args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(s.root, "usr/bin", controlProgram), args...)
	c.Env = []string{"PATH=" + s.root + "/usr/sbin", "CUDA_MPS_PIPE_DIRECTORY=" + s.pipe,
		"CUDA_MPS_LOG_DIRECTORY=" + s.root + "/log", "CUDA_VISIBLE_DEVICES=0"}
	return c
}

// ask asks as a user. An error is printed to the standard output, and the status is 0.
func (s standIn) ask(uid uint32, command string) string {
	s.t.Helper()
	c := s.command()
	c.Stdin = strings.NewReader(command + "\n")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := c.Output()
	if err != nil {
		s.t.Errorf("%s: %v", command, err)
	}
	return strings.TrimSpace(string(out))
}

// TestStandInIsLikeTheDrivers: sockets, modes, commands and answers, as they were seen of drivers
// 535, 550 and 580, and as documented for 470.
func TestStandInIsLikeTheDrivers(t *testing.T) {
	for version, r := range map[string]release{"470.256.02": releases[0], "535.183.01": releases[1],
		"550.54.15": releases[2], "580.65.06": releases[3]} {
		t.Run(version, func(t *testing.T) {
			s := start(t, version, "-f")
			for name, want := range map[string]fs.FileMode{"control": fs.ModeSocket | 0o666,
				"control_privileged": fs.ModeSocket | 0o755, "log": fs.ModeNamedPipe | 0o777} {
				if info, err := os.Lstat(filepath.Join(s.pipe, name)); err != nil || info.Mode() != want {
					t.Errorf("%s: %v, want %v (%v)", name, info.Mode(), want, err)
				}
			}
			sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", s.daemon.Process.Pid))
			s.must(err)
			for _, name := range []string{"control", "control_privileged"} { // type 5 is SOCK_SEQPACKET
				if listens := regexp.MustCompile(`(?m)^\S+ \d+ \d+ 00010000 0005 01 +\d+ ` + name +
					`$`); !listens.Match(sockets) {
					t.Errorf("%s is no SOCK_SEQPACKET socket that listens", name)
				}
			}
			s.limitsAre(r)
			s.usersAre(r)
			if s.ask(0, "start_server -uid 0") != "" {
				t.Error("a server does not start")
			}
			server := s.ask(0, "get_server_list")
			if got := s.ask(0, "get_server_status "+server); got != answerIf(r.status, "ACTIVE") {
				t.Errorf("the server's status is %q", got)
			}
			if got := s.ask(0, "get_active_thread_percentage "+server); !strings.HasSuffix(got, ".0") {
				t.Errorf("the server's percentage is %q", got)
			}
			if got := s.ask(0, "lspart"); got != map[bool]string{false: "Unknown command",
				true: `Unknown command "lspart"`}[r.wordy] {
				t.Errorf("lspart: %q", got)
			}
			s.ask(0, "quit")
			_ = s.daemon.Wait()
			for _, name := range []string{"control", "control_lock", "control_privileged", "log"} {
				_, err := os.Lstat(filepath.Join(s.pipe, name))
				if isGone := name == "log" && r.wordy; isGone != (err != nil) {
					t.Errorf("after quit %s is gone: %v", name, err != nil)
				}
			}
			if logs, _ := os.ReadDir(s.root + "/log"); len(logs) > 0 {
				t.Errorf("the log directory has %v", logs)
			}
			if got := s.ask(0, "get_server_list"); got != noDaemon.Error() {
				t.Errorf("without a daemon: %q", got)
			}
			if r.users {
				return // it would start another daemon
			}
			if out, err := s.command("-f", "-multiuser-server").Output(); err != nil ||
				strings.TrimSpace(string(out)) != noDaemon.Error() {
				t.Errorf("-multiuser-server: %s, %v", out, err)
			}
		})
	}
}

func answerIf(known bool, answer string) string {
	if known {
		return answer
	}
	return "Unknown command"
}

// limitsAre checks how limits are printed: exactly below 1 GiB, then whole GiB.
func (s standIn) limitsAre(r release) {
	s.t.Helper()
	for set, want := range map[string]string{"512M": "512M", "1023M": "1023M", "1024M": "1G", "1536M": "1G",
		"16160M": "15G"} {
		s.ask(0, "set_default_device_pinned_mem_limit 0 "+set)
		if got := s.ask(0, "get_default_device_pinned_mem_limit 0"); got != answerIf(r.limits, want) {
			s.t.Errorf("%s is printed as %q", set, got)
		}
	}
}

// usersAre checks what others than root may ask: nothing that changes a thing, but with 535 the
// default thread percentage.
func (s standIn) usersAre(r release) {
	s.t.Helper()
	if got := s.ask(65534, "get_server_list"); got != "" {
		s.t.Errorf("others are told %q of the servers", got)
	}
	s.ask(65534, "set_default_active_thread_percentage 33")
	if got := s.ask(0, "get_default_active_thread_percentage"); (got == "33.0") != r.open {
		s.t.Errorf("others have set the percentage to %q", got)
	}
	said := s.ask(65534, "quit")
	if s.ask(0, "get_server_list") != "" || said != map[bool]string{false: "Permission denied",
		true: "Not enough privilege to execute quit command"}[r.wordy] {
		s.t.Errorf("others can end the daemon, or are told %q", said)
	}
}

// TestRootConnectsToItsOwnSocketFirst: root asks whatever listens there, others do not.
func TestRootConnectsToItsOwnSocketFirst(t *testing.T) {
	s := start(t, "550.54.15", "-f")
	s.must(os.Rename(s.pipe+"/control", s.pipe+"/elsewhere"))
	if got := s.ask(0, "get_default_active_thread_percentage"); got != "100.0" {
		t.Errorf("root is answered %q", got)
	}
	if got := s.ask(65534, "get_default_active_thread_percentage"); got != noDaemon.Error() {
		t.Errorf("others are answered %q", got)
	}
	s.must(os.Rename(s.pipe+"/elsewhere", s.pipe+"/control"))
	s.must(os.Remove(s.pipe + "/control_privileged"))
	if got := s.ask(0, "get_default_active_thread_percentage"); got != "100.0" {
		t.Errorf("by the other socket root is answered %q", got)
	}
}

// TestAServerEndsWithItsDaemon: also one whose daemon was killed before the server could look.
func TestAServerEndsWithItsDaemon(t *testing.T) {
	s := start(t, "580.65.06", "-f")
	server := exec.Command(filepath.Join(s.root, "usr/sbin", serverProgram))
	server.Env = append(s.command().Env, "FAKEMPS_SOCKET="+s.root+"/server", "FAKEMPS_PERCENT=100",
		fmt.Sprintf("FAKEMPS_CONTROL=%d", s.daemon.Process.Pid)) // whose child this one is not
	if err := server.Run(); server.ProcessState == nil || server.ProcessState.ExitCode() != 1 {
		t.Errorf("it ends with %v", err)
	}
}
