package userserver

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// run answers as grant does. The grant is that of the process that has connected, which is moved
// into a cgroup below its own.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	var request users.GrantRequest
	if !read(w, r, &request) {
		return
	}
	n, p := s.Node(), peerOf(r)
	ask, err := askOf(n, p, request)
	if err != nil {
		s.refuse(w, n, p, err)
		return
	}
	if !slices.Contains(modesOfPrograms, ask.Mode) {
		s.refuse(w, n, p, &grant.UsageError{Message: fmt.Sprintf(
			"cannot grant: a program without a container gets no GPU in mode %s", ask.Mode)})
		return
	}
	process, err := rootsocket.ProcessOf(p.conn)
	if err != nil {
		s.refuse(w, n, p, err)
		return
	}
	defer process.Close()
	of, err := programOf(n.Host, p, process)
	if err != nil {
		s.refuse(w, n, p, err)
		return
	}
	s.serveAsk(r.Context(), w, p, ask, request, program{s, *of})
}

// modesOfPrograms are those in which a program needs no more than device nodes.
var modesOfPrograms = []grant.Mode{grant.Exclusive, grant.Timeslice, grant.Limit}

// programOf is the program of a process that has connected. By now, or when its turn has come, it
// may run a program with the rights of another user, or on an old kernel be another process: it is
// moved only while it is the caller's in all respects. One in a container is the engine's, which
// gives it a cgroup.
func programOf(h host.Host, p peer, process *rootsocket.Process) (*grants.Program, error) {
	of := &grants.Program{Shim: p.root}
	var err error
	if of.Process, _, err = h.Process(process.PID); err == nil {
		err = ownedBy(h, process.PID, p.uid)
	}
	if err == nil {
		err = outsideContainers(h, process.PID)
	}
	if err == nil && !process.Is() { // then all this was read of another process
		err = errors.New("it has ended")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot grant to process %d: %w", process.PID, err)
	}
	of.Is = func() bool { return ownedBy(h, process.PID, p.uid) == nil && process.Is() }
	return of, nil
}

// ownedBy is nil if each thread of a process has a user's id as its real, effective, saved and file
// system uid.
func ownedBy(h host.Host, pid int, uid uint32) error {
	tasks := fmt.Sprintf("%s/%d/task/", h.Proc, pid)
	threads, err := host.Names(tasks)
	if err == nil && len(threads) > maxThreads {
		err = fmt.Errorf("it has more than %d threads", maxThreads)
	}
	if err != nil {
		return err
	}
	for _, thread := range threads {
		ids, err := host.ReadUIDs(tasks + thread + "/status")
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH): // it has ended meanwhile
		case err != nil:
			return err
		case ids != [4]uint32{uid, uid, uid, uid}:
			return errors.New("it is not the caller's alone")
		}
	}
	return nil
}

// maxThreads bounds what is read of a process: a program that asks has some ten threads.
const maxThreads = 256

// outsideContainers is nil if a process is in this program's pid namespace.
func outsideContainers(h host.Host, pid int) error {
	var own, its unix.Stat_t
	err := unix.Stat(h.Proc+"/self/ns/pid", &own)
	if err == nil {
		err = unix.Stat(fmt.Sprintf("%s/%d/ns/pid", h.Proc, pid), &its)
	}
	if err == nil && (own.Ino != its.Ino || own.Dev != its.Dev) {
		err = errors.New("it is in a container, which asks when it is created (" + grant.Docs + "asking.md)")
	}
	return err
}

// program is a caller's program, which a grant is for.
type program struct {
	server *Server
	of     grants.Program
}

func (p program) Enter(n *node.Node, ask admission.Ask) (grant.Grant, error) {
	entered, err := grants.EnterProgram(n, ask, p.of)
	if err == nil {
		p.server.programCgroups.add(entered.Cgroup)
	}
	return entered.Grant, err
}

// Rejoin has the program join the cgroup of the grant.
func (p program) Rejoin(n *node.Node, g grant.Grant) error { return grants.Rejoin(n, g, p.of) }

// programCgroups are the cgroups of programs. They are root's, also where the cgroup above is a
// user's, who can remove an empty one and make another in its place.
type programCgroups struct {
	mu   sync.Mutex
	dirs map[string]bool
}

func (p *programCgroups) add(dirs ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dirs == nil {
		p.dirs = map[string]bool{}
	}
	for _, dir := range dirs {
		p.dirs[dir] = true
	}
}

func (p *programCgroups) none() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.dirs) == 0
}

// TakeOver takes over the cgroups of programs that were started before gpuledgerd. It is called
// before the managers run: they forget programs that have ended.
func (s *Server) TakeOver(n *node.Node) {
	s.programCgroups.add(grants.ProgramCgroups(n, n.Ledger.Bindings.All())...)
}

// removeProgramCgroups removes the cgroups of programs whose grants have ended: also of those that
// `gpuledger run` of root has started, which may be killed before it removes them. The kernel
// removes none that has a process.
func (s *Server) removeProgramCgroups(n *node.Node) error {
	o, err := s.Ledger(n)
	if err != nil {
		return err
	}
	var bindings []grant.Binding
	for _, g := range o.Grants {
		bindings = append(bindings, g.Bindings...)
	}
	granted := grants.ProgramCgroups(n, bindings)
	p := &s.programCgroups
	p.add(granted...)
	if p.none() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for dir := range p.dirs {
		if slices.Contains(granted, dir) {
			continue
		}
		if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) || !isOwn(dir) {
			delete(p.dirs, dir)
		}
	}
	return nil
}

// isOwn reports whether a file or directory is this program's user's.
func isOwn(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}
