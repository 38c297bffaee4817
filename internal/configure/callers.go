package configure

import (
	"bytes"
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

// stored are the containers, also stopped ones, that an undo of the record would keep the engine
// from starting.
func (r engineRecord) stored(in engines.Installation) []string {
	if len(r.Files) == 0 {
		return nil
	}
	return in.Stored()
}

// whyKept says why a file of gpuledger's stays after an undo: what has to happen first. dockerd is
// reloaded, because a restart of dockerd can end containers.
func (u Undone) whyKept() string {
	if len(u.Callers) > 0 {
		does := fmt.Sprintf("%s (pid %d) calls gpuledger-runtime until it ", u.engine, u.Callers[0].PID)
		if u.engine == grant.Docker {
			return does + "reads its file again (`gpuledger configure docker --undo --restart`), or is " +
				"restarted"
		}
		return does + "is restarted; undo it again after that"
	}
	return u.neededFor()
}

// neededFor says which containers need what stays.
func (u Undone) neededFor() string {
	var why []string
	if len(u.Monitors) > 0 {
		var pids []string
		for _, p := range u.Monitors {
			pids = append(pids, strconv.Itoa(p.PID))
		}
		only := "gpuledger-runtime"
		if u.needsHandler {
			only = "the handler gpuledger"
		}
		why = append(why, fmt.Sprintf("%s can stop running containers only by %s (their monitors: pid %s)",
			u.engine, only, firstOf(pids)))
	}
	do := "remove these containers and pods"
	if len(u.Stored) > 0 {
		why = append(why, fmt.Sprintf("%s can start these containers only by the handler gpuledger, also "+
			"those that are stopped now: %s", u.engine, firstOf(u.Stored)))
		do += fmt.Sprintf(" (`%s rm`), create them again", u.engine)
	}
	return strings.Join(append(why, do+", and undo it again after that"), "; ")
}

// firstOf is a list of which no more than ten are printed.
func firstOf(list []string) string {
	const most = 10
	if more := len(list) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), more)
	}
	return strings.Join(list, ", ")
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
func (u Undone) keepsHandler() bool {
	return u.needsHandler && len(u.Monitors) > 0 || len(u.Stored) > 0
}

// defaultPaths are the keys that name the default handler, of the engines that find a container's
// runtime by its handler.
var defaultPaths = map[grant.Engine][]string{
	grant.Podman: {"engine", "runtime"},
	grant.CRIO:   {"crio", "runtime", "default_runtime"},
}

// onlyHandler is gpuledger's drop-in file without the default: the engine knows the handler, and no
// new container gets it unless it names it. For Docker, which has no drop-in files, it is the
// restored file with the handler.
func onlyHandler(e fileRecord, now, restored filetree.FileContent, u *Undone) (FileChange, error) {
	if u.engine == grant.Docker {
		return onlyDockersHandler(e, now, restored, u)
	}
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
	return u.edited(e, now, d.Bytes()), nil
}

// onlyDockersHandler is onlyHandler for daemon.json.
func onlyDockersHandler(e fileRecord, now, restored filetree.FileContent, u *Undone) (FileChange, error) {
	is, err := configfile.ParseJSON(now.Data)
	if err != nil {
		return FileChange{}, fmt.Errorf("cannot edit %s:%w", e.Path, err)
	}
	d, err := configfile.ParseJSON(restored.Data)
	if err != nil {
		return FileChange{}, fmt.Errorf("cannot edit %s:%w", e.Path, err)
	}
	if link := configfile.Text(is.Tree(), "runtimes", engines.Handler, "path"); link != "" {
		if err := d.Set(link, "runtimes", engines.Handler, "path"); err != nil {
			return FileChange{}, fmt.Errorf("cannot edit %s: %w", e.Path, err)
		}
	}
	if bytes.Equal(d.Bytes(), now.Data) {
		return keepChange(e, now, u.neededFor()), nil
	}
	return u.edited(e, now, d.Bytes()), nil
}

// edited is a file that keeps gpuledger's handler.
func (u *Undone) edited(e fileRecord, now filetree.FileContent, text []byte) FileChange {
	return FileChange{Path: e.Path, Action: "edit", Why: u.neededFor(), name: e.Name, before: now,
		after: filetree.NewFile(text, now), Diff: diff(e.Path, now.Data, text)}
}
