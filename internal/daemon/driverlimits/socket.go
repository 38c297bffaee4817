package driverlimits

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
)

// requestSocket is the socket at which other gpuledger programs ask for the driver's limits. Its
// directory is root's alone, and the kernel says which process has connected.
type requestSocket struct {
	mu       sync.Mutex
	address  string
	listener net.Listener
}

// What one connection may take: the time to send or receive, and to be answered; and how many there
// are at once.
const (
	ioTime      = 5 * time.Second
	answerTime  = 35 * time.Second
	maxRequests = 64
)

// answerFunc does what a request asks for, of a process in this pid namespace.
type answerFunc func(ctx context.Context, r cgmem.Call, peer int) error

// open listens, unless a listener can be reached at the address already.
func (d *requestSocket) open(address string, answer answerFunc) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.address == address && rootsocket.Reachable(d.listener) {
		return nil
	}
	d.closeLocked()
	l, err := rootsocket.Listen(address)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	d.address, d.listener = address, l
	go d.serve(l, answer)
	return nil
}

func (d *requestSocket) isOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listener != nil
}

func (d *requestSocket) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeLocked()
}

func (d *requestSocket) closeLocked() {
	if d.listener != nil {
		_ = d.listener.Close()
	}
	d.address, d.listener = "", nil
}

// serve ends with the listener. If that ends by itself, the next open makes another one.
func (d *requestSocket) serve(l net.Listener, answer answerFunc) {
	room := make(chan struct{}, maxRequests)
	for {
		conn, err := l.Accept()
		if err != nil {
			break
		}
		room <- struct{}{}
		go func() {
			defer func() { <-room }()
			defer conn.Close()
			handleRequest(conn, answer)
		}()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener == l {
		d.closeLocked()
	}
}

// handleRequest reads one request and answers it. A program that only wants to know whether the
// socket is open connects and disconnects without sending anything.
func handleRequest(conn net.Conn, answer answerFunc) {
	peer, err := rootsocket.PeerPID(conn)
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(ioTime))
	line, err := bufio.NewReader(io.LimitReader(conn, cgmem.MaxLine)).ReadBytes('\n')
	if err != nil {
		return
	}
	var r cgmem.Call
	switch err = json.Unmarshal(line, &r); {
	case err != nil:
		err = errors.New("gpuledgerd cannot understand the request")
	case r.Version != cgmem.Version:
		err = fmt.Errorf("gpuledgerd is of another version than the program that asks (%d, not %d)",
			cgmem.Version, r.Version)
	default:
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		err = answer(ctx, r, peer)
		cancel()
	}
	a := cgmem.Answer{Version: cgmem.Version}
	if err != nil {
		a.Error = err.Error()
		a.Error = a.Error[:min(len(a.Error), cgmem.MaxLine/2)]
	}
	if line, err = json.Marshal(a); err == nil {
		_ = conn.SetDeadline(time.Now().Add(ioTime))
		_, _ = conn.Write(append(line, '\n'))
	}
}
