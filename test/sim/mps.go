package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
	"github.com/gpuledger/gpuledger/internal/node"
)

// control is a control daemon of NVIDIA's Multi-Process Service: a process of the node that
// outlives gpuledgerd.
type control struct {
	dir     string
	pid     int
	gpus    []string
	servers []int
	// what was set for servers to come, and for each server, which had those when it started
	limits   mpsLimits
	ofServer map[int]*mpsLimits
	listens  bool // its sockets are there
	hangs    bool // it does not answer
	dies     bool // soon after its start, or when it was told to end
}

// mpsLimits are what a server allows its clients, as it was set.
type mpsLimits struct {
	memory  map[string]string // by the ordinal of the GPU
	percent string
}

// listen makes its sockets.
func (c *control) listen() {
	for _, path := range []string{mpsstate.SocketPath(c.dir), mpsstate.PrivilegedPath(c.dir)} {
		_ = os.Remove(path)
		if unix.Mknod(path, unix.S_IFSOCK|0o666, 0) != nil { // its directory is gone
			return
		}
	}
	c.listens = true
}

// mpsSystem is the machine as package mps sees it, with the control daemons of MPS.
type mpsSystem struct {
	*world
	containers *containers
	holdings   *holdings
}

// Now is by the monotonic clock. It is long before the machine's time, so that sockets count
// as settled at once.
func (s *mpsSystem) Now() time.Time { return epoch.Add(s.awake) }

// StartLauncher runs the launcher to where it has become the daemon. The sockets may come later.
func (s *mpsSystem) StartLauncher(dir string) error {
	s.pause()
	text, err := os.ReadFile(filepath.Join(dir, "orders.json"))
	if err != nil || !s.calm && s.random.IntN(10) == 0 {
		return errors.Join(errors.New("the launcher cannot be started"), err)
	}
	_, list, _ := strings.Cut(string(text), "CUDA_VISIBLE_DEVICES=")
	list, _, _ = strings.Cut(list, `"`)
	pid, start := s.fork("/")
	s.write("nvidia-cuda-mps-control\x00-f\x00", "proc", strconv.Itoa(pid), "cmdline")
	must(os.WriteFile(filepath.Join(dir, "process.json"), fmt.Appendf(nil,
		`{"pid":%d,"start":%d,"boot_id":"00000000-0000-0000-0000-%012d"}`, pid, start, s.boots), 0o600))
	c := &control{dir: dir, pid: pid, gpus: strings.Split(list, ","),
		limits:   mpsLimits{memory: map[string]string{}, percent: "100"},
		ofServer: map[int]*mpsLimits{}}
	s.controls = append(s.controls, c)
	s.trace("MPS daemon %d of %v starts", pid, c.gpus)
	if s.calm || s.random.IntN(3) > 0 {
		c.listen()
	}
	return nil
}

// controlOf is the daemon that runs in a directory, or nil.
func (s *mpsSystem) controlOf(dir string) *control {
	i := slices.IndexFunc(s.controls, func(c *control) bool { return c.dir == dir })
	if i < 0 {
		return nil
	}
	return s.controls[i]
}

func (s *mpsSystem) Listener(path string) (int, [2]uint64, error) {
	c := s.controlOf(filepath.Dir(filepath.Dir(path)))
	if c == nil || !c.listens {
		return 0, [2]uint64{}, unix.ECONNREFUSED
	}
	socket, _, _ := mpsstate.Socket(path)
	return c.pid, socket, nil
}

func (s *mpsSystem) HoldsListener(_ host.Host, pid int, _ string) (bool, error) {
	return s.pids[pid], nil
}

// Ask is answered by the daemon to whose directory the environment leads.
func (s *mpsSystem) Ask(_ context.Context, _ string, env []string, command string) (string, error) {
	s.pause()
	dir := ""
	for _, entry := range env {
		if pipe, is := strings.CutPrefix(entry, "CUDA_MPS_PIPE_DIRECTORY="); is {
			dir = filepath.Dir(pipe)
		}
	}
	c := s.controlOf(dir)
	switch {
	case c == nil || !c.listens:
		return "", errors.New("cannot find the MPS control daemon")
	case c.hangs:
		s.awake += 5 * time.Second
		return "", fmt.Errorf("it does not answer %q", command)
	}
	return s.answer(c, strings.Fields(command))
}

