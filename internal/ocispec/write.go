package ocispec

import (
	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// WriteDevice writes a device node.
func WriteDevice(w *tokens.Writer, n specs.LinuxDevice) {
	w.Object(func() {
		w.Name("path").String(n.Path)
		w.Name("type").String(n.Type)
		w.Name("major").Int(n.Major)
		w.Name("minor").Int(n.Minor)
		if n.FileMode != nil {
			w.Name("fileMode").Uint(uint64(*n.FileMode))
		}
		if n.UID != nil {
			w.Name("uid").Uint(uint64(*n.UID))
		}
		if n.GID != nil {
			w.Name("gid").Uint(uint64(*n.GID))
		}
	})
}

// WriteHook writes a hook.
func WriteHook(w *tokens.Writer, h specs.Hook) {
	w.Object(func() {
		w.Name("path").String(h.Path)
		if len(h.Args) > 0 {
			w.Name("args").Strings(h.Args)
		}
		if len(h.Env) > 0 {
			w.Name("env").Strings(h.Env)
		}
		if h.Timeout != nil {
			w.Name("timeout").Int(int64(*h.Timeout))
		}
	})
}

// WriteRule writes a rule of the device cgroup.
func WriteRule(w *tokens.Writer, r specs.LinuxDeviceCgroup) {
	w.Object(func() {
		w.Name("allow").Bool(r.Allow)
		w.Words("type", r.Type)
		if r.Major != nil {
			w.Name("major").Int(*r.Major)
		}
		if r.Minor != nil {
			w.Name("minor").Int(*r.Minor)
		}
		w.Words("access", r.Access)
	})
}

// MountWriter writes mounts without id mappings. For mounts that share their options it writes the
// same text, as for all driver files.
type MountWriter struct {
	options []string
	text    jsontext.Value
}

// Write writes one mount.
func (mw *MountWriter) Write(w *tokens.Writer, m specs.Mount) {
	w.Object(func() {
		w.Name("destination").String(m.Destination)
		w.Words("type", m.Type, "source", m.Source)
		if len(m.Options) == 0 {
			return
		}
		if len(m.Options) != len(mw.options) || &m.Options[0] != &mw.options[0] {
			list := tokens.NewWriter()
			list.Strings(m.Options)
			text, err := list.End()
			if err != nil {
				w.Name("options").Strings(m.Options) // Strings reports the error
				return
			}
			mw.options, mw.text = m.Options, text
		}
		w.Name("options").Raw(mw.text)
	})
}
