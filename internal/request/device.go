package request

import (
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// majorClasses inverts /proc/devices. Major 195 has several names there, which the minor tells
// apart.
func majorClasses(majors map[string]int) map[int]grant.NodeClass {
	classes := map[int]grant.NodeClass{grant.MajorNVIDIA: grant.ClassGPU}
	for name, major := range majors {
		if major != grant.MajorNVIDIA {
			classes[major] = grant.NodeClass(name)
		}
	}
	return classes
}

// Devices returns all that tells the device nodes of GPUs from others on this node.
func (n NodeFacts) Devices() (grant.DeviceMap, error) {
	majors, err := n.Majors()
	if err != nil {
		return grant.DeviceMap{}, err
	}
	drm, err := n.DRM()
	if err != nil || n.Taken == nil {
		return grant.DeviceMap{Majors: majorClasses(majors), DRM: drm}, err
	}
	taken, err := n.Taken()
	return grant.DeviceMap{Majors: majorClasses(majors), DRM: drm, Taken: taken}, err
}

// namesDRM reports whether a spec or a descriptor has to do with the major of DRM: to learn which
// DRM nodes are GPUs' takes a look into sysfs for each.
func namesDRM(spec Spec, descriptors []host.Descriptor) bool {
	rules := spec.Linux.Resources.Devices
	return len(rules) > 0 && !beginsClosed(rules) || asksForDRM(descriptors) ||
		slices.ContainsFunc(spec.Linux.Devices,
			func(d specs.LinuxDevice) bool { return kernelMajor(d.Major) == grant.MajorDRM }) ||
		slices.ContainsFunc(rules, func(r specs.LinuxDeviceCgroup) bool {
			return number(r.Major) == grant.MajorDRM || r.Allow && number(r.Major) == wildcard && opens(r)
		})
}

// mknod takes 12 bits of a major and 20 of a minor (new_decode_dev, include/linux/kdev_t.h); the
// runtimes pass on more.
func kernelMajor(n int64) int64 { return n & 0xfff }
func kernelMinor(n int64) int64 { return n & 0xfffff }

// isChar: 'u' is an unbuffered character device, and crun makes one of every type that is neither
// 'b' nor 'p'.
func isChar(kind string) bool { return !strings.HasPrefix(kind, "b") && !strings.HasPrefix(kind, "p") }

// numbers are the device numbers of the node that hold for all that is asked of one container.
type numbers struct {
	majors map[int]grant.NodeClass // of the driver; nil until a spec names a major that could be one
	// taken are the majors that any driver has; nil until a spec names one that NVIDIA's driver
	// could get
	taken map[int]bool
	cards *bool // an NVIDIA GPU is in the machine; nil until it is asked for
}

// devices tell what a device is by its numbers. They ask the node only for what a spec makes them
// need.
type devices struct {
	node    *NodeFacts
	numbers *numbers
	drm     map[int]bool // minors of major 226; nil until a device of that major is looked at
	// err is the first error. After it, no answer can be relied on.
	err error
}

// fail keeps the first error.
func (d *devices) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// cannotTell keeps the error of a device whose numbers cannot be read.
func (d *devices) cannotTell(path string, err error) {
	d.fail(fmt.Errorf("cannot tell what device %s is: %w", grant.Printable(path), err))
}

// readDRM asks which DRM nodes are GPUs'.
func (d *devices) readDRM() {
	var err error
	if d.drm, err = d.node.DRM(); err != nil {
		d.fail(err)
	}
}

// class returns what a character device is to the driver; "" if it is no GPU's.
func (d *devices) class(major, minor int64) grant.NodeClass {
	switch {
	case major == grant.MajorNVIDIA && minor == grant.MinorControl:
		return grant.ClassControl
	case major == grant.MajorNVIDIA && minor == grant.MinorModeset:
		return grant.ClassModeset
	case major == grant.MajorNVIDIA:
		return grant.ClassGPU
	case major == grant.MajorDRM && d.drm[int(minor)]:
		return grant.ClassDRM
	case 0 <= major && major < firstDynamic:
		return ""
	}
	return d.classes()[int(major)]
}

// firstDynamic is the lowest character device major that Linux assigns by itself
// (CHRDEV_MAJOR_DYN_END, fs.h). All of the driver's majors but 195 are such. So a spec that names
// none of them, as most, need not be compared with /proc/devices.
const firstDynamic = 234

// classes returns the driver's majors. It asks for them once; after an error it returns nil.
func (d *devices) classes() map[int]grant.NodeClass {
	if d.numbers.majors == nil && d.err == nil {
		majors, err := d.node.Majors()
		if err != nil {
			d.fail(err)
			return nil
		}
		d.numbers.majors = majorClasses(majors)
	}
	return d.numbers.majors
}

// taken returns the majors that some driver has. It asks for them once.
func (d *devices) taken() map[int]bool {
	if d.numbers.taken == nil && d.node.Taken != nil && d.err == nil {
		taken, err := d.node.Taken()
		if err != nil {
			d.fail(err)
		}
		d.numbers.taken = taken
	}
	return d.numbers.taken
}

// cards reports whether an NVIDIA GPU is in the machine. Its driver may still have to be loaded: at
// boot, or by an operator's pod.
func (d *devices) cards() bool {
	if d.node.Cards == nil {
		return false
	}
	if d.numbers.cards == nil {
		cards := d.node.Cards()
		d.numbers.cards = &cards
	}
	return *d.numbers.cards
}

// reachable reports whether an NVIDIA GPU is in the machine, or its driver has devices here. On any
// other machine a rule that opens everything opens no GPU.
func (d *devices) reachable() bool {
	return len(d.classes()) > 1 || d.anyDRM() || d.cards() // 195 is NVIDIA's everywhere
}

// couldBecome reports whether a character device that is no GPU's now can be one's after a module
// of NVIDIA's driver is loaded: its number is free, and the kernel gives it to the next driver that
// asks. A number of another driver stays that driver's (docs/adr/0065).
func (d *devices) couldBecome(major, minor int64) bool {
	if major == grant.MajorDRM {
		_, known := d.drm[int(minor)]
		return !known && d.cards()
	}
	return grant.IsDynamicMajor(int(major)) && d.cards() && !d.taken()[int(major)]
}

// classAt returns what the node is that a path leads to; a path that leads to nothing is no GPU's.
func (d *devices) classAt(path string, p hostpath.Place) (class grant.NodeClass, major, minor int64) {
	if p.Err != nil {
		d.cannotTell(path, p.Err)
		return "", 0, 0
	}
	return d.classOf(p)
}

// classOf returns what node a place is.
func (d *devices) classOf(p hostpath.Place) (class grant.NodeClass, major, minor int64) {
	if p.Mode&unix.S_IFMT != unix.S_IFCHR {
		return "", 0, 0
	}
	major, minor = int64(unix.Major(p.Rdev)), int64(unix.Minor(p.Rdev))
	if major == grant.MajorDRM && d.drm == nil {
		if d.readDRM(); d.err != nil {
			return "", 0, 0
		}
	}
	return d.class(major, minor), major, minor
}

// anyDRM reports whether a DRM node is a GPU's.
func (d *devices) anyDRM() bool {
	for _, nvidia := range d.drm {
		if nvidia {
			return true
		}
	}
	return false
}

// cover returns how a grant covers a node: a modeset node is dropped, any other must come with the
// grant.
func cover(class grant.NodeClass) grant.Cover {
	if class == grant.ClassModeset {
		return grant.CoverDrop
	}
	return grant.CoverNode
}
