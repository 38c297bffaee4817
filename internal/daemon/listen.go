package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// listen opens what [daemon].listen names: HOST:PORT or unix:/path.
func listenOn(address string) (net.Listener, error) {
	var l net.Listener
	var err error
	if path, isPath := strings.CutPrefix(address, "unix:"); isPath {
		l, err = Listen(path)
	} else {
		l, err = net.Listen("tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot serve metrics and the status page on %s: %w", address, cause(err))
	}
	return l, nil
}

// cause leaves out what package net says of the address once more.
func cause(err error) error {
	var call *os.SyscallError
	var address *net.AddrError
	switch {
	case errors.As(err, &call):
		return call.Err
	case errors.As(err, &address):
		return fmt.Errorf("want HOST:PORT, unix:/path or \"\": %s", address.Err)
	}
	return err
}

// listenUnix makes a socket for root alone. It takes its name when it has its mode, in place of one that nobody listens on any
// more; anything else is left where it is.
func Listen(path string) (net.Listener, error) {
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
	l.SetUnlinkOnClose(false) // its name is another then
	if err = os.Chmod(tmp, 0o600); err == nil {
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
	return &listenerSocket{l, path, info}, nil
}

// vacant tells what keeps a path from becoming our socket.
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

// ownSocket lets only root and our own user in, whatever becomes of the socket's mode, and takes its name with it.
type listenerSocket struct {
	*net.UnixListener
	path string
	made fs.FileInfo
}

func (s *listenerSocket) Accept() (net.Conn, error) {
	for {
		conn, err := s.AcceptUnix()
		if err != nil || isAllowed(conn) {
			return conn, err
		}
		_ = conn.Close()
	}
}

// Addr is the socket's name, and not that which it had before it had its mode.
func (s *listenerSocket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

func (s *listenerSocket) there() bool {
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, s.made)
}

func (s *listenerSocket) Close() error {
	if s.there() {
		_ = os.Remove(s.path)
	}
	return s.UnixListener.Close()
}

// reached reports whether who dials the address of a listener still gets to it: a socket's name can be removed, or be another's.
func Reachable(l net.Listener) bool {
	s, isSocket := l.(*listenerSocket)
	return l != nil && (!isSocket || s.there())
}

// fromRoot asks the kernel who connected.
func isAllowed(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	if e := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return false
	}
	return peer.Uid == 0 || int(peer.Uid) == os.Geteuid()
}
