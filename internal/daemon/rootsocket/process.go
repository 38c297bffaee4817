package rootsocket

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Process is a process that connected. Its pid is not given to another process while it Is.
type Process struct {
	PID   int // in this pid namespace
	UID   uint32
	pidfd int
}

// ProcessOf holds the process that connected. It has to be closed. Kernels before Linux 6.5, which
// have no SO_PEERPIDFD, know its pid alone: there it is the process that has the pid now, which may
// be another one, so the caller has to look at whose it is.
func ProcessOf(conn net.Conn) (*Process, error) {
	c, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return nil, errors.New("it is no unix socket")
	}
	cred, err := peerOf(c)
	if err != nil {
		return nil, err
	}
	if cred.Pid <= 0 {
		return nil, errors.New("the process that asks is not one of this node's pids")
	}
	p := &Process{PID: int(cred.Pid), UID: cred.Uid}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	e := raw.Control(func(fd uintptr) {
		p.pidfd, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		p.pidfd, err = unix.PidfdOpen(p.PID, 0)
	}
	if err = errors.Join(e, err); err != nil {
		return nil, fmt.Errorf("the process that asks has ended: %w", err)
	}
	unix.CloseOnExec(p.pidfd)
	return p, nil
}

// Is reports whether the pid is still this process's: it has not been waited for.
func (p *Process) Is() bool {
	err := unix.PidfdSendSignal(p.pidfd, 0, nil, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}

// Close lets go of the process.
func (p *Process) Close() { _ = unix.Close(p.pidfd) }