// answer is what a daemon prints.
func (s *mpsSystem) answer(c *control, words []string) (string, error) {
	switch words[0] {
	case "get_server_list":
		return strings.Trim(fmt.Sprint(c.servers), "[]"), nil
	case "get_client_list":
		return strings.Trim(fmt.Sprint(clientsOf(c, s.containers.boxes)), "[]"), nil
	case "start_server":
		if s.calm || s.random.IntN(4) > 0 {
			pid, _ := s.child("/", c.pid)
			c.servers = append(c.servers, pid)
			c.ofServer[pid] = &mpsLimits{memory: maps.Clone(c.limits.memory), percent: c.limits.percent}
		}
	case "get_server_status":
		return "ACTIVE", nil
	case "set_default_device_pinned_mem_limit":
		c.limits.memory[words[1]] = words[2]
	case "get_default_device_pinned_mem_limit":
		return c.limits.memory[words[1]], nil
	case "set_device_pinned_mem_limit":
		if of := c.serverOf(words[1]); of != nil {
			of.memory[words[2]] = words[3]
		}
	case "set_default_active_thread_percentage":
		c.limits.percent = words[1]
	case "set_active_thread_percentage":
		if of := c.serverOf(words[1]); of != nil {
			of.percent = words[2]
		}
	case "get_default_active_thread_percentage":
		return c.limits.percent + ".0", nil
	case "quit":
		if c.dies = true; s.calm || s.random.IntN(5) == 0 { // else it takes its time
			s.endControl(c)
		}
	}
	return "", nil
}

// serverOf are the limits of the server with that pid, or nil.
func (c *control) serverOf(pid string) *mpsLimits {
	number, _ := strconv.Atoi(pid)
	return c.ofServer[number]
}

// clientsOf are the processes that use a daemon: the inits of containers.
func clientsOf(c *control, boxes []*box) (pids []int) {
	for _, b := range boxes {
		if b.mps && b.pid != 0 && slices.Equal(b.gpus, c.gpus) {
			pids = append(pids, b.pid)
		}
	}
	return pids
}

// endControl ends a daemon with its servers. Its sockets stay as files.
func (s *mpsSystem) endControl(c *control) {
	s.trace("MPS daemon %d of %v ends", c.pid, c.gpus)
	for _, pid := range append(c.servers, c.pid) {
		s.exit(pid)
	}
	s.controls = slices.DeleteFunc(s.controls, func(o *control) bool { return o == c })
}

// happens is something that happens to the control daemons.
func (s *mpsSystem) happens() {
	if len(s.controls) == 0 {
		return
	}
	c := s.controls[s.random.IntN(len(s.controls))]
	switch n := s.random.IntN(10); {
	case c.dies && n < 4 || n == 0:
		s.endControl(c)
		s.createBeside(c)
	case n < 3 && len(c.servers) > 0:
		s.trace("an MPS server of %d ends", c.pid)
		s.exit(c.servers[0])
		c.servers = c.servers[1:]
		s.createBeside(c)
	case n < 5:
		c.hangs = !c.hangs
	case !c.listens:
		c.listen()
	case n < 7:
		s.changedByClient(c)
	}
}

// changedByClient is when a client changes the limits of its daemon or server: each of them reaches
// the socket.
func (s *mpsSystem) changedByClient(c *control) {
	s.trace("the limits of MPS daemon %d are changed by a client", c.pid)
	set := &c.limits
	if len(c.servers) > 0 && s.random.IntN(2) == 0 {
		set = c.ofServer[c.servers[0]]
	}
	set.memory["0"], set.percent = "1M", "1"
}

// createBeside makes a container that needs a daemon, which may have just ended.
func (s *mpsSystem) createBeside(c *control) {
	for _, g := range s.view().Grants {
		h := s.holdings.of(g.ID)
		if h != nil && h.acked && !h.over && g.Mode == grant.MPS && slices.Equal(g.UUIDs(), c.gpus) &&
			len(g.Bindings) == 0 {
			s.containers.start(s.random.IntN(names), grant.Containerd, h.annotations())
			return
		}
	}
}

