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

// ProcessInfo is what was read of a process.
type ProcessInfo struct {
	grant.Process
	Command string // as the kernel has it, at most 15 bytes; U+FFFD for what is not UTF-8
	Cgroup  string // from the root of the hierarchy that guards the devices
	Foreign bool   // it is in another pid namespace than this program
	// Rootless: it is in another user namespace than this program, as of a rootless engine.
	Rootless bool
	UID      uint32 // its effective uid, as this program's user namespace has it
}

// ProcessTable reads processes and keeps them: to read a thousand of them in every pass would cost
// more than all the rest. The end of a process is noticed at once (host.ExitWatcher). Its cgroup is
// read again in every twentieth pass, and before anything is done about it. If processes cannot be
// held by the exit watcher, their start times are compared in every twentieth pass, and the exit
// watcher is tried again.
type ProcessTable struct {
	Host host.Host
	// UserNodes says that uids count, too (Input.UserNodes). They are read again with the cgroups.
	UserNodes bool
	// HasGPUOpen reports whether a process has a GPU's device node open; nil: all have. It is asked
	// of a process that comes while its pid is looked up. The driver may list the pid of a process
	// that has ended, for memory that a child of it keeps. A later process with the pid does not
	// use that.
	HasGPUOpen func(pid int) bool

	pass           int
	v1             bool // cgroup v1 controls the devices
	members        cgroupMembers
	own            uint64 // the pid namespace of this program
	ownUser        uint64 // its user namespace
	exits          *host.ExitWatcher
	newExitWatcher func() (*host.ExitWatcher, error) // nil: host.NewExitWatcher
	exitsErr       error
	known          map[int]*processEntry
	missing        map[int]int         // pids that were asked for and have no process, with the last pass
	processes      map[int]ProcessInfo // the same processes, as Lookup returns them

	changes uint64
}

type processEntry struct {
	lookedUp  int  // the pass in which it was read last
	lastAsked int  // the pass in which Lookup was asked for it last
	phase     int  // the pass, of refreshPasses, that reads the processes of its cgroup; -1: none
	ended     bool // it may remain as a zombie, while the driver still holds its memory
}

// refreshPasses is for how many passes a process is kept without reading it again. Processes are
// spread over the passes, so that each pass costs the same.
const refreshPasses = 20

