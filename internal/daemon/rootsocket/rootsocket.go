// Package rootsocket makes gpuledgerd's unix sockets: those for root and gpuledgerd's own user
// alone (Listen), and those for all users of the node (ListenToAll). It also says which process and
// user has connected, as the kernel reports it.
package rootsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen makes a socket with mode 0600. It gets its name after its mode, in place of a socket on
// which no process listens any more. Any other file stays where it is.
func Listen(path string) (net.Listener, error) { return listen(path, 0o600, isAllowed) }

// ListenToAll makes a socket for every user, in a directory that it makes if it is missing. Only
// root may be able to write to that: a user could put its own socket in place of this one.
func ListenToAll(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o755); err == nil {
		err = os.Chmod(dir, 0o755) // whatever the umask is
		if err != nil {
			return nil, err
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s is no directory that only root can write to", dir)
	}
	return listen(path, 0o666, func(*net.UnixConn) bool { return true })
}

func listen(path string, mode fs.FileMode, allowed func(*net.UnixConn) bool) (net.Listener, error) {
	if !filepath.IsAbs(path) {
		return nil, errors.New("want unix: and an absolute path")
	}
	if err := checkVacant(path); err != nil {
		return nil, err
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(tmp)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it will have another name
	if err = os.Chmod(tmp, mode); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		_ = l.Close()
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &listenerSocket{l, path, info, allowed}, nil
}

// checkVacant is an error if a path cannot become this program's socket.
func checkVacant(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is no socket")
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return syscall.EADDRINUSE
	}
	return nil
}

// listenerSocket accepts only who is allowed, whatever the mode of its socket becomes. It removes
// the socket's name when it is closed.
type listenerSocket struct {
	*net.UnixListener
	path    string
	made    fs.FileInfo
	allowed func(*net.UnixConn) bool
}

func (s *listenerSocket) Accept() (net.Conn, error) {
	for {
		conn, err := s.AcceptUnix()
		if err != nil || s.allowed(conn) {
			return conn, err
		}
		_ = conn.Close()
	}
}

// Addr is the socket's name, and not the one that it had before it got its mode.
func (s *listenerSocket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// exists reports whether the name is still that of this socket.
func (s *listenerSocket) exists() bool {
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, s.made)
}

func (s *listenerSocket) Close() error {
	if s.exists() {
		_ = os.Remove(s.path)
	}
	return s.UnixListener.Close()
}

// Reachable reports whether a connection to a listener's address would reach it. A socket's name
// can be removed, or become another socket's.
func Reachable(l net.Listener) bool {
	s, isSocket := l.(*listenerSocket)
	return l != nil && (!isSocket || s.exists())
}

// isAllowed reports whether a connection comes from root or from this program's own user.
func isAllowed(conn *net.UnixConn) bool {
	peer, err := peerOf(conn)
	return err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid())
}

// PeerPID is the process that connected, in this pid namespace.
func PeerPID(conn net.Conn) (pid int, err error) {
	c, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return 0, errors.New("it is no unix socket")
	}
	peer, err := peerOf(c)
	if err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// PeerUID is the user who connected, in this user namespace.
func PeerUID(conn net.Conn) (uint32, error) {
	c, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return 0, errors.New("it is no unix socket")
	}
	peer, err := peerOf(c)
	if err != nil {
		return 0, err
	}
	return peer.Uid, nil
}

// peerOf is what the kernel says about the process that connected (SO_PEERCRED, unix(7)).
func peerOf(conn *net.UnixConn) (peer *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	e := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return peer, errors.Join(e, err)
}
