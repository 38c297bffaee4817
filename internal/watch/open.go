package watch

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// GPUDevices maps the device numbers of an inventory's GPUs to their UUIDs.
func GPUDevices(inv grant.Inventory) map[uint64]string {
	nodes := make(map[uint64]string, len(inv.GPUs))
	for _, g := range inv.GPUs {
		nodes[unix.Mkdev(grant.MajorNVIDIA, uint32(g.Minor))] = g.UUID
	}
	return nodes
}

// OpenRest is for how long the open files of the node's processes are not read again, after a
// reading that took so long: some 10 milliseconds for 1,000 processes. That is a 300th of a core.
// Processes with very many open files do not make it longer than ten minutes.
func OpenRest(took time.Duration) time.Duration {
	return min(max(15*time.Second, 300*took), MaxRest)
}

// MaxRest bounds OpenRest, and how long one look may last.
const MaxRest = 10 * time.Minute

// Look finds the processes that have a GPU's device node open. It reads the open files of every
// other process on the node. If the first thread of a process has ended, it reads those of its
// other threads. It asks no file server, because that may be dead.
//
// Any process can have a million open files. So a look is made in steps, and the files of such a
// process come after those of all others.
type Look struct {
	host  host.Host
	nodes map[uint64]string
	found map[string][]grant.Process
	last  map[string]int // the process that was found last, by GPU
	rest  []fileTable    // still to be read
	large []fileTable    // of these only the first files were read
	read  *tableReader
}

// fileTable is the open files of a process, or of one of its threads.
type fileTable struct {
	pid int
	dir string // that of the process or thread in /proc
}

// manyFiles is how many open files of a process are read before those of all others.
const manyFiles = 4096

// processCost is what a process costs beside its files, in files.
const processCost = 20

// NewLook begins a look. nodes are the GPUs by their device numbers.
func NewLook(h host.Host, nodes map[uint64]string) *Look {
	l := &Look{host: h, nodes: nodes, found: map[string][]grant.Process{}, last: map[string]int{}}
	names, _ := host.Names(h.Proc)
	for _, name := range names {
		// this program opens no GPU, and holds a descriptor of each process that uses one
		if pid, err := strconv.Atoi(name); err == nil && pid != os.Getpid() {
			l.rest = append(l.rest, fileTable{pid, filepath.Join(h.Proc, name)})
		}
	}
	return l
}

// OpenGPUs lists the processes that have a GPU's device node open, by GPU. Those in unread have so
// many open files that not all were read.
func OpenGPUs(h host.Host, nodes map[uint64]string) (open map[string][]grant.Process, unread []int) {
	l := NewLook(h, nodes)
	defer l.Close()
	for len(l.rest) > 0 {
		l.Step(1)
	}
	l.Step(50 * manyFiles)
	return l.Known(nil), l.unread()
}

// HasGPUOpen reports whether a process has a GPU's device node open, or so many files that not all
// were read.
func HasGPUOpen(h host.Host, nodes map[uint64]string, pid int) bool {
	l := &Look{host: h, nodes: nodes, found: map[string][]grant.Process{}, last: map[string]int{},
		rest: []fileTable{{pid, filepath.Join(h.Proc, strconv.Itoa(pid))}}}
	for len(l.rest) > 0 {
		l.Step(1)
	}
	return len(l.found)+len(l.large) > 0
}

// Step reads some more open files, about as many as it is told. It reports whether all are read.
func (l *Look) Step(files int) (done bool) {
	for files > 0 {
		switch {
		case len(l.rest) > 0:
			t := l.rest[0]
			l.rest = l.rest[1:]
			files -= processCost + l.readFirst(t)
		case l.read != nil || len(l.large) > 0:
			files -= l.readLarge(files)
		default:
			return true
		}
	}
	return len(l.rest)+len(l.large) == 0 && l.read == nil
}

// Close ends a look, also before it is done.
func (l *Look) Close() {
	if l.read != nil {
		l.read.close()
		l.read = nil
	}
}

