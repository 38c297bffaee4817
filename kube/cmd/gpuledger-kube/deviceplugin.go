package main

import (
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/deviceplugin"
	"github.com/gpuledger/gpuledger/kube/health"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/publish"
	"github.com/gpuledger/gpuledger/kube/usage"
)

func devicePluginCommand() *cli.Command {
	return &cli.Command{
		Name:  "device-plugin",
		Usage: "memory and whole GPUs as resources, for clusters without dynamic resource allocation",
		Flags: append(common(),
			&cli.StringFlag{Name: "resources", Usage: "memory, gpu, gpushare, separated by commas",
				Value: "memory,gpu"},
			&cli.StringFlag{Name: "unit", Usage: "the `SIZE` of one gpuledger.dev/gpu-memory",
				Value: "1GiB"},
			&cli.StringFlag{Name: "mode", Usage: "mode of grants of memory: timeslice, limit, mps",
				Value: string(grant.Limit)},
			&cli.StringFlag{Name: "placed-by",
				Usage: "what chooses a pod's GPUs: node, when the kubelet allocates, or scheduler, " +
					"`gpuledger-kube scheduler`; then containers adopt what it allocates",
				Value: byNode},
			&cli.StringFlag{Name: "resources-file",
				Usage: "where a scheduler places: the `FILE` with the names that pods use; " +
					"without one, ours"},
			&cli.StringFlag{Name: "node-name", Usage: "the node's `NAME` in the cluster; with it, what " +
				"the ledger has is published on the Node",
				EnvVars: []string{"NODE_NAME"}},
			kubeconfigFlag(),
			&cli.StringFlag{Name: "pod",
				Usage: "`NAMESPACE/NAME` of the plugin's own pod; until the kubelet lists it, " +
					"the kubelet's list of pods is not complete; when it is gone, what it published is old",
				EnvVars: []string{"POD"}}),
		Action: serveDevices,
	}
}

// The values of --placed-by.
const (
	byNode      = "node"
	byScheduler = "scheduler"
)

func serveDevices(c *cli.Context) error {
	resources, err := wanted(c)
	if err != nil {
		return err
	}
	b, log, err := open(c)
	if err != nil {
		return err
	}
	publisher, err := publisherOf(c, b, log)
	if err != nil {
		return err
	}
	state := &health.State{Now: time.Now, Metric: "device_plugin_operations_duration_seconds",
		Driver: "gpuledger.dev", Code: refusalCode,
		Codes: []string{string(grant.NoCapacity)}}
	var all sync.WaitGroup
	var plugins []*deviceplugin.Plugin
	for _, r := range resources {
		p := &deviceplugin.Plugin{Allocator: &deviceplugin.Allocator{
			Ledger: b, Resource: r, Log: log, Now: time.Now},
			Dir:          filepath.Join(c.String("kubelet-dir"), "device-plugins"),
			PodResources: filepath.Join(c.String("kubelet-dir"), "pod-resources/kubelet.sock"),
			Cgroups:      "/sys/fs/cgroup", Self: c.String("pod"),
			Intercept: state.Intercept}
		plugins = append(plugins, p)
		all.Go(func() {
			defer p.Stop()
			repeat(c.Context, log, watched(state, repetition{what: r.Name, interval: c.Duration("interval"),
				do: p.Ensure}))
		})
	}
	if publisher != nil {
		all.Go(func() { publisher.Follow(c.Context, 10*c.Duration("interval")) })
		all.Go(func() {
			repeat(c.Context, log, watched(state, repetition{what: "node",
				interval: max(c.Duration("interval"), time.Second), do: publisher.Ensure}))
		})
	}
	state.Ready = func() error {
		for _, p := range plugins {
			if err := p.Registered(); err != nil {
				return err
			}
		}
		return nil
	}
	err = serveHealth(c, state, "device-plugin", log)
	all.Wait()
	return err
}

// publisherOf returns what publishes the node's ledger. nil: nothing does, because the node has no
// name here.
func publisherOf(c *cli.Context, b nodeledger.Ledger, log *slog.Logger) (*publish.Publisher, error) {
	placed := c.String("placed-by") == byScheduler
	switch {
	case c.String("node-name") == "" && placed:
		return nil, usage.Error(c, "cannot tell a scheduler what is free without the node's name in the "+
			"cluster: give --node-name")
	case c.String("node-name") == "":
		return nil, nil
	}
	client, err := clientOf(c, few)
	if err != nil {
		return nil, err
	}
	return &publish.Publisher{Ledger: b, Node: c.String("node-name"), Client: client,
		Pod: c.String("pod"), Adopts: placed, Log: log}, nil
}

// wanted returns the resources that the arguments name.
func wanted(c *cli.Context) ([]deviceplugin.Resource, error) {
	switch by := c.String("placed-by"); by {
	case byNode:
	case byScheduler:
		return placed(c)
	default:
		return nil, usage.Error(c, "cannot use --placed-by %q: want node or scheduler", by)
	}
	if c.IsSet("resources-file") {
		return nil, usage.Error(c, "cannot use --resources-file where no scheduler places: "+
			"give --placed-by scheduler, or --resources")
	}
	unit, err := grant.ParseBytes(c.String("unit"))
	if err != nil || unit == 0 || unit%grant.MiB != 0 {
		return nil, usage.Error(c, "cannot use --unit %q: want a whole number of MiB, as 256MiB or 1GiB",
			c.String("unit"))
	}
	mode, err := grant.ParseMode(c.String("mode"))
	if err != nil || mode.IsWhole() {
		return nil, usage.Error(c, "cannot use --mode %q: want timeslice, limit or mps", c.String("mode"))
	}
	known := map[string]deviceplugin.Resource{"memory": deviceplugin.Memory(unit, mode),
		"gpu": deviceplugin.Whole(), "gpushare": deviceplugin.GPUShare(mode)}
	var list []deviceplugin.Resource
	for name := range strings.SplitSeq(c.String("resources"), ",") {
		r, found := known[name]
		if !found {
			return nil, usage.Error(c, "cannot use --resources %q: there is no %q; there are memory, gpu "+
				"and gpushare",
				c.String("resources"), name)
		}
		if slices.ContainsFunc(list, func(o deviceplugin.Resource) bool { return o.Name == r.Name }) {
			return nil, usage.Error(c, "cannot use --resources %q: it has %q twice",
				c.String("resources"), name)
		}
		list = append(list, r)
	}
	return list, nil
}

// cards is how many of a name are offered for each GPU, if pods that share a GPU count it once
// each. No kubelet runs more pods.
const cards = 250

// placed returns what the kubelet has to know so that it admits what a scheduler has placed.
func placed(c *cli.Context) (list []deviceplugin.Resource, err error) {
	for _, flag := range []string{"resources", "unit", "mode"} {
		if c.IsSet(flag) {
			return nil, usage.Error(c, "cannot use --%s where a scheduler places: "+
				"--resources-file has the names, and the nodes' labels their modes", flag)
		}
	}
	names, err := readNames(c.String("resources-file"))
	for _, o := range names.Offers() {
		each := o.EachGPU
		if o.Cards {
			each = cards
		}
		list = append(list, deviceplugin.Placed(o.Name, o.Unit, each))
	}
	return list, err
}

// refusalCode returns the code of the refusal that an error is, or "".
func refusalCode(err error) string {
	var refusal *grant.Refusal
	if errors.As(err, &refusal) {
		return string(refusal.Code)
	}
	return ""
}
