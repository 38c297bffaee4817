// Package oci is what gpuledger-runtime and gpuledger-hook share: how an engine calls a runtime,
// which engine it is, where a runtime keeps its state, and how a refusal is reported to the
// engine's user.
package oci

import (
	"cmp"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Engine returns the engine that calls a program by this name: its suffix names it, otherwise the
// configuration does. Two engines can share a node, so `gpuledger configure` makes a link for each.
// No annotations are trusted for an unknown suffix.
func Engine(program string, configured grant.Engine) grant.Engine {
	switch filepath.Ext(filepath.Base(program)) {
	case "":
		return configured
	case ".containerd":
		return grant.Containerd
	case ".crio", ".cri-o":
		return grant.CRIO
	case ".podman":
		return grant.Podman
	case ".docker":
		return grant.Docker
	}
	return grant.NoEngine
}

// StateRoot returns the directory of the real runtime's state. The runtime is the program at this
// path with this environment. The result may be relative to the runtime's working directory. isRoot
// reports whether the runtime runs as root of the node.
func (c Command) StateRoot(program string, getenv func(string) string, isRoot func() bool) string {
	if c.Root != "" {
		return c.Root
	}
	if strings.HasPrefix(filepath.Base(program), "crun") {
		// for root too; runc differs
		return filepath.Join(cmp.Or(getenv("XDG_RUNTIME_DIR"), "/run"), "crun")
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" && getenv("USER") != "root" && !isRoot() {
		return filepath.Join(dir, "runc")
	}
	return "/run/runc"
}
