package containers

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// searches keeps what one create has found out about containers by a search through all processes
// of the node. Such a search takes 17 microseconds a process, and the node's other creates wait for
// the ledger's lock meanwhile: while it is locked, no search is made. A nil one keeps nothing.
type searches struct {
	lives     map[subject]grant.Life
	forbidden bool
}

// subject tells a binding from a later one of the same container. A binding that was found dead
// stays dead.
type subject struct {
	root, container string
	creator         grant.Process
	created         time.Time
}

func subjectOf(b *grant.Binding) subject {
	return subject{b.RuntimeRoot, b.Container, b.Creator, b.Created.UTC()}
}

// ForOneCreate gives a reader for one create, to one goroutine. It searches through all processes
// at most once for a binding, and keeps the answer.
func (r *Reader) ForOneCreate() *Reader {
	own := *r
	own.searches = &searches{lives: map[subject]grant.Life{}}
	return &own
}

// ForbidSearch keeps a reader for one create from searches until allow is called. The life of a
// binding that needs one, and had none before, is then unknown.
func (r *Reader) ForbidSearch() (allow func()) {
	if r.searches == nil {
		return func() {}
	}
	r.searches.forbidden = true
	return func() { r.searches.forbidden = false }
}

// known sets the lives that are known, and gives the bindings that need a search, if it is allowed.
func (s *searches) known(bindings []*grant.Binding) (rest []*grant.Binding) {
	if s == nil {
		return bindings
	}
	for _, b := range bindings {
		life, known := s.lives[subjectOf(b)]
		if !known && !s.forbidden {
			rest = append(rest, b)
			continue
		}
		b.Life, b.Left = life, life != grant.Dead // LifeUnknown if it is not known
	}
	return rest
}

func (s *searches) keep(b *grant.Binding) {
	if s != nil {
		s.lives[subjectOf(b)] = b.Life
	}
}

// inNamedCgroups reports of each binding whether a process runs in a cgroup that is named as
// runtimes name a container's if its spec names none: "ID", and under systemd "runc-ID.scope" or
// "crun-ID.scope". /proc shows that also to a program that does not see the node's cgroups. A
// process that was started before the binding's creator is not the container's: its id may be the
// name of a cgroup of the node, as init.scope. But gpuledgerd, which reserves, may have been
// started after the container.
func inNamedCgroups(h host.Host, bindings []*grant.Binding) (used []bool, err error) {
	used = make([]bool, len(bindings))
	// If /proc hides other users' processes (hidepid) from a program without capabilities, it hides
	// this one too.
	if _, err := os.ReadFile(filepath.Join(h.Proc, "1/cgroup")); err != nil {
		return used, err
	}
	names, err := host.Names(h.Proc)
	for _, name := range names {
		pid, notPID := strconv.Atoi(name)
		if notPID != nil {
			continue
		}
		lines, err := h.Cgroups(pid, maxCgroups)
		if isGone(err) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return used, err
		}
		for i, b := range bindings {
			if used[i] || !inNamed(lines, b.Container) {
				continue
			}
			if used[i], err = startedSince(h, pid, b); err != nil {
				return used, err
			}
		}
	}
	return used, err
}

// maxCgroups bounds what is read of /proc/PID/cgroup, in bytes.
const maxCgroups = 1 << 20

// startedSince reports whether a process runs, and was started late enough to be of a binding's
// container. A zombie is in no cgroup.
func startedSince(h host.Host, pid int, b *grant.Binding) (bool, error) {
	p, _, err := h.Process(pid)
	switch {
	case isGone(err), errors.Is(err, unix.ESRCH):
		return false, nil
	case err != nil:
		return false, err
	case p.Start < b.Creator.Start && !b.Reserved:
		return false, nil
	}
	return h.Runs(p)
}

// inNamed reports whether /proc/PID/cgroup has a cgroup of the container's name, or one below it.
func inNamed(lines []byte, id string) bool {
	for line := range bytes.Lines(lines) {
		for name := range bytes.SplitSeq(bytes.TrimSpace(line), []byte("/")) {
			unit, isScope := bytes.CutSuffix(name, []byte("-"+id+".scope"))
			if string(name) == id || isScope && !bytes.Contains(unit, []byte("-")) {
				return true
			}
		}
	}
	return false
}
