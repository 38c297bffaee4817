// Package runtime is the OCI runtime wrapper, which an engine calls in place of runc or crun. It
// decides about subcommands that start a container, and passes all others on at once. It ends with
// an exec: the real runtime keeps its pid, its parent-death signal and its file descriptors.
package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Main runs the wrapper. It returns only if the real runtime did not start, with status 1, as runc
// does when it fails.
func Main() int {
	w := wrapper{argv: os.Args, Command: oci.Parse(os.Args)}
	w.ReportError(w.run())
	return 1
}

// wrapper is one call by an engine.
type wrapper struct {
	argv []string
	oci.Command
	node *node.Node // only for the subcommands that concern us
	real string     // path of the runtime that runs judged containers: runc or crun

	// unjudged is the path of the runtime that runs containers that are not judged, or ""; see
	// grant.Runtime.
	unjudged string
}

// run does what the subcommand needs and executes the runtime. It returns only on an error.
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
	if w.real, err = w.findReal(runtime.Path); err != nil {
		return err
	}
	if calledBack() {
		return w.exec(w.real)
	}
	if name := runtime.UnjudgedOf(engine); name != "" {
		w.unjudged, _ = find([]string{name})
		if w.unjudged == "" && judge {
			w.warn("cannot find " + name + " (runtime.unjudged); containers run under " + w.real)
		}
	}
	switch {
	case w.Name == "exec":
		if err := w.checkExec(); err != nil {
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
	return w.exec(w.runtimeOfContainer())
}

// judged are the subcommands that the wrapper examines, with exec in part. Every other one, known
// or not, goes to the real runtime at once.
var judged = append([]string{"update", "delete"}, oci.Creates...)

// descriptors lists the open files that the real runtime passes to the container and that can lead
// to a GPU.
func (w *wrapper) descriptors() []host.Descriptor {
	return host.Descriptors(oci.MaxDescriptors(w.ExecOptions(w.argv), os.Getenv("LISTEN_FDS")))
}

// checkExec checks the cgroup and the open files of a process that is started in an existing
// container. An exec needs no other check: its device rules are those of the container's cgroup,
// and a process.json has neither devices nor cgroups.
func (w *wrapper) checkExec() error {
	if w.Ambiguous(w.real) != nil {
		w.ID, w.IDAt = "", 0
	}
	leaves, descriptors := oci.LeavesCgroup(w.ExecOptions(w.argv)), w.descriptors()
	if leaves == "" && len(descriptors) == 0 {
		return nil
	}
	w.node = node.Open(policy.Path(""), host.Default())
	refusal := &grant.Refusal{Code: grant.InjectionImpossible,
		Message: "the process would leave the cgroup of its container: --cgroup " +
			grant.Printable(leaves) + " is not a sub cgroup path", // as runc says it
		Hint: "name a cgroup below that of the container, without \"..\""}
	if leaves == "" {
		refusal = w.node.JudgeDescriptors(request.Caller{Container: grant.Container{Engine: w.engine(),
			RuntimeRoot: w.runtimeRoot(), ID: w.ID}, Descriptors: descriptors})
	}
	if mode := w.node.Mode(); refusal != nil && mode != grant.Enforce {
		w.warn(wouldBe(refusal) + " because " + notEnforced[mode])
		return nil
	}
	if refusal != nil {
		return refusal
	}
	return nil
}

// create admits the container, writes the edited spec, and executes the runtime.
func (w *wrapper) create() error {
	container := grant.Container{Engine: w.engine(), RuntimeRoot: w.runtimeRoot(), ID: w.ID,
		Bundle: absolute(w.Bundle)}
	path := w.ConfigPath()
	config, err := host.ReadFile(path, request.MaxSpec)
	if odd := w.Ambiguous(w.real); odd != nil {
		err = odd
	}
	asked := node.Create{
		Caller: request.Caller{Container: container, CgroupsOff: w.CgroupsOff, Descriptors: w.descriptors()},
		Config: config, Unread: err, Hooked: true, Restored: w.Name == "restore",
		Timeout: node.MaxTimeout,
	}
	if asked.Restored {
		asked.RestoresRules = oci.RestoresRules(w.argv)
		version, _ := host.VersionOf(w.real, versionTimeout) // one that cannot be read refuses it
		asked.RestoredOutside = w.RestoredOutside(version, w.argv, host.DevicesOnV1(w.node.Host))
	}
	d := w.node.Admit(asked)
	if d.NotEnforced != "" {
		w.warn(wouldBe(d.Refusal()) + " because " + notEnforced[d.NotEnforced])
	} else if refusal := d.Refusal(); refusal != nil {
		return refusal
	}
	failpoint.Hit("runtime/admitted")
	undone := false // the grant could not be given: the container starts without it
	if refusal := replaceSpec(path, d.Config); refusal != nil {
		w.unbind(d, container)
		if undone = w.startsWithoutGrant(asked, d, refusal); !undone {
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

// versionTimeout is how long the real runtime may take to print its version.
const versionTimeout = 10 * time.Second

// wouldBe says what an enforcing policy would do with a container, and what happens instead.
func wouldBe(refusal *grant.Refusal) string {
	if refusal == nil {
		return "would start without GPUs; it starts as it is"
	}
	return "would be " + refusal.Error() + "; it starts"
}

// startsWithoutGrant reports whether a container starts although its grant cannot be given. It does
// where the policy is not enforced, and gets nothing of the grant.
func (w *wrapper) startsWithoutGrant(asked node.Create, d node.Decision, refusal *grant.Refusal) bool {
	mode := w.node.Mode()
	if mode == grant.Enforce {
		return false
	}
	w.node.Fails(asked, d, refusal)
	w.warn(wouldBe(refusal) + " because " + notEnforced[mode])
	return true
}

// unbind removes a binding, which would otherwise end with this process.
func (w *wrapper) unbind(d node.Decision, container grant.Container) {
	if d.Bound {
		_ = w.node.Unbind(container)
	}
}

// notEnforced says why nothing is refused and nothing is removed.
var notEnforced = map[grant.RulesMode]string{grant.Report: `policy.mode is "report"`,
	grant.Disabled: "gpuledger is disabled"}

// replaceSpec replaces the engine's spec with the edited one, if there is one, and keeps its
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

// warn reports what does not keep the runtime from running. Podman takes all that is in the log for
// the cause of a failure, so there only the audit log has it.
func (w *wrapper) warn(message string) {
	if w.Log == "" || w.engine() != grant.Podman {
		w.Warn(message)
	}
}

// engine returns the engine that called. It decides which annotations are trusted, so it is never
// read from annotations.
func (w *wrapper) engine() grant.Engine {
	if w.node.Broken != nil {
		return grant.NoEngine
	}
	return oci.Engine(w.argv[0], w.node.Policy.Engine)
}

// runtimeRoot is the absolute directory of the real runtime's state.
func (w *wrapper) runtimeRoot() string {
	return absolute(w.StateRoot(w.real, os.Getenv, host.Default().IsRoot))
}

// fixRoot makes --root absolute for a runtime that makes a container. runc and crun change into the
// bundle before they call their hooks. A hook that read a relative root there would find another
// directory.
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
