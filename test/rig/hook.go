package rig

import (
	"bytes"
	"os/exec"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Hooked makes the real runtime call the node's hook, as an engine does that has it in its hooks
// directory.
func (n *Node) Hooked(s *specs.Spec) { n.HookedAt("createRuntime", "poststop")(s) }

// HookedAt is Hooked at only these stages.
func (n *Node) HookedAt(stages ...string) Edit {
	n.T.Helper()
	path := n.binary("gpuledger-hook")
	return func(s *specs.Spec) {
		if s.Hooks == nil {
			s.Hooks = &specs.Hooks{}
		}
		for _, stage := range stages {
			hook := specs.Hook{Path: path, Args: []string{"gpuledger-hook", stage},
				Env: append([]string{"GPULEDGER_CONFIG=" + n.Config}, n.Env...)}
			switch stage {
			case "prestart":
				//lint:ignore SA1019 Prestart is deprecated, and engines still have it.
				s.Hooks.Prestart = append(s.Hooks.Prestart, hook)
			case "poststop":
				s.Hooks.Poststop = append(s.Hooks.Poststop, hook)
			default:
				s.Hooks.CreateRuntime = append(s.Hooks.CreateRuntime, hook)
			}
		}
	}
}

// RealCreate and RealDelete call the real runtime, without gpuledger's wrapper.
func (b *Bundle) RealCreate() Result { return Run(b.Node.Real("create", "--bundle", b.Dir, b.ID)) }
func (b *Bundle) RealRun() Result    { return Run(b.Node.Real("run", "--bundle", b.Dir, b.ID)) }
func (b *Bundle) RealDelete() Result { return Run(b.Node.Real("delete", "--force", b.ID)) }

// RunHook is Run for a hook that no runtime calls. The hook gets pipes, as from runc and Podman,
// because a hook writes no complaint to a file that was opened by name.
func RunHook(cmd *exec.Cmd) Result {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	code := 0
	if err := cmd.Run(); err != nil {
		code = cmd.ProcessState.ExitCode() // -1 if it did not start
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: code}
}
