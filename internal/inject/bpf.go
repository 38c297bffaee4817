package inject

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file has all calls of bpf(2). A library for it would be larger than the hook.

// bpf calls bpf(2) with one member of union bpf_attr (include/uapi/linux/bpf.h). The kernel takes
// the rest of the union as zero.
func bpf[T any](command int, attr *T) (int, error) {
	for {
		result, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(attr)),
			unsafe.Sizeof(*attr))
		if errno == 0 {
			return int(result), nil
		}
		if errno != unix.EINTR && errno != unix.EAGAIN { // EAGAIN: a signal came while the verifier ran
			return -1, errno
		}
	}
}

// maxPrograms is how many programs the kernel attaches to one cgroup (BPF_CGROUP_MAX_PROGS,
// include/linux/bpf-cgroup-defs.h).
const maxPrograms = 64

// attachedPrograms returns the ids of a cgroup's own device programs, in their order, and the flags
// with which they were attached.
func attachedPrograms(cgroup int) (ids []uint32, flags uint32, err error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	ids = make([]uint32, maxPrograms)
	attr := struct {
		cgroup, kind, queryFlags, attachFlags uint32
		ids                                   uint64
		count, _                              uint32
		// newer kernels (6.17) write a revision behind these members
		_ [128]byte
	}{cgroup: uint32(cgroup), kind: unix.BPF_CGROUP_DEVICE, ids: pinned(&pins, &ids[0]), count: maxPrograms}
	if _, err = bpf(unix.BPF_PROG_QUERY, &attr); err != nil {
		return nil, 0, err
	}
	return ids[:attr.count], attr.attachFlags, nil
}

func openProgram(id uint32) (int, error) {
	attr := struct{ id, next, flags uint32 }{id: id}
	return bpf(unix.BPF_PROG_GET_FD_BY_ID, &attr)
}

// programInfo is the beginning of struct bpf_prog_info.
type programInfo struct {
	_         uint32 // type
	id        uint32
	_         [8]byte // tag
	_         uint32  // length of the machine code
	xlatedLen uint32
	_         uint64 // machine code
	xlated    uint64
}

func getInfo(program int, info *programInfo) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	attr := struct {
		fd, size uint32
		info     uint64
	}{uint32(program), uint32(unsafe.Sizeof(*info)), pinned(&pins, info)}
	_, err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, &attr)
	return err
}

func programID(program int) uint32 {
	var info programInfo
	if getInfo(program, &info) != nil {
		return 0
	}
	return info.id
}

// instructions returns a program's instructions after the verifier. It changes none of a device
// program: the context is read as it is.
func instructions(program int) ([]byte, error) {
	var info programInfo
	if err := getInfo(program, &info); err != nil {
		return nil, err
	}
	if info.xlatedLen == 0 {
		return nil, unix.EPERM // the kernel means that this process may not see them
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	code := make([]byte, info.xlatedLen)
	info = programInfo{xlatedLen: info.xlatedLen, xlated: pinned(&pins, &code[0])}
	return code, getInfo(program, &info)
}

func loadProgram(code []byte) (int, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	license := []byte("Apache-2.0\x00")
	attr := struct {
		kind, count   uint32
		code, license uint64
		logLevel      uint32
		logSize       uint32
		log           uint64
		kernel, flags uint32
		name          [16]byte
	}{kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(code) / 8), code: pinned(&pins, &code[0]),
		license: pinned(&pins, &license[0])}
	copy(attr.name[:], "gpuledger")
	return bpf(unix.BPF_PROG_LOAD, &attr)
}

// attachProgram attaches a program to a cgroup, in place of the program old unless that is -1.
func attachProgram(cgroup, program, old int, flags uint32) error {
	attr := struct{ cgroup, program, kind, flags, replace uint32 }{
		uint32(cgroup), uint32(program), unix.BPF_CGROUP_DEVICE, flags, 0}
	if old >= 0 && flags&unix.BPF_F_ALLOW_MULTI != 0 { // else there is only one, and attaching replaces it
		attr.flags |= unix.BPF_F_REPLACE
		attr.replace = uint32(old)
	}
	_, err := bpf(unix.BPF_PROG_ATTACH, &attr)
	return err
}

// pinned returns an address as the kernel takes it. The memory stays there until it is unpinned: Go
// moves values on a stack, and does not see that a number is a pointer.
func pinned[T any](pins *runtime.Pinner, to *T) uint64 {
	pins.Pin(to)
	return uint64(uintptr(unsafe.Pointer(to)))
}
