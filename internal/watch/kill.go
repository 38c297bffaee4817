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

// Stop ends every process of a container, and no other, and returns how many there were. It does
// nothing if none of the user's processes is in the container's cgroup any more. It is an error if
// that cgroup holds this program or process 1.
func Stop(h host.Host, u grant.User) (int, error) {
	if u.Container == "" || !filepath.IsAbs(u.Cgroup) || filepath.Clean(u.Cgroup) != u.Cgroup ||
		u.Cgroup == "/" {
		return 0, fmt.Errorf("cannot stop %s: it has no cgroup of its own", userName(u))
	}
	for _, pid := range []int{1, os.Getpid()} {
		if p, err := readProcess(h, pid); err != nil || host.Within(p.Cgroup, u.Cgroup) {
			return 0, fmt.Errorf("cannot stop %s: process %d may be in its cgroup %s (%v)", userName(u), pid,
				u.Cgroup, err)
		}
	}
	if !slices.ContainsFunc(u.Processes, func(p grant.Process) bool { return IsIn(h, p, u.Cgroup) }) {
		return 0, nil // the processes that were found are gone
	}
	return killProcesses(h, u)
}

// IsIn reports whether this process, and no other of its pid, runs in a cgroup or below it.
func IsIn(h host.Host, p grant.Process, cgroup string) bool {
	now, err := readProcess(h, p.PID)
	return err == nil && cgroup != "" && now.Process == p && host.Within(now.Cgroup, cgroup)
}

// stopTime is how long killed processes may take to end. One that hangs in the driver does not end.
const stopTime = 5 * time.Second

// killProcesses kills until the cgroup is empty, and returns how many processes there were. The
// kernel's cgroup.kill leaves no gap in which a process could fork. Without it the processes are
// killed one by one, each held by a pidfd while its cgroup is checked. Many of them end with their
// init before that.
func killProcesses(h host.Host, u grant.User) (int, error) {
	root, _ := host.CgroupRoot(h)
	dir := filepath.Join(root, u.Cgroup)
	there := map[int]bool{}
	for end := time.Now().Add(stopTime); ; time.Sleep(20 * time.Millisecond) {
		pids, err := processesBelow(h, dir)
		switch {
		case err != nil:
			killAll(dir) // for which the kernel needs no list
			return len(there), fmt.Errorf("cannot stop %s: %w", userName(u), err)
		case len(pids) == 0:
			return len(there), nil
		case time.Now().After(end):
			return len(there), fmt.Errorf("cannot stop %s: %d of its processes do not end", userName(u),
				len(pids))
		}
		all := killAll(dir)
		for _, pid := range pids {
			there[pid] = true
			if !all {
				killProcess(h, pid, u.Cgroup)
			}
		}
	}
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
