package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/kube/dra"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// kubeletNode is a node whose kubelet is this program: it calls the driver by its socket. The
// ledger and the references are on the disk, with the driver's own durability. What is in /run on a
// node is in memory.
type kubeletNode struct {
	name   string
	gpus   []string // UUIDs
	client kubernetes.Interface
	driver drapb.DRAPluginClient
	close  func()

	reading timed // what the driver's calls take to read claims from the API
}

// timed collects how long requests took, by their path.
type timed struct {
	mu  sync.Mutex
	all map[string]time.Duration
}

type timedTransport struct {
	*timed
	http.RoundTripper
}

func (t timedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	began := time.Now()
	answer, err := t.RoundTripper.RoundTrip(r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[string]time.Duration{}
	}
	t.all[path.Base(r.URL.Path)] = time.Since(began)
	return answer, err
}

// of returns how long the last request for an object took.
func (t *timed) of(name string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[name]
}

// throttle is how long the driver's client takes until it may make as many requests at once again.
const throttle = 3 * time.Second

// writeNode writes the node's GPUs and configuration below dir. It returns the configuration's path
// and the GPUs' UUIDs.
func writeNode(dir, run string, o options) (config string, gpus []string, err error) {
	d, err := simulated.Describe(o.gpus, memoryOfGPU, "Simulated GPU of the kubelet's node", nil)
	if err != nil {
		return "", nil, err
	}
	inv, err := simulated.Scan(d, host.Default(), "/")
	if err != nil {
		return "", nil, err
	}
	for _, g := range inv.GPUs {
		gpus = append(gpus, g.UUID)
	}
	config = dir + "/config.toml"
	if err := gpu.Write(gpu.Path(dir+"/state"), inv); err != nil {
		return "", nil, err
	}
	return config, gpus, os.WriteFile(config, fmt.Appendf(nil,
		"engine = \"containerd\"\nstate_dir = %q\nrun_dir = %q\n"+
			"[inventory]\nsource = \"simulated\"\nfile = \"/nowhere\"\n[cdi]\ndir = %q\n[audit]\nfile = %q\n",
		dir+"/state", run+"/gpuledger", run+"/cdi", dir+"/audit.log"), 0o600)
}

func newKubeletNode(ctx context.Context, dir string, c *cluster, o options) (*kubeletNode, error) {
	run, data, registry := dir+"/run", dir+"/plugin", dir+"/registry"
	for _, d := range []string{run, dir + "/state", data, registry} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=700"); err != nil {
		return nil, fmt.Errorf("cannot mount %s: %w", run, err)
	}
	config, gpus, err := writeNode(dir, run, o)
	if err != nil {
		return nil, err
	}
	n := &kubeletNode{name: "node-prepare", client: c.client, gpus: gpus}
	own := rest.CopyConfig(c.config)
	own.QPS, own.Burst = 50, 100 // as gpuledger-kube
	own.Wrap(func(t http.RoundTripper) http.RoundTripper { return timedTransport{&n.reading, t} })
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, err
	}
	watch, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, err
	}
	driver := &dra.Driver{Node: n.name, Client: client, Watch: watch,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Ledger: nodeledger.Ledger{Config: config, References: data + "/references",
			Batch: &nodeledger.Batch{},
			Open:  func() *node.Node { return node.Open(config, host.Default()) }}}
	room := corev1.ResourceList{"cpu": resource.MustParse("1")}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec:   corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room}}
	if _, err := c.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	serving, end := context.WithCancel(ctx)
	plugin, err := driver.Serve(serving, registry, data, "")
	if err != nil {
		end()
		return nil, err
	}
	// as gpuledger-kube
	var all sync.WaitGroup
	all.Go(func() { driver.Follow(serving, 10*time.Second) })
	all.Go(func() {
		for serving.Err() == nil {
			_ = driver.Publish(serving, plugin)
			select {
			case <-serving.Done():
			case <-time.After(time.Second):
			}
		}
	})
	conn, err := grpc.NewClient("unix:"+filepath.Join(data, "dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	n.driver = drapb.NewDRAPluginClient(conn)
	n.close = func() {
		conn.Close()
		end()
		plugin.Stop()
		all.Wait()
		_ = unix.Unmount(run, 0)
	}
	return n, err
}

// allocated makes a claim that the scheduler has allocated: a GiB of one of the GPUs.
func (n *kubeletNode) allocated(ctx context.Context, i int) (*drapb.Claim, error) {
	claims := n.client.ResourceV1().ResourceClaims("default")
	name := fmt.Sprintf("prepare-%d", i)
	claim, err := claims.Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "limit." + dra.DriverName}}}}}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	share := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{
			Driver: dra.DriverName, Pool: n.name, Request: "gpu",
			Device: strings.ToLower(n.gpus[i%len(n.gpus)]) + "-limit", ShareID: &share,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse("1Gi"), "compute": resource.MustParse("5")}}}}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name,
		UID: types.UID("pod-of-" + name)}}
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}, nil
}

