package watch

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Person is a process that was looked up.
type ProcessInfo struct {
	grant.Process
	Command string // as the kernel has it, at most 15 bytes
	Cgroup  string // from the root of the hierarchy that guards the devices
	Foreign bool   // it is in another pid namespace than we
}

// Census looks processes up, and remembers them: to ask the kernel for a thousand at every pass would cost more than all the
// rest. Those that end are noticed at once (host.Vigil); where each is, it is asked anew at every twentieth pass, and before anything
// is done about it. Where processes cannot be held, they are held against their start times at every twentieth pass, and it is tried again.
type ProcessTable struct {
	Host host.Host

	pass      int
	v1        bool // as in onV1
	members   cgroupMembers
	own       uint64 // our pid namespace
	vigil     *host.Vigil
	newVigil  func() (*host.Vigil, error) // nil: host.NewVigil
	vigilErr  error
	known     map[int]*entry
	processes map[int]ProcessInfo // the same ones, as they are given out

	changes uint64
}

type entry struct {
	lookedUp  int  // when it was looked up
	lastAsked int  // when it was asked for last
	phase     int  // when its cgroup is asked for its processes; -1: that does not tell of it
	ended     bool // as a zombie it may still be there, and the driver not have its memory back
}

// rest is how many passes a process is remembered for. They are spread by pid, so that passes cost the same.
const refreshPasses = 20

// Take looks the processes up; a pid may be named several times. Those that are gone, and those of a pid that means nothing here, are
// not in it. What it gives holds until the next Take.
func (c *ProcessTable) Lookup(pids []int) map[int]ProcessInfo {
	c.beginPass()
	asked := 0 // different ones
	for _, pid := range pids {
		r := c.known[pid]
		switch {
		case r == nil:
			r = c.add(pid)
		case r.lastAsked == c.pass:
			continue
		case r.ended:
			r = c.refresh(pid, r)
		case r.phase >= 0:
			if (c.pass+r.phase)%refreshPasses == 0 && !c.inCgroup(pid, r) {
				r.phase = -1
				r = c.refresh(pid, r)
			}
		case (c.pass+pid)%refreshPasses == 0, c.pass-r.lookedUp >= refreshPasses:
			r = c.refresh(pid, r)
		}
		if r != nil {
			r.lastAsked = c.pass
			asked++
		}
	}
	// Whoever has ended while he was looked up: what was read may be about who has his pid now.
	for _, pid := range c.ended() {
		if r := c.known[pid]; r.lastAsked == c.pass {
			if r = c.refresh(pid, r); r == nil {
				asked--
			} else {
				r.lastAsked = c.pass
			}
		}
	}
	if len(c.known) > asked {
		for pid, r := range c.known {
			if r.lastAsked != c.pass { // nobody asks for it any more
				c.remove(pid)
			}
		}
	}
	return c.processes
}

// begin notices who has ended since the last pass.
func (c *ProcessTable) beginPass() {
	if c.known == nil {
		c.known, c.processes = map[int]*entry{}, map[int]ProcessInfo{}
	}
	if c.vigil == nil && c.pass%refreshPasses == 0 && c.Host.Proc == "/proc" { // else pids there are not this machine's
		begin := host.NewVigil
		if c.newVigil != nil {
			begin = c.newVigil
		}
		c.vigil, c.vigilErr = begin()
	}
	c.pass++
	c.v1 = onV1(c.Host)
	c.ended()
}

// Unheld is why nobody is held, for want of descriptors or memory say; nil where that is not so, or pids here are not this machine's.
func (c *ProcessTable) VigilError() error { return c.vigilErr }

// ended tells who of the known has ended. Where that cannot be told any more, everybody is held against his start time until it can again.
func (c *ProcessTable) ended() (pids []int) {
	if c.vigil == nil {
		return nil
	}
	pids, err := c.vigil.Ended()
	if err != nil {
		c.Close()
		c.vigilErr = err
		pids = slices.Collect(maps.Keys(c.known))
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		r := c.known[pid]
		if r != nil {
			r.ended = err == nil
		}
		return r == nil
	})
}

// Changes tells one state of what Take gives from another: who is in it, and where.
func (c *ProcessTable) Changes() uint64 { return c.changes }

func (c *ProcessTable) remove(pid int) {
	if _, known := c.known[pid]; known { // the driver may name one that is gone again and again
		c.changes++
	}
	delete(c.known, pid)
	delete(c.processes, pid)
	if c.vigil != nil {
		c.vigil.Release(pid)
	}
}

