// Package socket listens on the Unix sockets that the kubelet calls.
package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Listener removes its file when it is closed, unless the file is another process's by then. Go
// and the kubelet's library would also remove the socket of a pod that has replaced this one.
type Listener struct {
	*net.UnixListener
	path string
	own  os.FileInfo // no other file has its inode while it is served
}

// Listen replaces the file at path, if there is one.
func Listen(path string) (*Listener, error) {
	defer lock(path)()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	own, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &Listener{l, path, own}, nil
}

// Lost returns an error if the path no longer leads to this listener. A server is not notified of
// that.
func (l *Listener) Lost() error {
	is, err := os.Lstat(l.path)
	switch {
	case err != nil:
		return fmt.Errorf("cannot find the own socket: %w", err)
	case !os.SameFile(is, l.own):
		return fmt.Errorf("another driver has the socket %s", l.path)
	}
	return nil
}

// Close removes the file first: afterwards another file may have its inode.
func (l *Listener) Close() error {
	defer lock(l.path)()
	if l.Lost() == nil {
		_ = os.Remove(l.path)
	}
	return l.UnixListener.Close()
}

// lock locks the directory of a socket, so that one driver's look at a socket and its removal are
// not between the two steps by which another takes the path. It gives up after a while: others may
// lock this directory, which is the kubelet's.
func lock(path string) (unlock func()) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return func() {}
	}
	_ = host.Flock(int(dir.Fd()), lockTime)
	return func() { _ = dir.Close() }
}

// lockTime is far longer than what is done under the lock.
const lockTime = 5 * time.Second
