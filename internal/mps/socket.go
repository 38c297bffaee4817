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
	own, mode, err := d.ownSockets(state.Daemon)
	if err == nil && state.Anybody && mode&0o002 == 0 {
		err = errors.New("its control socket is open to root alone")
	}
	state.Socket, state.Privileged = own.control, own.privileged
	return err
}

// sockets are the daemon's, by device and inode. Clients connect to control. NVIDIA's program,
// which gpuledgerd runs as root, connects to privileged first.
type sockets struct{ control, privileged [2]uint64 }

// ownSockets are the daemon's sockets, if the kernel says that it listens on them, or a process
// that it has started. The state file proves nothing: the daemon may have been started again, and
// its clients can replace the sockets.
func (d *daemon) ownSockets(p grant.Process) (own sockets, mode uint32, err error) {
	own, mode, err = findSockets(d.dir)
	if err != nil || d.proven == (provenSockets{p, own}) {
		return own, mode, err
	}
	for _, s := range []struct {
		path   string
		socket [2]uint64
		other  string
	}{
		{mpsstate.SocketPath(d.dir), own.control, mpsstate.OtherSocket},
		{mpsstate.PrivilegedPath(d.dir), own.privileged, mpsstate.OtherPrivileged},
	} {
		name := filepath.Base(s.path)
		pid, listens, err := d.sys().Listener(s.path)
		if err != nil {
			return own, mode, fmt.Errorf("it does not listen on its socket %s: %w", name, err)
		}
		_, parent, err := d.node.Host.Process(pid)
		if listens != s.socket || pid != p.PID && (err != nil || parent != p.PID) {
			return own, mode, otherSocketError(s.other, p)
		}
		switch holds, err := d.sys().HoldsListener(d.node.Host, pid, name); {
		case err != nil: // the next pass asks again
			return own, mode, fmt.Errorf("cannot tell whether it listens on its socket %s: %w", name, err)
		case !holds:
			return own, mode, otherSocketError(s.other, p)
		}
	}
	d.proven = provenSockets{p, own}
	return own, mode, nil
}

// findSockets finds the sockets where programs look for them. Both have to be there: in the place
// of a missing one a client could put its own.
func findSockets(dir string) (own sockets, mode uint32, err error) {
	control, mode, is := mpsstate.Socket(mpsstate.SocketPath(dir))
	privileged, _, both := mpsstate.Socket(mpsstate.PrivilegedPath(dir))
	own = sockets{control, privileged}
	switch {
	case !is && !isMountPoint(filepath.Join(dir, "pipe")):
		err = errors.New("it has no control socket, and its directory is not mounted where gpuledgerd looks")
	case !is:
		err = errors.New("it has no control socket")
	case !both:
		err = fmt.Errorf("it has no socket %s, to which programs of root connect first",
			filepath.Base(mpsstate.PrivilegedPath(dir)))
	}
	return own, mode, err
}

// stamps are those of both sockets.
type stamps struct{ control, privileged host.Stamp }

func stampsOf(dir string) stamps {
	return stamps{host.StampOf(mpsstate.SocketPath(dir)), host.StampOf(mpsstate.PrivilegedPath(dir))}
}

// socketStamps are taken when each is old enough to be unique. A process that moves another socket
// to a socket's place and then the daemon's back changes the time of its last change; connecting
// does not.
func (d *daemon) socketStamps(ctx context.Context) (stamps, error) {
	for range 2 {
		s, now := stampsOf(d.dir), d.now()
		if isSettled(s.control, now) && isSettled(s.privileged, now) {
			return s, nil
		}
		select { // the daemon has just begun to listen
		case <-time.After(2 * clockTicks):
		case <-ctx.Done():
		}
	}
	return stamps{}, errMoved
}

// isSettled reports whether the next change of a file has another stamp.
func isSettled(s host.Stamp, now time.Time) bool {
	// After the clock was set back, the next change has another time as well. The sockets are on a
	// file system of this machine, so no clock but its own counts, and they need not wait for it.
	return s.Before(now) || s.Changed().After(now)
}

// stillThere is an error if a socket was replaced, or was moved since it had the stamp.
func (d *daemon) stillThere(own sockets, before stamps, p grant.Process) error {
	if now, _, is := mpsstate.Socket(mpsstate.SocketPath(d.dir)); !is || now != own.control {
		return otherSocketError(mpsstate.OtherSocket, p)
	}
	if now, _, is := mpsstate.Socket(mpsstate.PrivilegedPath(d.dir)); !is || now != own.privileged {
		return otherSocketError(mpsstate.OtherPrivileged, p)
	}
	if stampsOf(d.dir) != before {
		return errMoved
	}
	return nil
}

// errMoved means that the answers may be those of another process. The daemon is asked again in the
// next pass.
var errMoved = errors.New("its control socket was moved during a request, by a program that can write to " +
	"its directory")

func otherSocketError(what string, p grant.Process) error {
	return fmt.Errorf("%s, by a program that can write to its directory; when its containers have ended, "+
		"end process %d", what, p.PID)
}
