package httpserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
)

// listenOn listens at an address of [daemon].listen: HOST:PORT or unix:/path.
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

// cause removes the address from an error of package net, because listenOn names it already.
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
