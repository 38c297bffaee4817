package inject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// rules is a container's device cgroup: v1's lists or v2's programs.
type rules interface {
	// save reads what set needs of the rules, before systemd changes them.
	save() (saved, error)
	set(Change, saved) error
	// read returns the present rules; nil if the kernel does not report them.
	read() ([]specs.LinuxDeviceCgroup, error)
}

// saved is v1's list, or the ids of v2's programs.
type saved struct {
	list []grant.DeviceRule
	ids  []uint32
}

// findRules finds the container's device cgroup. It must be the container's alone, because changed
// rules apply to all processes in it.
func (c *container) findRules(change Change) error {
	v2, err := c.openCgroup(change)
	if err != nil {
		return fmt.Errorf("cannot change the container's device rules: %w", err)
	}
	if c.rules = (v1{c.cgroup}); v2 {
		c.rules = v2Programs{c.cgroup}
	}
	return nil
}

// setRules changes the unit's rules first, because systemd replaces those of the cgroup.
func (c *container) setRules(change Change) error {
	if err := c.setUnitThenRules(change, change); err != nil {
		return fmt.Errorf("cannot change the container's device rules: %w", err)
	}
	return nil
}

// setUnitThenRules makes systemd list what the first change allows, then applies the second. The
// init is checked before each: if the runtime was killed, the unit's name can be another
// container's by now, and so can a cgroup that was not removed.
func (c *container) setUnitThenRules(listed, change Change) error {
	before, err := c.rules.save()
	if err == nil {
		err = c.isInCgroup()
	}
	if err == nil {
		err = c.allowInUnit(listed)
	}
	if err == nil {
		err = c.isInCgroup()
	}
	if err == nil {
		err = c.rules.set(change, before)
	}
	return err
}

// openCgroup opens the init's cgroup, in the hierarchy that controls devices. The rules are changed
// through the open directory: if the container is made again, its path is another container's.
func (c *container) openCgroup(change Change) (v2 bool, err error) {
	root := filepath.Join(c.Host.Sys, "fs/cgroup")
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: root, Err: err}
	}
	controller := ""
	if v2 = st.Type == unix.CGROUP2_SUPER_MAGIC; !v2 {
		controller, root = "devices", filepath.Join(root, "devices")
	}
	if c.lines, err = c.readProc("cgroup"); err != nil {
		return v2, err
	}
	ours, err := host.ReadFile(filepath.Join(c.Host.Proc, "self/cgroup"), maxProc)
	if err != nil {
		return v2, err
	}
	path := cgroupPath([]byte(c.lines), controller)
	if path == "" || path == "/" || path == cgroupPath(ours, controller) ||
		strings.Contains(path, "/../") {
		return v2, errors.New("it has no device cgroup of its own")
	}
	above, err := c.findUnit(path, v2, change)
	if err != nil {
		return v2, err
	}
	if c.cgroup, err = os.Open(filepath.Join(root, path)); err != nil {
		return v2, err
	}
	if err := c.isAlone(filepath.Join(root, above)); err != nil {
		return v2, err
	}
	return v2, c.isInCgroup()
}

// isInCgroup is nil if the init is still the runtime's child, and in the cgroup in which it was
// found. As long as it is there, the kernel does not remove that cgroup.
func (c *container) isInCgroup() error {
	lines, err := "", c.isChild()
	if err == nil {
		lines, err = c.readProc("cgroup")
	}
	if err == nil && lines != c.lines {
		err = errors.New("it has left its cgroup")
	}
	if err != nil {
		return fmt.Errorf("the container's init %d has changed meanwhile: %w", c.PID, err)
	}
	return nil
}

// cgroupPath returns the path in the hierarchy of a controller of cgroup v1; "" is that of v2.
func cgroupPath(lines []byte, controller string) string {
	for l := range host.CgroupLines(lines) {
		if l.Has(controller) {
			return l.Path
		}
	}
	return ""
}
