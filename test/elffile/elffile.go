// Package elffile makes the least that a program which looks at shared libraries takes for one:
// tests and benchmarks have an installation of a driver without the driver.
package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// Library is the content of one with a SONAME, for little-endian machines. An empty SONAME leaves
// it without.
func Library(class elf.Class, machine elf.Machine, soname string) []byte {
	strings := []byte("\x00" + soname + "\x00")
	var dynamic, headers, file bytes.Buffer
	write := func(b *bytes.Buffer, v any) { _ = binary.Write(b, binary.LittleEndian, v) }
	ident := [16]byte{0x7f, 'E', 'L', 'F', byte(class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	if class == elf.ELFCLASS64 {
		if soname != "" {
			write(&dynamic, elf.Dyn64{Tag: int64(elf.DT_SONAME), Val: 1})
		}
		write(&dynamic, elf.Dyn64{})
		at := uint64(binary.Size(elf.Header64{}))
		write(&headers, []elf.Section64{{}, {Type: uint32(elf.SHT_STRTAB), Off: at,
			Size: uint64(len(strings))},
			{Type: uint32(elf.SHT_DYNAMIC), Off: at + uint64(len(strings)), Size: uint64(dynamic.Len()),
				Link: 1, Entsize: 16}})
		write(&file, elf.Header64{Ident: ident, Type: uint16(elf.ET_DYN), Machine: uint16(machine),
			Version: 1, Ehsize: 64,
			Shoff: at + uint64(len(strings)+dynamic.Len()), Shentsize: 64, Shnum: 3, Shstrndx: 1})
	} else {
		if soname != "" {
			write(&dynamic, elf.Dyn32{Tag: int32(elf.DT_SONAME), Val: 1})
		}
		write(&dynamic, elf.Dyn32{})
		at := uint32(binary.Size(elf.Header32{}))
		write(&headers, []elf.Section32{{}, {Type: uint32(elf.SHT_STRTAB), Off: at,
			Size: uint32(len(strings))},
			{Type: uint32(elf.SHT_DYNAMIC), Off: at + uint32(len(strings)), Size: uint32(dynamic.Len()),
				Link: 1, Entsize: 8}})
		write(&file, elf.Header32{Ident: ident, Type: uint16(elf.ET_DYN), Machine: uint16(machine),
			Version: 1, Ehsize: 52,
			Shoff: at + uint32(len(strings)+dynamic.Len()), Shentsize: 40, Shnum: 3, Shstrndx: 1})
	}
	file.Write(strings)
	file.Write(dynamic.Bytes())
	file.Write(headers.Bytes())
	return file.Bytes()
}
