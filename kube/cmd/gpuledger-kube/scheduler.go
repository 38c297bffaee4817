package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/urfave/cli/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/gpuledger/gpuledger/kube/health"
	"github.com/gpuledger/gpuledger/kube/placement"
	"github.com/gpuledger/gpuledger/kube/scheduler"
	"github.com/gpuledger/gpuledger/kube/usage"
)

const schedulerHelp = `It chooses the GPUs of pods on nodes of the device plugin. It does not run on the nodes
with GPUs: it runs beside a kube-scheduler, whose configuration names it.

Example:

    gpuledger-kube scheduler --kubeconfig FILE --extender 127.0.0.1:9839

    apiVersion: kubescheduler.config.k8s.io/v1
    kind: KubeSchedulerConfiguration
    percentageOfNodesToScore: 100 # ask about all nodes
    profiles: [{schedulerName: gpuledger-scheduler}]
    extenders:
      - urlPrefix: http://127.0.0.1:9839
        filterVerb: filter
        prioritizeVerb: prioritize
        bindVerb: bind
        weight: 1
        nodeCacheCapable: true`

func schedulerCommand() *cli.Command {
	return &cli.Command{
		Name:        "scheduler",
		Usage:       "an extender of kube-scheduler, which chooses pods' GPUs",
		Description: schedulerHelp,
		Flags: []cli.Flag{
			kubeconfigFlag(),
			&cli.StringFlag{Name: "extender", Usage: "the `ADDRESS` at which kube-scheduler calls",
				Value: "127.0.0.1:9839"},
			&cli.StringFlag{Name: "tls-cert", Usage: "the certificate `FILE` of the extender"},
			&cli.StringFlag{Name: "tls-key", Usage: "the key `FILE` of the extender"},
			&cli.StringFlag{Name: "client-ca",
				Usage: "the `FILE` of the authority that signs kube-scheduler's certificate"},
			&cli.StringFlag{Name: "resources-file",
				Usage: "the `FILE` with the names by which pods ask for GPUs; without one, gpuledger's own"},
			&cli.StringFlag{Name: "policy", Usage: "how nodes and GPUs are filled: binpack or spread",
				Value: string(placement.Binpack)},
			&cli.DurationFlag{Name: "move-after",
				Usage: "how long a node refuses a pod until the pod is moved",
				Value: 15 * time.Second},
			&cli.StringFlag{Name: "lease", Usage: "`NAMESPACE/NAME` of a Lease, if several processes serve " +
				"one kube-scheduler: only the one that has it binds"},
			&cli.DurationFlag{Name: "interval",
				Usage: "interval between two looks at refused and waiting pods",
				Value: time.Second},
			&cli.StringFlag{Name: "listen",
				Usage: "the `ADDRESS` at which metrics are served, as :9838; empty: nowhere"}},
		Action: serveScheduler,
	}
}

func serveScheduler(c *cli.Context) error {
	config, security, err := schedulerConfig(c)
	if err != nil {
		return err
	}
	config.Client, err = clientOf(c, many)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(config.Log)
	ctx, stop := context.WithCancelCause(c.Context)
	defer stop(nil)
	state := &health.State{Now: time.Now, Metric: "scheduler_operations_duration_seconds",
		Driver: "gpuledger.dev"}
	config.Measured = state.Call
	if lease := c.String("lease"); lease != "" {
		if config.Leads, err = lead(ctx, stop, config.Client, lease); err != nil {
			return err
		}
	}
	s := scheduler.New(config)
	state.Ready = s.Ready
	if err := serveHealth(c, state, "scheduler", config.Log); err != nil {
		return err
	}
	if err := serveExtender(ctx, stop, c.String("extender"), security, s.Handler()); err != nil {
		return err
	}
	config.Log.Info("serving kube-scheduler", "at", c.String("extender"))
	err = s.Run(ctx, func(what string, do func(context.Context) error) {
		repeat(ctx, config.Log, watched(state, repetition{what: what, interval: c.Duration("interval"),
			do: do}))
	})
	if c.Context.Err() != nil {
		return nil
	}
	return cmp.Or(context.Cause(ctx), err)
}

