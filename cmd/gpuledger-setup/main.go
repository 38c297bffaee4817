// Command gpuledger-setup puts gpuledger on a node of a cluster from within a container, as the
// packages would. See package setup.
package main

import (
	"os"

	"github.com/gpuledger/gpuledger/internal/setup"
)

func main() { os.Exit(setup.Main(os.Args, setup.Cluster)) }
