package dra

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// RemoveSockets removes the sockets of earlier drivers that nobody serves any more. With updates each pod's driver has sockets of its
// own, and one that was killed leaves them: the kubelet would go on to call there, for ever. registry is the kubelet's directory of
// plugins' sockets, data the driver's.
func RemoveSockets(registry, data string) error {
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
