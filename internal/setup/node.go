package setup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// node is the node's file system, which is this process's root, and the tree to install.
type node struct {
	tree   fs.FS
	enter  []string
	settle time.Duration
}

// record lists the installed files, one path a line. setup replaces and removes no other file.
const record = "/usr/lib/gpuledger/setup.list"

// configFile is written once; after that it is the administrator's file.
const configFile = "/etc/gpuledger/config.toml"

// purgeScript is there from a package's installation until its purge, which may come long after its
// removal. The purge deletes configFile, and scripts of older versions delete the ledger too.
const purgeScript = "/var/lib/dpkg/info/gpuledger.postrm"

// program undoes an engine's configuration, so a removal removes it last.
const program = "/usr/bin/gpuledger"

// wrapper is the start of the names that engines call. They also call them to stop and to delete a
// container that was started so.
const wrapper = "/usr/bin/gpuledger-runtime"

// atBoot is the file by which systemd-tmpfiles removes what a removal had to leave.
const atBoot = "/etc/tmpfiles.d/gpuledger-setup.conf"

// removedInThisBoot exists from a removal until the next boot.
const removedInThisBoot = "/run/gpuledger-setup.removed"

// systemdRuns exists if systemd is the node's process 1 (sd_booted(3)).
const systemdRuns = "/run/systemd/system"

// units is where the tree has its units, and the links that start them at boot.
const units = "/usr/lib/systemd/system/"

// reloadDue exists from before a unit is written or removed until systemd has read its files again.
// Without such a change there is no daemon-reload: it takes the GPUs from running containers that
// got theirs from NVIDIA's legacy hook. If this program is killed in between, its next run reloads.
const reloadDue = "/run/gpuledger-setup.reload"

// install can be repeated, and can be killed at any point. The record names every file before it is
// written. cluster is what the cluster sets, if o.cluster is not "".
func (n *node) install(o configureFlags, cluster []byte) error {
	if o.engine == auto {
		engine, err := foundEngine()
		if err != nil {
			return err
		}
		o.engine = engine
	}
	before, err := recorded()
	if err != nil {
		return err
	}
	files, err := n.files()
	if err != nil {
		return err
	}
	if err := foreign(files, before); err != nil {
		return err
	}
	if err := unpurged(before); err != nil {
		return err
	}
	// A boot in the middle would remove the record and leave programs, which no one could remove or
	// replace then.
	if err := cancelAtBoot(); err != nil {
		return err
	}
	if err := writeRecord(union(before, files)); err != nil {
		return err
	}
	for _, path := range files {
		if err := n.put(path); err != nil {
			return fmt.Errorf("cannot install %s: %w", path, err)
		}
	}
	for _, path := range before {
		if !slices.Contains(files, path) && path != configFile {
			removeFile(path) // a file of an older version
		}
	}
	if err := writeRecord(files); err != nil {
		return err
	}
	taken := false
	if o.cluster != "" {
		if _, err := take(cluster); err != nil {
			fmt.Fprintln(os.Stderr, "gpuledger-setup: warning: "+err.Error()) // and the pod will not be ready
		} else {
			taken = true
		}
	}
	return n.configure(o, taken)
}

// configure does what an administrator does after the installation of the package. A driver that is
// not loaded yet is no failure: udev starts the inventory once it is. Until then containers that
// ask for a GPU are refused. What a cluster sets exempts the agents, if it was taken.
func (n *node) configure(o configureFlags, taken bool) error {
	if exists(systemdRuns) {
		if err := n.reload(); err != nil {
			return err
		}
		_ = n.run("udevadm", "control", "--reload")
		if err := n.run("systemctl", "start", "gpuledger-inventory.path"); err != nil {
			return err
		}
	}
	if err := n.run("gpuledger", "inventory", "refresh"); err != nil {
		fmt.Fprintln(os.Stderr, "gpuledger-setup: warning: "+err.Error())
	}
	if !o.asDefault {
		if err := n.dropDefault(o.engine); err != nil {
			return err
		}
	}
	args := []string{o.engine}
	if o.asDefault {
		args = append(args, "--as-default")
	}
	if o.mode != "" && !hasMode() { // with a default handler, configure writes report if the file has no mode
		args = append(args, "--mode", o.mode)
	}
	if err := n.backedOutBefore(args); err != nil {
		return err
	}
	change, err := n.change(args...)
	if err != nil {
		return err
	}
	if o.asDefault && !taken {
		// before the engine starts gpuledger's own pods through gpuledger
		if err := exemptAgents(); err != nil {
			return err
		}
	}
	if err := n.restart(change.unit, args...); err != nil {
		return n.backOut(args, change.unit, err)
	}
	if err := n.startDaemon(); err != nil {
		return err
	}
	return inForce(o.engine, o.asDefault)
}

