package limits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// ProcessMemory is one process of the grant's containers that uses memory.
type ProcessMemory struct {
	PID  int           // as the process sees itself, in its own pid namespace
	Used []grant.Bytes // in the order of the grant's devices
}

// Use returns the use that live processes have recorded in the region. The container can write
// anything there: use it for reports, never for a decision. Use reads the file and does not map it,
// because the container could truncate it under a mapping.
func Use(dir string) (processes []ProcessMemory, err error) {
	r, err := openRegion(dir)
	if err != nil {
		return nil, err
	}
	defer r.close()
	err = r.each(func(devices int, s slot) {
		p := ProcessMemory{PID: int(s.PID)}
		for _, used := range s.Used[:devices] {
			p.Used = append(p.Used, grant.Bytes(used))
		}
		processes = append(processes, p)
	})
	return processes, err
}

// region is a grant's accounting region, open for repeated reads.
type region struct {
	path string
	fd   int
	is   identity
	size int // bytes of the last read: the page of the head, and the slots that were in use
}

// readings are buffers for reading regions. Containers state how many slots there are, so no buffer
// is kept per region.
var readings = sync.Pool{New: func() any { return new([]byte) }}

func openRegion(dir string) (r region, err error) {
	r.path = filepath.Join(dir, grant.RegionFile)
	if r.fd, err = unix.Open(r.path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC,
		0); err != nil {
		return r, &fs.PathError{Op: "open", Path: r.path, Err: err}
	}
	if r.is, err = identityOf(r.fd); err != nil {
		r.close()
	}
	return r, err
}

func (r *region) close() { _ = unix.Close(r.fd) }

// each calls do for every slot whose process is alive and uses memory. The daemon reads the regions
// of two hundred containers repeatedly. So each reads only the head and the slots that were ever
// used, of 1,024, in one call.
func (r *region) each(do func(devices int, s slot)) error {
	buffer := readings.Get().(*[]byte)
	defer readings.Put(buffer)
	r.size = max(r.size, page)
	var data []byte
	var h head
	for {
		if len(*buffer) < r.size {
			*buffer = make([]byte, r.size)
		}
		data = (*buffer)[:r.size]
		n, err := unix.Pread(r.fd, data, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n < page {
			return fmt.Errorf("cannot read %s: it has less than a page (%v)", r.path, err)
		}
		if h = headIn(data); h.Magic != regionMagic || h.Version != version || h.Devices > MaxDevices {
			return fmt.Errorf("cannot read %s: it is no accounting region of version %d", r.path, version)
		}
		want := page + min(int(h.High), slots)*slotSize
		if n < want && r.size >= want { // the whole size was asked for
			return fmt.Errorf("cannot read %s: it has %d bytes and not %d", r.path, n, want)
		}
		if r.size = want; n >= want {
			break
		}
	}
	runtime.LockOSThread() // threadTime reads the clock of this thread
	defer runtime.UnlockOSThread()
	began, spent := time.Now(), threadTime()
	for i := range min(int(h.High), slots) {
		s := slotOf(data[page+i*slotSize:])
		if s.Used == [MaxDevices]uint64{} {
			continue
		}
		if held(r.fd, i) {
			do(int(h.Devices), s)
		}
		if time.Since(began) > slowest && threadTime()-spent > slowest { // time.Since needs no system call
			return fmt.Errorf("cannot read %s: %w", r.path, ErrSlow)
		}
	}
	return nil
}

// slowest is the longest time that one read may take: over a hundred times what it normally takes.
// A process that may open the region can put any number of locks on it (fcntl(2)). The kernel walks
// all of them for each query: with 100,000 locks a query takes 12 ms, so the time is checked after
// each.
var slowest = 100 * time.Millisecond

// ErrSlow is the error for a region that takes too long to read. The next read would take as long.
var ErrSlow = errors.New("it takes too much of the processor: a container has too many locks on it")

// threadTime is the processor time that this thread has used. Other work of the machine or of this
// program does not count, so neither makes a container suspicious.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// headIn decodes a head without reflection.
func headIn(data []byte) (h head) {
	h.Magic, h.Version, h.Devices = binary.NativeEndian.Uint64(data), binary.NativeEndian.Uint32(data[8:]),
		binary.NativeEndian.Uint32(data[12:])
	h.High = binary.NativeEndian.Uint32(data[unsafe.Offsetof(h.High):])
	return h
}

// slotOf decodes a slot without reflection, which would cost more than everything else here.
func slotOf(data []byte) (s slot) {
	for k := range s.Used {
		s.Used[k] = binary.NativeEndian.Uint64(data[8*k:])
	}
	s.PID = binary.NativeEndian.Uint32(data[8*MaxDevices:])
	return s
}

// held reports whether the process of a slot is alive: it holds an OFD lock on the slot's byte. The
// query takes no lock.
func held(fd, slot int) bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slot), Len: 1}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// Used is the sum of what the live processes have recorded for one device. A container that writes
// a false value there changes its own account only.
func (l *Limits) Used(uuid string) (sum grant.Bytes, err error) {
	r, err := openRegion(l.dir)
	if err != nil {
		return 0, err
	}
	defer r.close()
	sum, _, err = l.usedIn(&r, uuid)
	return sum, err
}

func (l *Limits) usedIn(r *region, uuid string) (sum grant.Bytes, processes int, err error) {
	d, err := l.device(uuid)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot tell what is used: %w", err)
	}
	place := slices.IndexFunc(l.record.Device[:], func(o device) bool { return o.UUID == d.UUID })
	err = r.each(func(devices int, s slot) {
		if used := grant.Bytes(s.Used[place]); place < devices && sum+used >= sum {
			sum += used
			if used > 0 {
				processes++
			}
		}
	})
	return sum, processes, err
}
