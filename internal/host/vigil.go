package host

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Vigil watches processes for their end. It holds a pidfd of each (pidfd_open(2), Linux 5.3), so a
// reused pid is never taken for the first process. One system call checks a thousand processes. One
// goroutine at a time may use it.
type Vigil struct {
	epoll int
	held  map[int]int // pidfd by pid
	room  int
	told  []unix.EpollEvent
}

// ErrNoVigil is the error where processes cannot be watched: the kernel has no pidfds, or no more
// descriptors are available.
var ErrNoVigil = errors.New("cannot hold processes")

// NewVigil returns a vigil that watches no process. It holds at most a quarter of the program's
// descriptors, so two of them leave the program enough.
func NewVigil() (*Vigil, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoVigil, err)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoVigil, err)
	}
	return &Vigil{epoll: epoll, held: map[int]int{}, room: int(min(limit.Cur/4, 1<<20)),
		told: make([]unix.EpollEvent, 128)}, nil
}

// Hold begins to watch the process that has the pid now. What the caller reads about the pid
// afterwards belongs to this process until Ended returns the pid. The error is unix.ESRCH if no
// process has the pid. Hold does nothing for a pid that is already watched.
func (v *Vigil) Hold(pid int) error {
	if _, held := v.held[pid]; held {
		return nil
	}
	if len(v.held) >= v.room {
		return fmt.Errorf("%w: %d are held already", ErrNoVigil, v.room)
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
		return fmt.Errorf("%w: process %d: %w", ErrNoVigil, pid, err)
	}
	v.held[pid] = fd
	return nil
}

// Holds reports whether the pid is watched, and Ended has not returned it since Hold.
func (v *Vigil) Holds(pid int) bool {
	_, held := v.held[pid]
	return held
}

// Held returns the pids that are watched, unsorted.
func (v *Vigil) Held() []int { return slices.Collect(maps.Keys(v.held)) }

// Ended returns the sorted pids of the processes that have ended since the last call, and stops
// watching them. A zombie has ended. A process whose first thread has ended while others run has
// not. On an error it is unknown which have ended.
func (v *Vigil) Ended() (pids []int, err error) {
	for {
		n, err := unix.EpollWait(v.epoll, v.told, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return pids, fmt.Errorf("%w: %w", ErrNoVigil, err)
		}
		for _, e := range v.told[:n] {
			if pid := int(e.Fd); v.Holds(pid) {
				v.Release(pid)
				pids = append(pids, pid)
			}
		}
		if n < len(v.told) {
			slices.Sort(pids)
			return pids, nil
		}
	}
}

// Release stops watching a pid. It also removes the pidfd from the epoll set. Closing it is not
// enough: a forked child keeps it open until its exec, and the set would report it again and again.
func (v *Vigil) Release(pid int) {
	if fd, held := v.held[pid]; held {
		delete(v.held, pid)
		_ = unix.EpollCtl(v.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		_ = unix.Close(fd)
	}
}

// Close stops watching all processes and closes the set.
func (v *Vigil) Close() {
	for pid := range v.held {
		v.Release(pid)
	}
	_ = unix.Close(v.epoll)
}
