package engines

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestASocketOfAUserIsNotAsked, whatever the list of sockets says.
func TestASocketOfAUserIsNotAsked(t *testing.T) {
	if socket := os.Getenv("LISTEN"); socket != "" {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(`{"DefaultRuntime":"runc"}`))
		}))
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: that a user's socket is not asked is not shown")
	}
	dir, err := os.MkdirTemp("/tmp", "ask")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	was := listensAt
	t.Cleanup(func() { listensAt = was })
	listensAt = func(int) []string { return []string{dir + "/s"} }
	for _, uid := range []uint32{0, 65534} {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestASocketOfAUserIsNotAsked$")
		cmd.Env = append(os.Environ(), "LISTEN="+dir+"/s")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid},
			Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "something answers", func() bool {
			_, err := dockerInfo(dir + "/s")
			return err == nil
		})
		if is, err := AskDocker(1); (err == nil) != (uid == 0) {
			t.Errorf("uid %d: %+v, %v", uid, is, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(dir + "/s")
	}
}

// TestAskDocker: this process listens at a socket as dockerd does, and at others that answer other
// things.
func TestAskDocker(t *testing.T) {
	dir := t.TempDir()
	answers := func(name, text string) {
		t.Helper()
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(text))
		})}
		t.Cleanup(func() { _ = server.Close() })
		go func() { _ = server.Serve(l) }()
	}
	if _, err := AskDocker(os.Getpid()); err == nil || !strings.Contains(err.Error(), "at no socket") {
		t.Errorf("no socket: %v", err)
	}
	answers("metrics.sock", "a 1\n")
	if _, err := AskDocker(os.Getpid()); err == nil ||
		!strings.Contains(err.Error(), "cannot understand what "+dir+"/metrics.sock answers") {
		t.Errorf("another socket: %v", err)
	}
	answers("plugin.sock", `{"message":"no"}`)
	answers("docker.sock", `{"ID":"x","Runtimes":{"gpuledger":{"path":"/p","runtimeArgs":["-a"]},
		"runc":{"path":"runc"},"shim":{"runtimeType":"io.containerd.kata.v2"}},"DefaultRuntime":"runc"}`)
	is, err := AskDocker(os.Getpid())
	if err != nil || is.Default != "runc" || is.Handlers["gpuledger"] != "/p" || len(is.Handlers) != 3 {
		t.Errorf("got %+v, %v", is, err)
	}
}
