// Package host reads facts of the kernel: boot id, processes, namespaces, device majors, mounts,
// files, random bytes. Callers pass a Host as a value, so a test can use another clock or another
// /proc.
//
// It also makes the changes to files that other processes see: replacements, renames, removals,
// links and locks. Each is a Step (step.go), so that a simulated node can fail it or cut the power
// around it.
package host

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Host says where the facts of a node are read.
type Host struct {
	Proc string // "/proc"
	Sys  string // "/sys"
	Dev  string // "/dev"
	Now  func() time.Time
	UID  int // the caller's effective user id in its user namespace; 0 is root
	PID  int // the caller; 0: as the kernel says

	boot *bootID // of the machine, once it was read
}

// bootID caches the boot id of one /proc; no process outlives a boot. A failed read is not cached.
type bootID struct {
	proc string
	text atomic.Pointer[string]
}

// Default is the Host of the machine that the program runs on.
func Default() Host {
	return Host{Proc: "/proc", Sys: "/sys", Dev: "/dev", Now: clock, UID: os.Geteuid(),
		boot: &bootID{proc: "/proc"}}
}

// maxProc is the largest size of a file in /proc or /sys that is read, in bytes.
const maxProc = 1 << 20

// BootID identifies this boot (Documentation/admin-guide/sysctl/kernel.rst: random/boot_id).
func (h Host) BootID() (string, error) {
	if h.boot == nil || h.boot.proc != h.Proc {
		return h.readBootID()
	}
	if known := h.boot.text.Load(); known != nil {
		return *known, nil
	}
	text, err := h.readBootID()
	if err == nil {
		h.boot.text.Store(&text)
	}
	return text, err
}

func (h Host) readBootID() (string, error) {
	text, err := ReadFile(filepath.Join(h.Proc, "sys/kernel/random/boot_id"), maxProc)
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Self returns the calling process. An exec keeps its identity; a fork makes another process.
func (h Host) Self() (grant.Process, error) {
	self, _, err := h.Process(cmp.Or(h.PID, os.Getpid()))
	return self, err
}

// Runs reports whether the process exists and is not a zombie: a zombie holds no device. On an
// error it is unknown whether it runs.
// A process whose first thread has ended looks like a zombie while other threads run. Every exec by
// another thread passes through that state (fs/exec.c, de_thread), for example when the wrapper
// becomes the real runtime. The process has ended only if no other thread is left. While the kernel
// removes a process it reports zero threads; Runs then reads again.
func (h Host) Runs(p grant.Process) (bool, error) {
	for range 100 {
		s, err := h.stat(p.PID)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
			return false, nil
		case err != nil:
			return false, err
		case s.start != p.Start:
			return false, nil
		case s.state != 'Z' && s.state != 'X', s.threads > 1:
			return true, nil
		case s.threads == 1:
			return false, nil
		}
	}
	return false, fmt.Errorf("cannot tell whether process %d runs: it is neither there nor gone", p.PID)
}

// Process returns the process that has a pid now, and its parent's pid.
func (h Host) Process(pid int) (p grant.Process, parent int, err error) {
	s, err := h.stat(pid)
	return grant.Process{PID: pid, Start: s.start}, s.parent, err
}

// IsEnding reports whether the first thread of a process is ending or has ended. A driver may take
// seconds to free what the process had open. Meanwhile the kernel reports the root of each version
// 1 hierarchy as its cgroup (proc_cgroup_show, kernel/cgroup/cgroup.c).
func IsEnding(h Host, pid int) bool {
	s, err := h.stat(pid)
	return err == nil && s.exiting
}

// UserOf returns the effective uid of a process, as this program's user namespace has it: root of a
// rootless container is the user that started it.
func (h Host) UserOf(pid int) (uint32, error) {
	ids, err := ReadUIDs(filepath.Join(h.Proc, strconv.Itoa(pid), "status"))
	return ids[1], err
}

// ReadUIDs reads a process's or a thread's real, effective, saved and file system's uid from its
// status file in /proc.
func ReadUIDs(path string) (ids [4]uint32, err error) {
	text, err := ReadFile(path, maxProc)
	if err != nil {
		return ids, err
	}
	_, line, _ := strings.Cut(string(text), "\nUid:") // a newline in its name is escaped
	line, _, _ = strings.Cut(line, "\n")
	fields := strings.Fields(line)
	if len(fields) != len(ids) {
		return ids, fmt.Errorf("cannot read the user of a process: %s has no line of four uids", path)
	}
	for i, field := range fields {
		id, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return ids, fmt.Errorf("cannot read the user of a process: %s: %w", path, err)
		}
		ids[i] = uint32(id)
	}
	return ids, nil
}

// IsRoots reports whether root has started a process, given its directory in /proc. Whose that is
// does not tell: the kernel gives root those of programs that their user may not read.
func IsRoots(process string) bool {
	ids, err := ReadUIDs(filepath.Join(process, "status"))
	return err == nil && ids == [4]uint32{}
}

// stat has fields of /proc/PID/stat.
type stat struct {
	start   uint64 // clock ticks since the boot
	state   byte
	parent  int
	threads int // including the first, even if it has ended; 0 while the kernel removes the process
	exiting bool
}

// exiting is the flag of a thread that is ending or has ended (PF_EXITING, include/linux/sched.h).
const exiting = 4

