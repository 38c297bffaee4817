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

// daemons are the running processes of the options' engine that read the given configuration file.
// There are none if the root is not "/", and none for an engine without a daemon.
func daemons(o Options, file string) []grant.Process {
	var running []grant.Process
	if o.Root != "/" || engines[o.Engine].daemon == "" {
		return nil
	}
	for _, pid := range processes(engines[o.Engine].daemon) {
		// CRI-O reads the files of its drop-in directory, whichever main file it is given.
		if o.Engine != grant.CRIO && !sameFile(cmp.Or(readBy(pid), engines[o.Engine].file), file) {
			continue
		}
		if p, _, err := host.Default().Process(pid); err == nil {
			running = append(running, p)
		}
	}
	return running
}

// sameFile compares two names after their links are followed. A snap's daemon names its revision,
// where others name the current one.
func sameFile(a, b string) bool {
	realA, errA := filepath.EvalSymlinks(a)
	realB, errB := filepath.EvalSymlinks(b)
	return a == b || errA == nil && errB == nil && realA == realB
}

// readBy is the configuration file that a daemon's arguments name; "" if they name none.
func readBy(pid int) string {
	line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return configOf(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"))
}

// unread are the daemons that run at a configure and have not read what it writes. dockerd is never
// one of them. It reads its file again at a signal, and its process id does not show that.
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

// callers are the daemons that may call gpuledger's runtime after an undo, because they have read
// the files that name it. restarted says that the engine has read its files since the undo.
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

// untilRestart says why a file of gpuledger's stays after an undo. dockerd is reloaded, because a
// restart of dockerd can end containers.
func untilRestart(engine grant.Engine, callers []grant.Process) string {
	does := fmt.Sprintf("%s (pid %d) calls gpuledger-runtime until it ", engine, callers[0].PID)
	if engine == grant.Docker {
		return does + "reads its file again: `gpuledger configure docker --undo --restart`"
	}
	return does + "is restarted; undo it again after that"
}

// Waits says what the undo waits for; "" if it is complete.
func (u Undone) Waits() string {
	if len(u.Callers) == 0 {
		return ""
	}
	return untilRestart(u.engine, u.Callers)
}
