// Package inject changes a container that its runtime has made and not yet started: device nodes in
// its /dev, bind mounts in its mount namespace, device rules of its cgroup. A hook does so if
// nothing edited the spec before.
//
// No program of the image is run, and no content of it is trusted. The root file system is walked
// with file descriptors. What an OCI runtime does not make (a /dev that is a link, a shared cgroup,
// a mount namespace of another container) is an error before anything is changed.
package inject

import (
	"fmt"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Change is what to add to a container and what to remove.
type Change struct {
	Remove []string              // paths of device nodes
	Nodes  []*cdispec.DeviceNode // below /dev; a node of the same path is replaced
	Mounts []*cdispec.Mount      // binds of the host's files and directories
	Close  []grant.DeviceRule    // what may no longer be opened, except Allow and Others
	Allow  []grant.DeviceRule    // exact ones
	Others []grant.DeviceRule    // of what Close covers or a wider rule opened: what stays as it was
}

// Empty reports whether there is nothing to do.
func (c Change) Empty() bool {
	return len(c.Remove)+len(c.Nodes)+len(c.Mounts) == 0 && !c.ChangesRules()
}

// ChangesRules reports whether the device cgroup must be changed.
func (c Change) ChangesRules() bool { return len(c.Close)+len(c.Allow) > 0 }

// Found is what a container has after a change.
type Found struct {
	Nodes []specs.LinuxDevice // character devices in its /dev
	// of its device cgroup; nil on cgroup v2, where a program was put in place and read again
	Rules []specs.LinuxDeviceCgroup
}

// Into changes the container. After an error it must not start: part of the change may be made.
//
// It closes before it opens, so that a process killed in between leaves less access, not more.
func Into(t Target, change Change) (found Found, err error) {
	c, err := open(t)
	if err != nil {
		return Found{}, err
	}
	defer c.close()
	for _, step := range []struct {
		needed bool
		do     func(Change) error
		point  string
	}{
		{change.ChangesRules(), c.findRules, ""},
		{len(change.Nodes)+len(change.Remove) > 0, c.openDev, ""},
		{len(change.Remove) > 0, c.removeNodes, "inject/removed"},
		{change.ChangesRules(), c.setRules, "inject/ruled"},
		{len(change.Nodes) > 0, c.makeNodes, "inject/nodes"},
		{len(change.Mounts) > 0, c.mount, ""},
	} {
		if !step.needed {
			continue
		}
		if err := step.do(change); err != nil {
			return Found{}, err
		}
		if step.point != "" {
			failpoint.Hit(step.point)
		}
	}
	return c.found()
}

// List makes systemd list devices that the container's spec opens already, if the container is in a
// unit that opens only what it lists. runc up to 1.1 leaves out those that have no name in the
// node's /dev/char, and systemd closes them at its next reload. What is open or closed now stays
// so, and without systemd there is nothing to do.
func List(t Target, rules []grant.DeviceRule) error {
	c, err := open(t)
	if err != nil {
		return err
	}
	defer c.close()
	listed := Change{Allow: rules}
	if err := c.findRules(listed); err != nil || c.unit == nil || c.unit.lists(rules) {
		return err
	}
	return c.setUnitThenRules(listed, Change{})
}

// found reads again what was changed.
func (c *container) found() (f Found, err error) {
	if c.dev >= 0 {
		if f.Nodes, err = c.listNodes(); err != nil {
			return f, err
		}
	}
	if c.rules != nil {
		f.Rules, err = c.rules.read()
	}
	return f, err
}

// belowDev returns the parts of a path below /dev; "/dev/nvidia-caps/nvidia-cap1" has two.
func belowDev(name string) ([]string, error) {
	rest, found := strings.CutPrefix(path.Clean(name), "/dev/")
	if !found {
		return nil, fmt.Errorf("cannot make device node %q: it is not below /dev", name)
	}
	return strings.Split(rest, "/"), nil
}

// covers reports whether a rule applies to a device, for any access.
func covers(r grant.DeviceRule, kind byte, major, minor int64) bool {
	return (r.Type == 'a' || r.Type == kind) && (r.Major < 0 || r.Major == major) &&
		(r.Minor < 0 || r.Minor == minor)
}

// overlaps reports whether there is a device that both rules apply to.
func overlaps(a, b grant.DeviceRule) bool {
	return (a.Type == b.Type || a.Type == 'a' || b.Type == 'a') &&
		(a.Major < 0 || b.Major < 0 || a.Major == b.Major) &&
		(a.Minor < 0 || b.Minor < 0 || a.Minor == b.Minor)
}

// within reports whether a applies only to devices that b applies to.
func within(a, b grant.DeviceRule) bool {
	return a.Type != 'a' && covers(b, a.Type, a.Major, a.Minor) && (a.Minor >= 0 || b.Minor < 0) &&
		(a.Major >= 0 || b.Major < 0)
}

// allows reports whether a list has the rule with all of its access.
func allows(list []grant.DeviceRule, r grant.DeviceRule) bool {
	return slices.ContainsFunc(list, func(o grant.DeviceRule) bool {
		return o.Allow && within(r, o) && !strings.ContainsFunc(r.Access,
			func(a rune) bool { return !strings.ContainsRune(o.Access, a) })
	})
}
