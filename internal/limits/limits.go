package limits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Limits is a grant's limits file, mapped for changes. The processes of its containers read a
// change at their next allocation.
type Limits struct {
	dir    string
	memory []byte
	record *limitRecord
}

// Ensure makes dir and the files of a grant in it. It sets each share's bytes and the percent of
// the GPUs' time. Files that exist for the same devices, in any order, stay, and processes keep
// using them; Ensure repairs in place what a container did to its region. No other program may
// write into dir, and only one process at a time may call Ensure. A grant has at most MaxDevices
// devices. New files have what a context takes of a device, as contexts returns it; nil: nothing is
// known.
func Ensure(dir string, shares []grant.Share, percent int, contexts func(uuid string) grant.Bytes) error {
	devices, err := devicesOf(shares, percent)
	if err == nil {
		err = establish(dir, devices, func(i int) uint64 {
			if contexts == nil {
				return 0
			}
			return uint64(contexts(shares[i].UUID))
		})
	}
	if err != nil {
		return fmt.Errorf("cannot limit the grant in %s: %w", dir, err)
	}
	return nil
}

// establish makes the region before the limits, so that a reader that finds the limits also finds
// the region.
func establish(dir string, devices []device, context func(i int) uint64) error {
	if err := host.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// true for all containers of a grant but the first
	if r, err := read(dir); err == nil && r.matches(devices) {
		return ensureRegion(dir, headOf(&r), false)
	}
	l, err := Open(dir)
	if err == nil {
		defer l.Close()
		if own, same := l.record.inOrder(devices); same {
			l.set(own)
			return ensureRegion(dir, headOf(l.record), false)
		}
	}
	// Containers may use the existing files. They cannot be opened for a moment, the caller is root
	// without capabilities, or a lease is held.
	if err != nil && !NoneIn(dir, err) {
		return err
	}
	random, err := host.Random()
	if err != nil {
		return err
	}
	r := limitRecord{Magic: limitsMagic, Version: version, Devices: uint32(len(devices)),
		ID: binary.NativeEndian.Uint64(random[:]), Generation: 1}
	for i := range r.Device[:copy(r.Device[:], devices)] {
		r.Device[i].Context = context(i)
	}
	if err := ensureRegion(dir, headOf(&r), true); err != nil {
		return err
	}
	return host.ReplaceFile(filepath.Join(dir, grant.LimitsFile), padded(&r), 0o444, host.Volatile)
}

func devicesOf(shares []grant.Share, percent int) ([]device, error) {
	if len(shares) == 0 || len(shares) > MaxDevices {
		return nil, fmt.Errorf("it has %d devices, and the shim can limit 1 to %d", len(shares), MaxDevices)
	}
	devices := make([]device, len(shares))
	for i, s := range shares {
		uuid, err := ParseUUID(s.UUID)
		if err != nil {
			return nil, err
		}
		devices[i] = device{UUID: uuid, Bytes: uint64(s.Memory), Share: uint64(percent)}
	}
	return devices, nil
}

// bytesOf returns the bytes of a value without pointers, in the shim's layout. The caller reads
// into them or writes them out.
func bytesOf[T limitRecord | head](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// padded returns a page that begins with the value and is zero after it.
func padded[T limitRecord | head](v *T) []byte {
	content := make([]byte, page)
	copy(content, bytesOf(v))
	return content
}

// NoneIn reports whether an error of Open says that dir has no limits file, so that Ensure makes
// one. Otherwise a container may have the file mapped, and would not see another one.
func NoneIn(dir string, err error) bool {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errUnsound) {
		return true
	}
	info, err := os.Lstat(filepath.Join(dir, grant.LimitsFile))
	return err == nil && !info.Mode().IsRegular()
}

// ErrLeased is the error for a file that cannot be opened for writing because a process in a
// container holds a lease on it (fcntl(2), F_SETLEASE). Root in the container owns the file, and an
// owner needs only a descriptor for reading to take a lease.
var ErrLeased = errors.New(
	"a process in a container holds a lease on it, for which no CUDA program has a use: end that container")

// Open maps the limits file of a grant in dir. Only the node writes this file, so wrong content is
// an error and not a verdict. Open never waits. With a lease on the file the kernel would block an
// open for writing for 45 s, with the ledger locked, and then again.
func Open(dir string) (*Limits, error) {
	path := filepath.Join(dir, grant.LimitsFile)
	f, err := host.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, leased(err, path)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if info.Size() < page {
		return nil, fmt.Errorf("cannot read %s: it has less than a page: %w", path, errUnsound)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map %s: %w", path, err)
	}
	l := &Limits{dir, memory, (*limitRecord)(unsafe.Pointer(&memory[0]))}
	if !l.record.isSound() {
		l.Close()
		return nil, unsound(path)
	}
	return l, nil
}

