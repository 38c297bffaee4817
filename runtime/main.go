// Package runtime is the OCI runtime wrapper. An engine calls it in place of runc or crun; it
// admits what starts a container, hands everything else on at once, and is gone by exec: the real
// runtime keeps its pid, its parent-death signal and its file descriptors.
package runtime

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/request"
	_ "github.com/gpuledger/gpuledger/internal/stack" // before all others
)

// Main runs the wrapper and returns only when the real runtime did not start: the status is 1, as
// runc's is when it fails. An init function calls it, for which calm says why.
func Main() int {
	w := wrapper{argv: os.Args, Command: oci.Parse(os.Args)}
	w.Complain(w.run())
	return 1
}

// wrapper is one call by an engine.
type wrapper struct {
	argv []string
	oci.Command
	node *node.Node // only for the subcommands that concern us
	real string     // path of the runtime that runs what is judged: runc or crun

	// unjudged is the path of the runtime that runs what is not judged, or ""; see grant.Runtime.
	unjudged string
}

// run does what the subcommand needs and execs. It returns only an error.
func (w *wrapper) run() (err error) {
	judge := slices.Contains(judged, w.Name) && !w.Help
	runtime, engine := grant.Runtime{}, grant.NoEngine
	if judge {
		w.node = node.Open(policy.Path(""), host.Default())
		runtime, engine = w.node.Policy.Runtime, w.engine()
	} else {
		runtime, engine = policy.Runtime(policy.Path(""))
		engine = oci.Engine(w.argv[0], engine)
	}
	if w.real, err = find(runtime.Path); err != nil {
		return err
	}
	if calledBack() {
		return w.exec(w.real)
	}
	if name := runtime.UnjudgedOf(engine); name != "" {
		w.unjudged, _ = find([]string{name})
		if w.unjudged == "" && judge {
			oci.Tell("gpuledger: cannot find " + oci.Clean(name) +
				" (runtime.unjudged); containers run under " + w.real)
		}
	}
	switch {
	case w.Name == "exec":
		if err := w.enter(); err != nil {
			return err
		}
	case !judge:
	case w.Name == "update":
		if err := w.update(); err != nil {
			return err
		}
	case w.Name == "delete":
		w.node.Delete(w.runtimeRoot(), w.ID)
	default:
		return w.create()
	}
	return w.exec(w.keeper())
}

// judged are the subcommands that we look at. Every other one, known or not, is the real runtime's
// at once.
var judged = append([]string{"update", "delete"}, oci.Creates...)

// descriptors are those that the real runtime hands on to the container and that can lead to a GPU.
func (w *wrapper) descriptors() []host.Descriptor {
	return host.Descriptors(oci.Handed(w.argv, os.Getenv("LISTEN_FDS")))
}

// enter looks at what a process that is run in a container is handed open. Nothing else of an exec
// is looked at: its device rules are the container's.
func (w *wrapper) enter() error {
	descriptors := w.descriptors()
	if len(descriptors) == 0 {
		return nil
	}
	w.node = node.Open(policy.Path(""), host.Default())
	refusal := w.node.Hands(request.Caller{Container: grant.Container{Engine: w.engine(),
		RuntimeRoot: w.runtimeRoot(), ID: w.kept()}, Descriptors: descriptors})
	if mode := w.node.Mode(); refusal != nil && mode != grant.Enforce {
		oci.Tell("gpuledger: " + instead(refusal) + " because " + because[mode])
		return nil
	}
	if refusal != nil {
		return refusal
	}
	return nil
}

