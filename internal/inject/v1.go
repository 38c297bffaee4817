package inject

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// v1 is a cgroup of the devices controller (Documentation/admin-guide/cgroup-v1/devices.rst). It
// either allows a list or allows all: then devices.list says "a *:* rwm", whatever is denied.
type v1 struct{ dir *os.File }

// write is one line for devices.deny or devices.allow.
type write struct {
	file, line string
}

func (c v1) save() (s saved, err error) {
	s.list, err = c.list()
	return s, err
}

func (c v1) set(change Change, before saved) error {
	now, err := c.list()
	if err != nil {
		return err
	}
	// systemd has removed what only the runtime allows
	for _, r := range before.list {
		if !allows(now, r) && !tooWide(r, change) {
			change.Allow = append(slices.Clip(change.Allow), r)
		}
	}
	for _, w := range v1Writes(now, change) {
		if err := c.write(w); err != nil {
			return err
		}
	}
	return nil
}

func (c v1) write(w write) error {
	fd, err := unix.Openat(int(c.dir.Fd()), w.file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(w.line))
		_ = unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("%s %q: %w", w.file, w.line, err)
	}
	return nil
}

// v1Writes returns the writes that turn the present rules into those of a change. A deny removes
// only exactly that rule, so a wider rule is removed whole and narrower ones are added.
func v1Writes(now []grant.DeviceRule, change Change) []write {
	var writes []write
	add := func(file string, r grant.DeviceRule) { writes = append(writes, write{file, v1Line(r)}) }
	for _, r := range now {
		if !tooWide(r, change) {
			continue
		}
		if r.Type == 'a' {
			writes = append(writes, write{"devices.deny", "a"})
		} else { // mknod opens nothing, and engines allow it for all devices
			r.Access = strings.ReplaceAll(r.Access, "m", "")
			add("devices.deny", r)
		}
		for _, other := range change.Others {
			if r.Type == 'a' || within(other, r) {
				other.Access = common(other.Access, r.Access)
				add("devices.allow", other)
			}
		}
	}
	for _, r := range change.Allow {
		if len(writes) > 0 || !allows(now, r) {
			add("devices.allow", r)
		}
	}
	return writes
}

// tooWide reports whether a rule opens a device that is to be closed. A rule within Allow or Others
// may stay.
func tooWide(r grant.DeviceRule, change Change) bool {
	if !strings.ContainsAny(r.Access, "rw") || slices.ContainsFunc(slices.Concat(change.Allow, change.Others),
		func(o grant.DeviceRule) bool { return within(r, o) }) {
		return false
	}
	return slices.ContainsFunc(change.Close, func(c grant.DeviceRule) bool { return overlaps(r, c) })
}

func common(a, b string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(b, r) {
			return r
		}
		return -1
	}, a)
}

func v1Line(r grant.DeviceRule) string {
	return string(r.Type) + " " + v1Number(r.Major) + ":" + v1Number(r.Minor) + " " + r.Access
}

func v1Number(n int64) string {
	if n < 0 {
		return "*"
	}
	return strconv.FormatInt(n, 10)
}

// list reads devices.list.
func (c v1) list() ([]grant.DeviceRule, error) {
	text, err := readAt(int(c.dir.Fd()), "devices.list")
	if err != nil {
		return nil, err
	}
	return parseV1(text)
}

func parseV1(text string) ([]grant.DeviceRule, error) {
	var list []grant.DeviceRule
	for line := range strings.Lines(text) {
		r := grant.DeviceRule{Allow: true}
		var major, minor string
		fields := strings.Fields(line)
		if len(fields) == 3 && len(fields[0]) == 1 {
			r.Type, r.Access = fields[0][0], fields[2]
			major, minor, _ = strings.Cut(fields[1], ":")
		}
		var err error
		if r.Major, err = parseNumber(major); err == nil {
			r.Minor, err = parseNumber(minor)
		}
		if err != nil || !strings.ContainsRune("abc", rune(r.Type)) {
			return nil, fmt.Errorf("cannot read the device rule %q", strings.TrimSpace(line))
		}
		list = append(list, r)
	}
	return list, nil
}

func parseNumber(text string) (int64, error) {
	if text == "*" {
		return -1, nil
	}
	return strconv.ParseInt(text, 10, 32)
}

// read returns the list as a spec has it: all is denied except the listed devices.
func (c v1) read() ([]specs.LinuxDeviceCgroup, error) {
	list, err := c.list()
	if err != nil {
		return nil, err
	}
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, r := range list {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: true, Type: string(r.Type), Major: &r.Major,
			Minor: &r.Minor, Access: r.Access})
	}
	return rules, nil
}
