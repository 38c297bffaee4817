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

// Serve answers the kubelet until the context ends or what it returns is stopped. registry is the kubelet's directory of plugins'
// sockets, data the driver's own; pod is the UID of the driver's pod, and with one the driver has sockets of its own, beside those of
// the driver that it is to replace.
func (d *Driver) Serve(ctx context.Context, registry, data string, pod types.UID) (*kubeletplugin.Helper, error) {
	if err := removeSockets(registry, data); err != nil {
		d.Log.Warn("sockets", "error", err)
	}
	// The library's log of each call stays at the level that nobody sees: its answers have claims' references in them.
	return kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(DriverName), kubeletplugin.NodeName(d.Node), kubeletplugin.KubeClient(d.Client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.RollingUpdate(pod))
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
