package configure

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
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

// older are the daemons that have not read what the last configure wrote. As for unread, dockerd is
// never one of them.
func older(r engineRecord, running []grant.Process) []grant.Process {
	if r.Engine == grant.Docker {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(running), func(p grant.Process) bool {
		return !slices.Contains(r.Older, p)
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

// These are replaced in tests.
var (
	daemonsOf  = engines.Installation.Daemons
	monitorsOf = engines.Installation.Monitors
)

// monitors are those of running containers that need what an undo of the record would remove: the
// handler, or, if configure made it and no package did, the link.
func (r engineRecord) monitors(in engines.Installation) (running []grant.Process) {
	if in.NeedsHandler() && len(r.Files) > 0 {
		return monitorsOf(in, wrapperLink(in, ourProgram)) // its directory does not count
	}
	for _, f := range r.Files {
		if f.After.Kind == filetree.Link {
			running = append(running, monitorsOf(in, f.Path)...)
		}
	}
	return running
}

// whyKept says why a file of gpuledger's stays after an undo: what has to happen first. dockerd is
// reloaded, because a restart of dockerd can end containers.
func (u Undone) whyKept() string {
	if len(u.Callers) > 0 {
		does := fmt.Sprintf("%s (pid %d) calls gpuledger-runtime until it ", u.engine, u.Callers[0].PID)
		if u.engine == grant.Docker {
			return does + "reads its file again: `gpuledger configure docker --undo --restart`"
		}
		return does + "is restarted; undo it again after that"
	}
	return u.neededFor()
}

// neededFor says which containers need what stays.
func (u Undone) neededFor() string {
	var pids []string
	for _, p := range u.Monitors[:min(len(u.Monitors), 10)] {
		pids = append(pids, strconv.Itoa(p.PID))
	}
	list := strings.Join(pids, ", ")
	if more := len(u.Monitors) - len(pids); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	only := "gpuledger-runtime"
	if u.needsHandler {
		only = "the handler gpuledger"
	}
	return fmt.Sprintf("%s can stop running containers only by %s (their monitors: pid %s); remove these "+
		"containers and pods, and undo it again after that", u.engine, only, list)
}

// Waits says for what of the engine's the undo waits; "" for nothing, or if it waits for containers
// first.
func (u Undone) Waits() string {
	if len(u.Callers) == 0 || u.keepsHandler() {
		return ""
	}
	return u.whyKept()
}

// keepsHandler reports whether the engine's files still have gpuledger's handler after the undo,
// because containers need it.
func (u Undone) keepsHandler() bool { return u.needsHandler && len(u.Monitors) > 0 }

// defaultPaths are the keys that name the default handler, of the engines that find a container's
// runtime by its handler.
var defaultPaths = map[grant.Engine][]string{
	grant.Podman: {"engine", "runtime"},
	grant.CRIO:   {"crio", "runtime", "default_runtime"},
}

// onlyHandler is gpuledger's drop-in file without the default: the engine knows the handler, and no
// new container gets it unless it names it.
func onlyHandler(e fileRecord, now filetree.FileContent, u *Undone) (FileChange, error) {
	key := defaultPaths[u.engine]
	d, err := configfile.Parse(e.Path, now.Data)
	if err != nil {
		return FileChange{}, fmt.Errorf("cannot edit %s:%w", e.Path, err)
	}
	if v, _ := d.Get(key...); v != engines.Handler {
		return keepChange(e, now, u.neededFor()), nil
	}
	if err := d.Unset(key...); err != nil {
		return FileChange{}, fmt.Errorf("cannot edit %s: %w", e.Path, err)
	}
	return FileChange{Path: e.Path, Action: "edit", Why: u.neededFor(), name: e.Name, before: now,
		after: filetree.NewFile(d.Bytes(), now), Diff: diff(e.Path, now.Data, d.Bytes())}, nil
}
