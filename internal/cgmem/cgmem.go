// Package cgmem asks gpuledgerd for the driver's memory limits on cgroups (docs/adr/0046). One
// request a connection, a line of JSON each way. It is linked into the programs that every
// container's create runs, so it speaks to the socket itself: package net alone is larger than all
// of it.
package cgmem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Op is what is asked for.
type Op string

// The requests. None gives more bytes than the ledger says.
const (
	Set   Op = "set"   // a container that is being created shall have its limits
	Clear Op = "clear" // a container is gone and its cgroup about to go
	Apply Op = "apply" // a grant has changed
	Lower Op = "lower" // a grant is about to be made smaller, by who asks
)

// Version is that of the protocol. Programs of one package speak it; others hear that they are too
// old.
const Version = 1

// Request is a line to gpuledgerd. It holds nothing against the ledger and the kernel: what it
// names is looked up there.
type Request struct {
	Version     int      `json:"version"`
	Op          Op       `json:"op"`
	RuntimeRoot string   `json:"runtime_root,omitzero"`
	Container   string   `json:"container,omitzero"`
	PID         int      `json:"pid,omitzero"` // of the container's first process, as the runtime said
	Grant       grant.ID `json:"grant,omitzero"`

	// Lower: what the grant's containers may have from now on, where the ledger says no less
	To []grant.Share `json:"to,omitempty"`
}

// Answer is the line back. No error: it is so.
type Answer struct {
	Version int    `json:"version"`
	Error   string `json:"error,omitzero"`
}

// MaxLine bounds a line, in bytes.
const MaxLine = 16 << 10

// Ask has gpuledgerd do what is requested, and waits for its answer as long as within.
func Ask(socket string, r Request, within time.Duration) error {
	r.Version = Version
	line, err := json.Marshal(r)
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
	switch err := json.Unmarshal(line, &a); {
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

// Listens is nil where somebody takes connections.
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

// dial connects to a socket of root's, or of our own user's.
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

// try makes a call that the kernel ends when the time is over, and makes it again where a signal
// did.
func (c conn) try(timeout int, call func() error) error {
	for {
		left := time.Until(c.end)
		if left <= 0 {
			return unix.ETIMEDOUT
		}
		tv := unix.NsecToTimeval(left.Nanoseconds() + 1000) // 0 would be for ever
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
