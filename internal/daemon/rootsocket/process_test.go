package rootsocket

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const connectTo = "GPULEDGER_TEST_CONNECT"

// TestConnectsAndStays is a process of TestProcessOf, which connects and waits to be killed.
func TestConnectsAndStays(t *testing.T) {
	path := os.Getenv(connectTo)
	if path == "" {
		return // TestProcessOf runs it
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	time.Sleep(time.Minute)
}

// TestProcessOf: the process that connected is held by more than its pid: one that has ended is
// none.
func TestProcessOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestConnectsAndStays$")
	cmd.Env = append(os.Environ(), connectTo+"="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, err := ProcessOf(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.PID != cmd.Process.Pid || p.UID != uint32(os.Getuid()) || !p.Is() {
		t.Errorf("%+v, want pid %d", p, cmd.Process.Pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if p.Is() {
		t.Error("it has ended, and its pid is said to be its own")
	}
	if late, err := ProcessOf(conn); err == nil {
		defer late.Close()
		if late.Is() {
			t.Error("a process that had ended before is said to run")
		}
	}
	one, two := net.Pipe()
	defer one.Close()
	defer two.Close()
	if _, err := ProcessOf(one); err == nil {
		t.Error("a pipe comes from a process")
	}
}
