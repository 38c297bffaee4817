// Command gpuledger-kube is a node's agent in a cluster: the DRA driver, or the device plugin if
// the cluster has no dynamic resource allocation. It enters what the cluster decides into the
// node's ledger.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/klog/v2"

	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/version"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/usage"
)

func main() { os.Exit(run(os.Args)) }

// run is main, but returns the exit status.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	app := &cli.App{
		Name:        "gpuledger-kube",
		Usage:       "a node's agent in a Kubernetes cluster: grants what the cluster decides",
		Description: "Exit status: 0 stopped, 1 failed, 2 usage.",
		Version:     version.Version,
		Commands: []*cli.Command{draCommand(), devicePluginCommand(), schedulerCommand(),
			webhookCommand(), probeCommand(),
			uninstallCommand()},
	}
	usage.Strict(app)
	err := app.RunContext(ctx, cmdline.Ordered(app, args))
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpuledger-kube:", err)
	}
	return usage.Status(err)
}

// common returns the flags of both commands.
func common() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "the configuration `FILE` of the node",
			EnvVars: []string{policy.PathEnv}, Value: policy.DefaultPath},
		&cli.StringFlag{Name: "kubelet-dir", Usage: "the kubelet's `DIR`ectory", Value: "/var/lib/kubelet"},
		&cli.DurationFlag{Name: "interval", Usage: "interval between two readings of the ledger",
			Value: time.Second},
		&cli.StringFlag{Name: "listen",
			Usage: "the `ADDRESS` at which metrics are served, as :9838; empty: nowhere"},
	}
}

// open reads the common arguments. The configuration must be readable, because an agent without one
// would publish wrong data.
func open(c *cli.Context) (nodeledger.Ledger, *slog.Logger, error) {
	if c.Duration("interval") <= 0 {
		return nodeledger.Ledger{}, nil, usage.Error(c,
			"cannot look at the ledger every %s: --interval has to be longer",
			c.Duration("interval"))
	}
	config, err := filepath.Abs(c.String("config"))
	if err != nil {
		return nodeledger.Ledger{}, nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	b := nodeledger.Ledger{Config: config, Open: func() *node.Node {
		return node.Open(config, host.Default())
	}}
	n := b.Open()
	if n.Broken == nil {
		err = restrict(n.Policy.RunDir)
	}
	return b, log, errors.Join(n.Broken, err)
}

// restrict makes a directory of the ledger accessible to root alone. For a missing volume the
// kubelet makes a directory that all users can read.
func restrict(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err == nil {
		err = os.Chmod(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("cannot close the directory of the ledger to others: %w", err)
	}
	return nil
}

// repetition is work that is done again and again.
type repetition struct {
	what     string        // its name in the log
	interval time.Duration // from the end of one pass to the next
	retry    time.Duration // the wait after an error, if the interval is longer; 0: the interval
	limit    time.Duration // of one pass; 0: none
	do       func(context.Context) error
}

// repeat does the work at once and at every interval, until the context ends. It logs an error when
// it differs from the last one.
func repeat(ctx context.Context, log *slog.Logger, r repetition) {
	for last := ""; ctx.Err() == nil; {
		wait, now := r.interval, ""
		if err := r.pass(ctx); err != nil && ctx.Err() == nil {
			now = err.Error()
			if r.retry > 0 {
				wait = min(wait, r.retry)
			}
		}
		if now != "" && now != last {
			log.Warn(r.what, "error", now)
		}
		last = now
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// pass does the work once, within the limit.
func (r repetition) pass(ctx context.Context) error {
	if r.limit > 0 {
		limited, cancel := context.WithTimeout(ctx, r.limit)
		defer cancel()
		ctx = limited
	}
	return r.do(ctx)
}
