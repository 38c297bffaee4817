// Command gpuledger-runtime is an OCI runtime that asks the ledger before it becomes runc or crun.
// Engines call it; its arguments are runc's. See package runtime.
package main

import (
	"os"

	"github.com/gpuledger/gpuledger/runtime"
)

func main() { os.Exit(runtime.Main()) }
