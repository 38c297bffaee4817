package ledger

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// lock takes the ledger's lock, the file at path. The file may be replaced while we wait (a run
// directory that is cleaned and made again): then the lock that we got guards nothing, and we try
// again with the file that is there now.
func lock(path string, wait time.Duration) (unlock func(), err error) {
	if err := host.Take(host.Step{Kind: host.TakesLock, Path: path}, func() error {
		unlock, err = lockSince(path, wait, time.Now())
		return err
	}); err != nil {
		return nil, err
	}
	return unlock, nil
}

// lockSince takes the lock if that takes no longer than wait.
func lockSince(path string, wait time.Duration, began time.Time) (unlock func(), err error) {
	deadline := began.Add(wait) // the machine's clock: Host.Now may stand still
	for {
		fd, err := lockFile(path)
		if err == unix.EWOULDBLOCK {
			if err = waitForLock(fd, time.Until(deadline)); err == unix.ETIMEDOUT {
				return nil, &LockError{path, wait}
			}
		}
		if err != nil {
			return nil, fmt.Errorf("cannot lock the ledger: %s: %w", path, err)
		}
		if isAt(fd, path) {
			return func() { unlockFile(fd, path) }, nil
		}
		_ = unix.Close(fd)
		if time.Now().After(deadline) {
			return nil, &LockError{path, wait}
		}
	}
}

// unlockFile closes the only descriptor of a locked file, which gives the lock up.
func unlockFile(fd int, path string) {
	_ = host.Take(host.Step{Kind: host.GivesLock, Path: path}, func() error { return unix.Close(fd) })
}

// lockFile opens a file and locks it, unless another process has the lock: then it gives the open
// file and unix.EWOULDBLOCK. O_CLOEXEC matters: the real runtime is started by exec in the same
// process, and must not inherit the lock.
func lockFile(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, err
	}
	err = flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil && err != unix.EWOULDBLOCK {
		_ = unix.Close(fd)
	}
	return fd, err
}

// waitForLock takes a lock that another process holds, or closes the file. unix.ETIMEDOUT says that
// the time is over. A blocking flock queues fairly and wakes at once, which polling would not do
// (64 writers that poll each 50 ms: 3.0 s; blocking: 0.04 s). But it knows no deadline: after it
// the waiting goroutine is left behind, and gives back what it gets. Each keeps a thread and a
// descriptor, so beyond maxBlocked of them this process polls.
func waitForLock(fd int, wait time.Duration) error {
	if blocked.Add(1) > maxBlocked {
		blocked.Add(-1)
		return pollForLock(fd, wait)
	}
	locked, abandoned := make(chan error), make(chan struct{})
	go func() {
		err := flock(fd, unix.LOCK_EX)
		blocked.Add(-1)
		select {
		case locked <- err:
		case <-abandoned:
			_ = unix.Close(fd)
		}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-locked:
		if err != nil {
			_ = unix.Close(fd)
		}
		return err
	case <-timer.C:
		close(abandoned)
		return unix.ETIMEDOUT
	}
}

// blocked are the goroutines of this process in a flock(2) that waits, with those left behind.
var blocked atomic.Int32

const (
	maxBlocked = 32
	pollEvery  = 20 * time.Millisecond
)

// pollForLock does what waitForLock does, without a blocking call.
func pollForLock(fd int, wait time.Duration) (err error) {
	for end := time.Now().Add(wait); ; time.Sleep(pollEvery) {
		if err = flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK {
			break
		}
		if err = unix.ETIMEDOUT; time.Now().After(end) {
			break
		}
	}
	_ = unix.Close(fd)
	return err
}

// flock is flock(2); Go's own signals interrupt it.
func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

// isAt reports whether the open file is the one at path.
func isAt(fd int, path string) bool {
	var open, there unix.Stat_t
	return unix.Fstat(fd, &open) == nil && unix.Stat(path, &there) == nil && open.Ino == there.Ino &&
		open.Dev == there.Dev
}
