package engines

import (
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/filetree"
)

// DefaultHandler is the handler of containers that choose none.
type DefaultHandler struct {
	Name   string // the handler's name
	Kind   string // its type, if that is not the one that runs OCI runtimes
	Binary string // its program; "" if the engine finds runc or crun by itself
	// the runtimes that the engine searches by itself, if not those of gpuledger's default
	// configuration
	Search   []string
	Roots    []string       // the directories with the state of the engine's containers
	Settings map[string]any // the handler's settings
	Tree     map[string]any // everything that the engine's files say
}

// IsNVIDIA reports whether it is NVIDIA's runtime, which changes a container's spec and then
// executes runc or crun.
func (w DefaultHandler) IsNVIDIA() bool {
	return w.Kind == "" && strings.HasPrefix(filepath.Base(w.Binary), "nvidia-container-runtime")
}

// IsReal reports whether it is a runtime whose state says when a container has ended.
func (w DefaultHandler) IsReal() bool { return w.Kind == "" && (w.Binary == "" || IsRuntime(w.Binary)) }

// IsRuntime reports whether a program is runc or crun, by its name.
func IsRuntime(program string) bool {
	name := filepath.Base(program)
	return strings.HasPrefix(name, "runc") || strings.HasPrefix(name, "crun")
}

// Follow replaces the handler's program by the target of its link, if only the target's name
// shows that it is runc, crun or NVIDIA's runtime.
func (w DefaultHandler) Follow(in filetree.System) DefaultHandler {
	target, err := in.Resolve(w.Binary)
	followed := w
	if followed.Binary = target; err == nil && !w.IsReal() && !w.IsNVIDIA() &&
		(followed.IsReal() || followed.IsNVIDIA()) {
		return followed
	}
	return w
}
