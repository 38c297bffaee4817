package limits

import (
	"fmt"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Account is the open files of one grant. A caller that reads and writes them many times keeps them
// open: opening, mapping and closing costs more than all other steps.
type Account struct {
	limits *Limits
	file   identity // of the limits file
	region region
}

// OpenAccount opens the limits file and the region of the grant whose records are in dir.
func OpenAccount(dir string) (*Account, error) {
	a := &Account{}
	var err error
	if a.file, err = identityAt(filepath.Join(dir, grant.LimitsFile)); err != nil {
		return nil, err
	}
	if a.limits, err = Open(dir); err != nil {
		return nil, err
	}
	if a.region, err = openRegion(dir); err != nil {
		a.limits.Close()
		return nil, err
	}
	return a, nil
}

// Current reports whether the open files are still the files at their paths. A grant's files are
// replaced when its devices change, and removed with the grant.
func (a *Account) Current() bool {
	file, err := identityAt(filepath.Join(a.limits.dir, grant.LimitsFile))
	if err != nil || file != a.file {
		return false
	}
	file, err = identityAt(a.region.path)
	return err == nil && file == a.region.is
}

// Has reports whether the grant has a device.
func (a *Account) Has(uuid string) bool {
	_, err := a.limits.device(uuid)
	return err == nil
}

// Used returns what Limits.Used returns, and how many processes that is.
func (a *Account) Used(uuid string) (sum grant.Bytes, processes int, err error) {
	return a.limits.usedIn(&a.region, uuid)
}

// Published returns the overhead of a device and what a context takes of it, as they were set.
func (a *Account) Published(uuid string) (overhead, context grant.Bytes, err error) {
	d, err := a.limits.device(uuid)
	if err != nil {
		return 0, 0, err
	}
	return grant.Bytes(atomic.LoadUint64(&d.Overhead)), grant.Bytes(atomic.LoadUint64(&d.Context)), nil
}

// Reset prepares the files for the next process, while none of the grant's uses a GPU: nothing is
// in use beside allocations, and a context counts what is known by now.
func (a *Account) Reset(contexts Contexts) {
	for i := range a.limits.record.Device[:a.limits.record.Devices] {
		atomic.StoreUint64(&a.limits.record.Device[i].Overhead, 0)
	}
	for uuid, bytes := range contexts {
		if d, err := a.limits.device(uuid); err == nil {
			atomic.StoreUint64(&d.Context, uint64(bytes))
		}
	}
}

// SetOverhead does what Limits.SetOverhead does.
func (a *Account) SetOverhead(uuid string, b grant.Bytes) error { return a.limits.SetOverhead(uuid, b) }

// Close unmaps and closes the files.
func (a *Account) Close() {
	a.limits.Close()
	a.region.close()
}

// identity is a file's device and inode. It differs from that of another file that took the same
// name.
type identity struct{ device, inode uint64 }

func identityAt(path string) (identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return identity{}, fmt.Errorf("cannot look at %s: %w", path, err)
	}
	return identity{uint64(st.Dev), st.Ino}, nil
}

func identityOf(fd int) (identity, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return identity{uint64(st.Dev), st.Ino}, err
}
