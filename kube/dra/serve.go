package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpuledger/gpuledger/kube/socket"
)

// Service is a driver that serves the kubelet.
type Service struct {
	*kubeletplugin.Helper
	sockets []*socket.Listener
}

// Serve answers the kubelet until the context ends or the Service is stopped. registry is the
// kubelet's directory of plugins' sockets, and data the driver's own directory. pod is the UID of
// the driver's pod; if it is set the driver has sockets of its own. They exist beside those of the
// driver that it replaces.
func (d *Driver) Serve(ctx context.Context, registry, data string, pod types.UID) (*Service, error) {
	own, err := inSockets(pod, registry, data)
	if err != nil {
		return nil, err
	}
	if err := removeSockets(registry, data); err != nil {
		d.Log.Warn("sockets", "error", err)
	}
	s := &Service{}
	listen := func(_ context.Context, path string) (net.Listener, error) {
		l, err := socket.Listen(path)
		if err != nil {
			return nil, err
		}
		s.sockets = append(s.sockets, l)
		return l, nil
	}
	// The library must not log each call: its answers contain references of claims.
	s.Helper, err = kubeletplugin.Start(ctx, plugin{Driver: d}, kubeletplugin.DriverName(DriverName),
		kubeletplugin.NodeName(d.Node), kubeletplugin.KubeClient(d.Client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(registry),
		kubeletplugin.RollingUpdate(own), kubeletplugin.GRPCInterceptor(d.intercept()),
		kubeletplugin.Serialize(false), // see claimLocks
		kubeletplugin.PluginListener(listen), kubeletplugin.RegistrarListener(listen))
	return s, err
}

// maxSocketPath is the most bytes that the path of a socket has (unix(7)).
const maxSocketPath = 107

// inSockets returns what the names of a driver's sockets have of its pod's UID: all of it, or its
// beginning if the paths would be too long, as in the kubelet's directory of MicroK8s. That is
// random, too, and only has to tell the few pods of an update apart. The library uses it for
// nothing else.
func inSockets(pod types.UID, registry, data string) (types.UID, error) {
	longest := func(own types.UID) int { // by the names that the library gives
		if own != "" {
			own = "-" + own
		}
		return max(len(filepath.Join(registry, DriverName+string(own)+"-reg.sock")),
			len(filepath.Join(data, "dra"+string(own)+".sock")))
	}
	short := pod[:min(len(pod), 8)]
	switch {
	case longest(pod) <= maxSocketPath:
		return pod, nil
	case longest(short) <= maxSocketPath:
		return short, nil
	}
	return "", fmt.Errorf("cannot have sockets in %s and %s: a path would have %d bytes, and Linux "+
		"allows %d: the kubelet needs a directory with a shorter name", registry, data, longest(short),
		maxSocketPath)
}

func (d *Driver) intercept() grpc.UnaryServerInterceptor {
	if d.Intercept != nil {
		return d.Intercept
	}
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any,
		error) {
		return handle(ctx, request)
	}
}

// Failed reports whether an answer to the kubelet refuses a claim.
func Failed(answer any) bool {
	switch a := answer.(type) {
	case *drapb.NodePrepareResourcesResponse:
		for _, c := range a.Claims {
			if c.Error != "" {
				return true
			}
		}
	case *drapb.NodeUnprepareResourcesResponse:
		for _, c := range a.Claims {
			if c.Error != "" {
				return true
			}
		}
	}
	return false
}

// Registered returns an error if the kubelet has not accepted this driver.
func (s *Service) Registered() error {
	switch status := s.RegistrationStatus(); {
	case status == nil:
		return errors.New("the kubelet has not registered this driver yet")
	case !status.PluginRegistered:
		return fmt.Errorf("the kubelet does not register this driver: %s", status.Error)
	}
	return nil
}

// Lost returns an error if the kubelet can no longer reach this service. A server is not notified
// when the name of its socket is gone, so this looks.
func (s *Service) Lost() error {
	for _, l := range s.sockets {
		if err := l.Lost(); err != nil {
			return err
		}
	}
	return nil
}

// removeSockets removes the sockets of earlier drivers that no process serves any more. During
// updates each pod's driver has sockets of its own, and a killed driver leaves them. The kubelet
// would keep calling them for ever.
func removeSockets(registry, data string) error {
	var all []string
	for _, pattern := range []string{filepath.Join(registry, DriverName+"*-reg.sock"),
		filepath.Join(data, "dra*.sock")} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		all = append(all, paths...)
	}
	var failed error
	for _, path := range all {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
			continue
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("cannot remove a socket that no process serves: %w", err))
		}
	}
	return failed
}
