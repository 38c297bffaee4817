package setup

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// serves asks the engine at a socket for the version of the service that the kubelet calls (CRI,
// runtime.v1). It reports whether the engine has that service; known is false without an answer.
//
// containerd goes on without the service if that cannot start with its configuration. Its unit is
// active then, and the kubelet starts no container.
func serves(socket string) (has, known bool) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// gRPC's frame of an empty VersionRequest: not compressed, a length of 0
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://localhost/runtime.v1.RuntimeService/Version", bytes.NewReader(make([]byte, 5)))
	if err != nil {
		return false, false
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false, false
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20)); err != nil {
		return false, false
	}
	status := response.Trailer.Get(grpcStatus)
	if status == "" { // an error without an answer has it among the headers
		status = response.Header.Get(grpcStatus)
	}
	return status == grpcOK, status == grpcOK || status == grpcUnimplemented
}

// gRPC's codes (google.golang.org/grpc/codes).
const (
	grpcStatus        = "Grpc-Status"
	grpcOK            = "0"
	grpcUnimplemented = "12"
)

// serving are the sockets at which an engine serves a kubelet now.
func serving(engine string) (paths []string) {
	for _, s := range sockets {
		if s.engine != engine || !exists(s.path) {
			continue
		}
		if has, _ := serves(s.path); has {
			paths = append(paths, s.path)
		}
	}
	return paths
}

// lost waits until an engine serves a kubelet again where it did before its restart. It returns a
// *downError for a socket at which it runs without that service.
func lost(unit string, before []string) error {
	for _, socket := range before {
		for end := time.Now().Add(slowStart); time.Now().Before(end); time.Sleep(time.Second / 2) {
			has, known := serves(socket)
			if has {
				break
			}
			if known {
				return &downError{unit + " runs, and serves the kubelet no more"}
			}
		}
	}
	return nil
}