// create admits the container, writes the edited spec, and hands over.
func (w *wrapper) create() error {
	container := grant.Container{Engine: w.engine(), RuntimeRoot: w.runtimeRoot(), ID: w.ID,
		Bundle: absolute(w.Bundle)}
	path := w.ConfigPath()
	config, err := host.ReadFile(path, request.MaxSpec)
	if odd := w.Ambiguous(w.real); odd != nil {
		err = odd
	}
	rest := sync.OnceFunc(calm)
	// of the others it turns out later
	if bytes.Contains(config, []byte("gpuledger.dev/grant")) ||
		bytes.Contains(config, []byte(grant.ReferenceEnv)) {
		rest()
	}
	asked := node.Create{
		Caller: request.Caller{Container: container, CgroupsOff: w.CgroupsOff, Descriptors: w.descriptors(),
			RestoresRules: w.Name == "restore" && oci.RestoresRules(w.argv)},
		Config: config, Unread: err, Hooked: true, Restored: w.Name == "restore",
		Patience: node.LatePatience, Asks: rest,
	}
	d := w.node.Admit(asked)
	if d.Mode != "" {
		oci.Tell("gpuledger: " + instead(d.Refusal()) + " because " + because[d.Mode])
	} else if refusal := d.Refusal(); refusal != nil {
		return refusal
	}
	failpoint.Hit("runtime/admitted")
	undone := false // the grant could not be given: the container starts as if it had none
	if refusal := replaceSpec(path, d.Config); refusal != nil {
		w.unbind(d, container)
		if undone = w.starts(asked, d, refusal); !undone {
			return refusal
		}
	}
	failpoint.Hit("runtime/edited")
	w.fixRoot()
	program := w.real
	if w.unjudged != "" && (undone || w.node.Unjudged(d)) {
		program = w.unjudged
	}
	err = w.exec(program)
	w.unbind(d, container)
	return err
}

// instead says what the policy would do with a container, and what becomes of it.
func instead(refusal *grant.Refusal) string {
	if refusal == nil {
		return "would start without GPUs; it starts as it is"
	}
	return "would be " + oci.Clean(refusal.Error()) + "; it starts"
}

// starts reports whether a container that cannot be given its grant starts all the same: with
// nothing of it, where nothing is enforced.
func (w *wrapper) starts(asked node.Create, d node.Decision, refusal *grant.Refusal) bool {
	mode := w.node.Mode()
	if mode == grant.Enforce {
		return false
	}
	w.node.Fails(asked, d, refusal)
	oci.Tell("gpuledger: " + instead(refusal) + " because " + because[mode])
	return true
}

// unbind takes a binding back; it would be dead with this process in any case.
func (w *wrapper) unbind(d node.Decision, container grant.Container) {
	if d.Bound {
		_ = w.node.Unbind(container)
	}
}

// because says why nothing is refused and nothing taken away.
var because = map[grant.RulesMode]string{grant.Report: `policy.mode is "report"`,
	grant.Disabled: "gpuledger is disabled"}

// replaceSpec puts the edited spec, if there is one, in place of the engine's, with its
// permissions.
func replaceSpec(path string, config []byte) *grant.Refusal {
	if config == nil {
		return nil
	}
	info, err := os.Stat(path)
	if err == nil {
		err = host.ReplaceFile(path, config, info.Mode().Perm(), host.Volatile)
	}
	if err != nil {
		return &grant.Refusal{Code: grant.InjectionImpossible,
			Message: "the container's edited spec cannot be put in place: " + err.Error(),
			Hint:    "the bundle directory must be writable for root"}
	}
	return nil
}

// engine is who called. It decides which annotations are believed, so it is never read from
// annotations.
func (w *wrapper) engine() grant.Engine {
	if w.node.Broken != nil {
		return grant.NoEngine
	}
	return oci.Engine(w.argv[0], w.node.Policy.Engine)
}

// runtimeRoot is the directory of the real runtime's state.
func (w *wrapper) runtimeRoot() string {
	return absolute(w.StateRoot(w.real, os.Getenv, host.Default().IsRoot))
}

// fixRoot names the root in full to a runtime that makes a container: runc and crun go into the
// bundle before they call their hooks, and who reads a relative root there finds another directory.
func (w *wrapper) fixRoot() {
	if w.Root != "" && !filepath.IsAbs(w.Root) {
		w.argv[w.RootAt] = strings.TrimSuffix(w.argv[w.RootAt], w.Root) + absolute(w.Root)
	}
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
