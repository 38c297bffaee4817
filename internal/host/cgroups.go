package host

import (
	"bytes"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/grant"
)

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

// inRoots reports whether the lines have version 1 hierarchies, and each of them shows its root.
func inRoots(lines []byte) bool {
	found := false
	for line := range bytes.Lines(lines) {
		if parts := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(":"), 3); len(parts) == 3 &&
			len(parts[1]) > 0 {
			if found = true; string(parts[2]) != "/" {
				return false
			}
		}
	}
	return found
}

// LostFirst reports whether a process's first thread has ended and others run. /proc/PID shows none
// of its open files then.
func (h Host) LostFirst(p grant.Process) bool {
	s, err := h.stat(p.PID)
	return err == nil && s.start == p.Start && (s.state == 'Z' || s.state == 'X') && s.threads > 1
}
