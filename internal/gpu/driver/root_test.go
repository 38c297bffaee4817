package driver_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// root is a driver root that a test makes. Names map to contents; a content that begins with "-> " is a link, one that begins
// with "so " a 64-bit library with this SONAME, "so32 " a 32-bit one; "#!" is a program and "socket" a socket.
type root map[string]string

func (r root) make(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range r {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := put(path, content); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func put(path, content string) error {
	cut := func(prefix string) (string, bool) {
		rest, found := bytes.CutPrefix([]byte(content), []byte(prefix))
		return string(rest), found
	}
	if target, found := cut("-> "); found {
		return os.Symlink(target, path)
	}
	if soname, found := cut("so "); found {
		return os.WriteFile(path, library(elf.ELFCLASS64, elf.EM_X86_64, soname), 0o644)
	}
	if soname, found := cut("so32 "); found {
		return os.WriteFile(path, library(elf.ELFCLASS32, elf.EM_386, soname), 0o644)
	}
	if soname, found := cut("sparc "); found {
		return os.WriteFile(path, library(elf.ELFCLASS64, elf.EM_SPARCV9, soname), 0o644)
	}
	if content == "socket" {
		return unix.Mknod(path, unix.S_IFSOCK|0o666, 0) // bind takes no path as long as that of a temporary directory
	}
	mode := os.FileMode(0o644)
	if _, found := cut("#!"); found {
		mode = 0o755
	}
	return os.WriteFile(path, []byte(content), mode)
}

// library is the least that is a shared library with a SONAME. An empty one leaves it without.
func library(class elf.Class, machine elf.Machine, soname string) []byte {
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
		write(&headers, []elf.Section64{{}, {Type: uint32(elf.SHT_STRTAB), Off: at, Size: uint64(len(strings))},
			{Type: uint32(elf.SHT_DYNAMIC), Off: at + uint64(len(strings)), Size: uint64(dynamic.Len()), Link: 1, Entsize: 16}})
		write(&file, elf.Header64{Ident: ident, Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Ehsize: 64,
			Shoff: at + uint64(len(strings)+dynamic.Len()), Shentsize: 64, Shnum: 3, Shstrndx: 1})
	} else {
		if soname != "" {
			write(&dynamic, elf.Dyn32{Tag: int32(elf.DT_SONAME), Val: 1})
		}
		write(&dynamic, elf.Dyn32{})
		at := uint32(binary.Size(elf.Header32{}))
		write(&headers, []elf.Section32{{}, {Type: uint32(elf.SHT_STRTAB), Off: at, Size: uint32(len(strings))},
			{Type: uint32(elf.SHT_DYNAMIC), Off: at + uint32(len(strings)), Size: uint32(dynamic.Len()), Link: 1, Entsize: 8}})
		write(&file, elf.Header32{Ident: ident, Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Ehsize: 52,
			Shoff: at + uint32(len(strings)+dynamic.Len()), Shentsize: 40, Shnum: 3, Shstrndx: 1})
	}
	file.Write(strings)
	file.Write(dynamic.Bytes())
	file.Write(headers.Bytes())
	return file.Bytes()
}