// Lookup returns the processes of the pids; a pid may be named several times. Processes that are
// gone are missing in the result. The result is valid until the next call.
func (c *ProcessTable) Lookup(pids []int) map[int]ProcessInfo {
	c.beginPass()
	asked := 0 // without duplicates
	for _, pid := range pids {
		r := c.known[pid]
		switch {
		case r == nil:
			r = c.addMissing(pid)
		case r.lastAsked == c.pass:
			continue
		case r.ended:
			r = c.refresh(pid, r)
		case r.phase >= 0:
			if (c.pass+r.phase)%refreshPasses != 0 {
				break
			}
			if c.inCgroup(pid, r) {
				c.refreshUser(pid)
			} else {
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
	// If a process ended while it was read, what was read may be about a new process with its pid.
	for _, pid := range c.ended() {
		if r := c.known[pid]; r.lastAsked == c.pass {
			if r = c.refresh(pid, r); r == nil {
				asked--
			} else {
				r.lastAsked = c.pass
			}
		}
	}
	for pid, at := range c.missing {
		if at != c.pass {
			delete(c.missing, pid)
		}
	}
	if len(c.known) > asked {
		for pid, r := range c.known {
			if r.lastAsked != c.pass { // it is not asked for any more
				c.remove(pid)
			}
		}
	}
	return c.processes
}

// beginPass notices the processes that have ended since the last pass.
func (c *ProcessTable) beginPass() {
	if c.known == nil {
		c.known, c.processes, c.missing = map[int]*processEntry{}, map[int]ProcessInfo{}, map[int]int{}
	}
	// else the pids are not this machine's
	if c.exits == nil && c.pass%refreshPasses == 0 && c.Host.Proc == "/proc" {
		begin := host.NewExitWatcher
		if c.newExitWatcher != nil {
			begin = c.newExitWatcher
		}
		c.exits, c.exitsErr = begin()
	}
	c.pass++
	_, c.v1 = host.CgroupRoot(c.Host)
	c.ended()
}

// ExitWatchError is why processes cannot be held, such as a lack of descriptors; nil if they can,
// or if the pids are not this machine's.
func (c *ProcessTable) ExitWatchError() error { return c.exitsErr }

// ended returns the known processes that have ended. If the exit watcher fails, it returns all:
// their start times are compared until the exit watcher works again.
func (c *ProcessTable) ended() (pids []int) {
	if c.exits == nil {
		return nil
	}
	pids, err := c.exits.Ended()
	if err != nil {
		c.Close()
		c.exitsErr = err
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

// Changes counts the changes to the result of Lookup: which processes are in it, in which cgroups,
// and of which users.
func (c *ProcessTable) Changes() uint64 { return c.changes }

func (c *ProcessTable) remove(pid int) {
	if _, known := c.known[pid]; known { // the driver may name a process long after its end
		c.changes++
	}
	delete(c.known, pid)
	delete(c.processes, pid)
	if c.exits != nil {
		c.exits.Remove(pid)
	}
}

// add reads a new process; nil if no process has the pid. The exit watcher holds it before anything
// is read, so that everything that is read is about this process.
func (c *ProcessTable) add(pid int) *processEntry {
	if c.exits != nil {
		_ = c.exits.Add(pid) // if it cannot be held, its start time is compared
	}
	p, err := c.Read(pid)
	if err != nil {
		c.remove(pid)
		return nil
	}
	r := &processEntry{lookedUp: c.pass, phase: phaseOf(p.Cgroup)}
	c.known[pid], c.processes[pid] = r, p
	c.changes++
	return r
}

// addMissing reads a process that is not known; nil if no process has the pid.
func (c *ProcessTable) addMissing(pid int) *processEntry {
	at, was := c.missing[pid]
	switch {
	case was && at == c.pass:
		return nil
	case was: // in the last pass
		return c.addLater(pid)
	}
	r := c.add(pid)
	if r == nil {
		c.missing[pid] = c.pass
	}
	return r
}

// addLater reads the process that has a pid now, which another one may have had in the last pass.
func (c *ProcessTable) addLater(pid int) (r *processEntry) {
	if c.HasGPUOpen == nil || c.HasGPUOpen(pid) {
		r = c.add(pid)
	}
	if r == nil {
		c.missing[pid] = c.pass
	}
	return r
}

// refresh reads the cgroup of a process that was read before. If the process is the same
// afterwards, it was the same all the time; of a process that is held, Lookup finds that out at its
// end. A process that is another one now is read from the start. One that is ending or has ended
// keeps its cgroup: in a v1 hierarchy the kernel reports the root for it.
func (c *ProcessTable) refresh(pid int, r *processEntry) *processEntry {
	p := c.processes[pid]
	held := c.exits != nil && c.exits.Has(pid)
	anew := c.exits != nil && !held && !r.ended && c.exits.Add(pid) == nil // there was no room for it before
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
	if same && r.ended { // a process that runs is a new one, which got the pid within the same tick
		runs, err := c.Host.Runs(p.Process)
		same = err == nil && !runs
	}
	if !same {
		c.remove(pid)
		return c.addLater(pid)
	}
	if at := p.Cgroup; !r.ended {
		p.Cgroup = cgroupIn(lines, c.v1)
		if c.v1 && p.Cgroup == "/" && host.IsEnding(c.Host, pid) {
			p.Cgroup = at
		}
		c.processes[pid] = p
		if p.Cgroup != at {
			c.changes++
		}
		if p.Cgroup != at || anew {
			r.phase = phaseOf(p.Cgroup)
		}
	}
	c.refreshUser(pid)
	r.lookedUp = c.pass
	return r
}

// refreshUser reads the uid of a process again: a program can begin as root, and go on as a user.
func (c *ProcessTable) refreshUser(pid int) {
	p := c.processes[pid]
	if uid, err := c.Host.UserOf(pid); c.UserNodes && err == nil && uid != p.UID {
		p.UID = uid
		c.processes[pid] = p
		c.changes++
	}
}

// cgroupMembers are the processes of cgroups, as read in one pass.
type cgroupMembers struct {
	pass int
	root string
	read map[string]bool
	in   map[int]string
}

// phaseOf spreads the cgroups over the passes.
func phaseOf(cgroup string) int {
	if cgroup == "" || cgroup == "/" { // it belongs to no container alone
		return -1
	}
	sum := 0
	for i := range len(cgroup) {
		sum = (31*sum + int(cgroup[i])) % refreshPasses
	}
	return sum
}

// inCgroup reports whether a process is still in its cgroup, by the cgroup's list of processes. For
// all processes of a container that is one file, and it costs the kernel less. It is not enough for
// a process that is not held, because the list has only pids.
func (c *ProcessTable) inCgroup(pid int, r *processEntry) bool {
	if c.exits == nil || !c.exits.Has(pid) {
		return false
	}
	if c.members.pass != c.pass {
		root, _ := host.CgroupRoot(c.Host)
		c.members = cgroupMembers{pass: c.pass, root: root, read: map[string]bool{}, in: map[int]string{}}
	}
	cgroup := c.processes[pid].Cgroup
	if !c.members.read[cgroup] {
		c.members.read[cgroup] = true
		// empty if it is gone or too large
		lines, _ := host.ReadFile(filepath.Join(c.members.root, cgroup, "cgroup.procs"), maxProc)
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

// Close closes the exit watcher.
func (c *ProcessTable) Close() {
	if c.exits != nil {
		c.exits.Close()
		c.exits = nil
	}
}

// Read reads a process now. It is an error if the process ends meanwhile and another one gets its
// pid.
func (c *ProcessTable) Read(pid int) (ProcessInfo, error) {
	p, err := readProcess(c.Host, pid)
	if err != nil {
		return p, err
	}
	if c.own == 0 {
		c.own, _ = c.Host.PIDNamespace()
	}
	if c.ownUser == 0 {
		c.ownUser = c.namespace("self", "user")
	}
	is, user := c.namespace(strconv.Itoa(pid), "pid"), c.namespace(strconv.Itoa(pid), "user")
	p.Foreign = is != 0 && c.own != 0 && is != c.own
	p.Rootless = user != 0 && c.ownUser != 0 && user != c.ownUser
	return p, nil
}

// namespace is the inode of a namespace of a process, 0 if that cannot be told.
func (c *ProcessTable) namespace(process, kind string) uint64 {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(c.Host.Proc, process, "ns", kind), &st) != nil {
		return 0
	}
	return st.Ino
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
	// a process names itself, with any bytes
	p.Command = strings.ToValidUTF8(strings.TrimSuffix(string(command), "\n"), "\uFFFD")
	p.UID, _ = h.UserOf(before.PID) // else root's, to whom no grant opens anything
	lines, err := h.Cgroups(pid, maxProc)
	if err != nil {
		return p, err
	}
	_, v1 := host.CgroupRoot(h)
	p.Cgroup = cgroupIn(lines, v1)
	if after, _, err := h.Process(pid); err != nil || after != before {
		return p, os.ErrProcessDone
	}
	return p, nil
}

// maxProc bounds a file of /proc, in bytes.
const maxProc = 64 << 10

// cgroupIn reads /proc/PID/cgroup (cgroups(7)): lines of HIERARCHY:CONTROLLERS:PATH, where that of
// v2 is 0::PATH. It returns "" if the kernel reports no path, or one outside this cgroup namespace.
func cgroupIn(lines []byte, v1 bool) string {
	controller := ""
	if v1 {
		controller = "devices"
	}
	for l := range host.CgroupLines(lines) {
		if l.Has(controller) && !strings.HasPrefix(l.Path, "/..") {
			return strings.TrimSuffix(l.Path, " (deleted)")
		}
	}
	return ""
}
