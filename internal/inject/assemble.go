package inject

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// A device program gets struct bpf_cgroup_dev_ctx (include/uapi/linux/bpf.h) in r1: access_type
// (the access in the upper half, the device's type in the lower), major, minor; it returns 1 to
// allow. Registers 2 to 5 are free to use; r1 must be left to the code behind.
const (
	regResult = iota
	regContext
	regType
	regAccess
	regMajor
	regMinor
)

// Opcodes (Documentation/bpf/standardization/instruction-set.rst).
const (
	opLoadWord  = 0x61 // dst = *(u32 *)(src + offset)
	opMove      = 0xb4 // dst = immediate, 32 bits
	opMoveReg   = 0xbc // dst = src
	opAnd       = 0x54
	opShiftDown = 0x74
	opJumpNot   = 0x56 // if dst != immediate, 32 bits
	opJumpSame  = 0x16
	opJump      = 0x05
	opExit      = 0x95
)

// What bpf_cgroup_dev_ctx calls types and accesses.
const (
	devBlock, devChar                    = 1, 2
	accessMknod, accessRead, accessWrite = 1, 2, 4
)

type instruction struct {
	op       byte
	dst, src byte
	offset   int16
	value    int32
}

func (i instruction) append(to []byte) []byte {
	regs := i.dst | i.src<<4
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		regs = i.src | i.dst<<4
	}
	to = append(to, i.op, regs)
	to = binary.NativeEndian.AppendUint16(to, uint16(i.offset))
	return binary.NativeEndian.AppendUint32(to, uint32(i.value))
}

// assemble writes a change's rules as the beginning of a program, in this order: what is allowed,
// what stays as it was although Close covers it, what is closed. A device that matches none goes on
// to the code behind.
func assemble(change Change) []byte {
	var program []byte
	add := func(all ...instruction) {
		for _, i := range all {
			program = i.append(program)
		}
	}
	add(instruction{op: opLoadWord, dst: regType, src: regContext, offset: 0},
		instruction{op: opAnd, dst: regType, value: 0xffff},
		instruction{op: opLoadWord, dst: regAccess, src: regContext, offset: 0},
		instruction{op: opShiftDown, dst: regAccess, value: 16},
		instruction{op: opLoadWord, dst: regMajor, src: regContext, offset: 4},
		instruction{op: opLoadWord, dst: regMinor, src: regContext, offset: 8})
	for _, r := range change.Allow {
		add(block(r, 1)...)
	}
	var closing []instruction
	for _, r := range change.Close {
		closing = append(closing, block(r, 0)...)
	}
	for _, r := range slices.Backward(change.Others) {
		if slices.ContainsFunc(change.Close, func(c grant.DeviceRule) bool { return overlaps(r, c) }) {
			closing = append(skip(r, len(closing)), closing...)
		}
	}
	add(closing...)
	return program
}

func allowAll() []byte {
	return instruction{op: opExit}.append(instruction{op: opMove, dst: regResult, value: 1}.append(nil))
}

// block returns result for the devices of a rule. An allowing rule matches if it has all of the
// requested access, a closing rule if it has any of it.
func block(r grant.DeviceRule, result int32) []instruction {
	mask, miss := ^accessBits(r.Access), byte(opJumpNot) // something beyond the rule's access
	if result == 0 {
		mask, miss = accessBits(r.Access), opJumpSame // nothing of it
	}
	tests := append(numbers(r), instruction{op: opMoveReg, dst: regResult, src: regAccess},
		instruction{op: opAnd, dst: regResult, value: mask},
		instruction{op: miss, dst: regResult, value: 0})
	return guard(tests, instruction{op: opMove, dst: regResult, value: result}, instruction{op: opExit})
}

// skip jumps over count instructions for the devices of a rule, for any access.
func skip(r grant.DeviceRule, count int) []instruction {
	return guard(numbers(r), instruction{op: opJump, offset: int16(count)})
}

// numbers returns the tests for a rule's devices.
func numbers(r grant.DeviceRule) (tests []instruction) {
	test := func(register byte, value int64) {
		tests = append(tests, instruction{op: opJumpNot, dst: register, value: int32(value)})
	}
	switch r.Type {
	case 'b':
		test(regType, devBlock)
	case 'c':
		test(regType, devChar)
	}
	if r.Major >= 0 {
		test(regMajor, r.Major)
	}
	if r.Minor >= 0 {
		test(regMinor, r.Minor)
	}
	return tests
}

// guard makes every failed test jump over the instructions of then.
func guard(tests []instruction, then ...instruction) []instruction {
	all := append(slices.Clone(tests), then...)
	for i := range tests {
		if all[i].op == opJumpNot || all[i].op == opJumpSame {
			all[i].offset = int16(len(all) - i - 1)
		}
	}
	return all
}

func accessBits(access string) int32 {
	var bits int32
	for i, bit := range []int32{accessMknod, accessRead, accessWrite} {
		if strings.IndexByte(access, "mrw"[i]) >= 0 {
			bits |= bit
		}
	}
	return bits
}
