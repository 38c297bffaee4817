package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// nodePatterns are the driver's device nodes, below /dev.
var nodePatterns = []string{"nvidia[0-9]*", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools",
	"nvidia-caps/nvidia-cap[0-9]*", "nvidia-caps-imex-channels/channel[0-9]*"}

// NameNodes makes a link /dev/char/MAJOR:MINOR for each device node of the driver that has none, as
// `nvidia-ctk system create-dev-char-symlinks` does. The kernel makes these links for other
// devices. Under systemd's cgroups, runc lists in a container's unit only devices that have one,
// and systemd closes all others when it reloads its units.
func NameNodes(h host.Host) error {
	var failed error
	for _, pattern := range nodePatterns {
		nodes, _ := filepath.Glob(filepath.Join(h.Dev, pattern)) // the patterns are right
		for _, node := range nodes {
			if err := nameNode(h.Dev, node); err != nil {
				failed = errors.Join(failed, fmt.Errorf("cannot name %s below /dev/char: %w", node, err))
			}
		}
	}
	return failed
}

func nameNode(dev, node string) error {
	var st unix.Stat_t
	if err := unix.Lstat(node, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return err
	}
	relative, err := filepath.Rel(dev, node)
	if err != nil {
		return err
	}
	dir := filepath.Join(dev, "char")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
	err = os.Symlink(filepath.Join("..", relative), filepath.Join(dir, name))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
