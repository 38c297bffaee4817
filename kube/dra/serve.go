package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// Service is a driver that the kubelet can call.
type Service struct {
	*kubeletplugin.Helper
	sockets []*socket
}

// Serve answers the kubelet until the context ends or what it returns is stopped. registry is the kubelet's directory of plugins'
// sockets, data the driver's own; pod is the UID of the driver's pod, and with one the driver has sockets of its own, beside those of
// the driver that it is to replace.
func (d *Driver) Serve(ctx context.Context, registry, data string, pod types.UID) (*Service, error) {
	if err := removeSockets(registry, data); err != nil {
		d.Log.Warn("sockets", "error", err)
	}
	s := &Service{}
	listen := func(_ context.Context, path string) (net.Listener, error) {
		l, err := listen(path)
		if err != nil {
			return nil, err
		}
		s.sockets = append(s.sockets, l)
		return l, nil
	}
	var err error
	// The library's log of each call stays at the level that nobody sees: its answers have claims' references in them.
	s.Helper, err = kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(DriverName), kubeletplugin.NodeName(d.Node), kubeletplugin.KubeClient(d.Client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.RollingUpdate(pod),
		kubeletplugin.PluginListener(listen), kubeletplugin.RegistrarListener(listen))
	return s, err
}

// Lost says why the kubelet does not reach this service any more; nil: it does. Nobody else would notice: who serves a socket is not told
// that its name is gone.
func (s *Service) Lost() error {
	for _, l := range s.sockets {
		is, err := os.Lstat(l.path)
		switch {
		case err != nil:
			return fmt.Errorf("cannot find the own socket: %w", err)
		case !os.SameFile(is, l.own):
			return fmt.Errorf("another driver has the socket %s", l.path)
		}
	}
	return nil
}

// socket is one that is removed when it is closed, unless its name is another's by then: the library's own, and Go's, would remove that of a
// driver that has taken the place of this one.
type socket struct {
	*net.UnixListener
	path string
	own  os.FileInfo // no other file has its inode while it is served
}

func listen(path string) (*socket, error) {
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
	return &socket{l, path, own}, nil
}

func (s *socket) Close() error {
	if is, err := os.Lstat(s.path); err == nil && os.SameFile(is, s.own) {
		_ = os.Remove(s.path)
	}
	return s.UnixListener.Close()
}

// removeSockets removes the sockets of earlier drivers that nobody serves any more. With updates each pod's driver has sockets of its
// own, and one that was killed leaves them: the kubelet would go on to call there, for ever.
func removeSockets(registry, data string) error {
	var all []string
	for _, pattern := range []string{filepath.Join(registry, DriverName+"*-reg.sock"), filepath.Join(data, "dra*.sock")} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		all = append(all, paths...)
	}
	var failed error
	for _, path := range all {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
			continue
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("cannot remove a socket that nobody serves: %w", err))
		}
	}
	return failed
}