// schedulerConfig reads the arguments.
func schedulerConfig(c *cli.Context) (config scheduler.Config, security *tls.Config, err error) {
	config = scheduler.Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Now: time.Now,
		Policy: placement.Policy(c.String("policy")), MoveAfter: c.Duration("move-after")}
	switch {
	case config.Policy != placement.Binpack && config.Policy != placement.Spread:
		return config, nil, usage.Error(c, "cannot use --policy %q: want binpack or spread", config.Policy)
	case config.MoveAfter < 0:
		return config, nil, usage.Error(c, "cannot move a pod after %s: --move-after has to be longer",
			config.MoveAfter)
	case c.Duration("interval") <= 0:
		return config, nil, usage.Error(c, "cannot look at pods every %s: --interval has to be longer",
			c.Duration("interval"))
	}
	if security, err = securityOf(c); err != nil {
		return config, nil, err
	}
	names, err := readNames(c.String("resources-file"))
	if err != nil {
		return config, nil, usage.Error(c, "%v", err)
	}
	config.Wish = names.Wish
	for _, o := range names.Offers() {
		config.Offered = append(config.Offered, o.Name)
	}
	return config, security, nil
}

// securityOf returns how the extender is protected. Whoever reaches it can place pods, so it is on
// loopback, or asks its callers for a certificate.
func securityOf(c *cli.Context) (*tls.Config, error) {
	address, cert, key, ca := c.String("extender"), c.String("tls-cert"), c.String("tls-key"),
		c.String("client-ca")
	hostname, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, usage.Error(c, "cannot use --extender %q: want an address and a port, as 127.0.0.1:9839",
			address)
	}
	ip := net.ParseIP(hostname)
	switch loopback := hostname == "localhost" || ip != nil && ip.IsLoopback(); {
	case cert == "" && key == "" && ca == "" && loopback:
		return nil, nil
	case cert == "" && key == "" && ca == "":
		return nil, usage.Error(c, "cannot serve the extender at %s, which others can reach, without "+
			"certificates: give --tls-cert, --tls-key and --client-ca, or an address of loopback", address)
	case cert == "" || key == "" || ca == "":
		return nil, usage.Error(c, "cannot protect the extender: --tls-cert, --tls-key and --client-ca "+
			"belong together")
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("cannot read --client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("cannot read --client-ca: %s has no certificate", ca)
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("cannot read the extender's certificate: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: pool,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key) // it is renewed meanwhile
			return &pair, err
		}}, nil
}

// serveExtender serves until the context ends, and ends it if it cannot go on.
func serveExtender(ctx context.Context, stop context.CancelCauseFunc, address string, security *tls.Config,
	handler http.Handler) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("cannot serve kube-scheduler: %w", err)
	}
	if security != nil {
		l = tls.NewListener(l, security)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			stop(fmt.Errorf("cannot go on to serve kube-scheduler: %w", err))
		}
	}()
	return nil
}

// lead takes part in the election of the process that binds. One that loses the Lease ends, so that
// nothing that it began goes on.
func lead(ctx context.Context, stop context.CancelCauseFunc, client kubernetes.Interface,
	lease string) (func() bool, error) {
	self, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return leadAs(ctx, stop, client, lease, fmt.Sprintf("%s-%d", self, os.Getpid()))
}

func leadAs(ctx context.Context, stop context.CancelCauseFunc, client kubernetes.Interface,
	lease, self string) (func() bool, error) {
	namespace, name, found := cutName(lease)
	if !found {
		return nil, fmt.Errorf("cannot use --lease %q: want NAMESPACE/NAME", lease)
	}
	var leads atomic.Bool
	election, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{
				Identity: self}},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { leads.Store(true) },
			OnStoppedLeading: func() {
				leads.Store(false)
				stop(errors.New("cannot go on to bind pods: another process may have the lease"))
			}}})
	if err != nil {
		return nil, fmt.Errorf("cannot take part in an election: %w", err)
	}
	go election.Run(ctx)
	// The library calls OnStoppedLeading once the API has the end, which can outlast the Lease.
	return func() bool { return leads.Load() && ctx.Err() == nil && election.Check(0) == nil }, nil
}

func cutName(text string) (namespace, name string, found bool) {
	namespace, name, found = strings.Cut(text, "/")
	return namespace, name, found && namespace != "" && name != ""
}
