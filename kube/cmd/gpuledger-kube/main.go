// Command gpuledger-kube is a node's agent in a cluster: the DRA driver, or the device plugin where the cluster has no dynamic
// resource allocation. It enters what the cluster decides into the node's ledger.
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
	"github.com/gpuledger/gpuledger/kube/book"
	"github.com/gpuledger/gpuledger/kube/usage"
)

func main() { os.Exit(run(os.Args)) }

// run is main with its status returned.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	app := &cli.App{
		Name:        "gpuledger-kube",
		Usage:       "a node's agent in a Kubernetes cluster: grants what the cluster decides",
		Description: "Exit status: 0 stopped, 1 failed, 2 usage.",
		Version:     version.Version,
		Commands:    []*cli.Command{draCommand(), devicePluginCommand()},
	}
	usage.Strict(app)
	err := app.RunContext(ctx, cmdline.Ordered(app, args))
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpuledger-kube:", err)
	}
	return usage.Status(err)
}

// common are the flags of both.
func common() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config", Usage: "the configuration `FILE` of the node", EnvVars: []string{policy.PathEnv}, Value: policy.DefaultPath},
		&cli.StringFlag{Name: "kubelet-dir", Usage: "the kubelet's `DIR`ectory", Value: "/var/lib/kubelet"},
		&cli.DurationFlag{Name: "interval", Usage: "between two looks at the ledger", Value: time.Second},
	}
}

// open reads the arguments that are common. The configuration must be readable: an agent of a node that nobody can describe
// would publish nonsense.
func open(c *cli.Context) (book.Book, *slog.Logger, error) {
	if c.Duration("interval") <= 0 {
		return book.Book{}, nil, usage.Error(c, "cannot look at the ledger every %s: --interval has to be longer", c.Duration("interval"))
	}
	config, err := filepath.Abs(c.String("config"))
	if err != nil {
		return book.Book{}, nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	klog.SetSlogLogger(log)
	b := book.Book{Config: config, Open: func() *node.Node { return node.Open(config, host.Default()) }}
	n := b.Open()
	if n.Broken == nil {
		err = closed(n.Policy.RunDir)
	}
	return b, log, errors.Join(n.Broken, err)
}

// closed makes a directory of the ledger nobody's but root's. Of a volume that was not there the kubelet makes one that all can read.
func closed(dir string) error {
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

// tend calls do at once and at every interval, until the context ends. A failure is logged when it is new.
func tend(ctx context.Context, interval time.Duration, log *slog.Logger, what string, do func(context.Context) error) {
	for last := ""; ctx.Err() == nil; {
		err := do(ctx)
		now := ""
		if err != nil && !errors.Is(err, context.Canceled) {
			now = err.Error()
		}
		if now != "" && now != last {
			log.Warn(what, "error", now)
		}
		last = now
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}