// look looks up who is not known; nil where nobody has the pid. He is held before anything is read, so that all of it is about him.
func (c *ProcessTable) add(pid int) *entry {
	if c.vigil != nil {
		_ = c.vigil.Hold(pid) // one that cannot be held is held against its start time
	}
	p, err := c.Read(pid)
	if err != nil {
		c.remove(pid)
		return nil
	}
	r := &entry{lookedUp: c.pass, phase: phaseOf(p.Cgroup)}
	c.known[pid], c.processes[pid] = r, p
	c.changes++
	return r
}

// again asks for what can have changed of a process that was looked up before: where it is. Is it afterwards the same as it was
// then, it was the same all the time: of one that is held that is known when Take is through. One that is not is looked up. One that has
// ended is nowhere else any more, whatever the kernel tells (of a zombie in a hierarchy of v1 it tells the root).
func (c *ProcessTable) refresh(pid int, r *entry) *entry {
	p := c.processes[pid]
	held := c.vigil != nil && c.vigil.Holds(pid)
	anew := c.vigil != nil && !held && !r.ended && c.vigil.Hold(pid) == nil // there was no room for him before
	var lines []byte
	var err error
	if !r.ended {
		lines, err = c.Host.Cgroups(pid, maxProc)
	}
	same := err == nil
	if same && (r.ended || !held) {
		is, _, err := c.Host.Process(pid)
		same = err == nil && is == p.Process
	}
	if same && r.ended { // who runs is another, that has got the pid within the same tick
		runs, err := c.Host.Runs(p.Process)
		same = err == nil && !runs
	}
	if !same {
		c.remove(pid)
		return c.add(pid)
	}
	if at := p.Cgroup; !r.ended {
		p.Cgroup = cgroupIn(lines, c.v1)
		c.processes[pid] = p
		if p.Cgroup != at {
			c.changes++
		}
		if p.Cgroup != at || anew {
			r.phase = phaseOf(p.Cgroup)
		}
	}
	r.lookedUp = c.pass
	return r
}

// listing is what cgroups said, in one pass, of who is in them.
type cgroupMembers struct {
	pass int
	root string
	read map[string]bool
	in   map[int]string
}

// phaseOf spreads the cgroups over the passes.
func phaseOf(cgroup string) int {
	if cgroup == "" || cgroup == "/" { // everybody's
		return -1
	}
	sum := 0
	for i := range len(cgroup) {
		sum = (31*sum + int(cgroup[i])) % refreshPasses
	}
	return sum
}

// lists reports whether a process is still in its cgroup, as that tells: for the processes of a container together that is one file, and one
// that costs the kernel less. Of who is not held it says too little, for a pid is all that it has.
func (c *ProcessTable) inCgroup(pid int, r *entry) bool {
	if c.vigil == nil || !c.vigil.Holds(pid) {
		return false
	}
	if c.members.pass != c.pass {
		c.members = cgroupMembers{pass: c.pass, root: cgroupRoot(c.Host), read: map[string]bool{}, in: map[int]string{}}
	}
	cgroup := c.processes[pid].Cgroup
	if !c.members.read[cgroup] {
		c.members.read[cgroup] = true
		lines, _ := host.ReadFile(filepath.Join(c.members.root, cgroup, "cgroup.procs"), maxProc) // of one that is gone, or too large, nothing
		for line := range bytes.Lines(lines) {
			if other, err := strconv.Atoi(string(bytes.TrimSuffix(line, []byte("\n")))); err == nil {
				c.members.in[other] = cgroup
			}
		}
	}
	if c.members.in[pid] != cgroup {
		return false
	}
	r.lookedUp = c.pass
	return true
}

// Close ends it.
func (c *ProcessTable) Close() {
	if c.vigil != nil {
		c.vigil.Close()
		c.vigil = nil
	}
}

// Look asks the kernel. A process that ends meanwhile, and has its pid taken by another, is an error.
func (c *ProcessTable) Read(pid int) (ProcessInfo, error) {
	p, err := readProcess(c.Host, pid)
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

func readProcess(h host.Host, pid int) (ProcessInfo, error) {
	before, _, err := h.Process(pid)
	if err != nil {
		return ProcessInfo{}, err
	}
	p := ProcessInfo{Process: before}
	dir := filepath.Join(h.Proc, strconv.Itoa(pid))
	command, err := host.ReadFile(filepath.Join(dir, "comm"), maxProc)
	if err != nil {
		return p, err
	}
	p.Command = strings.TrimSuffix(string(command), "\n")
	lines, err := h.Cgroups(pid, maxProc)
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
func cgroupRoot(h host.Host) string {
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
