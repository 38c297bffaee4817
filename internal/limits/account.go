package limits

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Account is a grant's files, kept open by who reads and writes them again and again: to open, map
// and close them each time costs more than all the rest.
type Account struct {
	limits *Limits
	file   identity // of the limits
	region region
}

// OpenAccount opens the files of a grant.
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

// Current reports whether the files are still those that lie there. A grant's are replaced when its
// devices change, and gone with it.
func (a *Account) Current() bool {
	file, err := identityAt(filepath.Join(a.limits.dir, grant.LimitsFile))
	if err != nil || file != a.file {
		return false
	}
	file, err = identityAt(a.region.path)
	return err == nil && file == a.region.is
}

// Used is as that of Limits.
func (a *Account) Used(uuid string) (grant.Bytes, error) { return a.limits.usedIn(&a.region, uuid) }

// SetOverhead is as that of Limits.
func (a *Account) SetOverhead(uuid string, b grant.Bytes) error { return a.limits.SetOverhead(uuid, b) }

// Close ends its use.
func (a *Account) Close() {
	a.limits.Close()
	a.region.close()
}

// identity tells one file from another that has taken its name.
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
