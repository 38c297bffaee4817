// Command gpuledger-runtime is an OCI runtime that asks the ledger before it becomes runc or crun.
// Engines call it; its arguments are runc's. See package runtime.
package main

import (
	"os"

	"github.com/gpuledger/gpuledger/runtime"
)

// Not in main: an init function stays on the process's first thread, as the wrapper has to (package
// runtime, calm.go). Asking for that costs a thread more.
func init() { os.Exit(runtime.Main()) }

func main() {}
