package driver

import (
	"cmp"
	"debug/elf"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// candidate is a name in a library directory, and the file that it leads to.
type candidate struct {
	dir  string // of libraries
	name string // below dir, with its part: "vdpau/libvdpau_nvidia.so.1"
	path string // of the regular file, without links
}

func (c candidate) stem() string { return stem(c.path) }

// stem is a library's name without its suffix: libcuda of libcuda.so.580.142.
func stem(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".so")
	return name
}

// suffix is what follows ".so.", or "".
func suffix(path string) string {
	_, suffix, _ := strings.Cut(filepath.Base(path), ".so.")
	return suffix
}

// candidates lists what could be the driver's in all of the directories. One that is another one by
// a link is listed once.
func (s *search) candidates(dirs []string) ([]candidate, error) {
	var all []candidate
	listed := map[string]bool{}
	for _, dir := range dirs {
		for _, part := range libraryParts {
			at, err := s.at(filepath.Join(dir, part))
			if leadsNowhere(err) || err == nil && (!at.mode.IsDir() || listed[at.path]) {
				continue
			}
			if err != nil {
				return nil, err
			}
			listed[at.path] = true
			found, err := s.inDirectory(dir, part)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

// withAlternatives adds to each directory of one driver among several (nvidia/current) those of the
// others, behind it.
func (s *search) withAlternatives(dirs []string) (all []string, err error) {
	for _, dir := range dirs {
		all = append(all, dir)
		above := filepath.Dir(dir)
		if filepath.Base(above) != alternatives {
			continue
		}
		names, err := s.list(above)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			other := filepath.Join(above, name)
			if slices.Contains(dirs, other) {
				continue
			}
			libraries, err := s.list(other) // beside drivers there are modules of the X server
			if err != nil {
				return nil, err
			}
			if slices.Contains(libraries, "libcuda.so.1") || slices.Contains(libraries, "libnvidia-ml.so.1") {
				all = append(all, other)
			}
		}
	}
	return all, nil
}

// inDirectory lists the candidates in one. Most libraries there are not the driver's, and are told
// by name alone.
func (s *search) inDirectory(dir, part string) ([]candidate, error) {
	names, err := s.list(filepath.Join(dir, part))
	if err != nil {
		return nil, err
	}
	var all []candidate
	for _, name := range names {
		if !strings.Contains(name, ".so") || !strings.HasPrefix(name, "lib") && part == "" {
			continue
		}
		f, err := s.at(filepath.Join(dir, part, name))
		if leadsNowhere(err) || err == nil && !f.mode.IsRegular() {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, candidate{dir: dir, name: filepath.Join(part, name), path: f.path})
	}
	return all, nil
}

// release is a driver's version in a file name: 580.142, 550.54.15.
var release = regexp.MustCompile(`^[0-9]+(\.[0-9]+){1,2}$`)

// versions lists what libcuda and libnvidia-ml there are, in their order, and the one that programs
// are led to.
func versions(all []candidate) (versions []string, led string) {
	for _, c := range all {
		if v := suffix(c.path); (c.stem() == "libcuda" || c.stem() == "libnvidia-ml") &&
			release.MatchString(v) {
			versions = append(versions, v)
			if led == "" && strings.HasSuffix(c.name, ".so.1") {
				led = v
			}
		}
	}
	slices.SortFunc(versions, byNumber)
	return slices.Compact(versions), led
}

// version decides which driver is the installed one: the loaded one where it is there, else the one
// that programs are led to.
func (s *search) version(all []candidate) string {
	versions, led := versions(all)
	switch {
	case len(versions) == 0:
		if s.where.Version != "" {
			s.note("driver %s is loaded, but its libraries are not below %s", s.where.Version, s.where.Root)
		}
		return ""
	case s.where.Version != "" && !slices.Contains(versions, s.where.Version):
		s.note("driver %s is loaded, but the libraries below %s are of %s", s.where.Version, s.where.Root,
			strings.Join(versions, " and "))
		return ""
	case s.where.Version != "":
		return s.where.Version
	case led != "":
		return led
	}
	return versions[len(versions)-1]
}

// byNumber compares versions as numbers, part by part.
func byNumber(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return cmp.Compare(len(x), len(y))
}

// libraries takes the driver's out of all candidates, each file once, with every name that leads to
// it from the directory in which it was found first.
func (s *search) libraries(all []candidate) {
	for _, c := range all {
		if s.seen[c.path] || !s.isDrivers(c.path, all) {
			continue
		}
		names := []string{}
		for _, other := range all {
			if base := filepath.Base(other.name); other.path == c.path && other.dir == c.dir &&
				base != filepath.Base(c.path) && isPlainName(base) {
				names = append(names, other.name)
			}
		}
		f, err := s.library(c, names)
		if err != nil {
			s.seen[c.path] = true
			s.note("%s is left out: %v", c.path, err)
			continue
		}
		s.add(f)
	}
}

// isDrivers tells the driver's libraries by the suffix of the file that the links end at. One with
// a version of its own counts if there is none of the driver's version.
func (s *search) isDrivers(path string, all []candidate) bool {
	if suffix(path) == s.found.Version && strings.HasPrefix(filepath.Base(path), "lib") {
		return true
	}
	return slices.Contains(ownVersions, stem(path)) && suffix(path) != "" && !isDriverVersion(suffix(path)) &&
		!slices.ContainsFunc(all, func(c candidate) bool {
			return c.stem() == stem(path) && suffix(c.path) == s.found.Version
		})
}

// isDriverVersion reports whether a suffix is the version of a driver, of whichever: all have three
// digits.
func isDriverVersion(suffix string) bool {
	major, _, _ := strings.Cut(suffix, ".")
	return release.MatchString(suffix) && len(major) >= 3
}

// library describes a library. Its SONAME stands in the file itself; it is what the loader looks
// for, whether or not the installation has a link of that name.
func (s *search) library(c candidate, names []string) (grant.DriverFile, error) {
	soname, bits, err := s.readELF(c.path)
	if err != nil {
		return grant.DriverFile{}, err
	}
	part := filepath.Dir(c.name)
	if soname == "" {
		soname = filepath.Base(c.path)
	}
	names = append(names, filepath.Join(part, soname))
	if more := moreNames[c.stem()]; more != "" {
		names = append(names, more)
	}
	slices.Sort(names)
	return grant.DriverFile{Path: c.path, Kind: grant.FileLibrary, Capability: libraries[c.stem()],
		Target: c.dir, Names: slices.Compact(names), Bits: bits}, nil
}

// machines are the ELF machines of this architecture and their sizes.
var machines = map[string]map[elf.Machine]int{
	"amd64": {elf.EM_X86_64: 64, elf.EM_386: 32},
	"arm64": {elf.EM_AARCH64: 64, elf.EM_ARM: 32},
}[runtime.GOARCH]

// readELF reads a library's SONAME and whether it is a 64-bit or a 32-bit one. A SONAME that is no
// plain file name would become a path: it is an error.
func (s *search) readELF(path string) (soname string, bits int, err error) {
	f, err := s.open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	library, err := elf.NewFile(f)
	if err != nil {
		return "", 0, fmt.Errorf("it is no library: %w", err)
	}
	if bits = machines[library.Machine]; bits == 0 {
		return "", 0, fmt.Errorf("it is for another machine (%v)", library.Machine)
	}
	sonames, err := library.DynString(elf.DT_SONAME)
	if err != nil {
		return "", 0, fmt.Errorf("its SONAME can't be read: %w", err)
	}
	if len(sonames) == 0 {
		return "", bits, nil
	}
	if !isPlainName(sonames[0]) {
		return "", 0, fmt.Errorf("its SONAME %q is no file name", sonames[0])
	}
	return sonames[0], bits, nil
}

// isPlainName reports whether a path in a container may be made of a name. (A regular expression
// with the length in it costs each program that starts 2,700 allocations.)
func isPlainName(name string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
	return name != "" && len(name) <= 201 && strings.Contains(letters, name[:1]) &&
		strings.Trim(name, letters+".+-") == ""
}
