package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// onNode is a node on which tests start drivers. Its API does not answer.
type onNode struct {
	t   *testing.T
	dir string
}

func newNode(t *testing.T) onNode {
	dir, err := os.MkdirTemp("", "k") // a short path, for sockets
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, d := range []string{"/state", "/run", "/kubelet/plugins_registry"} {
		must(t, os.MkdirAll(dir+d, 0o700))
	}
	must(t, os.WriteFile(dir+"/config.toml",
		fmt.Appendf(nil, "state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\nfile = "+
			"\"/nowhere\"\n",
			dir+"/state", dir+"/run"), 0o600),
		os.WriteFile(dir+"/kubeconfig",
			[]byte("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "+
				"\"http://127.0.0.1:1\"}}], contexts: [{name: c, context: {cluster: c}}], "+
				"current-context: c}\n"),
			0o600))
	return onNode{t, dir}
}

// program runs this test binary as main with these arguments.
func program(log string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asMain+"=1", "NODE_NAME=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := os.Create(log)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, err
}

// driver starts a driver. ended returns its exit status, or -1 while it runs.
func (n onNode) driver(name string, args ...string) (cmd *exec.Cmd, logged func() string, ended func() int) {
	n.t.Helper()
	log := n.dir + "/" + name
	cmd, err := program(log, append([]string{"dra", "--config", n.dir + "/config.toml", "--kubeconfig",
		n.dir + "/kubeconfig", "--node-name", nodeName, "--kubelet-dir", n.dir + "/kubelet",
		"--interval", "20ms"},
		args...)...)
	must(n.t, err, cmd.Start())
	over := make(chan struct{})
	go func() { _ = cmd.Wait(); close(over) }()
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); <-over })
	logged = func() string { text, _ := os.ReadFile(log); return string(text) }
	ended = func() int {
		select {
		case <-over:
			return cmd.ProcessState.ExitCode()
		default:
			return -1
		}
	}
	eventually(n.t, name+" serves", logged, func() bool {
		return strings.Contains(logged(), "serving the kubelet")
	})
	return cmd, logged, ended
}

// sockets returns the names of the sockets that are served.
func (n onNode) sockets() (list []string) {
	for _, pattern := range []string{"/kubelet/plugins_registry/*",
		"/kubelet/plugins/gpuledger.dev/dra*.sock"} {
		paths, err := filepath.Glob(n.dir + pattern)
		must(n.t, err)
		for _, path := range paths {
			conn, err := net.Dial("unix", path)
			if err == nil {
				conn.Close()
				list = append(list, filepath.Base(path))
			} else if !errors.Is(err, syscall.ECONNREFUSED) {
				n.t.Fatal(err)
			}
		}
	}
	return list
}

// A driver that the kubelet cannot reach leaves every pod of the node waiting. As long as it runs
// it is not restarted.
func TestADriverThatIsNotReachedEnds(t *testing.T) {
	for _, socket := range []string{"plugins_registry/gpuledger.dev-u1-reg.sock",
		"plugins/gpuledger.dev/dra-u1.sock"} {
		t.Run(socket, func(t *testing.T) {
			n := newNode(t)
			_, logged, ended := n.driver("only", "--pod-uid", "u1")
			must(t, os.Remove(n.dir+"/kubelet/"+socket))
			eventually(t, "the driver ends", logged, func() bool { return ended() >= 0 })
			if want := "cannot go on to serve the kubelet: cannot find the own socket: lstat " + n.dir +
				"/kubelet/" +
				socket + ": no such file or directory"; ended() != 1 || !strings.Contains(logged(), want) {
				t.Errorf("exit status %d, want 1 and %q:\n%s", ended(), want, logged())
			}
			n.driver("next", "--pod-uid", "u1")
			if all := n.sockets(); len(all) != 2 {
				t.Errorf("the next driver serves %v, want two sockets", all)
			}
		})
	}
}

