// Package host is the rim towards the kernel: boot id, processes, namespaces, device majors, random
// bytes. Everything above it takes a Host as a value, so a test can hand in another clock or
// another /proc.
package host

import (
	"bytes"
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

// Host is where a node's facts are read.
type Host struct {
	Proc string // "/proc"
	Sys  string // "/sys"
	Dev  string // "/dev"
	Now  func() time.Time
	UID  int // the caller's effective user, as its user namespace counts; 0 is root

	boot *bootID // of the machine, once it is asked for
}

// bootID is what a /proc says of the boot, which no process outlives. That it could not be read is
// not kept.
type bootID struct {
	proc string
	text atomic.Pointer[string]
}

// Default is the machine that the program runs on.
func Default() Host {
	return Host{Proc: "/proc", Sys: "/sys", Dev: "/dev", Now: time.Now, UID: os.Geteuid(),
		boot: &bootID{proc: "/proc"}}
}

// maxProc bounds what is read of a file in /proc or /sys, in bytes.
const maxProc = 1 << 20

// BootID tells this boot from every other (Documentation/admin-guide/sysctl/kernel.rst:
// random/boot_id).
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

// Self is the calling process. An exec keeps it; a fork does not.
func (h Host) Self() (grant.Process, error) {
	self, _, err := h.Process(os.Getpid())
	return self, err
}

// Runs reports whether the process is there and no zombie: a zombie holds no device. An error says
// that it can't be told.
//
// A process whose first thread has ended looks like a zombie as long as others run, and every exec
// by another thread passes through that (fs/exec.c, de_thread): the wrapper that becomes the real
// runtime does. Only one that is the last of its threads is a zombie for good. Of a thread that is
// just being taken away the kernel knows no number; it is asked anew.
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

// Process is the process that has a pid now, and its parent's pid.
func (h Host) Process(pid int) (p grant.Process, parent int, err error) {
	s, err := h.stat(pid)
	return grant.Process{PID: pid, Start: s.start}, s.parent, err
}

// stat is what /proc/PID/stat says of a process.
type stat struct {
	start   uint64 // clock ticks since the boot
	state   byte
	parent  int
	threads int // with the first one, even where that has ended; 0: it is just being taken away
}

// stat reads /proc/PID/stat. The command's name stands in parentheses and may itself contain some.
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
	for field, number := range map[int]*int{1: &s.parent, 17: &s.threads} {
		if *number, err = strconv.Atoi(string(fields[field])); err != nil {
			return s, err
		}
	}
	s.start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, err
}

// PIDNamespace is the inode of the caller's pid namespace. Pids of another namespace mean nothing
// here.
func (h Host) PIDNamespace() (uint64, error) { return h.namespace("pid") }

// TimeNamespace is the inode of the caller's time namespace, 0 where the kernel has none (before
// Linux 5.6). Start times of processes are counted from that namespace's boot.
func (h Host) TimeNamespace() (uint64, error) {
	ns, err := h.namespace("time")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return ns, err
}

// namespace is the inode of one of the caller's namespaces.
func (h Host) namespace(kind string) (uint64, error) {
	var st unix.Stat_t
	path := filepath.Join(h.Proc, "self/ns", kind)
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("cannot read the %s namespace: %w", kind,
			&fs.PathError{Op: "stat", Path: path, Err: err})
	}
	return st.Ino, nil
}

// NVIDIAMajors reads the majors of NVIDIA's character devices from /proc/devices, by the driver's
// own names ("nvidia", "nvidia-uvm", "nvidia-caps", ...). Empty without a driver.
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

// DRM tells which minors of the DRM major (226) belong to NVIDIA GPUs: true for theirs, false for
// other vendors'.
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

// HasNVIDIA reports whether an NVIDIA GPU is on the PCI bus, or NVIDIA's driver is loaded. What
// cannot be read could be one.
func (h Host) HasNVIDIA() bool {
	if majors, err := h.NVIDIAMajors(); err != nil || len(majors) > 0 {
		return true
	}
	const display = "0x03" // PCI's class of display controllers, with which all GPUs begin (pci_ids.h)
	devices, err := filepath.Glob(filepath.Join(h.Sys, "bus/pci/devices/*"))
	if err != nil {
		return true
	}
	for _, device := range devices {
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

// DriverVersion is the loaded NVIDIA kernel driver's version, or "" without one.
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

// Random gives 16 bytes of the kernel's randomness.
func Random() (random [16]byte, err error) {
	// Reads of up to 256 bytes are neither short nor interrupted once the pool is up
	// (getrandom(2)).
	if n, err := unix.Getrandom(random[:], 0); err != nil || n != len(random) {
		return random, fmt.Errorf("cannot get random bytes: %w", err)
	}
	return random, nil
}
