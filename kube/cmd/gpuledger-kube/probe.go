package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/kube/health"
	"github.com/gpuledger/gpuledger/kube/usage"
)

// probeCommand is what a pod's probes run. Its error is in the pod's events.
func probeCommand() *cli.Command {
	return &cli.Command{
		Name:      "probe",
		Usage:     "ask the agent in this pod whether it is alive or ready",
		ArgsUsage: "dra|device-plugin|scheduler alive|ready",
		Action: func(c *cli.Context) error {
			what, known := map[string]string{"alive": "healthz", "ready": "readyz"}[c.Args().Get(1)]
			agent := c.Args().First()
			if c.NArg() != 2 || !known ||
				!slices.Contains([]string{"dra", "device-plugin", "scheduler"}, agent) {
				return usage.Error(c, "cannot probe %q: want dra, device-plugin or scheduler, and alive or "+
					"ready", c.Args().Slice())
			}
			return health.Probe(c.Context, agent, what)
		},
	}
}

// serveHealth answers the pod's probes, and Prometheus at the address of --listen. Without it the
// agent works as well, so a failure is only logged.
func serveHealth(c *cli.Context, s *health.State, agent string, log *slog.Logger) error {
	probes, err := net.Listen("unix", health.Socket(agent))
	if err != nil {
		log.Warn("probes", "error", err)
	} else {
		go s.Serve(c.Context, probes)
	}
	if c.String("listen") == "" {
		return nil
	}
	metrics, err := net.Listen("tcp", c.String("listen"))
	if err != nil {
		return fmt.Errorf("cannot serve metrics: %w", err)
	}
	go s.Serve(c.Context, metrics)
	return nil
}

// watched is the same work with its passes noted.
func watched(s *health.State, r repetition) repetition {
	do := r.do
	r.do = func(ctx context.Context) error {
		end := s.Pass(r.what, r.interval)
		err := do(ctx)
		end(err)
		return err
	}
	return r
}