// Known returns the processes that have a GPU's device node open, by GPU and in the order of their
// pids: those found, and of processes that are still to be read those that an earlier look found.
func (l *Look) Known(before map[string][]grant.Process) map[string][]grant.Process {
	known := map[string][]grant.Process{}
	for uuid, processes := range l.found {
		known[uuid] = slices.Clone(processes)
	}
	if unread := l.unread(); len(unread) > 0 {
		for uuid, processes := range before {
			for _, p := range processes {
				if _, is := slices.BinarySearch(unread, p.PID); is {
					known[uuid] = append(known[uuid], p)
				}
			}
		}
	}
	for uuid, processes := range known {
		slices.SortFunc(processes, func(a, b grant.Process) int {
			return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Start, b.Start))
		})
		known[uuid] = slices.Compact(processes)
	}
	return known
}

// unread lists the processes of which not all files are read yet.
func (l *Look) unread() (pids []int) {
	for _, t := range slices.Concat(l.rest, l.large) {
		pids = append(pids, t.pid)
	}
	if l.read != nil {
		pids = append(pids, l.read.pid)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// readFirst reads the first files of a process or thread, and returns how many these are. If there
// are more, they come later.
func (l *Look) readFirst(t fileTable) (files int) {
	r, err := openTable(t)
	if err != nil {
		return 0
	}
	defer r.close()
	for files < manyFiles {
		names := r.next()
		if len(names) == 0 {
			if files == 0 {
				l.addThreads(t)
			}
			return files
		}
		files += len(names)
		l.addGPUs(t, names)
	}
	l.large = append(l.large, t)
	return files
}

// addThreads has the files of a process read from its other threads, if its first one has ended.
func (l *Look) addThreads(t fileTable) {
	p, _, err := l.host.Process(t.pid)
	if err != nil || t.dir != filepath.Join(l.host.Proc, strconv.Itoa(t.pid)) || !l.host.LostFirst(p) {
		return
	}
	threads, _ := host.Names(filepath.Join(t.dir, "task"))
	for _, thread := range threads {
		l.rest = append(l.rest, fileTable{t.pid, filepath.Join(t.dir, "task", thread)})
	}
}

// readLarge reads on in a process with many files, and returns how many it has read, or 1.
func (l *Look) readLarge(most int) (files int) {
	if l.read == nil {
		t := l.large[0]
		l.large = l.large[1:]
		r, err := openTable(t)
		if err != nil {
			return 1
		}
		l.read = r
	}
	for files < most {
		names := l.read.next()
		if len(names) == 0 {
			l.Close()
			return files + 1
		}
		files += len(names)
		l.addGPUs(l.read.fileTable, names)
	}
	return files
}

// addGPUs adds the GPUs among some open files. The process is looked up after that, and must then
// still have the file: it is not an earlier process with the pid that had it.
func (l *Look) addGPUs(t fileTable, names []string) {
	for _, name := range names {
		uuid := l.nodeOf(t, name)
		if uuid == "" || l.last[uuid] == t.pid || !isOpen(t.dir+"/fdinfo/"+name) {
			continue // or it is found already: a process can have a GPU open a million times
		}
		if p, _, err := l.host.Process(t.pid); err == nil && l.nodeOf(t, name) == uuid {
			l.found[uuid] = append(l.found[uuid], p)
			l.last[uuid] = t.pid
		}
	}
}

// nodeOf returns the GPU whose node a descriptor is of, or "".
func (l *Look) nodeOf(t fileTable, name string) string {
	var st unix.Statx_t
	const flags = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	err := unix.Statx(unix.AT_FDCWD, t.dir+"/fd/"+name, flags, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return ""
	}
	return l.nodes[unix.Mkdev(st.Rdev_major, st.Rdev_minor)]
}

// isOpen reports whether a descriptor is of an open file. With O_PATH any process can have one of
// any node, without access to it.
func isOpen(fdinfo string) bool {
	text, err := host.ReadFile(fdinfo, maxProc)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "flags:"); is {
			flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 64)
			return err == nil && flags&unix.O_PATH == 0
		}
	}
	return false
}

// tableReader reads the names of open files.
type tableReader struct {
	fileTable
	fd     int
	buffer [4096]byte
}

func openTable(t fileTable) (*tableReader, error) {
	fd, err := unix.Open(t.dir+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return &tableReader{fileTable: t, fd: fd}, err
}

func (r *tableReader) close() { _ = unix.Close(r.fd) }

// next returns some more names; none at the end, and when the process has ended.
func (r *tableReader) next() (names []string) {
	for len(names) == 0 {
		n, err := unix.ReadDirent(r.fd, r.buffer[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return nil
		}
		_, _, names = unix.ParseDirent(r.buffer[:n], -1, names) // without "." and ".."
	}
	return names
}
