// Command kubectl-gpuledger is `kubectl gpuledger`: it shows the GPUs of a cluster and what pods
// have of them, from the API alone. The script kubectl-inspect-cgpu makes `kubectl inspect cgpu` of
// its command cgpu, as on ACK.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuledger/gpuledger/internal/cmdline"
	"github.com/gpuledger/gpuledger/internal/version"
	"github.com/gpuledger/gpuledger/kube/cluster"
	"github.com/gpuledger/gpuledger/kube/usage"
)

func main() { os.Exit(run(os.Args)) }

// run is main, but returns the exit status.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	app := &cli.App{
		Name:        "kubectl gpuledger",
		Usage:       "the GPUs of a cluster, and the grants on them",
		Description: "Exit status: 0 done, 1 failed, 2 usage.",
		Version:     version.Version,
		Commands: []*cli.Command{
			{Name: "inspect", Usage: "show the nodes' GPUs, allocated and total", Action: inspect,
				Flags: append(common(), &cli.BoolFlag{Name: "details", Aliases: []string{"d"},
					Usage: "a line for each claim on each GPU"})},
			{Name: "cgpu", Usage: "show the same as `kubectl inspect cgpu` does on ACK",
				ArgsUsage: "[NODE ...]", Action: cgpu,
				Flags: append(common(), &cli.BoolFlag{Name: "details", Aliases: []string{"d"},
					Usage: "the pods of each node, and what they have of each GPU"})},
			{Name: "explain", Usage: "show a pod's GPUs, or why it has none",
				ArgsUsage: "POD", Action: explain,
				Flags: common()},
		},
	}
	usage.Strict(app)
	err := app.RunContext(ctx, cmdline.Ordered(app, args))
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubectl gpuledger:", err)
	}
	return usage.Status(err)
}

func cgpu(c *cli.Context) error {
	client, _, err := connect(c)
	if err != nil {
		return err
	}
	nodes, err := cluster.Read(c.Context, client)
	if err != nil {
		return err
	}
	for _, name := range c.Args().Slice() {
		if !slices.ContainsFunc(nodes, func(n cluster.Node) bool { return n.Name == name }) {
			return fmt.Errorf("the cluster has no node %q with GPUs", name)
		}
	}
	if c.NArg() > 0 {
		nodes = slices.DeleteFunc(nodes, func(n cluster.Node) bool {
			return !slices.Contains(c.Args().Slice(), n.Name)
		})
	}
	switch {
	case c.Bool("json"):
		return printJSON(map[string]any{"nodes": nodes})
	case c.Bool("details") && len(nodes) > 0:
		return cluster.PrintPods(os.Stdout, nodes)
	}
	return cluster.Print(os.Stdout, nodes, false)
}

func common() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "kubeconfig", Usage: "the `FILE` that says how to reach the cluster"},
		&cli.StringFlag{Name: "context", Usage: "the `NAME` of a context in it"},
		&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}, Usage: "the pod's `NAMESPACE`"},
		&cli.BoolFlag{Name: "json", Usage: "one JSON document"},
	}
}

// connect finds the cluster as kubectl does.
func connect(c *cli.Context) (client kubernetes.Interface, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.String("kubeconfig")
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.String("context")}
	overrides.Context.Namespace = c.String("namespace")
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	if namespace, _, err = config.Namespace(); err != nil {
		return nil, "", fmt.Errorf("cannot find the cluster: %w", err)
	}
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("cannot find the cluster: %w", err)
	}
	client, err = kubernetes.NewForConfig(rest)
	return client, namespace, err
}

func inspect(c *cli.Context) error {
	client, _, err := connect(c)
	if err != nil {
		return err
	}
	nodes, err := cluster.Read(c.Context, client)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(map[string]any{"nodes": nodes})
	}
	return cluster.Print(os.Stdout, nodes, c.Bool("details"))
}

func explain(c *cli.Context) error {
	if c.NArg() != 1 {
		return usage.Error(c, "cannot explain: want the name of one pod")
	}
	client, namespace, err := connect(c)
	if err != nil {
		return err
	}
	e, err := cluster.Explain(c.Context, client, namespace, c.Args().First())
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e)
	}
	e.Write(os.Stdout)
	return nil
}

func printJSON(v any) error {
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
