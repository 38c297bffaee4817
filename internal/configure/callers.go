package configure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// unread are the daemons that run at a configure and have not read what it writes. dockerd is never
// one of them. It reads its file again at a signal, and its process id does not show that.
func unread(engine grant.Engine, old engineRecord, running []grant.Process) []grant.Process {
	if engine == grant.Docker {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(running), func(p grant.Process) bool {
		switch {
		case old.Undone != nil:
			return slices.Contains(old.Undone, p)
		case len(old.Files) > 0:
			return !slices.Contains(old.Unread, p)
		}
		return false
	})
}

// callers are the daemons that may call gpuledger's runtime after an undo, because they have read
// the files that name it. restarted says that the engine has read its files since the undo.
func callers(r engineRecord, running []grant.Process, restarted bool) []grant.Process {
	if restarted || r.isOver() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(running), func(p grant.Process) bool {
		if r.Undone != nil {
			return !slices.Contains(r.Undone, p)
		}
		return slices.Contains(r.Unread, p)
	})
}

// whyKept says why a file of gpuledger's stays after an undo. dockerd is reloaded, because a
// restart of dockerd can end containers. An engine stops a container only by the program, and
// Podman only by the handler, that the container was made with.
func (u Undone) whyKept() string {
	does := fmt.Sprintf("%s (pid %d) calls gpuledger-runtime until it ", u.engine, u.Callers[0].PID)
	switch {
	case u.engine == grant.Podman:
		return fmt.Sprintf("Podman can stop running containers only by the handler gpuledger (conmon, pid "+
			"%s); stop them, or let them end, and undo it again after that", u.pids())
	case u.monitors:
		return fmt.Sprintf("%s can stop containers that run now only by gpuledger-runtime (their monitors: "+
			"pid %s); stop them, or let them end, and undo it again after that", u.engine, u.pids())
	case u.engine == grant.Docker:
		return does + "reads its file again: `gpuledger configure docker --undo --restart`"
	}
	return does + "is restarted; undo it again after that"
}

// pids are the callers' process ids, of many the first ten.
func (u Undone) pids() string {
	var pids []string
	for _, p := range u.Callers[:min(len(u.Callers), 10)] {
		pids = append(pids, strconv.Itoa(p.PID))
	}
	text := strings.Join(pids, ", ")
	if more := len(u.Callers) - len(pids); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Waits says what the undo waits for; "" if it is complete.
func (u Undone) Waits() string {
	if len(u.Callers) == 0 {
		return ""
	}
	return u.whyKept()
}
