package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/oci"
)

// caller is the runtime that called the hook: its parent process. The state passed to the hook does
// not say where the runtime keeps its own. The runtime's arguments do, and the engine writes those.
type caller struct {
	oci.Command
	argv      []string        // its call
	program   string          // the name of the runtime's program in its call
	root      string          // absolute directory of its state
	ancestors []grant.Process // the runtime, then its parent
}

// maxArguments is the largest size of a runtime's command line or environment that is read, in
// bytes (the kernel's own bound is larger).
const maxArguments = 4 << 20

// runtime identifies the calling runtime and checks that its call is about this container. With an
// error, r.root is unset.
func (c *call) runtime(id string) (r caller, err error) {
	pid := os.Getppid()
	argv, err := c.words(pid, "cmdline")
	if err != nil {
		return r, fmt.Errorf("cannot tell which runtime calls: %w", err)
	}
	r.Command, r.argv, r.program = oci.Parse(argv), argv, argv[0]
	if r.ID != id {
		return r, fmt.Errorf("cannot tell which runtime calls: process %d is not about container %q", pid, id)
	}
	environ, err := c.words(pid, "environ")
	if err != nil {
		return r, fmt.Errorf("cannot tell which runtime calls: %w", err)
	}
	root := r.StateRoot(argv[0], func(name string) string { return value(environ, name) }, c.host.IsRoot)
	if !filepath.IsAbs(root) {
		directory, err := os.Readlink(c.path(pid, "cwd"))
		if err != nil {
			return r, fmt.Errorf("cannot tell where the runtime keeps its state: %w", err)
		}
		root = filepath.Join(directory, root)
	}
	for range 2 {
		p, parent, err := c.host.Process(pid)
		if err != nil {
			return r, fmt.Errorf("cannot tell which runtime calls: %w", err)
		}
		r.ancestors = append(r.ancestors, p)
		pid = parent
	}
	r.root = filepath.Clean(root)
	return r, nil
}

// creates checks that the caller is creating the container now, and keeps its state in r.root.
func (r caller) creates(id string) error {
	if !slices.Contains(oci.Creates, r.Name) {
		return fmt.Errorf("cannot follow the container: the runtime that calls runs the command %q", r.Name)
	}
	if info, err := os.Stat(filepath.Join(r.root, id)); err != nil || !info.IsDir() {
		return fmt.Errorf("cannot follow the container: the runtime keeps no state of it in %s", r.root)
	}
	return nil
}

func (c *call) path(pid int, name string) string {
	return filepath.Join(c.host.Proc, strconv.Itoa(pid), name)
}

// words reads a file of strings that end with a zero byte. It returns at least one string.
func (c *call) words(pid int, name string) ([]string, error) {
	text, err := host.ReadFile(c.path(pid, name), maxArguments)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

func value(environ []string, name string) string {
	for _, entry := range environ {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value
		}
	}
	return ""
}
