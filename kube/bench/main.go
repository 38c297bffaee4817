// Command bench measures a cluster of many nodes with simulated GPUs. It has a real etcd, API
// server and scheduler, and all nodes' DRA drivers run in this one process. No kubelet runs the
// pods. It prints the figures of docs/benchmarks.md. `make bench-cluster` runs it in a mount and a
// network namespace of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// options holds the size of the cluster and of the measurements.
type options struct {
	engines, classes          string
	nodes, gpus, claims, lone int
	modes                     string
	wobble, patience          time.Duration
	qps                       int
	profile                   string
	prepares, rounds          int
	curve                     string
	limit                     time.Duration
	placing                   bool
	packNodes, orders         int
	filterNodes, filters      int
}

func main() {
	var o options
	flag.StringVar(&o.engines, "engines", ".cache/engines",
		"where test/engines/build.sh has put etcd and kubernetes")
	flag.StringVar(&o.classes, "classes", "kube/manifests/dra/classes.yaml", "the DeviceClasses")
	flag.IntVar(&o.nodes, "nodes", 100, "how many nodes")
	flag.IntVar(&o.gpus, "gpus", 8, "GPUs of 16 GiB in each")
	flag.StringVar(&o.modes, "modes", "",
		"the modes of all GPUs, separated by commas, as a pool of the node's configuration lists "+
			"them, such as "+counted+", which take counters; none: without a pool")
	flag.IntVar(&o.claims, "claims", 1000, "claims of 4 GiB, each with a pod, made at once")
	flag.IntVar(&o.lone, "lone", 50, "claims made one after another, before those")
	flag.DurationVar(&o.wobble, "wobble", 30*time.Second,
		"how long what is used outside the ledger changes each second on each node")
	flag.DurationVar(&o.patience, "patience", 30*time.Minute,
		"how long the claims made at once may take until all are bound")
	flag.StringVar(&o.profile, "profile", "",
		"the `FILE` for a profile of the scheduler's CPU, of 20 seconds while claims are made at once")
	flag.IntVar(&o.qps, "scheduler-qps", 0, "requests a second that the scheduler may make; 0: its default")
	flag.IntVar(&o.prepares, "prepares", 64, "claims that the kubelet of one node prepares at once; 0: none")
	flag.IntVar(&o.rounds, "rounds", 5, "how often it does that")
	flag.StringVar(&o.curve, "curve", "",
		"numbers of nodes, separated by commas, such as 50,100,250,500: measure claims on clusters of "+
			"these sizes with and without counters, and nothing else")
	flag.DurationVar(&o.limit, "limit", 2*time.Minute,
		"how long the claims of one point of the curve may take, one after another and at once")
	flag.BoolVar(&o.placing, "placing", false,
		"measure the extender of kube-scheduler, and nothing else: it needs neither a cluster nor root")
	flag.IntVar(&o.packNodes, "packing-nodes", 100, "how many nodes the extender packs")
	flag.IntVar(&o.orders, "orders", 20, "in how many random orders")
	flag.IntVar(&o.filterNodes, "filter-nodes", 500, "how many nodes the extender filters")
	flag.IntVar(&o.filters, "filters", 2000, "how often; 0: the extender is not measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	measure := run
	switch {
	case o.placing:
		measure = placing
	case o.curve != "":
		measure = curve
	}
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	dir, err := os.MkdirTemp("", "bench-cluster-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := startCluster(ctx, dir, o)
	if err != nil {
		return err
	}
	defer c.stop()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.said())
		}
	}()
	if err := c.prepare(ctx, o); err != nil {
		return err
	}
	drivers, err := newFleet(dir, o, c)
	if err != nil {
		return err
	}
	for _, measure := range []func(context.Context, options, *cluster, *fleet) error{publishing, changing,
		wobbling, alone, burst} {
		if err := measure(ctx, o, c, drivers); err != nil {
			return err
		}
	}
	drivers.stop()
	if err := preparing(ctx, o, c, dir); err != nil || o.filters == 0 {
		return err
	}
	return placing(ctx, o)
}

