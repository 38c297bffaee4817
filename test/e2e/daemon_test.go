//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// daemon is a program that runs until it is ended, and can be started again.
type daemon struct {
	command func() *exec.Cmd
	answers func() bool // nil: it has nothing to answer
	log     string      // its output is added to this file

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// daemon starts a program of the engine and waits until it answers. It ends with the test.
func (s *site) daemon(answers func() bool, program string, args ...string) {
	t, name := s.T, filepath.Base(program)
	t.Helper()
	d := &daemon{answers: answers, log: filepath.Join(s.dir, "log", name), command: func() *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
		return cmd
	}}
	s.daemons[name] = d
	d.live(t)
	eventually(t, program+" answers", func() bool {
		if d.over() {
			t.Fatalf("%s has ended:\n%s", program, tail(d.log))
		}
		return answers()
	})
}

// live starts the daemon, which ends with the test.
func (d *daemon) live(t testing.TB) {
	t.Helper()
	must(t, d.start())
	t.Cleanup(func() {
		d.stop(20 * time.Second)
		if t.Failed() {
			t.Logf("%s has logged:\n%s", filepath.Base(d.log), tail(d.log))
		}
	})
}

func (d *daemon) start() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd, ended := d.command(), make(chan struct{})
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait(); close(ended) }()
	d.cmd, d.ended = cmd, ended
	return nil
}

// running is the process, and a channel that is closed at its end.
func (d *daemon) running() (*exec.Cmd, chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd, d.ended
}

func (d *daemon) over() bool {
	_, ended := d.running()
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// kill ends the daemon as a power cut would.
func (d *daemon) kill() {
	cmd, ended := d.running()
	_ = cmd.Process.Kill()
	<-ended
}

// pause stops the daemon's process until it is killed. Its connections stay open.
func (d *daemon) pause(t testing.TB) {
	t.Helper()
	cmd, _ := d.running()
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	eventually(t, filepath.Base(d.log)+" stands", func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return strings.Contains(string(stat), ") T ")
	})
}

// stop ends the daemon as systemd would, and reports whether it had to be killed.
func (d *daemon) stop(patience time.Duration) (killed bool) {
	cmd, ended := d.running()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
		return false
	case <-time.After(patience):
		d.kill()
		return true
	}
}
