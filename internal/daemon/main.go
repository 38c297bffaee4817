package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/daemon/driverlimits"
	"github.com/gpuledger/gpuledger/internal/daemon/httpserver"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/daemon/userserver"
	"github.com/gpuledger/gpuledger/internal/daemon/watcher"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mps"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/nodeacl"
	"github.com/gpuledger/gpuledger/internal/nri"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/version"
)

// Main is gpuledgerd. It returns its exit status: 0 stopped, 1 failed, 2 usage.
func Main(args []string) int {
	app := &cli.App{
		Name:  "gpuledgerd",
		Usage: "the node daemon of gpuledger",
		Description: "gpuledgerd does the work that needs a permanent process: the NRI plugin for engines " +
			"whose default runtime cannot be changed,\n" +
			"removing ended grants from the ledger, keeping the inventory current, comparing the use of " +
			"the GPUs with the ledger,\n" +
			"requests of users without root and the queue, access lists of device nodes, MPS daemons, the " +
			"driver's memory limits,\n" +
			"metrics and a status page ([daemon] listen).\n" +
			"Containers behind gpuledger-runtime are guarded without it. It logs to standard error, reads " +
			"its configuration again on\n" +
			"SIGHUP and when it changes, and ends on SIGTERM.\n" +
			"Exit status: 0 stopped, 1 failed, 2 usage.",
		Version:         version.Version,
		HideHelpCommand: true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "configuration `FILE` (default: $" + policy.PathEnv + ", else " + policy.DefaultPath + ")"},
			&cli.StringFlag{Name: "nri", Value: enforce, Usage: "`MODE` of the NRI plugin: enforce, observe (for nodes where gpuledger-runtime is the default runtime: record what runs outside the ledger, change nothing) or off"},
			&cli.StringFlag{Name: "nri-socket", Value: nri.DefaultSocket, Usage: "the engine's NRI `SOCKET`"},
			&cli.BoolFlag{Name: "nri-fail-request", Usage: "have the engine fail a create that gpuledgerd did not answer in time, with or without a GPU; engines with NRI 0.12.5 or newer, others ignore it"},
			&cli.StringSliceFlag{Name: "runtime-root", Usage: "a `DIRECTORY` in which the engine's OCI runtime keeps its containers' states, beside the usual ones"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "`LEVEL`: error, warning, info or debug"},
		},
		Action:   func(c *cli.Context) error { return serve(c) },
		Commands: []*cli.Command{mpsCommand(), closeNodesCommand(), manCommand()},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return usage("cannot understand the arguments: %v", err)
		},
		ExitErrHandler: func(*cli.Context, error) {},
	}
	reduceWork()
	err := app.Run(args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "gpuledgerd: "+err.Error())
	var wrong *usageError
	if errors.As(err, &wrong) {
		return 2
	}
	return 1
}

// reduceWork runs the garbage collector less often, unless GOGC is set: a pass leaves some hundred
// kilobytes, and the daemon keeps some megabytes. It also allows timers to be late by a
// millisecond.
func reduceWork() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300)
	}
	host.SetTimerSlack(time.Millisecond)
}

// The modes of the NRI plugin.
const (
	enforce = "enforce"
	observe = "observe"
	off     = "off"
)

type usageError struct{ error }

func usage(format string, args ...any) error {
	return &usageError{fmt.Errorf(format+"; see `gpuledgerd --help`", args...)}
}

// manCommand prints the manual page from the same texts as --help.
func manCommand() *cli.Command {
	return &cli.Command{Name: "man", Usage: "print the manual page, in roff", HideHelpCommand: true,
		Action: func(c *cli.Context) error {
			page, err := c.App.ToManWithSection(8)
			if err == nil {
				_, err = fmt.Fprint(c.App.Writer, page)
			}
			return err
		}}
}

// mpsCommand starts an MPS daemon. It is called by gpuledgerd, or by systemd at its request.
func mpsCommand() *cli.Command {
	return &cli.Command{Name: "mps", Usage: "become the MPS control daemon of a directory that " +
		"gpuledgerd has made", ArgsUsage: "DIRECTORY", Hidden: true, HideHelpCommand: true,
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usage("cannot understand the arguments: want one directory")
			}
			return mps.RunLauncher(c.Args().First(), host.Default())
		}}
}

