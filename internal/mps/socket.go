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
	"github.com/gpuledger/gpuledger/internal/node"
)

// checkSocket looks at the way by which clients come to it: whom it lets in, which its own arguments say, whoever launched it; and that
// the socket is its own. A client that cannot reach the daemon would go on without it, with the whole GPU.
func (d *daemon) checkSocket(state *grant.MPSDaemon) error {
	args, err := host.ReadFile(filepath.Join(d.node.Host.Proc, strconv.Itoa(state.Daemon.PID), "cmdline"), 1<<16)
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

// ownSocket is the control socket, on which the kernel has said that the daemon listens, or a process that it has started. What is written down
// is no proof of it: the daemon may have been started again since, and its clients put what they like in the socket's place.
func (d *daemon) ownSocket(p grant.Process) (socket [2]uint64, mode uint32, err error) {
	socket, mode, is := node.MPSSocket(d.dir)
	switch {
	case !is && !onMount(filepath.Join(d.dir, "pipe")):
		return socket, mode, errors.New("it has no control socket, and its directory is not mounted where gpuledgerd looks")
	case !is:
		return socket, mode, errors.New("it has no control socket")
	case d.proven == proof{p, socket}:
		return socket, mode, nil
	}
	pid, listens, err := host.Listener(node.MPSSocketPath(d.dir))
	if err != nil {
		return socket, mode, fmt.Errorf("it does not listen on its control socket: %w", err)
	}
	if _, parent, err := d.node.Host.Process(pid); listens != socket || pid != p.PID && (err != nil || parent != p.PID) {
		return socket, mode, otherSocket(p)
	}
	d.proven = proof{p, socket}
	return socket, mode, nil
}

// socketStamp is the control socket's. Whoever puts another one in its place and then it back into its own has renamed or linked it, which the
// time of its last change tells; a client only connects. It is taken when that time is old enough to tell.
func socketStamp(ctx context.Context, dir string) (host.Stamp, error) {
	for range 2 {
		stamp, now := host.StampOf(node.MPSSocketPath(dir)), time.Now()
		if stamp.Before(now) || stamp.Changed().After(now) { // the clock was put back: then the next change has another time as well
			return stamp, nil
		}
		select { // a daemon that has just begun to listen
		case <-time.After(2 * settled):
		case <-ctx.Done():
		}
	}
	return host.Stamp{}, errMoved
}

// stillThere is an error where a socket was replaced, or was moved since it had a stamp.
func stillThere(dir string, socket [2]uint64, stamp host.Stamp, p grant.Process) error {
	if now, _, is := node.MPSSocket(dir); !is || now != socket {
		return otherSocket(p)
	}
	if host.StampOf(node.MPSSocketPath(dir)) != stamp {
		return errMoved
	}
	return nil
}

// errMoved says that the answers may be another's. The daemon is asked again at the next pass.
var errMoved = errors.New("its control socket was moved while it was asked, by who reaches its directory")

func otherSocket(p grant.Process) error {
	return fmt.Errorf("%s, by who reaches its directory; when its containers have ended, end process %d", node.OtherSocket, p.PID)
}
