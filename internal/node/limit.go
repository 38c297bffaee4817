package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// shimPlaces are where the proxies lie, from the directory of the program that runs: as packages
// install them, and as `make build` does.
var shimPlaces = []string{"../lib/gpuledger/shim", "shim"}

// Shim looks for the proxies. Their directory is told without links: a package's is a link to that
// of its version, and what is mounted into a container is never written over.
func (n *Node) Shim() grant.Shim {
	var dirs []string
	if dir := n.Policy.Enforcement.Shim; dir != "" {
		dirs = append(dirs, dir)
	} else if program, err := os.Executable(); err == nil {
		for _, place := range shimPlaces {
			dirs = append(dirs, filepath.Join(filepath.Dir(program), place))
		}
	}
	var problem string
	for _, dir := range dirs {
		real, err := host.RealPath(dir)
		if err == nil {
			err = soundShim(real)
		}
		if err == nil {
			return grant.Shim{Dir: real, Throttle: isLibrary(
				filepath.Join(real, grant.ThrottleLibrary)) == nil}
		}
		if problem == "" || !errors.Is(err, fs.ErrNotExist) {
			problem = err.Error()
		}
	}
	return grant.Shim{Problem: "the shim is not installed: " + problem}
}

// soundShim returns an error if the shim's libraries are not there, or are of another architecture.
func soundShim(dir string) error {
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if err := isLibrary(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// isLibrary reads the head of an ELF file (elf.h): class, byte order, type and machine.
func isLibrary(path string) error {
	var head [20]byte
	err := host.ReadHead(path, head[:], 0)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s is no library: it is too short", path)
	}
	if err != nil {
		return err
	}
	if string(head[:6]) != "\x7fELF\x02\x01" || head[16] != elfShared || head[18] != elfMachine() ||
		head[19] != 0 {
		return fmt.Errorf("%s is no library of this machine's architecture", path)
	}
	return nil
}

const elfShared = 3 // ET_DYN

// elfMachine returns ELF's number of this architecture: EM_X86_64 or EM_AARCH64; 0, which no
// library has, on another one.
func elfMachine() byte {
	switch runtime.GOARCH {
	case "amd64":
		return 62
	case "arm64":
		return 183
	}
	return 0
}

// couldBeLimited reports whether one of the grants that a container may hold is of mode limit or
// mps.
func couldBeLimited(view grant.View) bool {
	return view.Whole != nil || slices.ContainsFunc(view.Grants, func(g grant.Grant) bool {
		return g.Mode == grant.Limit || g.Mode == grant.MPS
	})
}

func unlimitable(c grant.Container, err error) *Decision {
	r := refusal(grant.InjectionImpossible, "the memory limit of container %q cannot be set up", c.Name())
	r.Recorded = append(r.Recorded, err.Error()) // it may name other grants
	r.Hint = "an administrator finds the reason in the audit log"
	return r
}
