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

// Launch makes this process the control daemon whose directory is given. A client and its server have to see the same /dev/shm;
// so that neither needs the node's, the daemon gets a mount namespace of its own, where that is the directory's. It returns
// only an error.
func Launch(dir string, h host.Host) (err error) {
	say, err := toLog(filepath.Join(dir, logFile))
	if err != nil {
		return err
	}
	defer func() { say(err) }()
	o, err := readOrders(dir)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // namespaces are a thread's
	if err := lend(filepath.Join(dir, "pipe"), pipeOptions); err != nil {
		return err
	}
	if err := lend(filepath.Join(dir, "shm"), fmt.Sprintf("size=%d,mode=1777", o.SHM)); err != nil {
		return err
	}
	if err := share(filepath.Join(dir, "shm")); err != nil {
		return err
	}
	if err := announce(dir, h); err != nil {
		return err
	}
	host.SlackOfThread(host.UsualSlack) // gpuledgerd's own is more
	err = unix.Exec(o.Program, append([]string{o.Program}, o.Args...), o.Env)
	return fmt.Errorf("cannot run %s: %w", o.Program, err)
}

// toLog has what this process prints, and the daemon that it becomes, go to a file, for lastLogLine: systemd would hand it to the
// journal alone. say prints an error where this process printed before, and in the file.
func toLog(path string) (say func(error), err error) {
	log, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
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

// readOrders reads what gpuledgerd wants. One from before there were arguments takes it for said that the daemon stays in the
// foreground.
func readOrders(dir string) (o orders, err error) {
	data, err := host.ReadFile(filepath.Join(dir, ordersFile), 1<<20)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		return o, fmt.Errorf("cannot read the orders of the MPS daemon: %w", err)
	}
	if len(o.Args) == 0 {
		o.Args = []string{foreground}
	}
	return o, nil
}

// pipeOptions bound what clients can put into their daemon's directory: it is the node's memory.
const pipeOptions = "size=16m,nr_inodes=16384,mode=755"

// lend mounts a new tmpfs, where the node sees it, for what a daemon and its clients write. Containers of the daemon before it keep
// theirs: they could put into this one what root's programs then take for their own. Links in it are followed by nobody who comes by
// this mount, where the kernel knows how (Linux 5.10; MS_NOSYMFOLLOW is a flag that older ones do not look at).
func lend(path, options string) error {
	if err := unmount(path); err != nil {
		return err
	}
	if err := unix.Mount("gpuledger-mps", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_NOSYMFOLLOW, options); err != nil {
		return fmt.Errorf("cannot mount %s of the MPS daemon: %w", path, err)
	}
	return nil
}

// unmount takes away all that is mounted at a path; who has it mounted elsewhere keeps it.
func unmount(path string) (err error) {
	for err == nil {
		err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err == unix.EINVAL || err == unix.ENOENT { // nothing is
		return nil
	}
	return fmt.Errorf("cannot unmount %s of an MPS daemon: %w", path, err)
}

// followsNoLinks reports whether a path is on a mount on which nobody follows links.
func followsNoLinks(path string) bool {
	const flag = 0x2000 // ST_NOSYMFOLLOW, include/linux/statfs.h
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&flag != 0
}

// onMount reports whether something is mounted at a path.
func onMount(path string) bool {
	var at, above unix.Stat_t
	return unix.Lstat(path, &at) == nil && unix.Lstat(filepath.Dir(path), &above) == nil && at.Dev != above.Dev
}

// share puts the shared memory in the place of /dev/shm for this process alone.
func share(shm string) error {
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

// announce writes down who this process is; it stays that by the exec.
func announce(dir string, h host.Host) error {
	self, err := h.Self()
	if err != nil {
		return err
	}
	boot, err := h.BootID()
	if err != nil {
		return err
	}
	data, err := json.Marshal(started{self, boot})
	if err != nil {
		return err
	}
	return host.ReplaceFile(filepath.Join(dir, processFile), data, 0o600, host.Volatile)
}
