package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// errRunning means that another daemon has the lock.
var errRunning = errors.New("gpuledgerd runs already")

// lockTime is how long to wait for the lock, and orphanTime is how long if the daemon that had it
// was killed: a child that it forked just before holds the lock until it executes its program.
const (
	lockTime   = 200 * time.Millisecond
	orphanTime = 10 * time.Second
)

// lockRunDir makes this process the node's only daemon. The kernel releases the lock when the
// process ends, in any way. The returned file must stay open.
func lockRunDir(runDir string) (*os.File, error) {
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot start: %w", err)
	}
	path := lockPath(runDir)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot start: %w", err)
	}
	err = host.Flock(int(f.Fd()), lockTime)
	for end := time.Now().Add(orphanTime); errors.Is(err, unix.EWOULDBLOCK) && isOrphan(path) &&
		time.Now().Before(end); {
		err = host.Flock(int(f.Fd()), lockTime)
	}
	if err != nil {
		holder, _ := os.ReadFile(path)
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cannot start: %w (process %s holds %s)", errRunning,
				strings.TrimSpace(string(holder)), path)
		}
		return nil, fmt.Errorf("cannot start: cannot lock %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil { // for people to read, and for isOrphan
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// isOrphan reports whether the process that wrote its pid into the lock's file does not exist any
// more.
func isOrphan(path string) bool {
	holder, _ := os.ReadFile(path)
	pid, err := strconv.Atoi(strings.TrimSpace(string(holder)))
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

func lockPath(runDir string) string { return filepath.Join(runDir, "gpuledgerd.lock") }

// isLockFile reports whether the lock's path still leads to this file: a file that was removed
// locks out no other process.
func isLockFile(lock *os.File, runDir string) bool {
	ours, err := lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(lockPath(runDir))
	return err == nil && os.SameFile(ours, there)
}
