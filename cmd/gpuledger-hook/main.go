// Command gpuledger-hook is an OCI hook that asks the ledger while a runtime makes a container.
// Engines with a hooks directory call it; its argument is the stage. See package hook.
package main

import (
	"os"

	"github.com/gpuledger/gpuledger/hook"
)

func main() { os.Exit(hook.Main()) }
