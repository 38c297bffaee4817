package request

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// majorClasses inverts /proc/devices. Major 195 serves several names there, which the minor tells apart.
func majorClasses(majors map[string]int) map[int]grant.NodeClass {
	classes := map[int]grant.NodeClass{grant.MajorNVIDIA: grant.ClassGPU}
	for name, major := range majors {
		if major != grant.MajorNVIDIA {
			classes[major] = grant.NodeClass(name)
		}
	}
	return classes
}

// Devices is what GPU nodes are told by on this node, all of it.
func (n Node) Devices() (grant.DeviceMap, error) {
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

// readDRM asks whose DRM nodes there are, but only for a spec that has to do with that major: the answer costs a look
// into sysfs for each.
func (f *finder) readDRM() error {
	rules := f.spec.Linux.Resources.Devices
	wanted := len(rules) > 0 && !beginsClosed(rules) || asksForDRM(f.caller.Descriptors) ||
		slices.ContainsFunc(f.spec.Linux.Devices, func(d specs.LinuxDevice) bool { return kernelMajor(d.Major) == grant.MajorDRM }) ||
		slices.ContainsFunc(rules, func(r specs.LinuxDeviceCgroup) bool {
			return number(r.Major) == grant.MajorDRM || r.Allow && number(r.Major) == wildcard && opens(r)
		})
	if !wanted {
		return nil
	}
	var err error
	f.drm, err = f.node.DRM()
	return err
}

// mknod takes 12 bits of a major and 20 of a minor (new_decode_dev, include/linux/kdev_t.h); the runtimes hand on more.
func kernelMajor(n int64) int64 { return n & 0xfff }
func kernelMinor(n int64) int64 { return n & 0xfffff }

// class tells what a character device is to the driver; "" is no GPU's.
func (f *finder) class(major, minor int64) grant.NodeClass {
	switch {
	case major == grant.MajorNVIDIA && minor == grant.MinorControl:
		return grant.ClassControl
	case major == grant.MajorNVIDIA && minor == grant.MinorModeset:
		return grant.ClassModeset
	case major == grant.MajorNVIDIA:
		return grant.ClassGPU
	case major == grant.MajorDRM && f.drm[int(minor)]:
		return grant.ClassDRM
	case 0 <= major && major < firstDynamic:
		return ""
	}
	return f.classes()[int(major)]
}

// firstDynamic is the lowest character device major that Linux gives out by itself (CHRDEV_MAJOR_DYN_END, fs.h). All of the
// driver's but 195 are such, so a spec that names none of them, as most, need not be held against /proc/devices.
const firstDynamic = 234

// classes are the driver's majors, asked for once; after an error there is nothing to be told from them.
func (f *finder) classes() map[int]grant.NodeClass {
	if f.seen.majors == nil && f.err == nil {
		majors, err := f.node.Majors()
		if err != nil {
			f.fail(err)
			return nil
		}
		f.seen.majors = majorClasses(majors)
	}
	return f.seen.majors
}

// taken are the majors that some driver has, asked for once.
func (f *finder) taken() map[int]bool {
	if f.seen.taken == nil && f.node.Taken != nil && f.err == nil {
		taken, err := f.node.Taken()
		if err != nil {
			f.fail(err)
		}
		f.seen.taken = taken
	}
	return f.seen.taken
}

// cards reports whether an NVIDIA GPU is in the machine, though its driver may still have to be loaded: at boot, or by an operator's pod.
func (f *finder) cards() bool {
	if f.node.Cards == nil {
		return false
	}
	if f.seen.cards == nil {
		cards := f.node.Cards()
		f.seen.cards = &cards
	}
	return *f.seen.cards
}

// couldBecome reports whether a character device that is no GPU's now can be one's when a module of NVIDIA's driver is loaded: its
// number is free, and the kernel gives it to whoever comes next. What another driver has stays that driver's (docs/adr/0065).
func (f *finder) couldBecome(major, minor int64) bool {
	if major == grant.MajorDRM {
		_, known := f.drm[int(minor)]
		return !known && f.cards()
	}
	return grant.IsDynamicMajor(int(major)) && f.cards() && !f.taken()[int(major)]
}

// cover says how a grant covers a node: a modeset node is dropped, any other must come with the grant.
func (f *finder) cover(class grant.NodeClass) grant.Cover {
	if class == grant.ClassModeset {
		return grant.CoverDrop
	}
	return grant.CoverNode
}

// deviceNodes judges linux.devices by number. In a user namespace, the container's or its own, a runtime cannot create
// nodes: it binds the host's node at the path and ignores the numbers, so there the path counts as well.
func (f *finder) deviceNodes() {
	for _, d := range f.spec.Linux.Devices {
		major, minor := int64(-1), int64(-1)
		if isChar(d.Type) {
			major, minor = kernelMajor(d.Major), kernelMinor(d.Minor)
			f.nodeHit(d.Path, f.class(major, minor), major, minor)
		}
		if !f.userNamespaced() && !f.request.Unruled {
			continue
		}
		for _, path := range f.walks(d.Path) {
			if f.look(path).Shifting {
				f.hit(grant.Hit{Vector: "device:" + d.Path, Value: grant.Elsewhere, Code: grant.GPUDeviceNode, Cover: grant.CoverNever})
				break
			}
			if class, M, m := f.classAt(path); M != major || m != minor {
				f.nodeHit(d.Path, class, M, m)
			}
		}
	}
}

func (f *finder) nodeHit(path string, class grant.NodeClass, major, minor int64) {
	if class == "" {
		return
	}
	f.hit(grant.Hit{Vector: "device:" + path, Value: "c " + strconv.FormatInt(major, 10) + ":" + strconv.FormatInt(minor, 10), Code: f.codeFor(grant.GPUDeviceNode),
		Cover: f.cover(class), Node: grant.Node{Class: class, Minor: int(minor)}, Removal: grant.Removal{Kind: grant.RemoveDevice, Name: path}})
}

// codeFor blames a privileged container's devices and rules on the privilege: nobody wrote them one by one.
func (f *finder) codeFor(code grant.Code) grant.Code {
	if f.request.Privileged {
		return grant.PrivilegedGPU
	}
	return code
}

// classAt tells what the node at a path of the host is; nothing at the path is no GPU's.
func (f *finder) classAt(path string) (class grant.NodeClass, major, minor int64) {
	p := f.look(path)
	if p.err != nil {
		f.fail(cannotTell(path, p.err))
		return "", 0, 0
	}
	return f.classOf(p)
}

func cannotTell(path string, err error) error {
	return fmt.Errorf("cannot tell what device %s is: %w", grant.Printable(path), err)
}

// classOf tells what node a place is.
func (f *finder) classOf(p place) (class grant.NodeClass, major, minor int64) {
	if p.Mode&unix.S_IFMT != unix.S_IFCHR {
		return "", 0, 0
	}
	major, minor = int64(unix.Major(p.Rdev)), int64(unix.Minor(p.Rdev))
	if major == grant.MajorDRM && f.drm == nil {
		var err error
		if f.drm, err = f.node.DRM(); err != nil {
			f.fail(err)
			return "", 0, 0
		}
	}
	return f.class(major, minor), major, minor
}

// fail keeps the first error: after it, nothing that was found can be relied upon.
func (f *finder) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// isChar: 'u' is an unbuffered character device, and crun makes one of every type that is neither 'b' nor 'p'.
func isChar(kind string) bool { return !strings.HasPrefix(kind, "b") && !strings.HasPrefix(kind, "p") }

func (f *finder) anyDRM() bool {
	for _, nvidia := range f.drm {
		if nvidia {
			return true
		}
	}
	return false
}
