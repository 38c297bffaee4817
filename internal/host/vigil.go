package host

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Vigil notices that processes end. It holds a pidfd of each (pidfd_open(2), Linux 5.3), so that a
// pid which has passed on to another process is never taken for the first one's, and to ask after a
// thousand of them is one system call. It is for one goroutine.
type Vigil struct {
	epoll int
	held  map[int]int // pidfd by pid
	room  int
	told  []unix.EpollEvent
}

// ErrNoVigil is why processes cannot be watched here: the kernel has no pidfds, or there is no room
// for more descriptors.
var ErrNoVigil = errors.New("cannot hold processes")

// NewVigil is a vigil over nobody. It holds at most a quarter of the descriptors that the program
// may have: two of them leave it those that it needs to work.
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

// Hold begins to watch whoever has the pid now. What is read about the pid from then on is about
// him, for as long as Ended does not tell the pid. unix.ESRCH: nobody has it. Of a pid that is held
// already, it is nothing.
func (v *Vigil) Hold(pid int) error {
	if _, held := v.held[pid]; held {
		return nil
	}
	if len(v.held) >= v.room {
		return fmt.Errorf("%w: %d are held already", ErrNoVigil, v.room)
	}
	fd, err := unix.PidfdOpen(pid, 0) // close-on-exec
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

// Holds reports whether the process that had the pid at its Hold has not been told as ended.
func (v *Vigil) Holds(pid int) bool {
	_, held := v.held[pid]
	return held
}

// Held are the pids of those that are watched, in no order.
func (v *Vigil) Held() []int { return slices.Collect(maps.Keys(v.held)) }

// Ended tells the pids of those that have ended since it was asked last, sorted, and watches them
// no more. A process that is a zombie has ended; one whose first thread has ended and others run
// has not. An error says that it cannot be told.
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

// Release watches a pid no more. To close the descriptor would not do: the set keeps what a child
// that we fork has inherited until its exec, and would tell it again and again.
func (v *Vigil) Release(pid int) {
	if fd, held := v.held[pid]; held {
		delete(v.held, pid)
		_ = unix.EpollCtl(v.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		_ = unix.Close(fd)
	}
}

// Close ends the vigil.
func (v *Vigil) Close() {
	for pid := range v.held {
		v.Release(pid)
	}
	_ = unix.Close(v.epoll)
}
