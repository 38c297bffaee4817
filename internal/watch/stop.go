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

// Stop ends every process of a container, and nothing else, and tells how many there were. It does nothing where none of the
// processes that were found is in the container's cgroup any more, or where that cgroup holds this program or process 1.
func Stop(h host.Host, u grant.User) (int, error) {
	if u.Container == "" || !filepath.IsAbs(u.Cgroup) || filepath.Clean(u.Cgroup) != u.Cgroup || u.Cgroup == "/" {
		return 0, fmt.Errorf("cannot stop %s: it has no cgroup of its own", userName(u))
	}
	for _, pid := range []int{1, os.Getpid()} {
		if p, err := readProcess(h, pid); err != nil || isBelow(p.Cgroup, u.Cgroup) {
			return 0, fmt.Errorf("cannot stop %s: process %d may be in its cgroup %s (%v)", userName(u), pid, u.Cgroup, err)
		}
	}
	if !slices.ContainsFunc(u.Processes, func(p grant.Process) bool { return IsIn(h, p, u.Cgroup) }) {
		return 0, nil // whoever was found is gone
	}
	return killProcesses(h, u)
}

// IsIn reports whether a very process, and no other of its pid, runs in a cgroup or below it.
func IsIn(h host.Host, p grant.Process, cgroup string) bool {
	now, err := readProcess(h, p.PID)
	return err == nil && cgroup != "" && now.Process == p && isBelow(now.Cgroup, cgroup)
}

// stopTime is how long processes may take to end once they are killed. One that hangs in the driver does not.
const stopTime = 5 * time.Second

// empty kills until the cgroup has nobody left, and tells how many were there. The kernel's own cgroup.kill leaves no gap to fork
// through; without it the processes are killed one by one, each held by a pidfd while it is made sure that it is the
// container's. Many of them end with their init before their turn comes.
func killProcesses(h host.Host, u grant.User) (int, error) {
	dir := filepath.Join(cgroupRoot(h), u.Cgroup)
	there := map[int]bool{}
	for end := time.Now().Add(stopTime); ; time.Sleep(20 * time.Millisecond) {
		pids, err := processesBelow(dir)
		switch {
		case err != nil:
			return len(there), fmt.Errorf("cannot stop %s: %w", userName(u), err)
		case len(pids) == 0:
			return len(there), nil
		case time.Now().After(end):
			return len(there), fmt.Errorf("cannot stop %s: %d of its processes do not end", userName(u), len(pids))
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

// killAll has the kernel do it, where the cgroup is of version 2, the kernel 5.14 or newer, and we may write there.
func killAll(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.WriteString("1")
	return err == nil
}

// kill ends a process that is in the cgroup.
func killProcess(h host.Host, pid int, cgroup string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if p, err := readProcess(h, pid); err != nil || !isBelow(p.Cgroup, cgroup) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// pidsBelow lists the processes of a cgroup and of those below it; none where it is gone.
func processesBelow(dir string) (pids []int, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			var lines []byte
			lines, err = os.ReadFile(filepath.Join(path, "cgroup.procs"))
			for line := range strings.Lines(string(lines)) {
				if pid, e := strconv.Atoi(strings.TrimSpace(line)); e == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // removed as we look
			return nil
		}
		return err
	})
	return pids, err
}
