package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// rate is how many requests a client sends in a second, and how many at once.
type rate struct {
	perSecond float32
	atOnce    int
}

var (
	few   = rate{5, 10}    // as clients do without a limit of their own
	usual = rate{50, 100}  // as the kubelet does
	many  = rate{200, 400} // for a cluster of many nodes: each binding takes two requests
)

func kubeconfigFlag() cli.Flag {
	return &cli.StringFlag{Name: "kubeconfig",
		Usage:   "kubeconfig file for the API; without one, the account of the pod",
		EnvVars: []string{"KUBECONFIG"}}
}

// clientOf returns a client by the flag.
func clientOf(c *cli.Context, limit rate) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.String("kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the API: %w", err)
	}
	config.QPS, config.Burst = limit.perSecond, limit.atOnce
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot find the API: %w", err)
	}
	return client, nil
}
