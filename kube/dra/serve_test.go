package dra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// syncBuffer is a log that several goroutines write to.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// A reader of the pod's log must not be able to use the claims' grants.
func TestNoReferenceIsLogged(t *testing.T) {
	s := newSite(t, 1)
	t.Chdir(s.Dir) // a socket's path must be short
	c := claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0"))
	var log syncBuffer
	s.Client, s.Log = fake.NewClientset(c), slog.New(slog.NewTextHandler(&log, nil))
	defer klog.ClearLogger()
	klog.SetSlogLogger(s.Log)
	if err := errors.Join(os.Mkdir("registry", 0o700), os.Mkdir("data", 0o700)); err != nil {
		t.Fatal(err)
	}
	served, err := s.Serve(context.Background(), "registry", "data", "")
	if err != nil {
		t.Fatal(err)
	}
	defer served.Stop()
	conn, err := grpc.NewClient("unix:data/dra.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := api.NewDRAPluginClient(conn).NodePrepareResources(context.Background(),
		&api.NodePrepareResourcesRequest{Claims: []*api.Claim{{Namespace: c.Namespace, Name: c.Name,
			Uid: string(c.UID)}}})
	if err != nil || len(r.Claims["u-1"].GetDevices()) != 1 {
		t.Fatalf("got %v, %v", r, err)
	}
	_, reference, _ := strings.Cut(r.Claims["u-1"].Devices[0].CdiDeviceIds[0], "=")
	parsed, err := grant.ParseReference(reference)
	if err != nil || !strings.Contains(log.String(), string(parsed.ID)) {
		t.Fatalf("%q is no reference to what was logged as prepared: %v", reference, err)
	}
	if strings.Contains(log.String(), reference) {
		t.Errorf("the log has the claim's reference:\n%s", &log)
	}
}

func TestUnservedSocketsAreRemoved(t *testing.T) {
	t.Chdir(t.TempDir()) // a socket's path must be short
	if err := errors.Join(os.Mkdir("registry", 0o700), os.Mkdir("data", 0o700)); err != nil {
		t.Fatal(err)
	}
	kept := map[string]bool{
		"registry/gpuledger.dev-uid-of-a-pod-that-was-killed-reg.sock": false,
		"data/dra-uid-of-a-pod-that-was-killed.sock":                   false, "data/dra.sock": false,
		// of a driver that runs
		"registry/gpuledger.dev-uid-2-reg.sock": true, "data/dra-uid-2.sock": true,
		"registry/vendor.example-reg.sock": true,
	}
	for path, kept := range kept {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if !kept || path == "registry/vendor.example-reg.sock" {
			l.(*net.UnixListener).SetUnlinkOnClose(false) // as if it were killed
			l.Close()
		} else {
			defer l.Close()
		}
	}
	if err := removeSockets("registry", "data"); err != nil {
		t.Fatal(err)
	}
	for path, kept := range kept {
		if _, err := os.Lstat(path); (err == nil) != kept {
			t.Errorf("%s is there: %v, want %v", path, err == nil, kept)
		}
	}
}

// The path of a socket has 107 bytes at most, and the kubelet's directory of MicroK8s has 41.
func TestSocketsInALongDirectory(t *testing.T) {
	const uid = "6a1c8f9e-52d7-4f5e-9c70-0d6c3f1b8a11"
	for name, c := range map[string]struct {
		kubelet int // bytes of the directory's name
		pod     types.UID
		want    types.UID
	}{
		"the usual one":                {len("/var/lib/kubelet"), uid, uid},
		"the last with all of the UID": {30, uid, uid},
		"the first without":            {31, uid, "6a1c8f9e"},
		"MicroK8s":                     {41, uid, "6a1c8f9e"},
		"the last":                     {58, uid, "6a1c8f9e"},
		"without a UID":                {67, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := onSockets(t, 1)
			kubelet := strings.Repeat("k", c.kubelet)
			registry, data := kubelet+"/plugins_registry", kubelet+"/plugins/"+DriverName
			if err := errors.Join(os.MkdirAll(registry, 0o700), os.MkdirAll(data, 0o700)); err != nil {
				t.Fatal(err)
			}
			served, err := s.Serve(t.Context(), registry, data, c.pod)
			if err != nil {
				t.Fatal(err)
			}
			defer served.Stop()
			part := ""
			if c.want != "" {
				part = "-" + string(c.want)
			}
			for _, path := range []string{registry + "/" + DriverName + part + "-reg.sock",
				data + "/dra" + part + ".sock"} {
				if _, err := os.Lstat(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	s := onSockets(t, 1)
	long := strings.Repeat("k", 59) + "/plugins_registry"
	if _, err := s.Serve(t.Context(), long, "data", uid); err == nil ||
		err.Error() != "cannot have sockets in "+long+" and data: a path would have 108 bytes, and Linux "+
			"allows 107: the kubelet needs a directory with a shorter name" {
		t.Errorf("got %v", err)
	}
}

// A driver without its sockets would leave every pod waiting, so it ends. If the API refuses slices
// for a while, it continues.
func TestErrorsThatEndTheDriver(t *testing.T) {
	s := newSite(t, 1)
	var ends []error
	s.Broken = func(err error) { ends = append(ends, err) }
	s.HandleError(context.Background(), fmt.Errorf("no such field: %w", kubeletplugin.ErrRecoverable),
		"processing ResourceSlice objects")
	if len(ends) > 0 {
		t.Errorf("slices that are not taken end the driver: %v", ends)
	}
	s.HandleError(context.Background(), net.ErrClosed, "DRA gRPC server failed")
	if len(ends) != 1 || !errors.Is(ends[0], net.ErrClosed) ||
		!strings.Contains(ends[0].Error(), "DRA gRPC server failed") {
		t.Errorf("the driver that cannot be called goes on: %v", ends)
	}
}

// If a Node is deleted and made again, the slices that belong to the old Node are
// garbage-collected.
func TestADriverOfADeletedNodeEnds(t *testing.T) {
	s := newSite(t, 1)
	var ends []error
	s.Broken = func(err error) { ends = append(ends, err) }
	looks := func(nodes ...runtime.Object) error {
		s.Client = fake.NewClientset(nodes...)
		return s.SameNode(context.Background())
	}
	is := func(uid types.UID) runtime.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool, UID: uid}}
	}
	if err := errors.Join(looks(is("1")), looks(is("1"))); err != nil || len(ends) > 0 {
		t.Fatalf("%v, ended by %v; want no slice of the same node", err, ends)
	}
	if err := looks(); err == nil || len(ends) > 0 {
		t.Errorf("%v, ended by %v; want an error alone where there is none", err, ends)
	}
	if err := looks(is("2")); err != nil || len(ends) != 1 ||
		!strings.Contains(ends[0].Error(), "the cluster has another node "+pool) {
		t.Errorf("%v, ended by %v; want an end for another node", err, ends)
	}
}