// publishing measures from the start of all drivers until the API has all their slices.
func publishing(ctx context.Context, o options, c *cluster, f *fleet) error {
	before, began := c.requests(ctx), time.Now()
	if err := f.start(ctx); err != nil {
		return err
	}
	if err := c.untilSlices(ctx, func(outside int) bool { return outside == 0 }, o); err != nil {
		return err
	}
	took := time.Since(began)
	fmt.Printf(
		"published: %d slices of %d nodes with %d devices in %.1f s; %d requests of the drivers (%s)\n",
		c.slices(), o.nodes, c.devices(), took.Seconds(), f.count.take(),
		c.requests(ctx).since(before, "resourceslices"))
	return nil
}

// changing measures from a change on each node until the API has all of them.
func changing(ctx context.Context, o options, c *cluster, f *fleet) error {
	before, began := c.requests(ctx), time.Now()
	if err := f.outside(1); err != nil {
		return err
	}
	if err := c.untilSlices(ctx, func(outside int) bool { return outside == o.nodes }, o); err != nil {
		return err
	}
	fmt.Printf("changed: one GPU of each node, in %.1f s; %d requests of the drivers (%s)\n",
		time.Since(began).Seconds(), f.count.take(), c.requests(ctx).since(before, "resourceslices"))
	return nil
}

// wobbling measures the requests to the API while capacities change every second.
func wobbling(ctx context.Context, o options, c *cluster, f *fleet) error {
	before, began := c.requests(ctx), time.Now()
	for i := 0; time.Since(began) < o.wobble; i++ {
		if err := f.outside(512 * (3 + i%5)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	took := time.Since(began)
	n := f.count.take()
	fmt.Printf(
		"wobbling: another amount on each node each second, for %.0f s: %d requests of the drivers, %.1f a "+
			"second (%s)\n",
		took.Seconds(), n, float64(n)/took.Seconds(), c.requests(ctx).since(before, "resourceslices"))
	return nil
}

// alone measures how long the scheduler takes for one claim without other work.
func alone(ctx context.Context, o options, c *cluster, _ *fleet) error {
	var all []time.Duration
	for i := range o.lone {
		took, err := c.schedule(ctx, fmt.Sprintf("lone-%d", i), 1, o.patience)
		if err != nil {
			return err
		}
		all = append(all, took...)
	}
	fmt.Printf("alone: %d claims one after another, from the pod's creation to its binding: %s\n", len(all),
		quantiles(all))
	return nil
}

// burst makes all claims at once. It measures how long each waits, and how long all take.
func burst(ctx context.Context, o options, c *cluster, f *fleet) error {
	before, began, used := c.requests(ctx), time.Now(), c.usage()
	profiled := make(chan error, 1)
	go func() { profiled <- c.profile(ctx, o.profile) }()
	all, err := c.schedule(ctx, "burst", o.claims, o.patience)
	if err != nil {
		return err
	}
	took := time.Since(began)
	fmt.Printf("burst: %d claims at once: all bound in %.1f s, %.0f a second; each waits %s\n", len(all),
		took.Seconds(), float64(len(all))/took.Seconds(), quantiles(all))
	fmt.Printf("burst: requests: %s\n", c.requests(ctx).since(before, "pods", "resourceclaims", "events"))
	fmt.Printf("burst: CPU: %s of %.1f s; scheduler: %s\n", c.usage().since(used), took.Seconds(),
		c.schedulerSays(ctx))
	return <-profiled
}

func quantiles(all []time.Duration) string {
	slices.Sort(all)
	at := func(q float64) float64 { return all[min(len(all)-1, int(q*float64(len(all))))].Seconds() * 1000 }
	return fmt.Sprintf("p50 %.0f ms, p95 %.0f ms, longest %.0f ms", at(0.5), at(0.95), at(1))
}

// together runs do for each number below n, at most width at a time.
func together(n, width int, do func(i int) error) error {
	var (
		mu  sync.Mutex
		all error
		wg  sync.WaitGroup
	)
	next := make(chan int)
	for range min(n, width) {
		wg.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					mu.Lock()
					all = errors.Join(all, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return all
}
