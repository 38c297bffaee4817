// Package cgmem is the protocol with which programs ask gpuledgerd to set, change or clear the
// driver's memory limits of cgroups (docs/adr/0046), and its client. Package daemon/driverlimits is
// the server. A connection has one request and one answer, each a line of JSON. The package is
// linked into the programs that run at every container's create. So it makes its own system calls:
// package net alone is larger than all of it.
package cgmem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Op is the operation of a request.
type Op string

// The operations. None gives more bytes than the ledger does.
const (
	Set   Op = "set"   // set the limits of a container that is being created
	Clear Op = "clear" // a container has ended, and its cgroup will be removed
	Apply Op = "apply" // apply a changed grant
	Lower Op = "lower" // lower the limits before the caller makes a grant smaller
)

// Version is the version of the protocol. All programs of one release use the same; another one
// gets an error.
const Version = 1

// Call is a line to gpuledgerd. It cannot override the ledger or the kernel: gpuledgerd reads
// there what the request names.
type Call struct {
	Version     int    `json:"version"`
	Op          Op     `json:"op"`
	RuntimeRoot string `json:"runtime_root,omitzero"`
	Container   string `json:"container,omitzero"`
	// of the container's first process, as the runtime reported it
	PID   int      `json:"pid,omitzero"`
	Grant grant.ID `json:"grant,omitzero"`

	// of Lower: the new shares of the grant's containers, if the ledger has no smaller ones
	To []grant.Share `json:"to,omitempty"`
}

// Answer is the line from gpuledgerd. Without an error the request is done.
type Answer struct {
	Version int    `json:"version"`
	Error   string `json:"error,omitzero"`
}

// MaxLine is the largest length of a line, in bytes.
const MaxLine = 16 << 10

// Ask sends a request to gpuledgerd and waits for the answer, at most for the duration within.
func Ask(socket string, r Call, within time.Duration) error {
	r.Version = Version
	line, err := r.encode()
	if err != nil {
		return fmt.Errorf("internal error: %w", err)
	}
	c, err := dial(socket, time.Now().Add(within))
	if err != nil {
		return err
	}
	defer unix.Close(c.fd)
	line, err = c.exchange(append(line, '\n'))
	if err != nil {
		return fmt.Errorf("gpuledgerd does not answer: %w", err)
	}
	var a Answer
	switch err := tokens.Whole(line, a.read); {
	case err != nil:
		return fmt.Errorf("gpuledgerd's answer cannot be understood: %w", err)
	case a.Version != Version:
		return fmt.Errorf("gpuledgerd is of another version than this program (%d, not %d)", a.Version,
			Version)
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// Listens returns nil if a process accepts connections at the socket.
func Listens(socket string) error {
	c, err := dial(socket, time.Now().Add(time.Second))
	if err == nil {
		_ = unix.Close(c.fd)
	}
	return err
}

type conn struct {
	fd  int
	end time.Time
}

// dial connects to a socket on which a process of root or of the caller's user listens.
func dial(socket string, end time.Time) (conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return conn{}, err
	}
	c := conn{fd, end}
	err = c.try(unix.SO_SNDTIMEO, func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) })
	var peer *unix.Ucred
	if err == nil {
		peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	}
	if err == nil && peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
		err = fmt.Errorf("user %d listens there", peer.Uid)
	}
	if err != nil {
		_ = unix.Close(fd)
		return conn{}, fmt.Errorf("gpuledgerd does not answer at %s: %w", socket, err)
	}
	return c, nil
}

// exchange sends a line and reads one.
func (c conn) exchange(line []byte) ([]byte, error) {
	for len(line) > 0 {
		if err := c.try(unix.SO_SNDTIMEO, func() error {
			n, err := unix.SendmsgN(c.fd, line, nil, nil, unix.MSG_NOSIGNAL)
			line = line[max(n, 0):]
			return err
		}); err != nil {
			return nil, err
		}
	}
	var got []byte
	for !bytes.HasSuffix(got, []byte("\n")) {
		part := make([]byte, 4096)
		n := 0
		err := c.try(unix.SO_RCVTIMEO, func() (err error) {
			n, err = unix.Read(c.fd, part)
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case n <= 0:
			return nil, errors.New("it has hung up")
		case len(got)+n > MaxLine:
			return nil, errors.New("it says too much")
		}
		got = append(got, part[:n]...)
	}
	return got, nil
}

// try makes a system call that the kernel ends at the deadline, and repeats it after a signal.
func (c conn) try(timeout int, call func() error) error {
	for {
		left := time.Until(c.end)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		tv := unix.NsecToTimeval(left.Nanoseconds() + 1000) // 0 would be no deadline
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, timeout, &tv); err != nil {
			return err
		}
		switch err := call(); err {
		case unix.EINTR:
		case unix.EAGAIN:
			return unix.ETIMEDOUT
		default:
			return err
		}
	}
}