func leased(err error, path string) error {
	if errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("cannot open %s: %w", path, ErrLeased)
	}
	return err
}

// Close unmaps the file. l cannot be used afterwards.
func (l *Limits) Close() {
	_ = unix.Munmap(l.memory)
	l.memory, l.record = nil, nil
}

// isSound reports whether r is a record of this version.
func (r *limitRecord) isSound() bool {
	return r.Magic == limitsMagic && r.Version == version && r.Devices <= MaxDevices
}

// inOrder returns the devices in the order of r, and whether r is for these devices. Their order in
// the ledger changes when the grant is changed after a boot that gave the GPUs other indices. The
// order in the file stays, because its processes count by it.
func (r *limitRecord) inOrder(devices []device) (own []device, same bool) {
	own = make([]device, r.Devices)
	for i := range own {
		at := slices.IndexFunc(devices, func(d device) bool { return d.UUID == r.Device[i].UUID })
		if at < 0 {
			return nil, false
		}
		own[i] = devices[at]
	}
	return own, len(own) == len(devices)
}

// matches reports whether r is for these devices and already has their bytes and shares.
func (r *limitRecord) matches(devices []device) bool {
	own, same := r.inOrder(devices)
	return same && slices.EqualFunc(r.Device[:r.Devices], own,
		func(is, d device) bool { return is.Bytes == d.Bytes && is.Share == d.Share })
}

// read reads the limits file of a grant without mapping it. Other processes may change only words
// that no grant sets.
func read(dir string) (r limitRecord, err error) {
	var content [page]byte // a shorter file is an error
	path := filepath.Join(dir, grant.LimitsFile)
	if err = host.ReadHead(path, content[:], unix.O_NOFOLLOW); err != nil {
		return r, err
	}
	if copy(bytesOf(&r), content[:]); !r.isSound() {
		err = unsound(path)
	}
	return r, err
}

// errUnsound is the error for content that is not that of a limits file.
var errUnsound = fmt.Errorf("it is no limits file of version %d", version)

func unsound(path string) error {
	return fmt.Errorf("cannot read %s: %w", path, errUnsound)
}

// set changes bytes and shares in place: a container has this file mounted and would never see a
// replacement. Each word is written atomically. A gate belongs to one share, so a changed share
// clears the gate.
func (l *Limits) set(devices []device) {
	changed := false
	for i, d := range devices {
		is := &l.record.Device[i]
		changed = atomic.SwapUint64(&is.Bytes, d.Bytes) != d.Bytes || changed
		if atomic.SwapUint64(&is.Share, d.Share) != d.Share {
			atomic.StoreUint64(&is.Gate, 0)
			changed = true
		}
	}
	if changed {
		atomic.AddUint64(&l.record.Generation, 1)
	}
}

// Set changes the bytes that may be used of each device and the percent of its time; 0 percent is
// all of it. Memory in use above the new limit stays allocated, and further allocations fail.
func (l *Limits) Set(shares []grant.Share, percent int) error {
	devices, err := devicesOf(shares, percent)
	own, same := l.record.inOrder(devices)
	if err == nil && !same {
		err = errNotGranted
	}
	if err != nil {
		return fmt.Errorf("cannot change the limits: %w", err)
	}
	return host.Take(host.Step{Kind: host.Writes, Path: filepath.Join(l.dir, grant.LimitsFile)},
		func() error { l.set(own); return nil })
}

// Bytes returns how many bytes of a device may be used.
func (l *Limits) Bytes(uuid string) (grant.Bytes, error) {
	d, err := l.device(uuid)
	if err != nil {
		return 0, err
	}
	return grant.Bytes(atomic.LoadUint64(&d.Bytes)), nil
}

var errNotGranted = errors.New("the grant does not have these devices")

func (l *Limits) device(uuid string) (*device, error) {
	id, err := ParseUUID(uuid)
	if err != nil {
		return nil, err
	}
	for i := range l.record.Device[:l.record.Devices] {
		if d := &l.record.Device[i]; d.UUID == id {
			return d, nil
		}
	}
	return nil, fmt.Errorf("cannot limit device %q: %w", uuid, errNotGranted)
}

// SetOverhead publishes the memory of a device that is used but not counted by the processes:
// contexts, code, and memory obtained in other ways. It counts against the grant.
func (l *Limits) SetOverhead(uuid string, b grant.Bytes) error {
	d, err := l.device(uuid)
	if err != nil {
		return err
	}
	atomic.StoreUint64(&d.Overhead, uint64(b))
	atomic.AddUint64(&l.record.Generation, 1)
	return nil
}
