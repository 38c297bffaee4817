package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Stopped is what became of a container that was to be stopped.
type Stopped struct {
	Processes int   // how many there were
	Err       error // why not all of them have ended
}

// Stop ends every process of the containers, and no other, and returns what became of each. All are
// killed before it waits for any: one whose processes hang in the driver delays no other. It does
// nothing to a container if none of the user's processes is in the cgroup any more. It is an error
// if that cgroup holds this program or process 1. A container that is listed twice is stopped once.
// One that hangs, by what the caller has seen, is killed and not waited for.
func Stop(h host.Host, users []grant.User, hangs func(grant.User) bool) []Stopped {
	results := make([]Stopped, len(users))
	var kills []*kill
	for i, u := range users {
		// it may be there for several GPUs
		twice := slices.ContainsFunc(kills, func(k *kill) bool { return k.user.Cgroup == u.Cgroup })
		if results[i].Err = checkCgroup(h, u); results[i].Err == nil && !twice && isThere(h, u) {
			kills = append(kills, newKill(h, u, hangs(u), &results[i]))
		}
	}
	for end := time.Now().Add(stopTime); ; time.Sleep(20 * time.Millisecond) {
		late := time.Now().After(end)
		kills = slices.DeleteFunc(kills, func(k *kill) bool {
			return k.step(h, late || k.hangs && k.result.Processes > 0)
		})
		if len(kills) == 0 {
			return results
		}
	}
}

// checkCgroup says why a container's cgroup cannot be stopped, if that is so.
func checkCgroup(h host.Host, u grant.User) error {
	if u.Container == "" || !filepath.IsAbs(u.Cgroup) || filepath.Clean(u.Cgroup) != u.Cgroup ||
		u.Cgroup == "/" {
		return fmt.Errorf("cannot stop %s: it has no cgroup of its own", userName(u))
	}
	for _, pid := range []int{1, os.Getpid()} {
		if p, err := readProcess(h, pid); err != nil || host.Within(p.Cgroup, u.Cgroup) {
			return fmt.Errorf("cannot stop %s: process %d may be in its cgroup %s (%v)", userName(u), pid,
				u.Cgroup, err)
		}
	}
	return nil
}

// isThere reports whether some process of a user that was found is still in its cgroup.
func isThere(h host.Host, u grant.User) bool {
	return slices.ContainsFunc(u.Processes, func(p grant.Process) bool { return IsIn(h, p, u.Cgroup) })
}

// IsIn reports whether this process, and no other of its pid, runs in a cgroup or below it.
func IsIn(h host.Host, p grant.Process, cgroup string) bool {
	now, err := readProcess(h, p.PID)
	return err == nil && cgroup != "" && now.Process == p && host.Within(now.Cgroup, cgroup)
}

// stopTime is how long killed processes may take to end. One that hangs in the driver does not end.
const stopTime = 5 * time.Second

// kill is a container that is being stopped.
type kill struct {
	user   grant.User
	dir    string // of its cgroup
	hangs  bool
	there  map[int]bool
	result *Stopped
}

func newKill(h host.Host, u grant.User, hangs bool, result *Stopped) *kill {
	root, _ := host.CgroupRoot(h)
	return &kill{u, filepath.Join(root, u.Cgroup), hangs, map[int]bool{}, result}
}

// step kills what is in the cgroup, and reports whether the cgroup is empty or this was the last
// step. The kernel's cgroup.kill leaves no gap in which a process could fork. Without it the
// processes are killed one by one, each held by a pidfd while its cgroup is checked. Many of them
// end with their init before that.
func (k *kill) step(h host.Host, last bool) (done bool) {
	pids, err := processesBelow(h, k.dir)
	switch {
	case err != nil:
		killAll(k.dir) // for which the kernel needs no list
		k.result.Err = fmt.Errorf("cannot stop %s: %w", userName(k.user), err)
		return true
	case len(pids) == 0:
		return true
	case last:
		k.result.Err = fmt.Errorf("cannot stop %s: %d of its processes do not end", userName(k.user),
			len(pids))
		return true
	}
	all := killAll(k.dir)
	for _, pid := range pids {
		k.there[pid] = true
		if !all {
			killProcess(h, pid, k.user.Cgroup)
		}
	}
	k.result.Processes = len(k.there)
	return false
}

// killAll has the kernel kill all of a cgroup. That needs cgroup v2, Linux 5.14 and permission to
// write there.
func killAll(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.WriteString("1")
	return err == nil
}

// killProcess kills a process if it is in the cgroup.
func killProcess(h host.Host, pid int, cgroup string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if p, err := readProcess(h, pid); err != nil || !host.Within(p.Cgroup, cgroup) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// processesBelow lists the processes of a cgroup and of those below it; none if it is gone.
func processesBelow(h host.Host, dir string) (pids []int, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			var its []int
			its, err = processesOf(h, path)
			pids = append(pids, its...)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // removed as we look
			return nil
		}
		return err
	})
	slices.Sort(pids)
	return slices.Compact(pids), err
}

// processesOf lists the processes of one cgroup. A container that may write to its cgroups can make
// those below threaded: the kernel lists only threads of such a cgroup (cgroup-v2, "Threads").
func processesOf(h host.Host, dir string) (pids []int, err error) {
	lines, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	threaded := errors.Is(err, unix.EOPNOTSUPP)
	if threaded {
		lines, err = os.ReadFile(filepath.Join(dir, "cgroup.threads"))
	}
	for line := range strings.Lines(string(lines)) {
		pid, e := strconv.Atoi(strings.TrimSpace(line))
		if e == nil && threaded {
			pid, e = processOfThread(h, pid)
		}
		if e == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// processOfThread returns the process of a thread.
func processOfThread(h host.Host, thread int) (pid int, err error) {
	path := filepath.Join(h.Proc, strconv.Itoa(thread), "status")
	text, err := host.ReadFile(path, maxProc)
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(text), "\nTgid:") // a newline in its name is escaped
	line, _, _ = strings.Cut(line, "\n")
	if pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		return 0, fmt.Errorf("cannot read the process of a thread: %s: %w", path, err)
	}
	return pid, nil
}
