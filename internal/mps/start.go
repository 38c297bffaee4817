package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// lockTime is how long to wait for the lock of a daemon's directory. What is done under it takes
// milliseconds.
const lockTime = 2 * time.Second

// The files of a daemon's directory, beside state.json: the command that its launcher runs, the
// process that it became, and what both of them print. During an upgrade gpuledgerd and its
// launcher are of different versions, so the names stay as they are.
const (
	commandFile = "orders.json"
	processFile = "process.json"
	logFile     = "log/launch.log"
)

// launchCommand is the command that the launcher runs.
type launchCommand struct {
	Program string   `json:"program"`
	Args    []string `json:"args"`
	Env     []string `json:"env"`
	SHM     int64    `json:"shm"` // size of the clients' shared memory, in bytes
}

// shmSize bounds the shared memory of a daemon's clients. It is the node's memory, charged to the
// client that touches it first.
const shmSize = 1 << 30

// launchedProcess is the process of a launcher, which is the daemon after its exec.
type launchedProcess struct {
	grant.Process
	BootID string `json:"boot_id"`
}

// processIn is the process of the daemon in a directory, and whether it runs. An error means that
// it may run: then no other one is started.
func processIn(dir string, h host.Host) (p grant.Process, runs bool, err error) {
	data, err := host.ReadFile(filepath.Join(dir, processFile), 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	var s launchedProcess
	if json.Unmarshal(data, &s) != nil {
		return s.Process, false, nil
	}
	boot, err := h.BootID()
	if err != nil || boot != s.BootID {
		return s.Process, false, err
	}
	runs, err = h.Runs(s.Process)
	return s.Process, runs, err
}

// lock locks a daemon's directory. A launcher holds the lock until it is the daemon, gpuledgerd
// while it prepares the directory for a launcher or removes it. So gpuledgerd cannot take a
// directory away from a launcher that an earlier gpuledgerd has started, or start a second daemon
// there.
func lock(dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	unlock = func() { _ = unix.Close(fd) }
	err = host.Flock(fd, lockTime)
	var locked, there unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Fstat(fd, &locked), unix.Lstat(dir, &there))
	}
	switch {
	case err == unix.EWOULDBLOCK:
		err = fmt.Errorf("a launcher in %s is still under way", dir)
	case err == nil && (locked.Ino != there.Ino || locked.Dev != there.Dev):
		err = fmt.Errorf("%s was removed and made again", dir)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// whileFree runs a function under the lock of a daemon's directory, if no daemon runs there.
func whileFree(dir string, h host.Host, f func() error) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	p, runs, err := processIn(dir, h)
	switch {
	case err != nil:
		return err
	case runs:
		return fmt.Errorf("process %d has become the daemon in %s", p.PID, dir)
	}
	return f()
}

// launch makes the directory, writes the command there, starts the launcher, and waits until it has
// recorded its process.
func (d *daemon) launch(w want) error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	if err := whileFree(d.dir, d.node.Host, func() error { return d.prepare(w) }); err != nil {
		return err
	}
	d.launching = true
	if err := d.sys().StartLauncher(d.dir); err != nil {
		return err
	}
	return d.awaitLauncher()
}

// prepare makes what a launcher needs.
func (d *daemon) prepare(w want) error {
	c, err := d.control()
	if err != nil {
		return err
	}
	if err := driverProblem(d.node); err != nil {
		return err
	}
	d.logRead = 0
	if err := makeDirs(d.dir); err != nil {
		return err
	}
	data, err := json.Marshal(launchCommand{Program: c.program, Args: args(d.node.Policy),
		Env: append(c.env, "CUDA_VISIBLE_DEVICES="+strings.Join(w.uuids, ",")), SHM: shmSize})
	if err == nil {
		err = host.ReplaceFile(filepath.Join(d.dir, commandFile), data, 0o600, host.Volatile)
	}
	return err
}

// multiUser makes one server, root's, accept the processes of all users (NVIDIA's documentation of
// MPS, "Architecture").
const multiUser = "-multiuser-server"

// driverProblem says why no daemon of the inventory's driver can serve grants: it limits no memory,
// or takes -multiuser-server for a question to another daemon.
func driverProblem(n *node.Node) error {
	inv, _ := n.Inventory()
	problem := inv.Driver.MPSProblem()
	if problem == "" && slices.Contains(args(n.Policy), multiUser) {
		problem = inv.Driver.MPSUsersProblem()
	}
	if problem != "" {
		return errors.New(problem)
	}
	return nil
}

// foreground makes the daemon remain the process that is started.
const foreground = "-f"