// supervise is a pass of the manager of MPS daemons. There is one at a time.
func (s *mpsSystem) supervise() {
	d := s.daemon
	if d == nil || d.supervising || d.ending {
		return
	}
	d.supervising = true
	s.thread("mps", func(*process, *node.Node) {
		_ = d.mps.Ensure(context.Background())
		d.supervising = false
	})
}

// checkControls: no GPU has two daemons.
func checkControls(controls []*control) string {
	for i, c := range controls {
		for _, o := range controls[:i] {
			if slices.ContainsFunc(c.gpus, func(u string) bool { return slices.Contains(o.gpus, u) }) {
				return fmt.Sprintf("MPS daemon %d of %v runs beside %d of %v", c.pid, c.gpus, o.pid, o.gpus)
			}
		}
	}
	return ""
}

// sawReady remembers the daemons that could take a container of a grant, since its create began.
func (p *process) sawReady(controls []*control) {
	for _, c := range controls {
		if c.listens && len(c.servers) > 0 {
			p.ready = append(p.ready, strings.Join(c.gpus, ","))
		}
	}
}

// checkClient: a create in mode mps is admitted beside a daemon that was ready meanwhile.
func checkClient(p *process, g *grant.Grant) string {
	if g.Mode == grant.MPS && !slices.Contains(p.ready, strings.Join(g.UUIDs(), ",")) {
		return fmt.Sprintf("%s is admitted with grant %s in mode mps, and no daemon was ready", p.name, g.ID)
	}
	return ""
}

// settle: no daemon hangs any more, and those that were told to end do.
func (s *mpsSystem) settle() {
	for _, c := range slices.Clone(s.controls) {
		if c.hangs = false; c.dies {
			s.endControl(c)
		} else if !c.listens {
			c.listen()
		}
	}
}

// checkSettled: without faults each grant has its daemon, with the limits of the largest of its
// grants, and no other daemon is left.
func checkSettled(v grant.View, controls []*control) string {
	wanted := map[string][]grant.Grant{}
	for _, g := range v.Grants {
		if g.Mode == grant.MPS && g.Live(v.Now) {
			name := strings.Join(g.UUIDs(), ",")
			wanted[name] = append(wanted[name], g)
		}
	}
	for _, c := range controls {
		name := strings.Join(c.gpus, ",")
		if wanted[name] == nil {
			return fmt.Sprintf("MPS daemon %d of %v is left without a grant", c.pid, c.gpus)
		}
		if !c.listens || len(c.servers) == 0 {
			return fmt.Sprintf("MPS daemon %d of %v is not ready", c.pid, c.gpus)
		}
		right := largest(wanted[name])
		for _, pid := range c.servers {
			if has := c.ofServer[pid]; !has.equal(right) {
				return fmt.Sprintf("a server of MPS daemon %d of %v has the limits %v, not %v", c.pid, c.gpus,
					*has, right)
			}
		}
		if !c.limits.equal(right) {
			return fmt.Sprintf("MPS daemon %d of %v has the limits %v for servers to come, not %v", c.pid,
				c.gpus, c.limits, right)
		}
		delete(wanted, name)
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		return fmt.Sprintf("a grant in mode mps has no daemon for %s", name)
	}
	return ""
}

// largest are the limits of the largest of grants that share a daemon: those of its clients can
// only be smaller.
func largest(of []grant.Grant) mpsLimits {
	percent, memory := 0, make([]grant.Bytes, len(of[0].GPUs))
	for _, g := range of {
		if g.Compute == 0 { // no share is no bound
			percent = 100
		}
		percent = max(percent, g.Compute)
		for i, s := range g.GPUs {
			memory[i] = max(memory[i], s.Memory)
		}
	}
	right := mpsLimits{memory: map[string]string{}, percent: strconv.Itoa(percent)}
	for i, size := range memory {
		right.memory[strconv.Itoa(i)] = fmt.Sprintf("%dM", size/grant.MiB)
	}
	return right
}

func (l *mpsLimits) equal(o mpsLimits) bool {
	return l.percent == o.percent && maps.Equal(l.memory, o.memory)
}
