package setup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cluster writes what the cluster sets, and gives its path. Like the kubelet it replaces the file
// whole: an empty one is a text that the node takes.
func (s machine) cluster(text string) string {
	s.Helper()
	s.write("node/cluster/draft", text)
	path := s.dir + "/node/cluster/cluster.toml"
	if err := os.Rename(s.dir+"/node/cluster/draft", path); err != nil {
		s.Fatal(err)
	}
	return path
}

const ours = "[policy]\nmode = \"report\"\n[[policy.exempt]]\nnamespace = \"gpuledger-system\"\n"

// What the cluster sets is on the node before the engine is configured. It exempts the agents, so
// the node's own file gets no exemption.
func TestTheClustersFileIsThereBeforeTheEngineIsConfigured(t *testing.T) {
	s := newMachine(t)
	s.write("node/usr/bin/gpuledger", gpuledger+"\n/bin/busybox cp /etc/gpuledger/cluster.toml /seen\n")
	s.write("tree/usr/bin/gpuledger", gpuledger+"\n/bin/busybox cp /etc/gpuledger/cluster.toml /seen\n")
	if err := os.Remove(s.dir + "/node/usr/bin/gpuledger"); err != nil {
		t.Fatal(err)
	}
	s.must("install", "--engine=crio", "--as-default", "--cluster="+s.cluster(ours))
	if got := read(t, s.dir+"/node/seen"); got != strings.TrimSpace(ours) {
		t.Errorf("at the configuration of the engine it was %q", got)
	}
	if text := read(t, s.dir+"/node"+configFile); strings.Contains(text, "exempt") {
		t.Errorf("the node's own file is\n%s", text)
	}
	s.must("remove", "--engine=crio")
	if exists(s.dir + "/node" + clusterFile) {
		t.Error("it stays after a removal")
	}
}

// A text that the node does not take keeps no node from being set up, and leaves what it has.
func TestATextThatTheNodeDoesNotTake(t *testing.T) {
	s := newMachine(t)
	status, out := s.run("install", "--engine=crio", "--as-default",
		"--cluster="+s.cluster("[policy]\nmode = 1\n"))
	if status != 0 || !strings.Contains(out, "this node does not take what the cluster sets, and stays as "+
		"it is: "+
		"/etc/gpuledger/cluster.toml:2: policy.mode") {
		t.Errorf("status %d\n%s", status, out)
	}
	if text := read(t, s.dir+"/node"+configFile); !strings.Contains(text, "gpuledger-dra-") {
		t.Errorf("the agents are not exempt:\n%s", text)
	}
	s.must("install", "--engine=crio", "--cluster="+s.cluster(ours))
	s.must("install", "--engine=crio", "--cluster="+s.cluster("nonsense"))
	if got := read(t, s.dir+"/node"+clusterFile); got != strings.TrimSpace(ours) {
		t.Errorf("it became %q", got)
	}
}

// container is the program in a container that has the node's /etc/gpuledger and /cluster.
func (s machine) container(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), layoutVar+"="+s.dir, rootVar+"="+s.dir+"/node")
	return cmd
}