// remove leaves the ledger, the audit log and the configuration, as the removal of a package does.
// It leaves the wrapper until the next boot: without it no engine could end the containers that
// run, and this process runs in one. It leaves everything as long as an engine's files name
// gpuledger's programs. It can be repeated, and can be killed at any point.
func (n *node) remove(o configureFlags) error {
	files, err := recorded()
	if err != nil {
		return err
	}
	if len(files) == 0 { // a package's node
		removeFile(clusterFile)
		return nil
	}
	if exists(program) {
		engines := []string{o.engine}
		if o.engine == auto {
			engines = configured()
		}
		for _, engine := range engines {
			if err := n.undo(engine); err != nil {
				return fmt.Errorf("%w; gpuledger's programs stay: the engine may call them", err)
			}
		}
		p, err := policy.Load(configFile)
		if err != nil {
			return fmt.Errorf("%w; gpuledger's programs stay: an engine may call them", err)
		}
		if places := namedIn(p.StateDir); len(places) > 0 {
			return fmt.Errorf(
				"cannot remove gpuledger: its programs are named in %s; they stay until nothing names them",
				strings.Join(places, ", "))
		}
		if err := host.ReplaceFile(removedInThisBoot, nil, 0o600, host.Volatile); err != nil {
			return err
		}
		if exists(systemdRuns) {
			_ = n.run("systemctl", "stop", "gpuledger-inventory.path")
		}
		if err := n.stopDaemon(); err != nil {
			return err
		}
	}
	removeFile(clusterFile)
	if err := removeInstalled(files); err != nil {
		return err
	}
	return n.reload()
}

// reload makes systemd read its files again, if a unit was written or removed.
func (n *node) reload() error {
	if !exists(reloadDue) {
		return nil
	}
	if err := n.run("systemctl", "daemon-reload"); err != nil {
		return err
	}
	return os.Remove(reloadDue)
}

// markReload is called before path is written or removed.
func markReload(path string) error {
	if !strings.HasPrefix(path, units) || !exists(systemdRuns) {
		return nil
	}
	return host.ReplaceFile(reloadDue, nil, 0o600, host.Volatile)
}

// removeInstalled removes what was installed, and records what has to stay.
func removeInstalled(files []string) error {
	var kept []string
	for _, path := range files {
		removeDrafts(path)
		switch {
		case strings.HasPrefix(path, wrapper) && exists(removedInThisBoot):
			kept = append(kept, path)
		case path != configFile && path != program:
			removeFile(path)
		}
	}
	removeFile(program)
	if len(kept) == 0 {
		removeFile(record)
		removeFile(atBoot)
		return nil
	}
	if err := removeAtBoot(kept); err != nil {
		return err
	}
	say("%s stays until the next boot: containers that were started through it are ended by it", wrapper)
	return writeRecord(kept)
}

// removeAtBoot lets systemd remove at the next boot what has to stay until then: the DaemonSet may
// be gone by that time.
func removeAtBoot(paths []string) error {
	if !exists(systemdRuns) {
		return nil
	}
	text := "# Written by gpuledger-setup: what engines need until the next boot.\n"
	for _, path := range append(slices.Clone(paths), record, filepath.Dir(record), atBoot) {
		text += "r! " + path + "\n"
	}
	if err := os.MkdirAll(filepath.Dir(atBoot), 0o755); err != nil {
		return err
	}
	return host.ReplaceFile(atBoot, []byte(text), 0o644, host.Durable)
}

// cancelAtBoot makes the next boot remove nothing. If this is killed after it, the record still has
// what the removal had to leave: an installation goes on from that, and a removal finishes it.
func cancelAtBoot() error {
	if err := os.Remove(atBoot); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot keep the next boot from removing gpuledger: %w", err)
	}
	// also if the file is gone: a killed run may have removed it without this
	if err := host.SyncDir(filepath.Dir(atBoot)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot keep the next boot from removing gpuledger: %w", err)
	}
	return nil
}

