package mps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
)

// checkSocket checks the way by which clients reach the daemon: which users it accepts, by its own
// arguments, and that the socket is its own. A client that cannot reach the daemon would use the
// whole GPU without it.
func (d *daemon) checkSocket(state *grant.MPSDaemon) error {
	args, err := host.ReadFile(filepath.Join(d.node.Host.Proc, strconv.Itoa(state.Daemon.PID), "cmdline"),
		1<<16)
	if err != nil {
		return err
	}
	state.Anybody = slices.Contains(strings.Split(string(args), "\x00"), multiUser)
	socket, mode, err := d.ownSocket(state.Daemon)
	if err == nil && state.Anybody && mode&0o002 == 0 {
		err = errors.New("its control socket is open to root alone")
	}
	state.Socket = socket
	return err
}

// ownSocket is the control socket, if the kernel says that the daemon listens on it, or a process
// that it has started. The state file proves nothing: the daemon may have been started again, and
// its clients can replace the socket.
func (d *daemon) ownSocket(p grant.Process) (socket [2]uint64, mode uint32, err error) {
	socket, mode, is := mpsstate.Socket(d.dir)
	switch {
	case !is && !isMountPoint(filepath.Join(d.dir, "pipe")):
		return socket, mode, errors.New("it has no control socket, and its directory is not mounted where " +
			"gpuledgerd looks")
	case !is:
		return socket, mode, errors.New("it has no control socket")
	case d.proven == provenSocket{p, socket}:
		return socket, mode, nil
	}
	pid, listens, err := host.Listener(mpsstate.SocketPath(d.dir))
	if err != nil {
		return socket, mode, fmt.Errorf("it does not listen on its control socket: %w", err)
	}
	if _, parent, err := d.node.Host.Process(pid); listens != socket || pid != p.PID &&
		(err != nil || parent != p.PID) {
		return socket, mode, otherSocketError(p)
	}
	d.proven = provenSocket{p, socket}
	return socket, mode, nil
}

// socketStamp is the control socket's stamp. A process that moves another socket to its place and
// then the daemon's back changes the time of its last change; connecting does not. It is taken when
// that time is old enough to be unique.
func socketStamp(ctx context.Context, dir string) (host.Stamp, error) {
	for range 2 {
		stamp, now := host.StampOf(mpsstate.SocketPath(dir)), time.Now()
		// after the clock was set back, the next change has another time as well
		if stamp.Before(now) || stamp.Changed().After(now) {
			return stamp, nil
		}
		select { // the daemon has just begun to listen
		case <-time.After(2 * clockTicks):
		case <-ctx.Done():
		}
	}
	return host.Stamp{}, errMoved
}

// stillThere is an error if the socket was replaced, or was moved since it had the stamp.
func stillThere(dir string, socket [2]uint64, stamp host.Stamp, p grant.Process) error {
	if now, _, is := mpsstate.Socket(dir); !is || now != socket {
		return otherSocketError(p)
	}
	if host.StampOf(mpsstate.SocketPath(dir)) != stamp {
		return errMoved
	}
	return nil
}

// errMoved means that the answers may be those of another process. The daemon is asked again in the
// next pass.
var errMoved = errors.New("its control socket was moved during a request, by a program that can write to " +
	"its directory")

func otherSocketError(p grant.Process) error {
	return fmt.Errorf("%s, by a program that can write to its directory; when its containers have ended, "+
		"end process %d",
		mpsstate.OtherSocket, p.PID)
}
