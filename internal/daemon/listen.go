package daemon

import (
	"errors"
	"fmt"
	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
	"net"
	"os"
	"strings"
)

// listen opens what [daemon].listen names: HOST:PORT or unix:/path.
func listenOn(address string) (net.Listener, error) {
	var l net.Listener
	var err error
	if path, isPath := strings.CutPrefix(address, "unix:"); isPath {
		l, err = rootsocket.Listen(path)
	} else {
		l, err = net.Listen("tcp", address)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot serve metrics and the status page on %s: %w", address, cause(err))
	}
	return l, nil
}

// cause leaves out what package net says of the address once more.
func cause(err error) error {
	var call *os.SyscallError
	var address *net.AddrError
	switch {
	case errors.As(err, &call):
		return call.Err
	case errors.As(err, &address):
		return fmt.Errorf("want HOST:PORT, unix:/path or \"\": %s", address.Err)
	}
	return err
}
