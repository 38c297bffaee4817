// Package driver finds the user space of NVIDIA's driver below a driver root: libraries with the
// names that programs know them by, programs, firmware, sockets and configuration. It runs when the
// inventory is taken, so that no create looks anything up.
package driver

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Where says where FindUserSpace searches for the driver.
type Where struct {
	Root     string // the driver root
	Version  string // of the loaded kernel driver; "" where there is none, or it can't be told
	Release  string // the kernel's, as uname -r prints it
	Firmware string // the kernel's own directory for firmware, if it has one set
}

// Of returns where to search for the driver of an inventory.
func Of(inv grant.Inventory, h host.Host) (Where, error) {
	w := Where{Root: inv.Driver.Root, Version: inv.Driver.Version}
	release, err := host.ReadFile(filepath.Join(h.Proc, "sys/kernel/osrelease"), maxLine)
	if err != nil {
		return w, fmt.Errorf("cannot read the kernel's release: %w", err)
	}
	w.Release = strings.TrimSpace(string(release))
	firmware, err := host.ReadFile(filepath.Join(h.Sys, "module/firmware_class/parameters/path"), maxLine)
	// without the loader in the kernel there is no such file
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return w, fmt.Errorf("cannot read the kernel's directory of firmware: %w", err)
	}
	w.Firmware = strings.TrimSpace(string(firmware))
	return w, nil
}

const maxLine = 4096

// UserSpace is the user space of a driver.
type UserSpace struct {
	Version string             // of its libraries; "" where there are none
	Files   []grant.DriverFile // sorted by path
	Notes   []string           // what a person should know about it
}

// maxFiles bounds what is found: a full installation has about a hundred, and each one is a mount.
const maxFiles = 2048

// FindUserSpace lists the driver's files. A root without a driver is not an error: nothing is found
// there. It leaves out libraries of another version than the loaded driver's and adds a note,
// because the driver refuses them.
func FindUserSpace(w Where) (UserSpace, error) {
	t, err := openTree(w.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return UserSpace{Notes: []string{"there is no driver root " + w.Root}}, nil
	}
	if err != nil {
		return UserSpace{}, fmt.Errorf("cannot look for the driver's files below %s: %w", w.Root, err)
	}
	defer t.close()
	s := search{tree: t, where: w, seen: map[string]bool{}}
	if err := s.run(); err != nil {
		return UserSpace{}, fmt.Errorf("cannot look for the driver's files below %s: %w", w.Root, err)
	}
	slices.SortFunc(s.found.Files, func(a, b grant.DriverFile) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Target, b.Target))
	})
	return s.found, nil
}

// search is one call of FindUserSpace.
type search struct {
	tree
	where Where
	seen  map[string]bool // paths that are found already
	found UserSpace
}

func (s *search) run() error {
	dirs, err := s.withAlternatives(libraryDirs)
	if err != nil {
		return err
	}
	candidates, err := s.candidates(dirs)
	if known, _ := versions(candidates); err == nil && len(known) == 0 {
		candidates, err = s.candidates(s.cachedDirs())
	}
	if err != nil {
		return err
	}
	s.found.Version = s.version(candidates)
	if s.found.Version == "" {
		return nil // without libraries there is no driver, whatever else lies there
	}
	s.libraries(candidates)
	for _, step := range []func() error{s.places, s.xorg, s.firmware} {
		if err := step(); err != nil {
			return err
		}
	}
	if len(s.found.Files) > maxFiles {
		return fmt.Errorf("there are more than %d", maxFiles)
	}
	return nil
}

func (s *search) note(format string, args ...any) {
	s.found.Notes = append(s.found.Notes, fmt.Sprintf(format, args...))
}

func (s *search) add(f grant.DriverFile) {
	if !s.seen[f.Path] {
		s.seen[f.Path] = true
		s.found.Files = append(s.found.Files, f)
	}
}

// places finds what has a fixed name. The first directory that has it counts.
func (s *search) places() error {
	for _, p := range places {
		for _, dir := range p.dirs {
			path := filepath.Join(dir, p.name)
			f, err := s.at(path)
			if leadsNowhere(err) {
				continue
			}
			if err != nil {
				return err
			}
			if !p.fits(f) {
				continue
			}
			if p.kind == grant.FileBinary {
				if isProgram, err := s.isProgram(path); err != nil {
					return err
				} else if !isProgram {
					continue
				}
			}
			target := path
			switch {
			case p.target != "":
				target = filepath.Join(p.target, p.name)
			case p.kind == grant.FileBinary && !slices.Contains(ordinaryDirs, dir):
				target = filepath.Join("/usr/bin", p.name)
			}
			s.add(grant.DriverFile{Path: f.path, Kind: p.kind, Capability: p.capability, Target: target})
			break
		}
	}
	return nil
}

// fits reports whether what was found is what it should be.
func (p place) fits(f found) bool {
	switch p.kind {
	case grant.FileSocket:
		return f.mode&fs.ModeSocket != 0
	case grant.FileBinary:
		return f.mode.IsRegular() && f.mode.Perm()&0o111 != 0
	}
	return f.mode.IsRegular()
}

// isProgram reports whether a file is the driver's own program. A script of that name runs one that
// lies elsewhere on the host, which no container has (seen on a virtual machine with the driver in
// /usr/local/nvidia).
func (s *search) isProgram(path string) (bool, error) {
	f, err := s.open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	magic := make([]byte, len(elf.ELFMAG))
	_, err = io.ReadFull(f, magic)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	}
	return string(magic) == elf.ELFMAG, err
}

// xorg finds the modules of the X server, each in the first directory that has it: the server finds
// them at the same place.
func (s *search) xorg() error {
	var dirs []string
	for _, lib := range libraryDirs {
		dirs = append(dirs, filepath.Join(lib, "nvidia/xorg"))
	}
	for _, base := range xorgBases() {
		for _, part := range xorgParts {
			dirs = append(dirs, filepath.Join(base, part))
		}
	}
	for _, name := range []string{"nvidia_drv.so", "libglxserver_nvidia.so." + s.found.Version} {
		for _, dir := range dirs {
			f, err := s.at(filepath.Join(dir, name))
			if leadsNowhere(err) || err == nil && !f.mode.IsRegular() {
				continue
			}
			if err != nil {
				return err
			}
			plain, _, _ := strings.Cut(name, ".so")
			// as the server asks for it
			s.add(grant.DriverFile{Path: f.path, Kind: grant.FileModule, Capability: grant.Display,
				Target: dir, Names: []string{plain + ".so"}})
			break
		}
	}
	return nil
}

func xorgBases() []string {
	bases := slices.Clone(xorgDirs)
	for _, lib := range libraryDirs {
		bases = append(bases, filepath.Join(lib, "xorg"))
	}
	return bases
}

// firmware finds what the driver loads into the card when it is used: a container needs it because
// loading may come with its own first use.
func (s *search) firmware() error {
	for _, dir := range firmwareDirs(s.where.Firmware, s.where.Release) {
		for _, pattern := range []string{"gsp*.bin", "ucodes*.bin"} {
			paths, err := s.glob(filepath.Join(dir, "nvidia", s.found.Version), pattern)
			if err != nil {
				return err
			}
			for _, path := range paths {
				f, err := s.at(path)
				if leadsNowhere(err) || err == nil && !f.mode.IsRegular() {
					continue
				}
				if err != nil {
					return err
				}
				s.add(grant.DriverFile{Path: f.path, Kind: grant.FileFirmware, Target: path})
			}
		}
	}
	return nil
}