// preparing measures the kubelet's calls for many claims at once on one node, in several rounds.
func preparing(ctx context.Context, o options, c *cluster, dir string) error {
	if o.prepares == 0 {
		return nil
	}
	n, err := newKubeletNode(ctx, filepath.Join(dir, "kubelet"), c, o)
	if err != nil {
		return err
	}
	defer n.close()
	claims := make([]*drapb.Claim, o.prepares)
	if err := together(o.prepares, 10, func(i int) (err error) {
		claims[i], err = n.allocated(ctx, i)
		return err
	}); err != nil {
		return err
	}
	if err := disk(dir); err != nil {
		return err
	}
	prepare := func(ctx context.Context, c *drapb.Claim) (string, error) {
		r, err := n.driver.NodePrepareResources(ctx,
			&drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
		return r.GetClaims()[c.Uid].GetError(), err
	}
	unprepare := func(ctx context.Context, c *drapb.Claim) (string, error) {
		r, err := n.driver.NodeUnprepareResources(ctx,
			&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
		return r.GetClaims()[c.Uid].GetError(), err
	}
	type call struct {
		name string
		do   func(context.Context, *drapb.Claim) (string, error)
	}
	calls, took := []call{{"prepare", prepare}, {"unprepare", unprepare}}, map[string][]time.Duration{}
	const without = " without the API"
	one := func(call call, width int) error {
		time.Sleep(throttle)
		each, alone := make([]time.Duration, len(claims)), make([]time.Duration, len(claims))
		err := together(len(claims), width, func(i int) error {
			began := time.Now()
			problem, err := call.do(ctx, claims[i])
			if each[i] = time.Since(began); err == nil && problem != "" {
				err = fmt.Errorf("%s: %s", call.name, problem)
			}
			alone[i] = each[i] - n.reading.of(claims[i].Name)
			return err
		})
		key := fmt.Sprintf("%s %d at once", call.name, width)
		took[key], took[key+without] = append(took[key], each...), append(took[key+without], alone...)
		return err
	}
	for _, width := range []int{1, o.prepares} {
		for range o.rounds {
			for _, call := range calls {
				if err := one(call, width); err != nil {
					return err
				}
			}
		}
		for _, call := range calls {
			key := fmt.Sprintf("%s %d at once", call.name, width)
			fmt.Printf("%s: %d claims of one node, %d at once, in %d rounds: %s", call.name, o.prepares,
				width, o.rounds, percentiles(took[key]))
			if call.name == "prepare" {
				fmt.Printf("; without the API server's answer: %s", percentiles(took[key+without]))
			}
			fmt.Println()
		}
	}
	return nil
}

// disk measures what a small file takes to survive a power cut. Each grant takes two of them, and
// others use the disk, too.
func disk(dir string) error {
	all := make([]time.Duration, 200)
	for i := range all {
		began := time.Now()
		if err := host.ReplaceFile(filepath.Join(dir, "durable"), make([]byte, 512), 0o600,
			host.Durable); err != nil {
			return err
		}
		all[i] = time.Since(began)
	}
	fmt.Printf("disk: a file of 512 bytes and its directory are written for good: %s\n", percentiles(all))
	return nil
}

// percentiles sorts durations and describes them.
func percentiles(all []time.Duration) string {
	slices.Sort(all)
	at := func(q float64) float64 {
		i := int(math.Ceil(q*float64(len(all)))) - 1
		return float64(all[max(0, i)].Microseconds()) / 1000
	}
	return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, longest %.1f ms", at(0.5), at(0.99), at(1))
}