// stat reads /proc/PID/stat. The command's name is in parentheses and may itself contain
// parentheses.
func (h Host) stat(pid int) (s stat, err error) {
	text, err := ReadFile(filepath.Join(h.Proc, strconv.Itoa(pid), "stat"), maxProc)
	if err != nil {
		return s, err
	}
	_, rest, _ := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(" "))
	fields := bytes.Fields(rest) // from field 3, the state
	if len(fields) < 20 {
		return s, fmt.Errorf("cannot read process %d: its stat line is too short", pid)
	}
	s.state = fields[0][0]
	flags := 0
	for field, number := range map[int]*int{1: &s.parent, 6: &flags, 17: &s.threads} {
		if *number, err = strconv.Atoi(string(fields[field])); err != nil {
			return s, err
		}
	}
	s.exiting = flags&exiting != 0
	s.start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, err
}

// PIDNamespace returns the inode of the caller's pid namespace. Pids of another namespace have no
// meaning here.
func (h Host) PIDNamespace() (uint64, error) { return h.namespace("pid") }

// TimeNamespace returns the inode of the caller's time namespace, or 0 if the kernel has none
// (before Linux 5.6). Start times of processes count from that namespace's boot.
func (h Host) TimeNamespace() (uint64, error) {
	ns, err := h.namespace("time")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return ns, err
}

// namespace returns the inode of one of the caller's namespaces.
func (h Host) namespace(kind string) (uint64, error) {
	var st unix.Stat_t
	path := filepath.Join(h.Proc, "self/ns", kind)
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("cannot read the %s namespace: %w", kind,
			&fs.PathError{Op: "stat", Path: path, Err: err})
	}
	return st.Ino, nil
}

// NVIDIAMajors reads the majors of NVIDIA's character devices from /proc/devices. Their keys are
// the driver's names: "nvidia", "nvidia-uvm", "nvidia-caps" and others. It is empty without a
// driver.
func (h Host) NVIDIAMajors() (map[string]int, error) {
	text, err := ReadFile(filepath.Join(h.Proc, "devices"), maxProc)
	if err != nil {
		return nil, fmt.Errorf("cannot read device majors: %w", err)
	}
	majors := map[string]int{}
	characters, _, _ := strings.Cut(string(text), "Block devices")
	for line := range strings.Lines(characters) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		major, err := strconv.Atoi(number)
		if err == nil && strings.HasPrefix(name, "nvidia") {
			majors[name] = major
		}
	}
	return majors, nil
}

// vendorNVIDIA is NVIDIA's PCI vendor id as sysfs prints it.
const vendorNVIDIA = "0x10de"

// DRM returns the minors of the DRM major (226): true for NVIDIA GPUs, false for other vendors'.
func (h Host) DRM() (map[int]bool, error) {
	links, err := filepath.Glob(filepath.Join(h.Sys, "dev/char", strconv.Itoa(grant.MajorDRM)+":*"))
	if err != nil {
		return nil, err
	}
	minors := map[int]bool{}
	for _, link := range links {
		_, text, _ := strings.Cut(filepath.Base(link), ":")
		minor, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		vendor, err := ReadFile(filepath.Join(link, "device/vendor"), maxProc)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot tell whose DRM node %d:%d is: %w", grant.MajorDRM, minor, err)
		}
		minors[minor] = strings.TrimSpace(string(vendor)) == vendorNVIDIA
	}
	return minors, nil
}

// HasNVIDIA reports whether an NVIDIA GPU is on the PCI bus or NVIDIA's driver is loaded. It is
// true if that cannot be read.
func (h Host) HasNVIDIA() bool {
	if majors, err := h.NVIDIAMajors(); err != nil || len(majors) > 0 {
		return true
	}
	const display = "0x03" // the PCI base class of display controllers, which all GPUs have (pci_ids.h)
	bus := filepath.Join(h.Sys, "bus/pci/devices")
	devices, err := Names(bus)
	if errors.Is(err, fs.ErrNotExist) { // a kernel without PCI, or no sysfs to read it from
		_, err = os.Lstat(filepath.Join(h.Sys, "bus"))
	}
	if err != nil {
		return true
	}
	for _, name := range devices {
		device := filepath.Join(bus, name)
		vendor, err := ReadFile(filepath.Join(device, "vendor"), maxProc)
		if err != nil || strings.TrimSpace(string(vendor)) != vendorNVIDIA {
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return true
			}
			continue
		}
		class, err := ReadFile(filepath.Join(device, "class"), maxProc)
		if err != nil || strings.HasPrefix(string(class), display) {
			return true
		}
	}
	return false
}

// DriverVersion returns the version of the loaded NVIDIA kernel driver, or "" without one.
func (h Host) DriverVersion() (string, error) {
	text, err := ReadFile(filepath.Join(h.Sys, "module/nvidia/version"), maxProc)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the driver's version: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Random returns 16 random bytes from the kernel.
func Random() (random [16]byte, err error) {
	if Simulated != nil {
		return Simulated.Random(), nil
	}
	// Reads of up to 256 bytes are complete and uninterrupted once the pool is initialised
	// (getrandom(2)).
	if n, err := unix.Getrandom(random[:], 0); err != nil || n != len(random) {
		return random, fmt.Errorf("cannot get random bytes: %w", err)
	}
	return random, nil
}
