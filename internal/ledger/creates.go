package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Creates are the creates of containers without a GPU that are under way: a file for each process
// that announced one. No lock guards them.
type Creates struct {
	dir        string
	containers *containers.Reader
}

// inFlight is how long a create of another pid namespace is taken to be under way: this program
// cannot see its process.
const inFlight = time.Minute

// Announce records that the calling process creates a container in cgroups, until that process
// ends: the real runtime keeps its pid. A create that binds later finds it there while the cgroup
// is still empty.
func (c Creates) Announce(cgroups []string) error {
	name, err := c.own()
	if err == nil {
		err = ensureDir(c.dir)
	}
	if err != nil {
		return err
	}
	_, _ = c.forgetEnded()
	return host.ReplaceFile(c.dir+"/"+name, []byte(strings.Join(cgroups, "\x00")),
		0o600, host.Volatile)
}

// own is the name of the calling process's announcement.
func (c Creates) own() (string, error) {
	self, err := c.containers.Host.Self()
	if err != nil {
		return "", err
	}
	pids, err := c.containers.Here.PIDNS()
	return fmt.Sprintf("%d-%d-%d", pids, self.PID, self.Start), err
}

// forgetEnded removes the announcements of processes that have ended, and returns the files of the
// others, without the caller's own.
func (c Creates) forgetEnded() (underWay []string, err error) {
	names, err := host.Names(c.dir)
	if len(names) == 0 {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	own, err := c.own()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		path := c.dir + "/" + name
		switch {
		case name == own || name[0] == '.':
		case c.underWay(name, path):
			underWay = append(underWay, path)
		default:
			_ = host.Remove(path)
		}
	}
	return underWay, nil
}

// Announced reports whether another process creates a container in one of the cgroups, or below it.
// It forgets creates whose process has ended. With an error there may be more than it found.
func (c Creates) Announced(cgroups []string) (found bool, err error) {
	underWay, err := c.forgetEnded()
	for _, path := range underWay {
		data, e := host.ReadRegular(path, maxFile)
		if err == nil && e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = fmt.Errorf("cannot read %s: %w", path, e)
		}
		found = found || e == nil && anyWithin(strings.Split(string(data), "\x00"), cgroups)
	}
	return found, err
}

// anyWithin reports whether one of several paths is one of several others, or below it.
func anyWithin(paths, others []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		return slices.ContainsFunc(others, func(other string) bool {
			return host.Within(path, other)
		})
	})
}

// underWay reports whether the process of an announcement may still run.
func (c Creates) underWay(name, path string) bool {
	words := strings.Split(name, "-")
	if len(words) != 3 {
		return false
	}
	ns, _ := strconv.ParseUint(words[0], 10, 64)
	pid, err := strconv.Atoi(words[1])
	start, _ := strconv.ParseUint(words[2], 10, 64)
	if pids, e := c.containers.Here.PIDNS(); e != nil || ns != pids {
		var st unix.Stat_t
		return unix.Lstat(path, &st) == nil && time.Since(time.Unix(st.Mtim.Unix())) < inFlight
	}
	runs, unknown := c.containers.Host.Runs(grant.Process{PID: pid, Start: start})
	return err == nil && (runs || unknown != nil)
}
