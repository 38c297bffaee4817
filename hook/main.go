// Package hook is the OCI hook, for engines that have a hooks directory and whose runtime cannot be
// the wrapper. It uses the same admission code as the wrapper (package node). The runtime has read
// config.json before it calls the hook. So the hook makes the verdict's changes in the container
// that is being created. If it cannot, the container does not start.
package hook

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/request"
)

const usage = `usage: gpuledger-hook prestart|createRuntime|precreate|poststop|limit

An OCI hook, called by CRI-O or Podman through a file in their hooks directory, with the container's state (precreate:
its config.json) on standard input. gpuledger-runtime itself puts the one called limit into a container's spec (createRuntime),
where the driver is to limit its memory. Exit status: 0 the container may start, 1 it may not, 2 usage.
GPULEDGER_CONFIG in the hook's "env" names another configuration than /etc/gpuledger/config.toml.
`

// The exit statuses.
const (
	exitDone = iota
	exitFailed
	exitUsage
)

// stages are the hook's stages, by its argument.
var stages = map[string]func(*call) error{
	"prestart":      (*call).create, // the name of createRuntime before OCI 1.0.2
	"createRuntime": (*call).create,
	"precreate":     (*call).precreate,
	"poststop":      (*call).poststop,

	grant.LimitStage: (*call).limit,
}

// call is one call by a runtime or an engine.
type call struct {
	program string // the name of this program in its call; a suffix names the engine
	stdin   io.Reader
	stdout  io.Writer
	host    host.Host
	node    *node.Node
}

// Main runs the hook and returns its exit status. It prints only why a container may not start, and
// help.
func Main() int {
	scrub()
	if len(os.Args) == 2 && (os.Args[1] == "--help" || os.Args[1] == "-h" || os.Args[1] == "help") {
		fmt.Print(usage)
		return exitDone
	}
	if len(os.Args) != 2 || stages[os.Args[1]] == nil {
		fmt.Fprint(os.Stderr, usage)
		return exitUsage
	}
	h := host.Default()
	c := call{program: os.Args[0], stdin: os.Stdin, stdout: os.Stdout, host: h,
		node: node.Open(policy.Path(""), h)}
	if err := stages[os.Args[1]](&c); err != nil {
		reportError(err)
		return exitFailed
	}
	return exitDone
}

// scrub drops the environment and the working directory of the caller: both may be the container's.
// The configuration's name stays; hooks of these stages never get it from the container.
func scrub() {
	config := os.Getenv(policy.PathEnv)
	os.Clearenv()
	if config != "" {
		_ = os.Setenv(policy.PathEnv, config)
	}
	_ = os.Chdir("/")
}

// engine returns the engine that called. It is never read from annotations.
func (c *call) engine() grant.Engine {
	if c.node.Broken != nil {
		return grant.NoEngine
	}
	return oci.Engine(c.program, c.node.Policy.Engine)
}

// read reads standard input to its end.
func (c *call) read() ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(c.stdin, request.MaxSpec+1))
	if err == nil && len(data) > request.MaxSpec {
		err = fmt.Errorf("it is larger than %d bytes", request.MaxSpec)
	}
	return data, err
}

// precreate is Podman's own stage: it reads config.json and prints the config.json that Podman
// runs. It binds nothing, because the container has no id yet. The createRuntime hook of the same
// container binds it.
func (c *call) precreate() error {
	config, err := c.read()
	d := c.node.JudgeBeforeCreate(node.Create{Caller: request.Caller{Container: grant.Container{
		Engine: c.engine(), ID: "being created"}}, Config: config, Unread: err})
	if refusal := d.Refusal(); refusal != nil && d.NotEnforced == "" {
		return refusal
	}
	if d.Config != nil {
		config = d.Config
	}
	if _, err := c.stdout.Write(config); err != nil {
		return fmt.Errorf("cannot hand config.json on: %w", err)
	}
	return nil
}

// poststop removes the container's binding. It never fails: a binding that is left is found dead
// later.
func (c *call) poststop() error {
	state, err := c.state()
	if err != nil {
		return nil
	}
	if r, err := c.runtime(state.ID); err == nil && (r.Name == "delete" || r.Name == "run") {
		c.node.Delete(r.root, state.ID)
	} else { // Podman calls this stage itself, in `podman container cleanup ID`
		c.node.DeleteIn(filepath.Clean(state.Bundle), state.ID)
	}
	return nil
}
