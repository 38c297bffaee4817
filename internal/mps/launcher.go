package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// RunLauncher is the launcher (`gpuledgerd mps DIRECTORY`): it makes this process the control
// daemon of a directory, and returns only an error. A client and its server must see the same
// /dev/shm. So that they need not use the node's, the daemon gets a mount namespace in which
// /dev/shm is the directory's.
func RunLauncher(dir string, h host.Host) error {
	return whileFree(dir, h, func() error { return becomeDaemon(dir, h) })
}

// becomeDaemon returns only an error. The exec unlocks the directory.
func becomeDaemon(dir string, h host.Host) (err error) {
	say, err := redirectOutput(filepath.Join(dir, logFile))
	if err != nil {
		return err
	}
	defer func() { say(err) }()
	o, err := readCommand(dir)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // a namespace belongs to a thread
	if err := mountTmpfs(filepath.Join(dir, "pipe"), pipeOptions); err != nil {
		return err
	}
	if err := mountTmpfs(filepath.Join(dir, "shm"), fmt.Sprintf("size=%d,mode=1777", o.SHM)); err != nil {
		return err
	}
	if err := replaceSharedMemory(filepath.Join(dir, "shm")); err != nil {
		return err
	}
	if err := recordProcess(dir, h); err != nil {
		return err
	}
	host.SetThreadTimerSlack(host.DefaultTimerSlack) // gpuledgerd has set a longer one
	err = unix.Exec(o.Program, append([]string{o.Program}, o.Args...), o.Env)
	return fmt.Errorf("cannot run %s: %w", o.Program, err)
}

// redirectOutput sends what this process prints, and what the daemon prints that it becomes, to a
// file for lastLogLine. systemd would send it to its journal only. The returned function prints an
// error to the file and to the former standard error.
func redirectOutput(path string) (say func(error), err error) {
	log, err := unix.Open(path,
		unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	before, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(log, fd, 0); err != nil {
			return nil, err
		}
	}
	return func(err error) {
		fmt.Fprintln(os.Stderr, err)
		_ = unix.Dup3(before, 2, 0)
	}, nil
}

// readCommand reads the command that gpuledgerd has written for this launcher. A file of an older
// gpuledgerd has no arguments: then the daemon stays in the foreground.
func readCommand(dir string) (o launchCommand, err error) {
	data, err := host.ReadFile(filepath.Join(dir, commandFile), 1<<20)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		return o, fmt.Errorf("cannot read the command of the MPS daemon: %w", err)
	}
	if len(o.Args) == 0 {
		o.Args = []string{foreground}
	}
	return o, nil
}

// pipeOptions bound what clients can write to their daemon's directory, which is in the node's
// memory.
const pipeOptions = "size=16m,nr_inodes=16384,mode=755"

// mountTmpfs mounts a new tmpfs, visible on the node, for what a daemon and its clients write.
// Containers of an earlier daemon keep theirs, so they cannot put files into this one that root's
// programs would trust. On this mount no link is followed (MS_NOSYMFOLLOW, Linux 5.10; older
// kernels ignore the flag).
func mountTmpfs(path, options string) error {
	if err := unmount(path); err != nil {
		return err
	}
	if err := unix.Mount("gpuledger-mps", path, "tmpfs",
		unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOSYMFOLLOW, options); err != nil {
		return fmt.Errorf("cannot mount %s of the MPS daemon: %w", path, err)
	}
	return nil
}

// unmount removes all mounts at a path. Other mounts of the same file system remain.
func unmount(path string) (err error) {
	for err == nil {
		err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err == unix.EINVAL || err == unix.ENOENT { // nothing is mounted there
		return nil
	}
	return fmt.Errorf("cannot unmount %s of an MPS daemon: %w", path, err)
}

// followsNoLinks reports whether a path is on a mount that follows no links.
func followsNoLinks(path string) bool {
	const flag = 0x2000 // ST_NOSYMFOLLOW, include/linux/statfs.h
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&flag != 0
}

// isMountPoint reports whether something is mounted at a path.
func isMountPoint(path string) bool {
	var at, above unix.Stat_t
	return unix.Lstat(path, &at) == nil && unix.Lstat(filepath.Dir(path), &above) == nil &&
		at.Dev != above.Dev
}

// replaceSharedMemory mounts the directory's shared memory at /dev/shm, for this process alone.
func replaceSharedMemory(shm string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("cannot make a mount namespace for the MPS daemon: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cannot close the mount namespace of the MPS daemon: %w", err)
	}
	if err := unix.Mount(shm, "/dev/shm", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot put the shared memory of the MPS daemon in its place: %w", err)
	}
	return nil
}

// recordProcess records this process, which remains the same after the exec.
func recordProcess(dir string, h host.Host) error {
	self, err := h.Self()
	if err != nil {
		return err
	}
	boot, err := h.BootID()
	if err != nil {
		return err
	}
	data, err := json.Marshal(launchedProcess{self, boot})
	if err != nil {
		return err
	}
	return host.ReplaceFile(filepath.Join(dir, processFile), data, 0o600, host.Volatile)
}
