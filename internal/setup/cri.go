package setup

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// serves asks the engine at a socket for the version of the service that the kubelet calls (CRI,
// runtime.v1). It reports whether the engine has that service; known is false without an answer.
//
// containerd goes on without the service if that cannot start with its configuration. Its unit is
// active then, and the kubelet starts no container.
func serves(socket string) (has, known bool) {
	_, code, err := call(socket, "Version", nil)
	return code == grpcOK, err == nil && (code == grpcOK || code == grpcUnimplemented)
}

// call calls a method of the kubelet's service at a socket. It returns the answer, and gRPC's code.
func call(socket, method string, request []byte) (answer []byte, code string, err error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// A gRPC frame is a byte (0: not compressed), the length, and the message.
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://localhost/runtime.v1.RuntimeService/"+method, bytes.NewReader(frame))
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("TE", "trailers")
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	// gRPC's own limit is 4 MiB
	if answer, err = io.ReadAll(io.LimitReader(response.Body, 16<<20)); err != nil {
		return nil, "", err
	}
	code = response.Trailer.Get(grpcStatus)
	if code == "" { // an error without an answer has it among the headers
		code = response.Header.Get(grpcStatus)
	}
	return answer[min(5, len(answer)):], code, nil
}

// gRPC's codes (google.golang.org/grpc/codes).
const (
	grpcStatus        = "Grpc-Status"
	grpcOK            = "0"
	grpcUnimplemented = "12"
)

// running is what containerd runs with, as far as it matters here. It answers it to a kubelet that
// asks for everything (`crictl info`), since 1.6 or longer.
type running struct {
	Containerd struct {
		Default  string              `json:"defaultRuntimeName"`
		Handlers map[string]struct{} `json:"runtimes"`
	} `json:"containerd"`
}

// runsWith asks the containerd at a socket what it runs with.
func runsWith(socket string) (r running, err error) {
	const verbose = 1 // StatusRequest.verbose
	answer, code, err := call(socket, "Status",
		protowire.AppendVarint(protowire.AppendTag(nil, verbose, protowire.VarintType), 1))
	if err != nil {
		return r, err
	}
	if code != grpcOK {
		return r, fmt.Errorf("it answers the kubelet's Status with gRPC's code %q", code)
	}
	config, err := infoOf(answer, "config")
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(config, &r); err != nil {
		return r, err
	}
	if r.Containerd.Handlers == nil {
		return r, errors.New("it does not say which runtime handlers it has")
	}
	return r, nil
}

// infoOf is a value of StatusResponse.info, which is a map of strings.
func infoOf(message []byte, key string) (value []byte, err error) {
	const info, itsKey, itsValue = 2, 1, 2 // k8s.io/cri-api, runtime/v1/api.proto
	for entry, err := range fields(message, info) {
		if err != nil {
			return nil, err
		}
		if name, err := field(entry, itsKey); err != nil || string(name) != key {
			continue
		}
		return field(entry, itsValue)
	}
	return nil, fmt.Errorf("its answer has no %s", key)
}

// field is the first field of a number in a message of protobuf; nil without one.
func field(message []byte, number protowire.Number) ([]byte, error) {
	for value, err := range fields(message, number) {
		return value, err
	}
	return nil, nil
}

// fields are the fields of a number and of type bytes in a message of protobuf.
func fields(message []byte, number protowire.Number) func(func([]byte, error) bool) {
	return func(yield func([]byte, error) bool) {
		for len(message) > 0 {
			n, kind, size := protowire.ConsumeField(message)
			if size < 0 {
				yield(nil, protowire.ParseError(size))
				return
			}
			if n == number && kind == protowire.BytesType {
				_, _, tag := protowire.ConsumeTag(message)
				value, _ := protowire.ConsumeBytes(message[tag:size])
				if !yield(value, nil) {
					return
				}
			}
			message = message[size:]
		}
	}
}

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
