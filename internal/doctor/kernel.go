package doctor

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cgroup examines what is mounted at /sys/fs/cgroup.
func cgroup(dir string) Cgroup {
	switch {
	case isOn(dir, unix.CGROUP2_SUPER_MAGIC):
		return Cgroup{Version: 2, Error: deviceProgramsOf(dir)}
	case isOn(filepath.Join(dir, "devices"), unix.CGROUP_SUPER_MAGIC):
		return Cgroup{Version: 1, Hybrid: isOn(filepath.Join(dir, "unified"), unix.CGROUP2_SUPER_MAGIC),
			Error: unix.Access(filepath.Join(dir, "devices/devices.allow"), unix.W_OK)}
	}
	return Cgroup{}
}

func isOn(dir string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && int64(st.Type) == magic
}

// deviceProgramsOf queries the device programs of a cgroup. A process that may not query them, or a
// kernel without them, cannot attach one.
func deviceProgramsOf(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// union bpf_attr, the member "query" (include/uapi/linux/bpf.h); without room for ids it only
	// counts
	attr := struct {
		cgroup, kind, queryFlags, attachFlags uint32
		ids                                   uint64
		count, _                              uint32
		_                                     [128]byte
	}{cgroup: uint32(fd), kind: unix.BPF_CGROUP_DEVICE}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr))
	if errno != 0 && !errors.Is(errno, unix.ENOSPC) {
		return fmt.Errorf("bpf(BPF_PROG_QUERY): %w", errno)
	}
	return nil
}
