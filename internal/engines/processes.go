package engines

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Daemons are the engine's running processes that read its main file. There are none if the root is
// not "/", and none for an engine without a daemon.
func (in Installation) Daemons() []grant.Process {
	var running []grant.Process
	if in.System.Root != "/" || in.Of().Daemon == "" {
		return nil
	}
	for _, pid := range processes(in.Of().Daemon, "mnt") {
		// CRI-O reads the files of its drop-in directory, whichever main file it is given.
		if in.Engine != grant.CRIO && !sameFile(cmp.Or(readBy(pid), in.Of().File), in.MainFile()) {
			continue
		}
		if p, _, err := host.Default().Process(pid); err == nil {
			running = append(running, p)
		}
	}
	return running
}

// Arguments are those of the engine's running processes that read its main file, as Daemons has
// them.
func (in Installation) Arguments() (all []string) {
	for _, p := range in.Daemons() {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID), "cmdline"))
		all = append(all, strings.Split(string(line), "\x00")...)
	}
	return all
}

// OtherFiles are the main files, by process id, of the engine's running processes that name another
// file than this one in their arguments.
func (in Installation) OtherFiles() []ProcessFile {
	if in.System.Root != "/" || in.Of().Daemon == "" {
		return nil
	}
	var others []ProcessFile
	for _, pid := range processes(in.Of().Daemon, "mnt") {
		if file := readBy(pid); file != "" && file != in.MainFile() {
			others = append(others, ProcessFile{pid, file})
		}
	}
	return others
}

// ProcessFile is a process and the configuration file that its arguments name.
type ProcessFile struct {
	PID  int
	File string
}

// fileOf is the configuration file that a running engine's arguments name; "" if they name none.
func fileOf(pids []int) string {
	for _, pid := range pids {
		if file := readBy(pid); filepath.IsAbs(file) {
			return file
		}
	}
	return ""
}

// sameFile compares two names after their links are followed. A snap's daemon names its revision,
// where others name the current one.
func sameFile(a, b string) bool {
	realA, errA := filepath.EvalSymlinks(a)
	realB, errB := filepath.EvalSymlinks(b)
	return a == b || errA == nil && errB == nil && realA == realB
}

// readBy is the configuration file that a daemon's arguments name; "" if they name none.
func readBy(pid int) string {
	line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return configOf(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"))
}

// configOf is the file that a daemon's arguments name, by -c or --config of containerd and CRI-O,
// or --config-file of dockerd.
func configOf(args []string) string {
	for i, arg := range args {
		name, value, found := strings.Cut(arg, "=")
		if !slices.Contains([]string{"-c", "--config", "-config", "--config-file"}, name) {
			continue
		}
		if found {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// processes are those with a program's name that share this process's namespace of a kind: pid, or
// mnt, in which only root's count. A child that has not yet executed another program counts as its
// parent: it has the same name and arguments.
func processes(name, kind string) []int {
	var all []int
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range files {
		dir := filepath.Dir(path)
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && isNamed(pid, name) && shares(dir, kind) {
			all = append(all, pid)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(pid int) bool {
		_, parent, err := host.Default().Process(pid)
		return err == nil && slices.Contains(all, parent) &&
			(slices.Equal(arguments(pid), arguments(parent)) || !isNamed(pid, name)) // it has executed since
	})
}

// isNamed reports whether a process has a name now.
func isNamed(pid int, name string) bool {
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	return err == nil && strings.TrimSpace(string(comm)) == name
}

// shares reports whether a process, by its directory in /proc, is in this process's namespace of a
// kind, and for mnt whether it is root's.
func shares(process, kind string) bool {
	ours, err := os.Readlink("/proc/self/ns/" + kind)
	its, bad := os.Readlink(filepath.Join(process, "ns", kind))
	return err == nil && bad == nil && ours == its && (kind != "mnt" || host.IsRoots(process))
}

// isOurs reports whether a process counts as one of this node's.
func isOurs(process string) bool { return shares(process, "mnt") }
