package configure

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// daemons are the running processes of the options' engine that read the configuration file of the options; none below another
// root, and none of an engine without a daemon.
func daemons(o Options, file string) []grant.Process {
	var running []grant.Process
	if o.Root != "/" || engines[o.Engine].daemon == "" {
		return nil
	}
	for _, pid := range processes(engines[o.Engine].daemon) {
		// CRI-O reads the drop-in files of its directory whichever main file it is given.
		if o.Engine != grant.CRIO && !sameFile(cmp.Or(readBy(pid), engines[o.Engine].file), file) {
			continue
		}
		if p, _, err := host.Default().Process(pid); err == nil {
			running = append(running, p)
		}
	}
	return running
}

// sameFile follows links: a snap's daemon names its revision, others the current one.
func sameFile(a, b string) bool {
	realA, errA := filepath.EvalSymlinks(a)
	realB, errB := filepath.EvalSymlinks(b)
	return a == b || errA == nil && errB == nil && realA == realB
}

// readBy is the configuration file that a daemon was told to read; "": the usual one.
func readBy(pid int) string {
	line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return configOf(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"))
}

// unread are the engine's daemons that run at a configure and have not read what it writes. dockerd is none of them: it reads
// its file at a signal, which its process id does not show.
func unread(engine grant.Engine, old record, running []grant.Process) []grant.Process {
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

// callers are the daemons that may call our runtime after an undo: they have read the files that name it. With restarted the
// engine has read its files since the undo of them.
func callers(r record, running []grant.Process, restarted bool) []grant.Process {
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

// untilRestart is why a file of ours stays after an undo. dockerd is reloaded, because its restart can end containers.
func untilRestart(engine grant.Engine, callers []grant.Process) string {
	does := fmt.Sprintf("%s (pid %d) calls gpuledger-runtime until it ", engine, callers[0].PID)
	if engine == grant.Docker {
		return does + "reads its file again: `gpuledger configure docker --undo --restart`"
	}
	return does + "is restarted; undo it again after that"
}

// Waits says what the undo waits for; "" where it is complete.
func (u Undone) Waits() string {
	if len(u.Callers) == 0 {
		return ""
	}
	return untilRestart(u.engine, u.Callers)
}
