package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// pieceSize is how many bytes of a file dpkg 1.21 and rpm 4.18 write at once. A file system with
// large folios (ext4 since Linux 6.16, xfs) keeps one write in one piece and maps it in one step.
// Go's linker leaves single pages. They cost each start of gpuledger's programs and of the peer's
// some tenths of a millisecond that no installed program pays.
const pieceSize = 32 << 10

// install copies all measured programs, with the bare runtime, to a tree like /usr beside the
// binaries. It writes piece by piece, as a package manager does. With -read-back it then drops them
// from the page cache. The first start reads them back by single pages, as after a boot.
func (r *rig) install() (err error) {
	if r.tree, err = os.MkdirTemp(r.options.bin, "installed-"+os.Getenv(machineVar)); err != nil {
		return err
	}
	if r.tree, err = filepath.Abs(r.tree); err != nil {
		return err
	}
	for _, program := range []*string{&r.runtime, &r.crun, &r.wrapper, &r.cli, &r.daemon, &r.peer} {
		from := *program
		if from == "" {
			continue
		}
		*program = filepath.Join(r.tree, "bin", filepath.Base(from))
		if err := r.copied(from, *program); err != nil {
			return err
		}
	}
	libraries, err := filepath.Glob(filepath.Join(r.options.bin, "shim/*"))
	for _, library := range libraries {
		err = errors.Join(err, r.copied(library,
			filepath.Join(r.tree, "lib/gpuledger/shim", filepath.Base(library))))
	}
	return err
}

func (r *rig) copied(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer target.Close()
	// The structs hide the files' own copy methods, which would write in the kernel's pieces.
	if _, err := io.CopyBuffer(struct{ io.Writer }{target}, struct{ io.Reader }{source},
		make([]byte, pieceSize)); err != nil {
		return fmt.Errorf("cannot install %s: %w", to, err)
	}
	if !r.options.readBack {
		return nil
	}
	return errors.Join(target.Sync(), unix.Fadvise(int(target.Fd()), 0, 0, unix.FADV_DONTNEED))
}

// installed describes the installation.
func (r *rig) installed() string {
	how := fmt.Sprintf("all of them copied to a tree of their own on %s as dpkg and rpm do, %d KiB at a time",
		fileSystem(r.tree), pieceSize>>10)
	if r.options.readBack {
		how += ", and read back from the disk as after a boot"
	}
	return how
}
