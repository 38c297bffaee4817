package watch

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Person is a process that was looked up.
type Person struct {
	grant.Process
	Command string // as the kernel has it, at most 15 bytes
	Cgroup  string // from the root of the hierarchy that guards the devices
	Foreign bool   // it is in another pid namespace than we
}

// Census looks processes up, and remembers them: to ask the kernel for a thousand at every pass would cost more than all the
// rest. Each is looked up anew at every twentieth pass, and before anything is done about it.
type Census struct {
	Host host.Host

	pass  int
	v1    bool   // as in onV1
	own   uint64 // our pid namespace
	known map[int]remembered
}

type remembered struct {
	Person
	pass int // when it was looked up
}

// rest is how many passes a process is remembered for. They are spread by pid, so that passes cost the same.
const rest = 20

// Take looks the processes up. Those that are gone, and those of a pid that means nothing here, are not in it.
func (c *Census) Take(pids []int) map[int]Person {
	c.pass++
	c.v1 = onV1(c.Host)
	people := make(map[int]Person, len(pids))
	known := make(map[int]remembered, len(pids))
	for _, pid := range pids {
		r, found := c.known[pid]
		if !found || (c.pass+pid)%rest == 0 || c.pass-r.pass >= rest {
			var err error
			if r.Person, err = c.again(pid, r.Person); err != nil {
				continue
			}
			r.pass = c.pass
		}
		known[pid] = r
		people[pid] = r.Person
	}
	c.known = known // whoever is gone is forgotten
	return people
}

// again asks for what can have changed of a process that was looked up before: where it is. Is it afterwards the same as it was
// then, it was the same all the time. One that is not is looked up.
func (c *Census) again(pid int, p Person) (Person, error) {
	if p.PID == pid && pid > 0 {
		lines, err := host.ReadFile(filepath.Join(c.Host.Proc, strconv.Itoa(pid), "cgroup"), maxProc)
		if now, _, e := c.Host.Process(pid); err == nil && e == nil && now == p.Process {
			p.Cgroup = cgroupIn(lines, c.v1)
			return p, nil
		}
	}
	return c.Look(pid)
}

// Look asks the kernel. A process that ends meanwhile, and has its pid taken by another, is an error.
func (c *Census) Look(pid int) (Person, error) {
	p, err := look(c.Host, pid)
	if err != nil {
		return p, err
	}
	if c.own == 0 {
		c.own, _ = c.Host.PIDNamespace()
	}
	var st unix.Stat_t
	err = unix.Stat(filepath.Join(c.Host.Proc, strconv.Itoa(pid), "ns/pid"), &st)
	p.Foreign = err == nil && c.own != 0 && st.Ino != c.own
	return p, nil
}

func look(h host.Host, pid int) (Person, error) {
	before, _, err := h.Process(pid)
	if err != nil {
		return Person{}, err
	}
	p := Person{Process: before}
	dir := filepath.Join(h.Proc, strconv.Itoa(pid))
	command, err := host.ReadFile(filepath.Join(dir, "comm"), maxProc)
	if err != nil {
		return p, err
	}
	p.Command = strings.TrimSuffix(string(command), "\n")
	lines, err := host.ReadFile(filepath.Join(dir, "cgroup"), maxProc)
	if err != nil {
		return p, err
	}
	p.Cgroup = cgroupIn(lines, onV1(h))
	if after, _, err := h.Process(pid); err != nil || after != before {
		return p, os.ErrProcessDone
	}
	return p, nil
}

// maxProc bounds a file of /proc, in bytes.
const maxProc = 64 << 10

// onV1 reports whether cgroup v1 guards the devices of this node.
func onV1(h host.Host) bool {
	_, err := os.Stat(filepath.Join(h.Sys, "fs/cgroup/devices/cgroup.procs"))
	return err == nil
}

// root is where that hierarchy is mounted.
func root(h host.Host) string {
	top := filepath.Join(h.Sys, "fs/cgroup")
	for _, name := range []string{"devices", "unified"} {
		if _, err := os.Stat(filepath.Join(top, name, "cgroup.procs")); err == nil {
			return filepath.Join(top, name)
		}
	}
	return top
}

// cgroupIn reads /proc/PID/cgroup (cgroups(7)): lines of HIERARCHY:CONTROLLERS:PATH, where that of v2 is 0::PATH. "" where the
// kernel tells none, or one that lies beside what we see.
func cgroupIn(lines []byte, v1 bool) string {
	for line := range bytes.Lines(lines) {
		parts := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(parts) < 3 || strings.HasPrefix(parts[2], "/..") {
			continue
		}
		path := strings.TrimSuffix(parts[2], " (deleted)")
		for controller := range strings.SplitSeq(parts[1], ",") {
			if v1 && controller == "devices" || !v1 && parts[0] == "0" && controller == "" {
				return path
			}
		}
	}
	return ""
}
