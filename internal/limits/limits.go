package limits

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// The names of the files in a grant's directory. They are mounted one by one: the limits read-only, the region not.
const (
	LimitsFile = "limits"
	RegionFile = "region"
)

// Limits are a grant's limits file, open for changes. The processes of its containers see a change at their next
// allocation.
type Limits struct {
	memory []byte
	record *record
}

// Ensure makes the files of a grant in dir, which must exist, and sets each share's bytes. Files that are there for the same
// devices stay and keep their users. Nobody else may write into dir. A grant is limited to MaxDevices devices.
func Ensure(dir string, shares []grant.Share) error {
	devices, err := devicesOf(shares)
	if err != nil {
		return fmt.Errorf("cannot limit the grant in %s: %w", dir, err)
	}
	if l, err := Open(dir); err == nil {
		defer l.Close()
		if l.isFor(devices) {
			l.set(devices)
			return nil
		}
	}
	return create(dir, devices)
}

func devicesOf(shares []grant.Share) ([]device, error) {
	if len(shares) == 0 || len(shares) > MaxDevices {
		return nil, fmt.Errorf("it has %d devices, and the shim can limit 1 to %d", len(shares), MaxDevices)
	}
	devices := make([]device, len(shares))
	for i, s := range shares {
		uuid, err := ParseUUID(s.UUID)
		if err != nil {
			return nil, err
		}
		devices[i] = device{UUID: uuid, Bytes: uint64(s.Memory)}
	}
	return devices, nil
}

// create writes the region before the limits: who finds limits finds a region.
func create(dir string, devices []device) error {
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	l := record{Magic: limitsMagic, Version: version, Devices: uint32(len(devices)), ID: binary.NativeEndian.Uint64(id[:]), Generation: 1}
	copy(l.Device[:], devices)
	h := head{Magic: regionMagic, Version: version, Devices: l.Devices, ID: l.ID, Slots: slots, SlotSize: slotSize}
	// Any user of the container writes into the region. The directory keeps the node's other users out.
	if err := host.ReplaceFile(filepath.Join(dir, RegionFile), padded(h, regionSize), 0o666, host.Volatile); err != nil {
		return err
	}
	return host.ReplaceFile(filepath.Join(dir, LimitsFile), padded(l, page), 0o444, host.Volatile)
}

func padded(v any, size int) []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, v); err != nil {
		panic(err) // a value of fixed size into memory
	}
	return append(b.Bytes(), make([]byte, size-b.Len())...)
}

// Open maps the limits of a grant. Only the node writes this file, so what is wrong with it is an error and not a verdict.
func Open(dir string) (*Limits, error) {
	path := filepath.Join(dir, LimitsFile)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() < page {
		return nil, fmt.Errorf("cannot read %s: it has less than a page (%v)", path, err)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map %s: %w", path, err)
	}
	l := &Limits{memory, (*record)(unsafe.Pointer(&memory[0]))}
	if r := l.record; r.Magic != limitsMagic || r.Version != version || r.Devices > MaxDevices {
		l.Close()
		return nil, fmt.Errorf("cannot read %s: it is no limits file of version %d", path, version)
	}
	return l, nil
}

// Close ends the use of l.
func (l *Limits) Close() {
	_ = unix.Munmap(l.memory)
	l.memory, l.record = nil, nil
}

func (l *Limits) isFor(devices []device) bool {
	if int(l.record.Devices) != len(devices) {
		return false
	}
	for i, d := range devices {
		if l.record.Device[i].UUID != d.UUID {
			return false
		}
	}
	return true
}

// set changes the bytes in place: a container's mount shows this file and would never see another one. Each word is
// written whole.
func (l *Limits) set(devices []device) {
	for i, d := range devices {
		atomic.StoreUint64(&l.record.Device[i].Bytes, d.Bytes)
	}
	atomic.AddUint64(&l.record.Generation, 1)
}

var errNotGranted = errors.New("the grant does not have it")

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

// SetBytes grows or shrinks what may be used of a device. What is used above it stays; nothing more can be had.
func (l *Limits) SetBytes(uuid string, b grant.Bytes) error {
	d, err := l.device(uuid)
	if err != nil {
		return err
	}
	atomic.StoreUint64(&d.Bytes, uint64(b))
	atomic.AddUint64(&l.record.Generation, 1)
	return nil
}

// SetOverhead publishes what is used of a device beyond what the processes count themselves: contexts, code, memory that they
// obtained in other ways. It counts against the grant.
func (l *Limits) SetOverhead(uuid string, b grant.Bytes) error {
	d, err := l.device(uuid)
	if err != nil {
		return err
	}
	atomic.StoreUint64(&d.Overhead, uint64(b))
	atomic.AddUint64(&l.record.Generation, 1)
	return nil
}
