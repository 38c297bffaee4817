package limits

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Process is one process of the grant's containers that uses memory.
type Process struct {
	PID  int           // as the process sees itself, in its own pid namespace
	Used []grant.Bytes // by the order of the grant's devices
}

// Use reads what the processes that are alive say they use. The container can write anything there: it is for reports, never for
// a decision. It is read, not mapped, because the container could truncate a mapping away.
func Use(dir string) ([]Process, error) {
	path := filepath.Join(dir, grant.RegionFile)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Of two hundred containers the daemon reads this again and again: only the slots that were ever used are read, of 1,024.
	data := make([]byte, page)
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	var h head
	if err := decode(data, &h); err != nil || h.Magic != regionMagic || h.Version != version || h.Devices > MaxDevices {
		return nil, fmt.Errorf("cannot read %s: it is no accounting region of version %d", path, version)
	}
	data = make([]byte, min(int(h.High), slots)*slotSize)
	if _, err := f.ReadAt(data, page); err != nil && len(data) > 0 {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	var processes []Process
	for i := range len(data) / slotSize {
		s := slotOf(data[i*slotSize:])
		if s.Used == [MaxDevices]uint64{} || !held(f, i) {
			continue
		}
		p := Process{PID: int(s.PID)}
		for _, used := range s.Used[:h.Devices] {
			p.Used = append(p.Used, grant.Bytes(used))
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// slotOf is decode without reflection, which costs more than everything else here.
func slotOf(data []byte) (s slot) {
	for k := range s.Used {
		s.Used[k] = binary.NativeEndian.Uint64(data[8*k:])
	}
	s.PID = binary.NativeEndian.Uint32(data[8*MaxDevices:])
	return s
}

func decode(data []byte, v any) error {
	return binary.Read(bytes.NewReader(data), binary.NativeEndian, v)
}

// held reports whether the slot's owner is alive: it holds an OFD lock on the slot's byte. Asking takes no lock.
func held(f *os.File, slot int) bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(slot), Len: 1}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// Used is the sum of what the processes that are alive say they use of one device. What the container writes there, it writes to
// its own account only.
func (l *Limits) Used(uuid string) (sum grant.Bytes, err error) {
	place := -1
	id, err := ParseUUID(uuid)
	if err != nil {
		return 0, err
	}
	for i := range l.record.Device[:l.record.Devices] {
		if l.record.Device[i].UUID == id {
			place = i
		}
	}
	if place < 0 {
		return 0, fmt.Errorf("cannot tell what is used of device %q: %w", uuid, errNotGranted)
	}
	processes, err := Use(l.dir)
	for _, p := range processes {
		if place < len(p.Used) && sum+p.Used[place] >= sum {
			sum += p.Used[place]
		}
	}
	return sum, err
}
