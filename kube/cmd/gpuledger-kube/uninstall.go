package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/kube/uninstall"
	"github.com/gpuledger/gpuledger/kube/usage"
)

func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name:      "uninstall",
		Usage:     "take gpuledger from the cluster's nodes; `helm uninstall` runs it",
		ArgsUsage: "DAEMONSET...",
		Description: "DAEMONSET is a DaemonSet of the set-up. Refuses while pods have GPUs of gpuledger. " +
			"Then " +
			"the agents leave the\nnodes, and each node is given back as it was.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "namespace", Usage: "the `NAMESPACE` of gpuledger's objects",
				EnvVars: []string{"POD_NAMESPACE"}, Value: "gpuledger-system"},
			kubeconfigFlag(),
			&cli.DurationFlag{Name: "timeout", Usage: "how long to wait for the nodes",
				Value: 4 * time.Minute},
		},
		Action: uninstallAll,
	}
}

func uninstallAll(c *cli.Context) error {
	if c.NArg() == 0 {
		return usage.Error(c, "cannot give nodes back without the names of the set-up's DaemonSets")
	}
	client, err := clientOf(c, few)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(c.Context, c.Duration("timeout"))
	defer stop()
	return uninstall.Uninstall{Client: client, Namespace: c.String("namespace"), Setups: c.Args().Slice(),
		Every: time.Second, Say: func(format string, args ...any) {
			fmt.Fprintf(c.App.Writer, "gpuledger-kube: "+format+"\n", args...)
		}}.Run(ctx)
}
