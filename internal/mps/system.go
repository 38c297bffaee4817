package mps

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// System is what the manager uses of the machine beside files and /proc. A simulated node has one
// of its own.
type System interface {
	// Now is the present time by a clock that is never set.
	Now() time.Time
	// StartLauncher starts the launcher of a directory.
	StartLauncher(dir string) error
	// Ask returns what NVIDIA's control program prints for one command.
	Ask(ctx context.Context, program string, env []string, command string) (string, error)
	// Listener is host.Listener.
	Listener(path string) (pid int, file [2]uint64, err error)
	// HoldsListener is host.Host.HoldsListener.
	HoldsListener(h host.Host, pid int, name string) (bool, error)
}

// machine is this machine.
type machine struct{}

// systemOr is a system, or this machine for none.
func systemOr(s System) System {
	if s == nil {
		return machine{}
	}
	return s
}

func (machine) Now() time.Time { return time.Now() }

func (machine) Listener(path string) (int, [2]uint64, error) { return host.Listener(path) }

func (machine) HoldsListener(h host.Host, pid int, name string) (bool, error) {
	return h.HoldsListener(pid, name)
}

func (machine) Ask(ctx context.Context, program string, env []string, command string) (string, error) {
	cmd := exec.CommandContext(ctx, program)
	cmd.Env, cmd.Stdin, cmd.WaitDelay = env, strings.NewReader(command+"\n"), time.Second
	// It ends with this process, or a late "quit" could reach a daemon that has grants again. The
	// signal comes when the thread that has started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out, wrong answer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	err := cmd.Run()
	switch {
	case out.over || wrong.over:
		return "", fmt.Errorf("it answers %q with more than %d bytes", command, maxAnswer)
	case ctx.Err() == context.DeadlineExceeded:
		return "", fmt.Errorf("it does not answer %q within %s", command, answerTime)
	case err != nil:
		return "", fmt.Errorf("it cannot be asked %q: %w: %s", command, err,
			firstLine(string(wrong.text)+string(out.text)))
	}
	return strings.TrimSpace(string(out.text)), nil
}

// StartLauncher has systemd start the launcher if it can, for which it is enough that the launcher
// runs. Otherwise the launcher gets a session of its own. It outlives this process, which waits for
// it meanwhile.
func (machine) StartLauncher(dir string) error {
	if unit := unitOf(dir); hasUnit() {
		return startUnit(unit)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile),
		os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(self, "mps", dir)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = log, log, "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return nil
}
