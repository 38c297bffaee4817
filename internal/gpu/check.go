package gpu

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

const (
	maxUUID  = 96   // bytes, NVML_DEVICE_UUID_V2_BUFFER_SIZE
	maxMinor = 247  // of /dev/nvidiaN: 248 to 255 are control nodes (nv-chardev-numbers.h)
	maxMajor = 4095 // 12 bits in a dev_t (linux/kdev_t.h)

	maxDeviceMinor = 1<<20 - 1 // the other 20 bits
)

// Check returns why an inventory is invalid, or nil. Every decision relies on what it checks. UUIDs
// become file names and values of NVIDIA_VISIBLE_DEVICES; numbers become device rules.
func Check(inv grant.Inventory) error {
	switch {
	case inv.Version < 1:
		return errors.New("it has no version")
	case inv.BootID == "":
		return errors.New("it has no boot id")
	case inv.Source == "":
		return errors.New("it has no source")
	}
	for name, major := range inv.Majors {
		if name == "" || major < 0 || major > maxMajor {
			return fmt.Errorf("major %d of %q is not one of 0 to %d", major, name, maxMajor)
		}
	}
	for _, f := range inv.Driver.Files {
		if err := checkFile(f); err != nil {
			return fmt.Errorf("driver file %q: %w", f.Path, err)
		}
	}
	seen := newSeen(len(inv.GPUs))
	for i, g := range inv.GPUs {
		if err := seen.gpu(g); err != nil {
			return fmt.Errorf("GPU %d of the list: %w", i+1, err)
		}
	}
	return nil
}

// checkFile checks that a driver file can become a mount: its paths are absolute and clean, its
// names stay below a directory.
func checkFile(f grant.DriverFile) error {
	switch {
	case !filepath.IsAbs(f.Path) || filepath.Clean(f.Path) != f.Path:
		return errors.New("its path is not absolute and plain")
	case !filepath.IsAbs(f.Target) || filepath.Clean(f.Target) != f.Target:
		return fmt.Errorf("its target %q is not absolute and plain", f.Target)
	case (f.Kind == grant.FileLibrary || f.Kind == grant.FileModule) && len(f.Names) == 0:
		return errors.New("nothing would find it: it has no name")
	}
	for _, name := range f.Names {
		if isPlain := name != "" && name[0] != '.' && !strings.Contains(name, "/"); !isPlain &&
			(!filepath.IsLocal(name) || filepath.Clean(name) != name) {
			return fmt.Errorf("its name %q is not below a directory", name)
		}
	}
	return nil
}

// seen records the values that no second GPU may have.
type seen struct {
	uuids   map[string]bool
	indexes map[int]bool
	minors  map[int]bool
}

func newSeen(n int) seen {
	return seen{make(map[string]bool, n), make(map[int]bool, n), make(map[int]bool, n)}
}

func (s seen) gpu(g grant.GPU) error {
	if err := s.uuid(g.UUID); err != nil {
		return err
	}
	switch {
	case g.Index < 0:
		return fmt.Errorf("index %d is below 0", g.Index)
	case s.indexes[g.Index]:
		return fmt.Errorf("index %d is another GPU's", g.Index)
	case g.Minor < 0 || g.Minor > maxMinor:
		return fmt.Errorf("minor %d is not one of 0 to %d", g.Minor, maxMinor)
	case s.minors[g.Minor]:
		return fmt.Errorf("minor %d is another GPU's", g.Minor)
	case g.PCI != "" && (filepath.Base(g.PCI) != g.PCI || g.PCI[0] == '.'):
		return fmt.Errorf("PCI address %q is no name of a directory", g.PCI)
	case g.Health == "":
		return errors.New("it has no health")
	case g.Memory == 0 && g.Health == grant.Healthy: // the memory of an unhealthy GPU is often unknown
		return errors.New("it has no memory")
	}
	s.indexes[g.Index], s.minors[g.Minor] = true, true
	return s.parts(g)
}

// parts checks the DRM nodes and the partitions of a GPU.
func (s seen) parts(g grant.GPU) error {
	for _, path := range g.Render {
		if name, found := strings.CutPrefix(path, "/dev/dri/"); !found || !isName(name) {
			return fmt.Errorf("%q is no DRM node", path)
		}
	}
	for _, path := range g.Links {
		if name, found := strings.CutPrefix(path, "/dev/dri/by-path/pci-"); !found ||
			!isName("pci-"+strings.ReplaceAll(name, ":", ".")) {
			return fmt.Errorf("%q is no link to a DRM node", path)
		}
	}
	for _, m := range g.MIG {
		err := s.uuid(m.UUID)
		switch {
		case err != nil:
		case m.Memory == 0:
			err = errors.New("it has no memory")
		case m.GI < 0 || m.CI < 0:
			err = fmt.Errorf("instance %d/%d is below 0", m.GI, m.CI)
		case m.Caps != [2]int{} && (m.Caps[0] < 1 || m.Caps[1] < 1 ||
			max(m.Caps[0], m.Caps[1]) > maxDeviceMinor):
			err = fmt.Errorf("capability minors %v are not 1 to %d", m.Caps, maxDeviceMinor)
		}
		if err != nil {
			return fmt.Errorf("MIG device %q: %w", m.Profile, err)
		}
	}
	return nil
}

func (s seen) uuid(uuid string) error {
	switch {
	case !isName(uuid):
		return fmt.Errorf("UUID %q is not a letter followed by letters, digits, '-', '.' and '_'", uuid)
	case s.uuids[uuid]:
		return fmt.Errorf("UUID %q is another GPU's", uuid)
	}
	s.uuids[uuid] = true
	return nil
}

// isName accepts text that is safe as a file name and in a comma-separated list. It begins with a
// letter, so a UUID cannot be taken for an index and a file is not hidden.
func isName(text string) bool {
	for i, c := range []byte(text) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case i > 0 && ('0' <= c && c <= '9' || c == '-' || c == '.' || c == '_'):
		default:
			return false
		}
	}
	return text != "" && len(text) <= maxUUID
}