// args are the options of NVIDIA's program under a policy.
func args(p grant.Policy) []string {
	if p.Enforcement.MPSUsers == grant.MPSAll {
		return []string{foreground, multiUser}
	}
	return []string{foreground}
}

// makeDirs makes the directories. Those that an earlier daemon shared with its clients are moved
// aside and not emptied: containers have them mounted and still write there. The launcher mounts
// its own file systems over the new ones; an older launcher uses them as they are.
func makeDirs(dir string) error {
	for name, mode := range map[string]os.FileMode{"pipe": 0o755, "shm": 0o1777} {
		path := filepath.Join(dir, name)
		if err := moveAside(dir, path); err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(path, 0o700), unix.Chmod(path, uint32(mode))); err != nil {
			return fmt.Errorf("cannot make %s: %w", path, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(logFile)), 0o700); err != nil {
		return err
	}
	for _, name := range []string{processFile, logFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// moveAside moves a directory away. What is mounted there, and gpuledgerd under systemd may not
// unmount, the launcher unmounts.
func moveAside(dir, path string) error {
	if err := unmount(path); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := unix.Rmdir(path); err == nil || err == unix.ENOENT || err == unix.EBUSY {
		return nil
	}
	old, err := os.MkdirTemp(dir, "old-")
	if err == nil {
		err = os.Rename(path, filepath.Join(old, filepath.Base(path)))
	}
	return err
}

// awaitLauncher waits until a launcher has recorded its process: the one that was just started, or
// a late one of an earlier gpuledgerd, which makes the new one end.
func (d *daemon) awaitLauncher() error {
	for end := d.now().Add(answerTime); d.now().Before(end); time.Sleep(10 * time.Millisecond) {
		p, runs, err := processIn(d.dir, d.node.Host)
		if p.PID != 0 {
			d.launching = false
			if runs || err != nil {
				return nil
			}
			return endedAtOnce(d.logReason())
		}
	}
	return fmt.Errorf("its launcher did not come so far as to run it: %s", d.logReason())
}

// endedAtOnce is the error for a daemon that ended before it was ready, with what its log says.
func endedAtOnce(reason string) error {
	return fmt.Errorf("it ended at once: %s", cmp.Or(reason, noReason))
}

// unitDirs are where systemd finds the template unit, if gpuledger is installed as a package.
var unitDirs = []string{"/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// hasUnit reports whether systemd is to run the daemons: in cgroups of their own, which remain when
// gpuledgerd.service ends, and with the restrictions of that unit.
func hasUnit() bool {
	if info, err := os.Stat("/run/systemd/system"); err != nil || !info.IsDir() {
		return false
	}
	for _, dir := range unitDirs {
		if _, err := os.Stat(filepath.Join(dir, "gpuledger-mps@.service")); err == nil {
			return true
		}
	}
	return false
}

// unitOf is the template's instance for a directory, escaped as systemd-escape(1) does with paths.
func unitOf(dir string) string {
	var name strings.Builder
	for i, c := range []byte(strings.Trim(filepath.Clean(dir), "/")) {
		switch {
		case c == '/':
			name.WriteByte('-')
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == ':', c == '_',
			c == '.' && i > 0:
			name.WriteByte(c)
		default:
			fmt.Fprintf(&name, `\x%02x`, c)
		}
	}
	return "gpuledger-mps@" + name.String() + ".service"
}

// startUnit waits until systemd has started a unit, because its error says what is wrong with one
// that cannot be started. It does not wait long: the start of a unit that is still stopping waits
// until its processes have ended. systemd starts the unit then all the same.
func startUnit(unit string) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "start", unit).CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("systemd has not started %s within %s", unit, answerTime)
	case err != nil:
		return fmt.Errorf("cannot start %s: %w: %s", unit, err, firstLine(string(out)))
	}
	return nil
}

// remove removes a daemon's directory. Under systemd the unit has unmounted what its clients wrote
// to, because gpuledgerd may not.
func (d *daemon) remove() error {
	err := whileFree(d.dir, d.node.Host, func() error {
		for _, name := range []string{"pipe", "shm"} {
			if err := unmount(filepath.Join(d.dir, name)); err != nil && !errors.Is(err, unix.EPERM) {
				return err
			}
		}
		return os.RemoveAll(d.dir)
	})
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) { // no daemon's
		err = os.Remove(d.dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove what an MPS daemon left: %w", err)
	}
	d.state, d.launching = grant.MPSDaemon{}, false // a late launcher finds no directory
	return nil
}