// closeNodesCommand takes users' access to device nodes back, before the package is removed.
func closeNodesCommand() *cli.Command {
	return &cli.Command{Name: "close-nodes", Usage: "take back the access to GPUs that users were given",
		Hidden: true, HideHelpCommand: true,
		Action: func(c *cli.Context) error {
			return nodeacl.Close(node.Open(policy.Path(c.String("config")), host.Default()))
		}}
}

// serve runs until a signal ends it.
func serve(c *cli.Context) error {
	log, err := logger(c)
	if err != nil {
		return err
	}
	config := policy.Path(c.String("config"))
	s, err := newConfigManager(func() *node.Node { return node.Open(config, host.Default()) }, config, log)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s.end = stop
	hangup := make(chan os.Signal, 1) // without a receiver the signal would end the process
	signal.Notify(hangup, syscall.SIGHUP)
	go onSignal(ctx, hangup, s.Reload)
	log.Infof("gpuledgerd %s started", version.Version)
	notify("READY=1")
	loop := &Loop{Interval: s.Interval, Log: log}
	go pingWatchdog(ctx, watchdogTime(), func() bool {
		return loop.Alive(s.Name(), max(time.Minute, 3*s.Interval()))
	})
	loop.Run(ctx, managers(c, s, loop, config)...)
	notify("STOPPING=1")
	log.Info("stopped")
	return s.Err()
}

// onSignal calls do for each signal.
func onSignal(ctx context.Context, signals <-chan os.Signal, do func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			do()
		}
	}
}

// managers are the managers that the arguments ask for. The NRI plugin opens the node for each
// request, and refuses containers with a GPU while the configuration is broken.
func managers(c *cli.Context, s *configManager, loop *Loop, config string) []Manager {
	roots := c.StringSlice("runtime-root")
	cache := ledgercache.New(s.log)
	ledgerWork := &ledgerManager{node: s.Node, cache: cache, wait: s.Interval, log: s.log}
	decisions := &auditManager{node: s.Node}
	usage := watcher.New(s.Node, cache, config, roots, s.log)
	limits := driverlimits.New(s.Node, cache, config, s.log)
	usage.OtherFindings = limits.Findings
	engines := &engineManager{node: s.Node, wait: s.Interval, log: s.log}
	status := &statusView{node: s.Node, audit: decisions, ledger: ledgerWork, loop: loop,
		watch: usage, limits: limits,
		cache: cache, engines: engines}
	nodes := &nodeacl.Manager{Node: s.Node, Ledger: cache.Current}
	users := &userserver.Server{Node: s.Node, Ledger: cache.Current, Nodes: nodes.Ensure, Log: s.log}
	users.TakeOver(s.Node())
	work := []Manager{ledgerWork, newInventoryManager(s.Node, config, usage.Stale, s.log),
		&cdiManager{node: s.Node, config: config, wait: s.Interval, log: s.log}, engines, decisions, usage,
		&httpserver.Server{Address: s.listenAddress, Metrics: status.metricsSnapshot,
			Page: status.pageContent, Log: s.log},
		&mps.Manager{Node: s.Node, Ledger: cache.Current, Log: s.log}, limits,
		nodes, users}
	all := []Manager{s}
	for _, m := range work {
		all = append(all, configuredManager{m, s.Node})
	}
	if mode := c.String("nri"); mode != off {
		all = append(all, nri.New(nri.Options{Socket: c.String("nri-socket"), Open: s.open,
			Observe:     mode == observe,
			FailRequest: c.Bool("nri-fail-request"), Roots: roots, Log: s.log}))
	}
	return all
}

// logger checks the arguments that are words, and makes the log.
func logger(c *cli.Context) (*logrus.Logger, error) {
	if c.NArg() > 0 {
		return nil, usage("cannot understand %q: gpuledgerd takes no arguments", c.Args().First())
	}
	if mode := c.String("nri"); mode != enforce && mode != observe && mode != off {
		return nil, usage("cannot understand --nri %q: want enforce, observe or off", mode)
	}
	level, err := logrus.ParseLevel(c.String("log-level"))
	if err != nil {
		return nil, usage("cannot understand --log-level %q: want error, warning, info or debug",
			c.String("log-level"))
	}
	return daemonlog.New(level), nil
}
