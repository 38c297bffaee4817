package host

import (
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// DevicesOnV1 reports whether device rules are those of a cgroup of version 1, which are files.
func DevicesOnV1(h Host) bool {
	_, err := os.Lstat(filepath.Join(h.Sys, "fs/cgroup/devices/cgroup.procs"))
	return err == nil
}

// Cgroups returns /proc/PID/cgroup of a running process (cgroups(7)), of at most limit bytes. If
// its first thread has ended and others run, the kernel reports the root of every version 1
// hierarchy. Then Cgroups returns the file of a thread that runs.
func (h Host) Cgroups(pid, limit int) ([]byte, error) {
	dir := filepath.Join(h.Proc, strconv.Itoa(pid))
	lines, err := ReadFile(filepath.Join(dir, "cgroup"), limit)
	if err != nil || !inRoots(lines) {
		return lines, err
	}
	s, err := h.stat(pid)
	if err != nil || s.state != 'Z' && s.state != 'X' || s.threads < 2 {
		return lines, err
	}
	threads, err := Names(filepath.Join(dir, "task"))
	if err != nil {
		return nil, err
	}
	slices.Sort(threads)
	for _, thread := range threads {
		if of, err := ReadFile(filepath.Join(dir, "task", thread, "cgroup"), limit); err == nil &&
			!inRoots(of) {
			return of, nil // a thread that ends meanwhile reports the roots, too
		}
	}
	return lines, nil
}

// CgroupLine is a line of /proc/PID/cgroup: the cgroup of a process in one hierarchy.
type CgroupLine struct {
	Controllers string // of cgroup v1, with commas between them, or name=NAME; "": cgroup v2
	Path        string // from the hierarchy's root, as the cgroup namespace of this process shows it
}

// Has reports whether it is the hierarchy of a controller of cgroup v1; "": that of v2.
func (l CgroupLine) Has(controller string) bool {
	return slices.Contains(strings.Split(l.Controllers, ","), controller)
}

// CgroupLines reads what Cgroups returns.
func CgroupLines(text []byte) iter.Seq[CgroupLine] {
	return func(yield func(CgroupLine) bool) {
		for line := range strings.Lines(string(text)) {
			words := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
			// only v2, whose number is 0, has neither controllers nor a name
			if len(words) < 3 || words[1] == "" && words[0] != "0" {
				continue
			}
			if !yield(CgroupLine{words[1], words[2]}) {
				return
			}
		}
	}
}

// inRoots reports whether the lines have version 1 hierarchies, and each of them shows its root.
func inRoots(lines []byte) bool {
	found := false
	for l := range CgroupLines(lines) {
		if l.Controllers == "" {
			continue
		}
		if found = true; l.Path != "/" {
			return false
		}
	}
	return found
}

// CgroupRoot is where the hierarchy is mounted in which the kernel guards devices: that of the
// controller "devices" of cgroup v1, or v2, also as v1's "unified".
func CgroupRoot(h Host) (dir string, v1 bool) {
	top := filepath.Join(h.Sys, "fs/cgroup")
	for _, name := range []string{"devices", "unified"} {
		if _, err := os.Stat(filepath.Join(top, name, "cgroup.procs")); err == nil {
			return filepath.Join(top, name), name == "devices"
		}
	}
	return top, false
}

// LostFirst reports whether a process's first thread has ended and others run. /proc/PID shows none
// of its open files then.
func (h Host) LostFirst(p grant.Process) bool {
	s, err := h.stat(p.PID)
	return err == nil && s.start == p.Start && (s.state == 'Z' || s.state == 'X') && s.threads > 1
}
