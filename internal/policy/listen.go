package policy

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// maxPort is the highest port of TCP.
const maxPort = 1<<16 - 1

// usableListen checks daemon.listen as far as gpuledgerd refuses it on every machine. A port can be
// a name from /etc/services.
func usableListen(address string) error {
	path, isPath := strings.CutPrefix(address, "unix:")
	switch {
	case address == "":
		return nil
	case isPath && (!filepath.IsAbs(path) || strings.HasSuffix(path, "/")):
		return fmt.Errorf("daemon.listen: want unix: and the absolute path of a socket, not %q", address)
	case isPath:
		return nil
	}
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return fmt.Errorf("daemon.listen: want HOST:PORT, unix:/path or \"\", not %q: missing port", address)
	}
	host, port := address[:i], address[i+1:]
	if strings.Contains(host, ":") && !(strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")) {
		return fmt.Errorf("daemon.listen: want [HOST]:PORT for an address with colons, not %q", address)
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 0 || n > maxPort) {
		return fmt.Errorf("daemon.listen: want a port from 0 to %d, not %d", maxPort, n)
	}
	return nil
}
