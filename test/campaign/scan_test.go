package campaign

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// seen is a container that lived at a moment.
type seen struct {
	slot  *slot
	pids  []int
	found []int
	what  string // for a message
}

// lives are the containers of the slots that no worker changes at the moment.
func (c *campaign) lives() (all []seen) {
	for _, w := range c.workers {
		for _, s := range w.slots {
			if !s.mu.TryLock() {
				continue
			}
			if found, ok := s.found(); ok && s.live {
				if pids := s.processes(); len(pids) > 0 {
					what := fmt.Sprintf("container %s (%s) of %s", s.inLedger(), s.wish.name, w.engine.name)
					all = append(all, seen{s, pids, found, what})
				}
			}
			s.mu.Unlock()
		}
	}
	return all
}

// witness compares the ledger with what lives, again and again while workers and faults are at it.
func (c *campaign) witness() {
	for !c.over.Load() {
		c.gate.RLock()
		before, released := c.lives(), c.releases.now()
		grants, whole, err := c.node.listAnyway()
		live := both(before, c.lives())
		c.neverBack(released, grants)
		switch {
		case whole:
			c.compare(live, grants)
		case c.faulty == "":
			c.violation("the ledger cannot be read as a whole: %v", err)
		case grants != nil:
			live = c.compareSome(live, grants)
		}
		if len(live) > 0 && (whole || grants != nil) {
			c.counts.look(c.fault.name)
		}
		c.gate.RUnlock()
		time.Sleep(300 * time.Millisecond)
	}
}

// both are those that lived all the time between: one of their processes is the same.
func both(before, after []seen) (all []seen) {
	for _, b := range before {
		if slices.ContainsFunc(after, func(a seen) bool {
			return a.slot == b.slot && slices.Equal(a.found, b.found) && slices.ContainsFunc(a.pids,
				func(pid int) bool { return slices.Contains(b.pids, pid) })
		}) {
			all = append(all, b)
		}
	}
	return all
}

// compare finds what must never be: a GPU that is given out beyond what it has, and a container
// that can open another GPU than the ledger says.
func (c *campaign) compare(live []seen, grants []listed) {
	for _, what := range overdrawn(grants) {
		c.violation("%s", what)
	}
	for _, l := range live {
		want, granted := ofContainer(grants, l.slot.inLedger())
		if !slices.Equal(l.found, withControl(want)) && !l.slot.holds(l.found) {
			c.violation("%s can open %v, and by the ledger it has the GPUs %v of %d grants", l.what,
				l.found, want, granted)
		}
	}
}

// compareSome is compare for a ledger of which some entries could not be read. It returns the
// containers that the others name.
func (c *campaign) compareSome(live []seen, grants []listed) (compared []seen) {
	for _, what := range overdrawn(grants) {
		c.violation("%s", what)
	}
	for _, l := range live {
		want, granted := ofContainer(grants, l.slot.inLedger())
		if granted == 0 {
			continue
		}
		compared = append(compared, l)
		if slices.ContainsFunc(want, func(gpu int) bool { return !slices.Contains(l.found, gpu) }) &&
			!l.slot.holds(l.found) {
			c.violation("%s can open %v, and by a part of the ledger it has the GPUs %v of %d grants", l.what,
				l.found, want, granted)
		}
	}
	return compared
}

// holds reports whether a container without a GPU keeps the binding of its id's last container.
// Where the run directory is read-only nothing can remove that, and the container must start.
func (s *slot) holds(found []int) bool { return len(found) == 0 && s.stuck && s.wish.name == none }

// ofContainer are the GPUs of the grants that are bound to a container.
func ofContainer(grants []listed, id string) (gpus []int, number int) {
	for _, g := range grants {
		for _, b := range g.Bindings {
			if b.Container != id {
				continue
			}
			number++
			for _, share := range g.GPUs {
				gpus = append(gpus, share.Index)
			}
		}
	}
	return gpus, number
}

