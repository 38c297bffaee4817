// Package oci is what our two programs on the way of a create share: how an engine calls a runtime,
// who the engine is, where a runtime keeps its state, and how a refusal reaches the engine's user.
package oci

import (
	"cmp"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Engine is who calls a program by this name: a suffix says it, else the configuration. Two engines
// can share a node, so `gpuledger configure` makes each a link of its own. A suffix that nobody
// knows is nobody whose annotations are believed.
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

// StateRoot is the directory where the real runtime, a program of this path with this environment,
// keeps its state. It may be relative to the runtime's working directory. isRoot reports whether
// the runtime runs as root of the node.
func (c Command) StateRoot(program string, getenv func(string) string, isRoot func() bool) string {
	if c.Root != "" {
		return c.Root
	}
	if strings.HasPrefix(filepath.Base(program), "crun") {
		return filepath.Join(cmp.Or(getenv("XDG_RUNTIME_DIR"), "/run"), "crun") // for root too, unlike runc
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" && getenv("USER") != "root" && !isRoot() {
		return filepath.Join(dir, "runc")
	}
	return "/run/runc"
}
