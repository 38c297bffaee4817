package inject

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// unit is the scope of systemd in which a container runs. systemd writes the device rules of a unit
// again when it reloads, when it executes itself again and when a property of the unit is set: on
// cgroup v1 in place of the list, on v2 as a program of its own beside the runtime's. So a device
// of the grant has to be in the unit's DeviceAllow too (docs/adr/0085).
type unit struct {
	*bus
	name   string
	path   string // of its cgroup, from the root of the hierarchy
	closed bool   // it opens only what its DeviceAllow lists
	brings bool   // systemd attaches programs of the runtime's to its cgroup
	allow  []unitDevice
}

// unitDevice is an entry of a unit's DeviceAllow (systemd.resource-control(5)).
type unitDevice struct{ path, access string }

// scopeOf returns the scope that a container's cgroup belongs to: "/a.slice/x-ID.scope", and crun's
// "/a.slice/x-ID.scope/container" if the runtime was told to use systemd. "": none.
func scopeOf(path string, told bool) (name, above string, err error) {
	name = filepath.Base(path)
	if told && isScope(filepath.Base(filepath.Dir(path))) && !isScope(name) {
		path = filepath.Dir(path)
		name = filepath.Base(path)
	}
	switch {
	case isScope(name):
	case strings.HasSuffix(name, ".service"):
		return "", "", fmt.Errorf("its cgroup %s is a service of systemd, and no container's", path)
	case told:
		return "", "", fmt.Errorf("its cgroup %s is in no scope of systemd, which its runtime was told "+
			"to use", path)
	default:
		return "", "", nil
	}
	if strings.Trim(name, unitLetters) != "" || len(name) > maxUnitName {
		return "", "", fmt.Errorf("its cgroup %s has no name of a unit", grant.Printable(path))
	}
	return name, path, nil
}

func isScope(name string) bool { return strings.HasSuffix(name, ".scope") && name != "init.scope" }

// The characters of a unit's name, and its greatest length in bytes (systemd.unit(5)).
const (
	unitLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@"
	maxUnitName = 255
)

const (
	busObject     = "/org/freedesktop/systemd1"
	busManager    = "org.freedesktop.systemd1.Manager"
	busUnit       = "org.freedesktop.systemd1.Scope"
	busProperties = "org.freedesktop.DBus.Properties"
)

