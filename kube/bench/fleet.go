package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/kube/dra"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// fleet holds the drivers of all nodes.
type fleet struct {
	members []*fleetMember
	count   counter
	end     context.CancelFunc
	all     sync.WaitGroup
}

// fleetMember is a node's driver, as gpuledger-kube runs it, with the node's real ledger.
type fleetMember struct {
	driver *dra.Driver
	dir    string
	first  string // UUID of its first GPU
	plugin *kubeletplugin.Helper
}

// counter counts the requests of all drivers.
type counter struct{ n atomic.Int64 }

func (c *counter) take() int64 { return c.n.Swap(0) }

type countingTransport struct {
	*counter
	http.RoundTripper
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

func newFleet(dir string, o options, c *cluster) (*fleet, error) {
	f := &fleet{}
	for i := range o.nodes {
		m, err := newMember(filepath.Join(dir, nodeName(i)), i, o, c, &f.count)
		if err != nil {
			return nil, err
		}
		f.members = append(f.members, m)
	}
	return f, nil
}

// memoryOfGPU is the memory of each GPU.
const memoryOfGPU = 16 * grant.GiB

func newMember(dir string, i int, o options, c *cluster, count *counter) (*fleetMember, error) {
	for _, d := range []string{"state", "plugin", "registry"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	// The UUIDs depend on the name.
	d, err := simulated.Describe(o.gpus, memoryOfGPU, fmt.Sprintf("Simulated GPU of %s", nodeName(i)), nil)
	if err != nil {
		return nil, err
	}
	inv, err := simulated.Scan(d, host.Default(), "/")
	if err == nil {
		err = gpu.Write(gpu.Path(dir+"/state"), inv)
	}
	config, pool := dir+"/config.toml", ""
	if o.modes != "" {
		pool = fmt.Sprintf("[[pool]]\ngpus = [\"0-%d\"]\nmodes = [\"%s\"]\n", o.gpus-1,
			strings.ReplaceAll(o.modes, ",", `", "`))
	}
	if err == nil {
		err = os.WriteFile(config, fmt.Appendf(nil,
			"state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\nfile = "+
				"\"/nowhere\"\n[cdi]\ndir = %q\n%s",
			dir+"/state", dir+"/run", dir+"/cdi", pool), 0o600)
	}
	if err != nil {
		return nil, err
	}
	rest := rest.CopyConfig(c.config) // with client-go's default limits
	rest.QPS, rest.Burst = 0, 0
	rest.Wrap(func(t http.RoundTripper) http.RoundTripper { return countingTransport{count, t} })
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, err
	}
	b := nodeledger.Ledger{Config: config, Open: func() *node.Node {
		return node.Open(config, host.Default())
	}}
	return &fleetMember{dir: dir, first: inv.GPUs[0].UUID,
		driver: &dra.Driver{Ledger: b, Node: nodeName(i), Client: client,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil))}}, nil
}

// start starts all drivers, whose kubelets never call, and publishes every second as gpuledger-kube
// does.
func (f *fleet) start(ctx context.Context) error {
	ctx, f.end = context.WithCancel(ctx)
	return together(len(f.members), 10, func(i int) (err error) {
		m := f.members[i]
		m.plugin, err = kubeletplugin.Start(ctx, m.driver, kubeletplugin.DriverName(dra.DriverName),
			kubeletplugin.NodeName(m.driver.Node), kubeletplugin.KubeClient(m.driver.Client),
			kubeletplugin.PluginDataDirectoryPath(m.dir+"/plugin"),
			kubeletplugin.RegistrarDirectoryPath(m.dir+"/registry"), kubeletplugin.GRPCVerbosity(-1))
		if err != nil {
			return err
		}
		f.all.Go(func() {
			for ctx.Err() == nil {
				_ = m.driver.Publish(ctx, m.plugin) // tries again in a second
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
		return nil
	})
}

// outside sets how many MiB of each node's first GPU are used outside the ledger.
func (f *fleet) outside(mib int) error {
	return together(len(f.members), 10, func(i int) error {
		m := f.members[i]
		return m.driver.Ledger.Open().Ledger.SetFound(ledger.Found{
			Outside: map[string]grant.Bytes{m.first: grant.Bytes(mib) * grant.MiB}})
	})
}

func (f *fleet) stop() {
	f.end()
	f.all.Wait()
	for _, m := range f.members {
		m.plugin.Stop()
	}
}
