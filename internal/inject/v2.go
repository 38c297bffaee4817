package inject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// v2Programs are the device programs of a cgroup v2. The kernel runs all of them, and each can
// refuse a device, so all are changed to open one. A new program is an old one with the change's
// rules before it, so the runtime's rules need not be known.
type v2Programs struct{ dir *os.File }

func (c v2Programs) save() (s saved, err error) {
	if s.ids, _, err = attachedPrograms(int(c.dir.Fd())); err != nil {
		err = fmt.Errorf("cannot list the device programs of %s: %w", c.dir.Name(), err)
	}
	return s, err
}

// set changes the programs that were there before systemd got the change. systemd has since
// replaced its own program with one that has the change already, and replaces it again later.
func (c v2Programs) set(change Change, before saved) error {
	if !change.ChangesRules() {
		return nil
	}
	cgroup := int(c.dir.Fd())
	ids, flags, err := attachedPrograms(cgroup)
	if err != nil {
		return fmt.Errorf("cannot list the device programs of %s: %w", c.dir.Name(), err)
	}
	guarded := len(ids) > 0
	ids = slices.DeleteFunc(ids, func(id uint32) bool { return !slices.Contains(before.ids, id) })
	if !guarded && len(change.Close) == 0 {
		return errors.New("no device program guards it, so what is not to be opened is open")
	}
	if len(ids) == 0 && len(change.Close) > 0 {
		return attachBefore(cgroup, 0, unix.BPF_F_ALLOW_MULTI, change)
	}
	for _, id := range ids {
		if err := attachBefore(cgroup, id, flags, change); err != nil {
			return fmt.Errorf("cannot replace the device program %d of %s: %w", id, c.dir.Name(), err)
		}
	}
	return nil
}

// read returns nothing: programs were read again when they were attached.
func (v2Programs) read() ([]specs.LinuxDeviceCgroup, error) { return nil, nil }

// attachBefore replaces the program of an id with a change's rules, followed by that program. If
// the id is 0, it attaches the rules, followed by a program that allows all.
func attachBefore(cgroup int, id, flags uint32, change Change) error {
	old, rest := -1, allowAll()
	if id != 0 {
		var err error
		if old, err = openProgram(id); err != nil {
			return err
		}
		defer unix.Close(old)
		if rest, err = instructions(old); err != nil {
			return err
		}
		if err := selfContained(rest); err != nil {
			return err
		}
	}
	program := append(assemble(change), rest...)
	loaded, err := loadProgram(program)
	if err != nil {
		return fmt.Errorf("cannot load it: %w", err)
	}
	defer unix.Close(loaded)
	if err := attachProgram(cgroup, loaded, old, flags); err != nil {
		return fmt.Errorf("cannot attach it: %w", err)
	}
	return attached(cgroup, loaded, old, program)
}

// attached checks that the new program is there as it was written, and the old one is not.
func attached(cgroup, loaded, old int, program []byte) error {
	ids, _, err := attachedPrograms(cgroup)
	if err != nil {
		return err
	}
	var now, before bool
	for _, id := range ids {
		now = now || id == programID(loaded)
		before = before || old >= 0 && id == programID(old)
	}
	again, err := instructions(loaded)
	switch {
	case err != nil:
		return err
	case !now || before:
		return errors.New("it was attached and is not in place")
	case !bytes.Equal(again, program):
		return errors.New("the kernel made something else of it")
	}
	return nil
}

// Instructions that must not be in a program that is loaded again: calls, and loads of maps, which
// refer to file descriptors of another process.
const (
	opCall   = 0x85
	opLoad64 = 0x18 // with a source register: loads a map, a function or a variable
)

// selfContained refuses a program that would not be the same if it were loaded again. The programs
// of runc and crun only compare.
func selfContained(program []byte) error {
	for i := 0; i+8 <= len(program); i += 8 {
		op, regs := program[i], program[i+1]
		if op == opCall || op == opLoad64 && sourceRegister(regs) != 0 {
			return errors.New("it calls functions or uses maps, so it is not a container runtime's")
		}
	}
	return nil
}

func sourceRegister(regs byte) byte {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return regs >> 4
	}
	return regs & 0xf
}
