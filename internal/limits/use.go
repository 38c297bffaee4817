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

// Process is one process of the grant's containers that uses memory.
type Process struct {
	PID  int           // as the process sees itself, in its own pid namespace
	Used []grant.Bytes // by the order of the grant's devices
}

// Use reads what the processes that are alive say they use. The container can write anything there:
// it is for reports, never for a decision. It is read, not mapped, because the container could
// truncate a mapping away.
func Use(dir string) (processes []Process, err error) {
	r, err := openRegion(dir)
	if err != nil {
		return nil, err
	}
	defer r.close()
	err = r.each(func(devices int, s slot) {
		p := Process{PID: int(s.PID)}
		for _, used := range s.Used[:devices] {
			p.Used = append(p.Used, grant.Bytes(used))
		}
		processes = append(processes, p)
	})
	return processes, err
}

// region is a grant's accounting region, open to be read again and again.
type region struct {
	path string
	fd   int
	is   identity
	size int // of the last reading: the head's page, and as many slots as there were
}

// readings are what regions are read into. Containers say how many slots there are, so nothing is
// kept of each.
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

// each hands on the slots that somebody uses. Of two hundred containers the daemon reads this again
// and again: only the slots that were ever used are read, of 1,024, with the head at once.
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
		if n < want && r.size >= want { // it was asked for
			return fmt.Errorf("cannot read %s: it has %d bytes and not %d", r.path, n, want)
		}
		if r.size = want; n >= want {
			break
		}
	}
	runtime.LockOSThread() // whose time is looked at
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
		if time.Since(began) > slowest && threadTime()-spent > slowest { // the former costs no system call
			return fmt.Errorf("cannot read %s: %w", r.path, ErrSlow)
		}
	}
	return nil
}

// slowest is what a reading may take: more than a hundred times what an honest one does. Whoever
// may open the region can put locks on it without end (fcntl(2)), and the kernel goes through all
// of them for each that is asked for: with 100,000 one ask takes 12 ms, so each is looked at.
var slowest = 100 * time.Millisecond

// ErrSlow is of an account that takes too long to read. The next reading would take as long.
var ErrSlow = errors.New("it takes too much of the processor: a container has too many locks on it")

// threadTime is what this thread has had of the processor: neither a machine that is busy with
// other work nor the program's own other work makes a container suspicious.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// headIn is decode of a head without reflection.
func headIn(data []byte) (h head) {
	h.Magic, h.Version, h.Devices = binary.NativeEndian.Uint64(data), binary.NativeEndian.Uint32(data[8:]),
		binary.NativeEndian.Uint32(data[12:])
	h.High = binary.NativeEndian.Uint32(data[unsafe.Offsetof(h.High):])
	return h
}

// slotOf is decode without reflection, which costs more than everything else here.
func slotOf(data []byte) (s slot) {
	for k := range s.Used {
		s.Used[k] = binary.NativeEndian.Uint64(data[8*k:])
	}
	s.PID = binary.NativeEndian.Uint32(data[8*MaxDevices:])
	return s
}

// held reports whether the slot's owner is alive: it holds an OFD lock on the slot's byte. Asking
// takes no lock.
func held(fd, slot int) bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slot), Len: 1}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// Used is the sum of what the processes that are alive say they use of one device. What the
// container writes there, it writes to its own account only.
func (l *Limits) Used(uuid string) (sum grant.Bytes, err error) {
	r, err := openRegion(l.dir)
	if err != nil {
		return 0, err
	}
	defer r.close()
	return l.usedIn(&r, uuid)
}

func (l *Limits) usedIn(r *region, uuid string) (sum grant.Bytes, err error) {
	d, err := l.device(uuid)
	if err != nil {
		return 0, fmt.Errorf("cannot tell what is used: %w", err)
	}
	place := slices.IndexFunc(l.record.Device[:], func(o device) bool { return o.UUID == d.UUID })
	err = r.each(func(devices int, s slot) {
		if used := grant.Bytes(s.Used[place]); place < devices && sum+used >= sum {
			sum += used
		}
	})
	return sum, err
}