// By the pod a reader of the annotation sees whether something keeps it up to date.
func TestTheDevicePluginPublishesItsPod(t *testing.T) {
	n := newNode(t)
	patches := make(chan string, 1)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); r.Method == http.MethodPatch {
			select {
			case patches <- r.URL.Path + " " + string(body):
			default:
			}
		}
		http.Error(w, "not here", http.StatusNotFound)
	}))
	t.Cleanup(api.Close)
	must(t, os.WriteFile(n.dir+"/kubeconfig", []byte(kubeconfigOf(api.URL)), 0o600))
	cmd, err := program(n.dir+"/log", "device-plugin", "--config", n.dir+"/config.toml", "--kubeconfig",
		n.dir+"/kubeconfig", "--placed-by", "scheduler", "--node-name", nodeName, "--kubelet-dir",
		n.dir+"/kubelet", "--pod", "team/plugin-a")
	must(t, err, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	logged := func() string { text, _ := os.ReadFile(n.dir + "/log"); return string(text) }
	eventually(t, "it publishes", logged, func() bool { return len(patches) > 0 })
	if got := <-patches; !strings.HasPrefix(got, "/api/v1/nodes/"+nodeName+" ") ||
		!strings.Contains(got, `\"pod\":\"team/plugin-a\"`) {
		t.Errorf("it has written %s", got)
	}
}

// An update runs the new driver beside the old one. The library removes a socket by its name, even
// if another process serves it.
func TestAnEndingDriverKeepsTheSocketsOfAnother(t *testing.T) {
	for name, uids := range map[string][2]string{"as pods, each with sockets of its own": {"u1", "u2"},
		"by hand, in the place of the first": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			older, saidOlder, endedOlder := n.driver("older", "--pod-uid", uids[0])
			_, saidNewer, endedNewer := n.driver("newer", "--pod-uid", uids[1])
			if uids[0] != "" {
				if endedOlder() >= 0 {
					t.Fatalf("the older one ends for the newer:\n%s", saidOlder())
				}
				must(t, older.Process.Signal(syscall.SIGTERM))
			}
			eventually(t, "the older one ends", saidOlder, func() bool { return endedOlder() >= 0 })
			if want := "cannot go on to serve the kubelet: "; uids[0] == "" &&
				(endedOlder() != 1 || !strings.Contains(saidOlder(), want)) {
				t.Errorf("exit status %d, want 1 and %q:\n%s", endedOlder(), want, saidOlder())
			}
			if all := n.sockets(); len(all) != 2 || uids[1] != "" && !strings.Contains(all[0], uids[1]) ||
				endedNewer() >= 0 {
				t.Errorf("the newer one serves %v, want its two sockets:\n%s", all, saidNewer())
			}
		})
	}
}

// If a Node is deleted and made again, its slices are deleted, and the library would make them for
// the old Node again and again.
func TestADriverOfADeletedNodeEnds(t *testing.T) {
	n := newNode(t)
	var asked atomic.Int32
	var anew atomic.Bool
	cluster := &api{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
			cluster.ServeHTTP(w, r)
			return
		}
		node := corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "u-1"}}
		if anew.Load() {
			node.UID = "u-2"
		}
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(node)
	}))
	t.Cleanup(server.Close)
	config, err := os.ReadFile(n.dir + "/kubeconfig")
	must(t, err, os.WriteFile(n.dir+"/kubeconfig",
		bytes.ReplaceAll(config, []byte("http://127.0.0.1:1"), []byte(server.URL)), 0o600))
	_, logged, ended := n.driver("only", "--reclaim", "20ms")
	// the library itself sends one request
	eventually(t, "it reads which node this is", logged, func() bool { return asked.Load() > 2 })
	if ended() >= 0 {
		t.Fatalf("it ends on the node that it had:\n%s", logged())
	}
	anew.Store(true)
	eventually(t, "the driver ends", logged, func() bool { return ended() >= 0 })
	if want := "cannot go on to serve the kubelet: the cluster has another node " + nodeName; ended() != 1 ||
		!strings.Contains(logged(), want) {
		t.Errorf("exit status %d, want 1 and %q:\n%s", ended(), want, logged())
	}
}