// files are the paths of the tree, sorted, with the links last, so that their targets are installed
// before them.
func (n *node) files() (paths []string, err error) {
	var links []string
	err = fs.WalkDir(n.tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.IsDir():
		case entry.Type()&fs.ModeSymlink != 0:
			links = append(links, "/"+name)
		default:
			paths = append(paths, "/"+name)
		}
		return err
	})
	slices.Sort(paths)
	slices.Sort(links)
	paths = append(paths, links...)
	if err == nil && len(paths) == 0 {
		err = errors.New("there is nothing in it")
	}
	if err != nil {
		err = fmt.Errorf("cannot read what is to be installed: %w", err)
	}
	return paths, err
}

// foreign returns an error if gpuledger's programs were installed there by a package or by hand.
func foreign(files, ours []string) error {
	for _, path := range files {
		if strings.HasPrefix(path, "/usr/bin/") && !slices.Contains(ours, path) && exists(path) {
			return fmt.Errorf("%s is there already, and was not put there by gpuledger-setup: remove the "+
				"package, or keep this node out of the DaemonSet", path)
		}
	}
	return nil
}

// unpurged returns an error if the package was removed and not purged. Where gpuledger-setup has
// installed gpuledger already, it only warns: a purge would be late there.
func unpurged(ours []string) error {
	const found = "the package gpuledger was removed and not purged, and its purge deletes " + configFile
	switch {
	case !exists(purgeScript):
		return nil
	case slices.Contains(ours, program):
		fmt.Fprintln(os.Stderr, "gpuledger-setup: warning: "+found+", which is now that of this installation")
		return nil
	}
	return errors.New(found + ": run `apt purge gpuledger` on this node first; it also deletes the ledger " +
		"and the audit log")
}

// put installs a file or link of the tree by rename. A file that is executed or mounted stays as it
// was for its users.
func (n *node) put(path string) error {
	removeDrafts(path)
	if path == configFile && exists(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	info, err := fs.Lstat(n.tree, path[1:])
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return n.putLink(path)
	}
	content, err := fs.ReadFile(n.tree, path[1:])
	if err != nil {
		return err
	}
	// a regular file of the same mode
	if has, err := os.Lstat(path); err == nil && has.Mode() == info.Mode() {
		if is, err := os.ReadFile(path); err == nil && bytes.Equal(is, content) {
			return nil
		}
	}
	if err := markReload(path); err != nil {
		return err
	}
	return host.ReplaceFile(path, content, info.Mode().Perm(), host.Durable)
}

// linkDraft is the end of a link's name until it is renamed.
const linkDraft = ".gpuledger-setup"

// removeDrafts removes what a killed run of this program has left beside a file: a link's draft,
// and those of host.ReplaceFile, whose names have the process (.NAME.PID-N).
func removeDrafts(path string) {
	drafts, _ := filepath.Glob(filepath.Dir(path) + "/." + filepath.Base(path) + ".[0-9]*-[0-9]*")
	for _, draft := range append(drafts, path+linkDraft) {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Ext(draft), "."), "-")
		comm, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if strings.TrimSpace(string(comm)) != "gpuledger-setup" {
			_ = os.Remove(draft)
		}
	}
}

func (n *node) putLink(path string) error {
	target, err := fs.ReadLink(n.tree, path[1:])
	if err != nil {
		return err
	}
	if has, err := os.Readlink(path); err == nil && has == target {
		return nil
	}
	if err := markReload(path); err != nil {
		return err
	}
	draft := path + linkDraft
	if err := os.Symlink(target, draft); err != nil {
		return err
	}
	return os.Rename(draft, path)
}

func recorded() ([]string, error) {
	text, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what was installed: %w", err)
	}
	return strings.Fields(string(text)), nil
}

func writeRecord(paths []string) error {
	if err := os.MkdirAll(filepath.Dir(record), 0o755); err != nil {
		return err
	}
	if err := host.ReplaceFile(record, []byte(strings.Join(paths, "\n")+"\n"), 0o644,
		host.Durable); err != nil {
		return fmt.Errorf("cannot record what is installed: %w", err)
	}
	return nil
}

// removeFile removes a file, and the directories that it leaves empty.
func removeFile(path string) {
	err := markReload(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "gpuledger-setup: warning: "+err.Error())
	}
	for dir := filepath.Dir(path); strings.Contains(dir, "gpuledger"); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return
		}
	}
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
