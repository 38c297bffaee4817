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

// Used returns what Limits.Used returns.
func (a *Account) Used(uuid string) (grant.Bytes, error) { return a.limits.usedIn(&a.region, uuid) }

// Published returns the overhead of a device and what a context takes of it, as they were set.
func (a *Account) Published(uuid string) (overhead, context grant.Bytes, err error) {
	d, err := a.limits.device(uuid)
	if err != nil {
		return 0, 0, err
	}
	return grant.Bytes(atomic.LoadUint64(&d.Overhead)), grant.Bytes(atomic.LoadUint64(&d.Context)), nil
}

// SetContext changes what a new context counts on a device.
func (a *Account) SetContext(uuid string, b grant.Bytes) error {
	d, err := a.limits.device(uuid)
	if err == nil {
		atomic.StoreUint64(&d.Context, uint64(b))
	}
	return err
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
