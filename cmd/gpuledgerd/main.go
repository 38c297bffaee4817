// Command gpuledgerd is the node daemon: the managers that need a process which stays. See package
// daemon.
package main

import (
	"os"

	"github.com/gpuledger/gpuledger/internal/daemon"
)

func main() { os.Exit(daemon.Main(os.Args)) }
