package watch

import (
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
func OpenRest(took time.Duration) time.Duration { return max(15*time.Second, 300*took) }

// OpenGPUs lists the processes that have a GPU's device node open, by GPU and in the order of their
// pids. It reads the open files of every other process on the node. If the first thread of a
// process has ended, it reads those of its other threads. It asks no file server, because that may
// be dead.
func OpenGPUs(h host.Host, nodes map[uint64]string) map[string][]int {
	openers := map[string][]int{}
	names, _ := host.Names(h.Proc)
	var pids []int
	for _, name := range names {
		// this program opens no GPU, and holds a descriptor of each process that uses one
		if pid, err := strconv.Atoi(name); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	for _, pid := range pids {
		dir := filepath.Join(h.Proc, strconv.Itoa(pid))
		opened := openIn(dir, nodes)
		if opened == nil {
			if p, _, err := h.Process(pid); err == nil && h.LostFirst(p) {
				threads, _ := host.Names(filepath.Join(dir, "task"))
				for _, thread := range threads {
					opened = append(opened, openIn(filepath.Join(dir, "task", thread), nodes)...)
				}
			}
		}
		slices.Sort(opened)
		for _, uuid := range slices.Compact(opened) {
			openers[uuid] = append(openers[uuid], pid)
		}
	}
	return openers
}

// openIn lists the GPUs whose nodes a process or a thread has open; nil if it has no file open at
// all.
func openIn(dir string, nodes map[uint64]string) (uuids []string) {
	files, _ := host.Names(filepath.Join(dir, "fd"))
	if len(files) == 0 {
		return nil
	}
	uuids = []string{}
	for _, file := range files {
		path := dir + "/fd/" + file
		var st unix.Statx_t
		const flags = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
		err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_TYPE, &st)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if uuid, is := nodes[unix.Mkdev(st.Rdev_major, st.Rdev_minor)]; is && isOpen(dir+"/fdinfo/"+file) {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
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
