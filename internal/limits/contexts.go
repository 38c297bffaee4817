package limits

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Contexts are the bytes that a CUDA context takes of each GPU, by UUID. gpuledgerd measures them.
// The shim counts them before a context is made, so that a program that fills its grant at once
// does not take its contexts on top of it.
type Contexts map[string]grant.Bytes

// maxFile is the largest file of contexts that is read, in bytes.
const maxFile = 1 << 16

// MaxContext is more than a context takes of any GPU, in bytes. It bounds what a program with
// gigabytes of code can make the contexts of other tenants count.
const MaxContext = grant.GiB

// ReadContexts reads what is known from a file. It is nil until gpuledgerd has seen a process.
func ReadContexts(path string) Contexts {
	text, err := host.ReadFile(path, maxFile)
	if err != nil {
		return nil
	}
	c := Contexts{}
	for line := range strings.Lines(string(text)) {
		uuid, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if bytes, err := strconv.ParseUint(number, 10, 64); err == nil {
			c[uuid] = min(grant.Bytes(bytes), MaxContext)
		}
	}
	return c
}

// Save replaces the file.
func (c Contexts) Save(path string) error {
	var text strings.Builder
	for _, uuid := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&text, "%s %d\n", uuid, c[uuid])
	}
	if err := host.ReplaceFile(path, []byte(text.String()), 0o600, host.Volatile); err != nil {
		return fmt.Errorf("cannot write what contexts take of the GPUs: %w", err)
	}
	return nil
}