// openUnit asks systemd for the unit of a cgroup.
func openUnit(socket, name, path string) (*unit, error) {
	b, err := dialSystemd(socket)
	if err != nil {
		return nil, err
	}
	u := &unit{bus: b, name: name, path: path}
	if err := u.load(); err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// load reads the unit. systemd knows a unit by its name alone, so it must say that the cgroup is
// its.
func (u *unit) load() error {
	its, err := u.property("ControlGroup", "s")
	if err != nil {
		return err
	}
	if where := its.text(); where != u.path {
		return fmt.Errorf("systemd has the unit %s at %q", u.name, where)
	}
	policy, err := u.property("DevicePolicy", "s")
	if err != nil {
		return err
	}
	list, err := u.property("DeviceAllow", "a(ss)")
	if err != nil {
		return err
	}
	u.allow = nil
	end := int(list.word())
	list.align(8)
	for end += list.at; list.at < end && !list.bad; list.align(8) {
		u.allow = append(u.allow, unitDevice{list.text(), list.text()})
	}
	if programs, err := u.property("BPFProgram", "a(ss)"); err == nil { // unknown before systemd 249
		u.brings = programs.word() > 0
	}
	u.closed = policy.text() != "auto" || len(u.allow) > 0
	if its.bad || policy.bad || list.bad {
		return errors.New("its answer cannot be read")
	}
	return nil
}

// property reads a property of the unit.
func (u *unit) property(name, kind string) (*reply, error) {
	var question message
	question.text(busUnit)
	question.text(name)
	body, err := u.call(busObject+"/unit/"+busLabel(u.name), busProperties, "Get", "ss", question)
	if err != nil {
		return nil, err
	}
	a := &reply{data: body}
	if got := a.signature(); got != kind {
		return nil, fmt.Errorf("systemd has %s of the kind %q", name, got)
	}
	return a, nil
}

// add adds devices to the unit's DeviceAllow until the unit ends. systemd answers when the rules of
// the cgroup are set. The unit's DevicePolicy stays.
func (u *unit) add(devices []unitDevice) error {
	var body message
	body.text(u.name)
	body.word(1) // for this boot only, like all of a transient unit
	body.array(func() {
		body.align(8)
		body.text("DeviceAllow")
		body.signature("a(ss)")
		body.array(func() {
			for _, d := range devices {
				body.align(8)
				body.text(d.path)
				body.text(d.access)
			}
		})
	})
	_, err := u.call(busObject, busManager, "SetUnitProperties", "sba(sv)", body)
	return err
}

// unitDevices returns the entries for rules that allow exact devices. It keeps the access that the
// unit's list already has for them. Names by number need no node (systemd 240).
func unitDevices(has []unitDevice, rules []grant.DeviceRule) []unitDevice {
	var devices []unitDevice
	for _, r := range rules {
		d := unitDevice{"/dev/char/" + strconv.FormatInt(r.Major, 10) + ":" +
			strconv.FormatInt(r.Minor, 10), r.Access}
		for _, h := range has {
			for _, letter := range h.access {
				if h.path == d.path && !strings.ContainsRune(d.access, letter) {
					d.access += string(letter)
				}
			}
		}
		devices = append(devices, d)
	}
	return devices
}

// lists reports whether the unit's list has all devices of rules.
func (u *unit) lists(rules []grant.DeviceRule) bool {
	for _, d := range unitDevices(u.allow, rules) {
		if !slices.Contains(u.allow, d) {
			return !u.closed
		}
	}
	return true
}

// busLabel writes a name as a part of an object's path: all except letters and digits becomes _xx,
// and so does a digit at the beginning.
func busLabel(name string) string {
	var label []byte
	for i, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if letter || i > 0 && c >= '0' && c <= '9' {
			label = append(label, c)
		} else {
			label = append(label, '_', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
	}
	return string(label)
}

// findUnit opens the unit of the container's cgroup, if systemd has one. It returns the cgroup in
// which the container must be alone.
func (c *container) findUnit(path string, v2 bool, change Change) (above string, err error) {
	name, above, err := scopeOf(path, c.Systemd)
	if err != nil || name == "" {
		return path, err
	}
	if c.unit, err = openUnit(cmp.Or(c.Socket, systemdSocket), name, above); err != nil {
		return "", fmt.Errorf("its cgroup %s is a unit of systemd, which would undo them at its next "+
			"reload, and it cannot be told: %w", above, err)
	}
	if c.unit.brings {
		return "", fmt.Errorf("its cgroup %s is a unit of systemd with a BPFProgram, which would bring back "+
			"the runtime's own rules", above)
	}
	// on version 1 systemd writes the list of the unit's own cgroup, and none below it
	if above == path && !v2 && len(change.Close) > 0 {
		return "", fmt.Errorf("its cgroup %s is a unit of systemd, which on cgroup v1 would open what is "+
			"closed, at its next reload", above)
	}
	return above, nil
}

// allowInUnit makes systemd allow what the change allows, if the unit opens only what it lists. It
// reads that list again.
func (c *container) allowInUnit(change Change) error {
	if c.unit == nil || !c.unit.closed || len(change.Allow) == 0 {
		return nil
	}
	wanted := unitDevices(c.unit.allow, change.Allow)
	if err := errors.Join(c.unit.add(wanted), c.unit.load()); err != nil {
		return fmt.Errorf("unit %s: %w", c.unit.name, err)
	}
	for _, d := range wanted {
		if !slices.Contains(c.unit.allow, d) {
			return fmt.Errorf("unit %s does not list %s", c.unit.name, d.path)
		}
	}
	return nil
}

// isAlone is nil if only the init is in a cgroup and in those below it.
func (c *container) isAlone(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		text, err := host.ReadFile(filepath.Join(path, "cgroup.procs"), maxProc)
		if err != nil {
			return err
		}
		for _, pid := range strings.Fields(string(text)) {
			if pid != strconv.Itoa(c.PID) {
				return fmt.Errorf("others than the container's init are in its cgroup %s", path)
			}
		}
		return nil
	})
}