// overdrawn are GPUs with more memory or compute granted than they have, in two modes, or exclusive
// to two.
func overdrawn(grants []listed) (wrong []string) {
	type use struct {
		sum     grant.Bytes
		compute int // percent
		modes   []grant.Mode
		ids     []grant.ID
	}
	of := map[string]*use{}
	for _, g := range grants {
		for _, share := range g.GPUs {
			u := of[share.UUID]
			if u == nil {
				u = &use{}
				of[share.UUID] = u
			}
			u.sum, u.compute = u.sum+share.Memory, u.compute+g.Compute
			u.modes, u.ids = append(u.modes, g.Mode), append(u.ids, g.ID)
		}
	}
	for uuid, u := range of {
		modes := slices.Clone(u.modes)
		slices.Sort(modes)
		modes = slices.Compact(modes)
		if u.sum > memory || u.compute > 100 || len(modes) > 1 ||
			modes[0] == grant.Exclusive && len(u.ids) > 1 {
			wrong = append(wrong, fmt.Sprintf("the ledger has given out %s and %d %% of the compute of "+
				"GPU %s in the modes %v: %v", u.sum, u.compute, uuid, modes, u.ids))
		}
	}
	return wrong
}

// audit is what holds after each round, with all programs alive and no fault.
func (c *campaign) audit() {
	c.sound()
	c.readLog()
	grants, err := c.node.list()
	if err != nil {
		c.violation("after the round: %v", err)
		return
	}
	live := c.lives()
	c.compare(live, grants)
	c.neverBack(c.releases.now(), grants)
	c.heldByNone()
	next := make(chan seen, len(live))
	for _, l := range live {
		next <- l
	}
	close(next)
	var scans sync.WaitGroup
	for range scansAtOnce {
		scans.Go(func() {
			for l := range next {
				c.scan(l, grants)
			}
		})
	}
	scans.Wait()
	c.askForRoom()
}

// scansAtOnce is how many containers are looked at from inside at once: a scan waits for several
// programs, one after another.
const scansAtOnce = 4

