package inject

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// rules is a container's device cgroup: v1's lists or v2's programs.
type rules interface {
	set(Change) error
	// read gives the rules as they are now; nil where the kernel does not tell them.
	read() ([]specs.LinuxDeviceCgroup, error)
}

// findRules finds the container's device cgroup. It must be the container's alone: rules that are
// changed would be another's too.
func (c *container) findRules(Change) error {
	dir, v2, err := c.deviceCgroup()
	if err != nil {
		return fmt.Errorf("cannot change the container's device rules: %w", err)
	}
	if c.rules = (v1{dir}); v2 {
		c.rules = v2Programs{dir}
	}
	return nil
}

func (c *container) setRules(change Change) error {
	if err := c.rules.set(change); err != nil {
		return fmt.Errorf("cannot change the container's device rules: %w", err)
	}
	return nil
}

// deviceCgroup is the directory of the init's cgroup, in the hierarchy that guards devices.
func (c *container) deviceCgroup() (dir string, v2 bool, err error) {
	root := filepath.Join(c.Host.Sys, "fs/cgroup")
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return "", false, &fs.PathError{Op: "statfs", Path: root, Err: err}
	}
	controller := ""
	if v2 = st.Type == unix.CGROUP2_SUPER_MAGIC; !v2 {
		controller, root = "devices", filepath.Join(root, "devices")
	}
	its, err := c.readProc("cgroup")
	if err != nil {
		return "", v2, err
	}
	ours, err := host.ReadFile(filepath.Join(c.Host.Proc, "self/cgroup"), maxProc)
	if err != nil {
		return "", v2, err
	}
	path := cgroupPath(its, controller)
	if path == "" || path == "/" || path == cgroupPath(string(ours), controller) ||
		strings.Contains(path, "/../") {
		return "", v2, errors.New("it has no device cgroup of its own")
	}
	if ownedBySystemd(path) {
		return "", v2, fmt.Errorf("its cgroup %s is a unit of systemd, which would undo them at its "+
			"next reload", path)
	}
	dir = filepath.Join(root, path)
	return dir, v2, c.isAlone(dir)
}

// cgroupPath reads /proc/PID/cgroup: "5:devices:/a/b", and v2's "0::/a/b" for no controller.
func cgroupPath(text, controller string) string {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || controller == "" && fields[0] != "0" {
			continue
		}
		for name := range strings.SplitSeq(fields[1], ",") {
			if name == controller {
				return fields[2]
			}
		}
	}
	return ""
}

// ownedBySystemd tells a cgroup that systemd keeps, by the name that it gives to a container's:
// PREFIX-ID.scope.
func ownedBySystemd(path string) bool {
	return strings.HasSuffix(path, ".scope") || strings.HasSuffix(path, ".service")
}

// isAlone is nil where only the init is in the cgroup, and nothing below it.
func (c *container) isAlone(dir string) error {
	procs, err := host.ReadFile(filepath.Join(dir, "cgroup.procs"), maxProc)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(procs)) != strconv.Itoa(c.PID) {
		return fmt.Errorf("others than the container's init are in its cgroup %s", dir)
	}
	return nil
}
