package driver_test

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/test/elffile"
)

// root is a driver root that a test makes. Names map to contents. A content that begins with "-> "
// is a link, with "so " a 64-bit library with this SONAME, with "so32 " a 32-bit one. "#!" is a
// script, "elf" a program, and "socket" a socket.
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
		return os.WriteFile(path, elffile.Library(elf.ELFCLASS64, elf.EM_X86_64, soname), 0o644)
	}
	if soname, found := cut("so32 "); found {
		return os.WriteFile(path, elffile.Library(elf.ELFCLASS32, elf.EM_386, soname), 0o644)
	}
	if soname, found := cut("sparc "); found {
		return os.WriteFile(path, elffile.Library(elf.ELFCLASS64, elf.EM_SPARCV9, soname), 0o644)
	}
	if content == "socket" {
		// bind accepts no path as long as that of a temporary directory
		return unix.Mknod(path, unix.S_IFSOCK|0o666, 0)
	}
	mode := os.FileMode(0o644)
	if _, found := cut("#!"); found {
		mode = 0o755
	}
	if content == "elf" {
		mode, content = 0o755, elf.ELFMAG
	}
	return os.WriteFile(path, []byte(content), mode)
}
