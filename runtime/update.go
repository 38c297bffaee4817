package runtime

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/request"
)

// update checks the resources that an update sets. If something has to be removed from them, the
// real runtime reads the rest from its standard input, which is then a file in memory.
func (w *wrapper) update() error {
	if err := w.Ambiguous(w.real); err != nil && w.node.Mode() == grant.Enforce {
		return &grant.Refusal{Code: grant.SpecInvalid, Message: "cannot tell what the update sets: " +
			err.Error(), Hint: "see " + grant.Docs + "refusals.md#spec-invalid"}
	}
	if w.Resources == 0 {
		return nil
	}
	path := w.argv[w.Resources][len(w.ResourcesPrefix):]
	if path == "" { // runc treats it as not given
		return nil
	}
	resources, again, err := readResources(path)
	if err != nil {
		return err
	}
	rest, err := w.node.Update(grant.Container{RuntimeRoot: w.runtimeRoot(), ID: w.ID}, resources)
	if mode := w.node.Mode(); err != nil && mode != grant.Enforce {
		w.warn("would be " + err.Error() + "; it is done because " + notEnforced[mode])
		rest, err = resources, nil
	}
	if err != nil {
		return err
	}
	if again && bytes.Equal(rest, resources) {
		return nil
	}
	if err := asStdin(rest); err != nil {
		return err
	}
	w.argv[w.Resources] = w.ResourcesPrefix + "-"
	return nil
}

// readResources reads a file, or "-", the standard input. again: the runtime can read the same
// there once more, which a pipe gives only once.
func readResources(path string) (resources []byte, again bool, err error) {
	from := os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, false, fmt.Errorf("cannot read the resources of the update: %w", err)
		}
		defer f.Close()
		info, err := f.Stat()
		from, again = f, err == nil && info.Mode().IsRegular()
	}
	resources, err = io.ReadAll(io.LimitReader(from, request.MaxSpec+1))
	if err != nil {
		return nil, false, fmt.Errorf("cannot read the resources of the update: %w", err)
	}
	return resources, again, nil
}

// asStdin makes data the standard input of the next program.
func asStdin(data []byte) error {
	fd, err := unix.MemfdCreate("resources", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot pass the resources of the update on: %w", err)
	}
	f := os.NewFile(uintptr(fd), "resources")
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("cannot pass the resources of the update on: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cannot pass the resources of the update on: %w", err)
	}
	return unix.Dup3(int(f.Fd()), int(os.Stdin.Fd()), 0) // without O_CLOEXEC
}