// heldByNone finds grants that are held for a container of which no process lives.
func (c *campaign) heldByNone() {
	var idle []string
	for range 50 {
		idle = nil
		grants, err := c.node.list()
		if err != nil {
			idle = []string{err.Error()}
		}
		for _, g := range grants {
			for _, b := range g.Bindings {
				if !c.hasProcesses(b.Container) && !c.hasProcesses("libpod-"+b.Container) {
					idle = append(idle, fmt.Sprintf("grant %s (%s) for %s", g.ID, g.Label, b.Container))
				}
			}
		}
		if len(idle) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.violation("nothing runs, and the ledger has: %v", idle)
}

func (c *campaign) hasProcesses(cgroup string) bool {
	b := rig.Bundle{Node: c.node.Node, ID: cgroup}
	return slices.ContainsFunc(b.Processes(), rig.Lives)
}

// readLog looks for gpuledger's own mistakes in what gpuledgerd has logged since the last look.
func (c *campaign) readLog() {
	log, err := os.ReadFile(c.node.Dir + "/gpuledgerd.log")
	if err != nil || int64(len(log)) < c.node.logged {
		c.violation("gpuledgerd's log: %v", err)
		return
	}
	text := string(log[c.node.logged:])
	c.node.logged = int64(len(log))
	for line := range strings.Lines(text) {
		if mistaken(line) {
			c.violation("gpuledgerd logs %s", strings.TrimSpace(line))
		}
	}
}

// mistaken reports whether a program prints a mistake of its own.
func mistaken(text string) bool {
	return strings.Contains(text, "internal error") || strings.Contains(text, "panic: ") ||
		strings.Contains(text, "fatal error: ")
}

// sound runs `gpuledger check` until one finds nothing to repair. The first may repair.
func (c *campaign) sound() {
	var r rig.Result
	for range 40 {
		if r = c.node.CLI("check"); r.Code == 0 && strings.Count(r.Stdout, "\n") == 1 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.violation("gpuledger check: %+v", r)
}

// scan has a process in the container open every node, and allocate in its limit and beyond.
func (c *campaign) scan(l seen, grants []listed) {
	s := l.slot
	r := s.opens()
	want, _ := ofContainer(grants, s.inLedger())
	switch {
	case r.Code != 0 && len(s.processes()) == 0: // it has ended meanwhile
		return
	case r.Code != 0:
		c.violation("%s lives, and takes no process: %+v", l.what, r)
	case !slices.Equal(numbers(r.Stdout), withControl(want)) && !s.holds(numbers(r.Stdout)):
		c.violation("a process in %s can open %q, and by the ledger it has the GPUs %v", l.what, r.Stdout,
			want)
	}
	c.counts.add(&c.counts.Scans)
	switch {
	case s.wish.name == string(grant.Limit) || s.wish.name == asks:
		c.scanMemory(l)
	case s.wish.name == string(grant.MPS) && !s.lost:
		c.scanMPS(l)
	}
}

// scanMemory has a program allocate more than the 1024 MiB of the grant, more than the container's
// client leaves of them, and less.
func (c *campaign) scanMemory(l seen) {
	// CUDA_ERROR_OUT_OF_MEMORY and CUDA_SUCCESS; the client has 64 MiB
	const right = "1025 MiB: 2\n1000 MiB: 2\n512 MiB: 0\n"
	var r rig.Result
	for end := time.Now().Add(mostPatience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		client := l.slot.client()
		r = rig.Run(l.slot.engine.execs(l.slot, "/bin/gpu", "1025", "1000", "512"))
		most := 1024
		if client != 0 && l.slot.client() == client {
			most -= 64
		}
		switch {
		case r.Stdout == right:
			return
		case allocated(r.Stdout) > most:
			c.violation("a program in %s has %d MiB of %d: %+v", l.what, allocated(r.Stdout), most, r)
			return
		case len(l.slot.processes()) == 0: // it has ended meanwhile
			return
		}
		// A client that was killed starts again after a second.
	}
	says, _ := os.ReadFile(l.slot.clientFile())
	c.violation("a program in %s has %+v, want %q; the client says %q", l.what, r, right, says)
}

// client is the process of a container's client that has allocated; 0: there is none.
func (s *slot) client() int {
	for _, pid := range s.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		// the shell has emptied the file before it became the client
		says, _ := os.ReadFile(s.clientFile())
		if string(line) == "/bin/gpu\x0064\x00hold\x00" && string(says) == "64 MiB: 0\nholds\n" {
			return pid
		}
	}
	return 0
}

func (s *slot) clientFile() string { return filepath.Join(s.bundle.Dir, "rootfs/tmp/client") }

// scanMPS has a client of the grant's MPS daemon allocate more than the 1024 MiB of the grant, and
// less.
func (c *campaign) scanMPS(l seen) {
	const right = "0:1025 CUDA_ERROR_OUT_OF_MEMORY\n0:1000 CUDA_SUCCESS\n"
	var r rig.Result
	for end := time.Now().Add(mostPatience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		r = rig.Run(l.slot.engine.execs(l.slot, "/bin/client", "0:1025", "0:1000"))
		switch {
		case strings.HasSuffix(r.Stdout, right):
			return
		case strings.Contains(r.Stdout, "0:1025 CUDA_SUCCESS"):
			c.violation("a client in %s has 1025 MiB: %+v", l.what, r)
			return
		case len(l.slot.processes()) == 0: // it has ended meanwhile
			return
		}
	}
	c.violation("a client in %s has %+v, want %q", l.what, r, right)
}

// allocated is the sum of what /bin/gpu has allocated, in MiB, by what it prints.
func allocated(text string) (sum int) {
	for line := range strings.Lines(text) {
		size, is := strings.CutSuffix(line, " MiB: 0\n")
		n, _ := strconv.Atoi(size)
		if is {
			sum += n
		}
	}
	return sum
}

// drain ends every container and releases every grant. Nothing may be left then, and all GPUs can
// be granted.
func (c *campaign) drain() {
	c.calm(func(w *worker) {
		for _, s := range w.slots {
			w.end(s)
			w.clear(s)
		}
	})
	c.endStrays()
	c.sound()
	grants, err := c.node.list()
	if err != nil {
		c.violation("%v", err)
	}
	for _, g := range grants {
		if !c.releases.excused(g) {
			c.violation("grant %s of %s (%s) is left, and no program was killed that could have released it",
				g.ID, g.Label, g.Source)
		}
		if r := c.releaseGrant(g.ID); r.Code != 0 && r.Code != 4 {
			c.violation("release of %s, which a killed program has left: %+v", g.ID, r)
		}
	}
	c.releases.forgive()
	c.nextDay()
	c.sound()
	var left []string
	for range 600 { // gpuledgerd ends its MPS daemons, and tidies
		if left = c.left(); len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(left) > 0 {
		c.violation("after all containers and grants: %v", left)
	}
	c.grantAll()
}

// nextDay has the ledger drop grants whose time was over by a clock that has jumped: it keeps them
// for a day, and the next grant removes them then.
func (c *campaign) nextDay() {
	for range 600 { // a container's grant counts until its last process is gone
		if grants, err := c.node.list(); err == nil && len(grants) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.node.Write("clock", "48h")
	c.grantAll()
	c.node.Write("clock", "0s")
}

// grantAll grants all GPUs to one, and releases them.
func (c *campaign) grantAll() {
	r := c.node.CLI("grant", "--mode", "exclusive", "--gpus", fmt.Sprint(gpus), "--label", "whole")
	if r.Code != 0 {
		c.violation("nothing is granted, and not all GPUs can be: %+v", r)
		return
	}
	id, _, _ := strings.Cut(strings.TrimSpace(r.Stdout), ".")
	if r := c.node.CLI("release", id); r.Code != 0 {
		c.violation("release of all GPUs: %+v", r)
	}
}

// endStrays ends the containers that containerd has started for a client that was killed before it
// had an answer. No other client ends them.
func (c *campaign) endStrays() {
	for range 50 {
		strays := c.node.ctr.Shims()
		for _, pid := range strays {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, dir := range c.cgroups() {
			stray := rig.Bundle{Node: c.node.Node, ID: filepath.Base(dir)}
			if strings.HasPrefix(stray.ID, "w") && strings.Contains(stray.ID, "-") && !stray.RemoveCgroups() {
				strays = append(strays, 0)
			}
		}
		if len(strays) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// cgroups are those of containers.
func (c *campaign) cgroups() (found []string) {
	parent := filepath.Dir((&rig.Bundle{Node: c.node.Node, ID: "x"}).CgroupPath())
	for _, pattern := range []string{"/sys/fs/cgroup" + parent + "/*", "/sys/fs/cgroup/*" + parent + "/*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			// crun writes plain files into unified, which is no hierarchy here (rig.V1)
			info, err := os.Stat(dir)
			if err == nil && info.IsDir() && filepath.Base(dir) != "conmon" &&
				!strings.HasPrefix(dir, "/sys/fs/cgroup/unified/") {
				found = append(found, dir)
			}
		}
	}
	return found
}

// left is what containers and grants have left in the ledger, in cgroups, as mounts and processes.
func (c *campaign) left() (left []string) {
	for _, file := range c.node.Files() {
		if strings.Contains(file, "g-") || slices.ContainsFunc([]string{"state/owners/", "run/mps/",
			"run/bindings/", "run/creates/", "run/cgroups/"}, func(dir string) bool {
			return strings.HasPrefix(file, dir)
		}) {
			left = append(left, file)
		}
	}
	for _, dir := range c.cgroups() {
		left = append(left, "cgroup "+dir)
	}
	for _, mount := range mounts(c.node.Dir) {
		if !slices.Contains(c.mounts, mount) && mount != c.node.Dir+"/run/limits" { // it stays
			left = append(left, "mount "+mount)
		}
	}
	for _, program := range []string{c.node.image + "/bin/opens",
		c.node.Dir + "/driver/usr/bin/nvidia-cuda-mps-control"} {
		for _, pid := range processesOf(program) {
			left = append(left, fmt.Sprintf("process %d of %s", pid, program))
		}
	}
	return left
}

// mounts are the mount points below a directory.
func mounts(dir string) (below []string) {
	info, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			below = append(below, f[4])
		}
	}
	return below
}
