package dra

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// claimLocks keep a claim from being prepared, given up or reclaimed twice at a time. Different
// claims do not wait for each other. No other process prepares any of them meanwhile: an update
// starts the new driver before it stops the old one.
type claimLocks struct {
	all    sync.RWMutex // held for reading for one claim, and for writing for all of them
	mu     sync.Mutex
	claims map[types.UID]*claimLock
	users  int    // of the lock among processes
	end    func() // gives that lock up
}

type claimLock struct {
	sync.Mutex
	users int
}

// busy reports whether a claim is prepared, given up or reclaimed now.
func (l *claimLocks) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users > 0
}

// lockClaims waits until no other call prepares or gives up a claim of this node, in this process
// or another.
func (d *Driver) lockClaims() (unlock func(), err error) {
	d.locks.all.Lock()
	end, err := d.Ledger.Lock()
	if err != nil {
		d.locks.all.Unlock()
		return nil, err
	}
	return func() { end(); d.locks.all.Unlock() }, nil
}

// lockClaim waits until no other call in this process prepares or gives up this claim, and no other
// process any claim.
func (d *Driver) lockClaim(claim types.UID) (unlock func(), err error) {
	l := &d.locks
	l.all.RLock()
	l.mu.Lock()
	if l.users == 0 {
		if l.end, err = d.Ledger.Lock(); err != nil {
			l.mu.Unlock()
			l.all.RUnlock()
			return nil, err
		}
	}
	l.users++
	if l.claims == nil {
		l.claims = map[types.UID]*claimLock{}
	}
	one := l.claims[claim]
	if one == nil {
		one = &claimLock{}
		l.claims[claim] = one
	}
	one.users++
	l.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		l.mu.Lock()
		if one.users--; one.users == 0 {
			delete(l.claims, claim)
		}
		if l.users--; l.users == 0 {
			l.end()
		}
		l.mu.Unlock()
		l.all.RUnlock()
	}, nil
}
