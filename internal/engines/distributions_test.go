package engines

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/kubelet"
)

// TestOurUnitsComeBeforeEachEngine: they name the services of all distributions, since systemd says
// nothing of a name that does not exist. k0s' are those that k0s itself installs.
func TestOurUnitsComeBeforeEachEngine(t *testing.T) {
	want := []string{"containerd.service", "crio.service", "docker.service", "podman.service",
		"podman-restart.service", "kubelet.service", "k0scontroller.service", "k0sworker.service"}
	for _, d := range distributions {
		want = append(want, d.Units...)
	}
	for unit, more := range map[string][]string{
		"gpuledger-inventory": {"gpuledgerd.service"}, "gpuledgerd": nil} {
		text, err := os.ReadFile("../../packaging/systemd/" + unit + ".service")
		if err != nil {
			t.Fatal(err)
		}
		var before []string
		for line := range strings.Lines(string(text)) {
			if names, found := strings.CutPrefix(line, "Before="); found {
				before = append(before, strings.Fields(names)...)
			}
		}
		want := slices.Sorted(slices.Values(slices.Concat(want, more)))
		if slices.Sort(before); !slices.Equal(before, want) {
			t.Errorf("%s comes before %q, want %q", unit, before, want)
		}
	}
}

// TestADistributionThatWasLeftBehind: a file of a distribution counts unless the kubelet uses the
// node's own containerd.
func TestADistributionThatWasLeftBehind(t *testing.T) {
	if os.Geteuid() != 0 || kubelet.Endpoint(isOurs) != "" {
		t.Skip("not root, or a kubelet runs here: which containerd is meant beside one is not shown")
	}
	left, socket := filepath.Join(t.TempDir(), "k0s.toml"), filepath.Join(t.TempDir(), "containerd.sock")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	was, own := distributions, ownSocket
	t.Cleanup(func() { distributions, ownSocket = was, own })
	distributions, ownSocket = []Distribution{{Name: "k0s", Main: left}}, socket
	in := Installation{Engine: grant.Containerd, System: filetree.System{Root: "/"}}
	find := func(beside, recorded, want string) {
		t.Helper()
		if got, err := in.FindFile(recorded); err != nil || got != want {
			t.Errorf("beside a kubelet with %q, and %q recorded, it is %q (%v), want %q", beside,
				recorded, got, err, want)
		}
	}
	find("", "", left)
	for _, listens := range []bool{false, true} {
		if listens {
			if err := os.WriteFile(socket, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, endpoint := range []string{"unix:///run/k0s/containerd.sock", "unix://" + socket,
			"unix:///var" + socket, socket} {
			end := startKubelet(t, "--container-runtime-endpoint="+endpoint)
			eventually(t, "a kubelet with "+endpoint, func() bool {
				return kubelet.Endpoint(isOurs) == endpoint
			})
			want := left
			if listens && strings.HasSuffix(endpoint, socket) {
				want = in.Of().File
			}
			find(endpoint, "", want)
			find(endpoint, left, want) // by an older version, or while the kubelet was another
			find(endpoint, "/other", "/other")
			end()
		}
	}
	distributions = nil
	find("", "", "")
}

// TestTheFileOfTheNodesOwnContainerd: without --file it is the one with which the process at its
// socket was started, also beside a distribution that was left behind.
func TestTheFileOfTheNodesOwnContainerd(t *testing.T) {
	if socket := os.Getenv("LISTEN"); socket != "" {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
		return
	}
	if os.Geteuid() != 0 || kubelet.Endpoint(isOurs) != "" {
		t.Skip("not root, or a kubelet runs here: the file of the node's own containerd is not shown")
	}
	was, own := distributions, ownSocket
	t.Cleanup(func() { distributions, ownSocket = was, own })
	in := Installation{Engine: grant.Containerd, System: filetree.System{Root: "/"}}
	other := filepath.Join(t.TempDir(), "other.toml")
	left := filepath.Join(t.TempDir(), "k0s.toml")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args           []string
		recorded, want string
	}{
		{nil, "", ""},
		{[]string{"--config", other}, "", other},
		{[]string{"--config", other}, "/named/before.toml", "/named/before.toml"},
		{[]string{"--config=" + in.Of().File}, "", ""},
		{[]string{"-c", "relative.toml"}, "", ""},
	} {
		distributions, ownSocket = nil, filepath.Join(t.TempDir(), "s")
		end := startListener(t, ownSocket, row.args...)
		if got, err := in.FindFile(row.recorded); err != nil || got != row.want {
			t.Errorf("%q, %q recorded: it is %q (%v), want %q", row.args, row.recorded, got, err, row.want)
		}
		started := ""
		if row.want != row.recorded {
			started = row.want
		} else if row.recorded != "" {
			started = other
		}
		if got, runs := in.StartedWith(); got != started || !runs {
			t.Errorf("%q: started with %q, %v, want %q", row.args, got, runs, started)
		}
		elsewhere := Installation{Engine: grant.Containerd, System: filetree.System{Root: t.TempDir()}}
		if got, err := elsewhere.FindFile(""); err != nil || got != "" {
			t.Errorf("%q, another root: it is %q (%v), want the usual one", row.args, got, err)
		}
		end()
	}
	distributions, ownSocket = []Distribution{{Name: "k0s", Main: left}}, filepath.Join(t.TempDir(), "s")
	defer startListener(t, ownSocket, "--config", other)()
	if got, err := in.FindFile(""); err != nil || got != left {
		t.Errorf("beside k0s: it is %q (%v), want %q", got, err, left)
	}
	defer startKubelet(t, "--container-runtime-endpoint=unix://"+ownSocket)()
	eventually(t, "a kubelet", func() bool { return kubelet.Endpoint(isOurs) != "" })
	if got, err := in.FindFile(""); err != nil || got != other {
		t.Errorf("beside a k0s that was left behind: it is %q (%v), want %q", got, err, other)
	}
}

// eventually waits until it is true. Its limit bounds how long a failure takes.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// startListener starts a process that listens at a socket and has such arguments.
func startListener(t *testing.T, socket string, args ...string) (end func()) {
	t.Helper()
	args = append([]string{"-test.run", "^" + t.Name() + "$", "--"}, args...)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "LISTEN="+socket)
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it listens", func() bool { // the file is there before that
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return func() {
		_ = input.Close()
		_ = cmd.Wait()
	}
}

// startKubelet starts a process whose command line is a kubelet's.
func startKubelet(t *testing.T, args ...string) (end func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh")
	cmd.Args = append([]string{"kubelet", "-c", "read -r end"}, args...)
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = input.Close()
		_ = cmd.Wait()
	}
}