// starts starts the program in such a container until the test ends, and gives what it says.
func (s machine) starts(args ...string) (said func() string) {
	s.Helper()
	log := filepath.Join(s.dir, "log")
	cmd := s.container(args...)
	out, err := os.Create(log)
	if err != nil {
		s.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := errors.Join(cmd.Start(), out.Close()); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			s.Errorf("it ends with %v", err)
		}
	})
	return func() string { text, _ := os.ReadFile(log); return string(text) }
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// A change reaches the node as a whole, one that it does not take changes nothing, and the probe
// says which.
func TestTheNodeFollowsTheCluster(t *testing.T) {
	s := newMachine(t)
	s.must("install", "--engine=crio", "--cluster="+s.cluster(ours))
	said := s.starts("config", "--cluster=/cluster/cluster.toml")
	ready := func() (int, string) {
		cmd := s.container("ready", "--cluster=/cluster/cluster.toml")
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if status, out := ready(); status != 0 || out != "" {
		t.Errorf("after the install it is ready with status %d: %s", status, out)
	}
	enforced := strings.Replace(ours, "report", "enforce", 1)
	s.cluster(enforced)
	eventually(t, "the node has the change", func() bool {
		return read(t, s.dir+"/node"+clusterFile) == strings.TrimSpace(enforced)
	})
	if status, out := ready(); status != 0 {
		t.Errorf("it is not ready: %s", out)
	}
	s.cluster("[audit]\nkeep = 0\n")
	eventually(t, "it says that it does not take a text", func() bool {
		return strings.Contains(said(), "cluster.toml:2: audit.keep: want 1 to 100 files, not 0")
	})
	if status, out := ready(); status != 1 || !strings.Contains(out,
		"gpuledger-setup: this node does not take "+
			"what the cluster sets, and stays as it is: /etc/gpuledger/cluster.toml:2: audit.keep: want 1 ") {
		t.Errorf("ready: status %d: %s", status, out)
	}
	if got := read(t, s.dir+"/node"+clusterFile); got != strings.TrimSpace(enforced) {
		t.Errorf("it became %q", got)
	}
	// back again, and by hand
	s.cluster(ours)
	eventually(t, "the node goes back", func() bool {
		return read(t, s.dir+"/node"+clusterFile) == strings.TrimSpace(ours)
	})
	s.write("node"+clusterFile, "# mine\n")
	eventually(t, "the cluster's text is back", func() bool {
		return read(t, s.dir+"/node"+clusterFile) == strings.TrimSpace(ours)
	})
	s.write("node"+configFile, "[audit]\nkeep = 0\n")
	if status, out := ready(); status != 1 || !strings.Contains(out,
		"/etc/gpuledger/config.toml:2: audit.keep") {
		t.Errorf("with a broken file of the node: status %d: %s", status, out)
	}
}

// The DaemonSet may be gone when the node boots: systemd removes what had to stay.
func TestWhatStaysIsRemovedAtTheNextBoot(t *testing.T) {
	s := newMachine(t)
	s.must("install", "--engine=crio")
	s.must("remove", "--engine=crio")
	text := read(t, s.dir+"/node"+atBoot)
	for _, path := range []string{"/usr/bin/gpuledger-runtime", "/usr/bin/gpuledger-runtime.crio", record,
		"/usr/lib/gpuledger", atBoot} {
		if !slices.Contains(strings.Split(text, "\n"), "r! "+path) {
			t.Errorf("%s stays:\n%s", path, text)
		}
	}
	s.must("install", "--engine=crio")
	if exists(s.dir + "/node" + atBoot) {
		t.Error("the next boot would remove what is installed again")
	}
	s.must("remove", "--engine=crio")
	if err := os.Remove(s.dir + "/node" + removedInThisBoot); err != nil { // a boot
		t.Fatal(err)
	}
	s.must("remove", "--engine=crio")
	if exists(s.dir + "/node" + atBoot) {
		t.Error("there is nothing left, and the file stays")
	}
}

// The engine is that of the kubelet, or the only one.
func TestTheEngineIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		engine string // or what is said
	}{
		"containerd": {map[string]string{"/run/containerd/containerd.sock": ""}, "containerd"},
		"CRI-O":      {map[string]string{"/run/crio/crio.sock": ""}, "crio"},
		"k3s":        {map[string]string{"/run/k3s/containerd/containerd.sock": ""}, "containerd"},
		"cri-dockerd": {map[string]string{"/run/cri-dockerd.sock": "", "/proc/7/cmdline": "kubelet\x00"},
			"docker"},
		"the kubelet's of two": {map[string]string{"/run/containerd/containerd.sock": "",
			"/run/crio/crio.sock": "",
			"/proc/7/cmdline": "/usr/bin/kubelet\x00--container-runtime-endpoint=" +
				"unix:///run/crio/crio.sock\x00"}, "crio"},
		"the kubelet's by its file": {map[string]string{"/run/containerd/containerd.sock": "",
			"/run/crio/crio.sock": "",
			"/var/lib/kubelet/config.yaml": "a: b\ncontainerRuntimeEndpoint: " +
				"\"unix:///var/run/crio/crio.sock\" # ours\n",
			"/proc/7/cmdline": "/usr/bin/kubelet\x00--config\x00/var/lib/kubelet/config.yaml\x00"}, "crio"},
		"the kubelet's by a file of JSON": {map[string]string{"/run/containerd/containerd.sock": "",
			"/run/crio/crio.sock": "",
			"/etc/kubelet.json": "{\n  \"containerRuntimeEndpoint\": \"unix:///run/crio/crio.sock\",\n" +
				"  \"a\": 1\n}\n",
			"/proc/7/cmdline": "/usr/bin/kubelet\x00--config=/etc/kubelet.json\x00"}, "crio"},
		"a tenant's process of that name before it": {map[string]string{"/run/crio/crio.sock": "",
			"/run/cri-dockerd.sock": "",
			"/proc/10/cmdline":      "kubelet\x00--container-runtime-endpoint=/x/cri-dockerd.sock\x00",
			"/proc/11/cmdline":      "kubelet\x00--container-runtime-endpoint=/x/cri-dockerd.sock\x00",
			"/proc/7/cmdline": "kubelet\x00--container-runtime-endpoint=" +
				"/run/crio/crio.sock\x00"}, "crio"},
		"a kubelet's that is not there": {map[string]string{"/run/crio/crio.sock": "",
			"/proc/7/cmdline": "kubelet\x00--container-runtime-endpoint=" +
				"/run/containerd/containerd.sock\x00"}, "crio"},
		"none": {nil, "cannot find the engine of this node"},
		"two": {map[string]string{"/run/containerd/containerd.sock": "", "/run/crio/crio.sock": ""},
			"there are sockets of containerd and crio; name the engine"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newMachine(t)
			for file, text := range c.files {
				s.write("node"+file, text)
			}
			for process, namespace := range map[string]string{"1": "node's", "10": "another", "11": "node's",
				"7": "node's"} {
				uids := "0\t0\t0\t0"
				if process == "11" { // which a setuid program may have made
					uids = "1000\t0\t0\t0"
				}
				s.write("node/proc/"+process+"/status", "Name:\tx\nUid:\t"+uids+"\n")
				dir := filepath.Join(s.dir, "node/proc", process, "ns")
				for _, kind := range []string{"mnt", "pid", "user"} {
					if err := errors.Join(os.MkdirAll(dir, 0o755),
						os.Symlink(namespace, filepath.Join(dir, kind))); err != nil {
						t.Fatal(err)
					}
				}
			}
			status, out := s.run("install", "--engine=auto")
			fails := strings.Contains(c.engine, " ") // it is part of the error, which names engines too
			if fails != (status != 0) || fails && !strings.Contains(out, c.engine) ||
				!fails && !slices.Contains(s.calls(), "gpuledger configure "+c.engine) {
				t.Errorf("status %d, want %s\n%s", status, c.engine, out)
			}
		})
	}
}

// A removal undoes each engine that was configured.
func TestARemovalFindsTheEngines(t *testing.T) {
	s := newMachine(t)
	s.write("node/run/crio/crio.sock", "")
	s.must("install", "--engine=auto")
	s.write("node/var/lib/gpuledger/configure/podman/record.json", "{}")
	s.calls()
	if status, out := s.run("remove", "--engine=auto"); status != 1 || !strings.Contains(out,
		"podman/record.json") {
		t.Errorf("status %d\n%s", status, out)
	}
	calls := s.calls()
	for _, engine := range []string{"podman", "crio"} {
		if !slices.Contains(calls, "gpuledger configure "+engine+" --undo") {
			t.Errorf("%s is not undone: %q", engine, calls)
		}
	}
}
