package host

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// ExitWatcher watches processes for their end. It holds a pidfd of each (pidfd_open(2), Linux 5.3),
// so a reused pid is never taken for the first process. One system call checks a thousand
// processes. One goroutine at a time may use it.
type ExitWatcher struct {
	epoll  int
	pidfds map[int]int // pidfd by pid
	limit  int
	events []unix.EpollEvent
}

// ErrNoExitWatcher is the error where processes cannot be watched: the kernel has no pidfds, or no
// more descriptors are available.
var ErrNoExitWatcher = errors.New("cannot hold processes")

// NewExitWatcher returns an exit watcher that watches no process. It holds at most a quarter of the
// program's descriptors, so two of them leave the program enough.
func NewExitWatcher() (*ExitWatcher, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoExitWatcher, err)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoExitWatcher, err)
	}
	return &ExitWatcher{epoll: epoll, pidfds: map[int]int{}, limit: int(min(limit.Cur/4, 1<<20)),
		events: make([]unix.EpollEvent, 128)}, nil
}

// Add begins to watch the process that has the pid now. What the caller reads about the pid
// afterwards belongs to this process until Ended returns the pid. The error is unix.ESRCH if no
// process has the pid. Add does nothing for a pid that is already watched.
func (v *ExitWatcher) Add(pid int) error {
	if _, held := v.pidfds[pid]; held {
		return nil
	}
	if len(v.pidfds) >= v.limit {
		return fmt.Errorf("%w: %d are held already", ErrNoExitWatcher, v.limit)
	}
	fd, err := unix.PidfdOpen(pid, 0) // the kernel sets close-on-exec
	if err == unix.ESRCH {
		return err
	}
	if err == nil {
		err = unix.EpollCtl(v.epoll, unix.EPOLL_CTL_ADD, fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pid)})
		if err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: process %d: %w", ErrNoExitWatcher, pid, err)
	}
	v.pidfds[pid] = fd
	return nil
}

// Has reports whether the pid is watched, and Ended has not returned it since Add.
func (v *ExitWatcher) Has(pid int) bool {
	_, held := v.pidfds[pid]
	return held
}

// PIDs returns the pids that are watched, unsorted.
func (v *ExitWatcher) PIDs() []int { return slices.Collect(maps.Keys(v.pidfds)) }

// Ended returns the sorted pids of the processes that have ended since the last call, and stops
// watching them. A zombie has ended. A process whose first thread has ended while others run has
// not. On an error it is unknown which have ended.
func (v *ExitWatcher) Ended() (pids []int, err error) {
	for {
		n, err := unix.EpollWait(v.epoll, v.events, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return pids, fmt.Errorf("%w: %w", ErrNoExitWatcher, err)
		}
		for _, e := range v.events[:n] {
			if pid := int(e.Fd); v.Has(pid) {
				v.Remove(pid)
				pids = append(pids, pid)
			}
		}
		if n < len(v.events) {
			slices.Sort(pids)
			return pids, nil
		}
	}
}

// Remove stops watching a pid. It also removes the pidfd from the epoll set. Closing it is not
// enough: a forked child keeps it open until its exec, and the set would report it again and again.
func (v *ExitWatcher) Remove(pid int) {
	if fd, held := v.pidfds[pid]; held {
		delete(v.pidfds, pid)
		_ = unix.EpollCtl(v.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		_ = unix.Close(fd)
	}
}

// Close stops watching all processes and closes the set.
func (v *ExitWatcher) Close() {
	for pid := range v.pidfds {
		v.Remove(pid)
	}
	_ = unix.Close(v.epoll)
}
