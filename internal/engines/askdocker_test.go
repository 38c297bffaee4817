package engines

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
