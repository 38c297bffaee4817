package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuledger/gpuledger/kube/dra"
	"github.com/gpuledger/gpuledger/kube/health"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/usage"
)

func draCommand() *cli.Command {
	return &cli.Command{
		Name:  "dra",
		Usage: "the driver for dynamic resource allocation (Kubernetes 1.36 and later)",
		Flags: append(common(),
			&cli.StringFlag{Name: "node-name", Usage: "the node's `NAME` in the cluster",
				EnvVars: []string{"NODE_NAME"}},
			kubeconfigFlag(),
			&cli.StringFlag{Name: "pod-uid",
				Usage: "the `UID` of the driver's own pod, so that an update can start the new driver " +
					"before the old one ends",
				EnvVars: []string{"POD_UID"}},
			&cli.DurationFlag{Name: "reclaim",
				Usage: "interval between two checks for grants whose claim is gone and for a new node object",
				Value: time.Minute}),
		Action: serveDRA,
	}
}

func serveDRA(c *cli.Context) error {
	if c.String("node-name") == "" {
		return usage.Error(c, "cannot serve a node without its name in the cluster: give --node-name")
	}
	if c.Duration("reclaim") <= 0 {
		return usage.Error(c, "cannot look for claims every %s: --reclaim has to be longer",
			c.Duration("reclaim"))
	}
	b, log, err := open(c)
	if err != nil {
		return err
	}
	// A driver that starts watches all claims that it has prepared, and must prepare others
	// meanwhile, so it has a client for each.
	client, err := clientOf(c, usual)
	if err != nil {
		return err
	}
	watch, err := clientOf(c, usual)
	if err != nil {
		return err
	}
	data := filepath.Join(c.String("kubelet-dir"), "plugins", dra.DriverName)
	b.References, b.Batch = filepath.Join(data, "references"), &nodeledger.Batch{}
	ctx, broken := context.WithCancelCause(c.Context)
	defer broken(nil)
	state := &health.State{Now: time.Now, Metric: "dra_operations_duration_seconds", Driver: dra.DriverName,
		Failed: dra.Failed}
	driver := &dra.Driver{Ledger: b, Node: c.String("node-name"), Client: client, Watch: watch, Log: log,
		Broken:    broken,
		Intercept: state.Intercept}
	if err := os.MkdirAll(data, 0o750); err != nil {
		return fmt.Errorf("cannot make the driver's directory: %w", err)
	}
	plugin, err := driver.Serve(ctx, filepath.Join(c.String("kubelet-dir"), "plugins_registry"), data,
		types.UID(c.String("pod-uid")))
	if err != nil {
		return fmt.Errorf("cannot serve the kubelet: %w", err)
	}
	defer plugin.Stop()
	state.Ready = plugin.Registered
	if err := serveHealth(c, state, "dra", log); err != nil {
		return err
	}
	log.Info("serving the kubelet", "driver", dra.DriverName, "node", driver.Node)
	var all sync.WaitGroup
	for _, r := range []repetition{
		{what: "sockets", interval: c.Duration("interval"), do: func(context.Context) error {
			if err := plugin.Lost(); err != nil {
				broken(err)
			}
			return nil
		}},
		{what: "slices", interval: c.Duration("interval"), do: func(ctx context.Context) error {
			return driver.Publish(ctx, plugin)
		}},
		{what: "claims", interval: c.Duration("reclaim"), do: driver.Reclaim},
		{what: "node", interval: c.Duration("reclaim"), do: driver.SameNode},
	} {
		all.Go(func() { repeat(ctx, log, watched(state, r)) })
	}
	all.Go(func() { driver.Follow(ctx, 10*c.Duration("interval")) })
	all.Wait()
	if c.Context.Err() == nil {
		// The kubelet or the service manager starts the driver again.
		return fmt.Errorf("cannot go on to serve the kubelet: %w", context.Cause(ctx))
	}
	return nil
}
