// Package ocispec reads and writes the parts of an OCI runtime spec that are judged and edited, by
// package tokens. A test compares it with the tags of runtime-spec's types.
package ocispec

import (
	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// ReadUser reads a process's user.
func ReadUser(d *jsontext.Decoder, u *specs.User) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "uid":
			return tokens.Uint32(d, &u.UID)
		case "gid":
			return tokens.Uint32(d, &u.GID)
		case "umask":
			return tokens.Pointer(d, &u.Umask, tokens.Uint32[uint32])
		case "additionalGids":
			return tokens.List(d, &u.AdditionalGids, tokens.Uint32[uint32])
		case "username":
			return tokens.String(d, &u.Username)
		}
		return d.SkipValue()
	})
}

// ReadCapabilities reads a process's capabilities.
func ReadCapabilities(d *jsontext.Decoder, c *specs.LinuxCapabilities) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "bounding":
			return tokens.Strings(d, &c.Bounding)
		case "effective":
			return tokens.Strings(d, &c.Effective)
		case "inheritable":
			return tokens.Strings(d, &c.Inheritable)
		case "permitted":
			return tokens.Strings(d, &c.Permitted)
		case "ambient":
			return tokens.Strings(d, &c.Ambient)
		}
		return d.SkipValue()
	})
}

// ReadRoot reads the root file system.
func ReadRoot(d *jsontext.Decoder, r *specs.Root) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "path":
			return tokens.String(d, &r.Path)
		case "readonly":
			return tokens.Bool(d, &r.Readonly)
		}
		return d.SkipValue()
	})
}

// ReadMounts reads a list of mounts. Mounts with the same options share one slice of them, as all
// mounts of driver files do.
func ReadMounts(d *jsontext.Decoder, mounts *[]specs.Mount) error {
	var options tokens.Repeated
	if *mounts == nil {
		// Room for all avoids copies of a growing list; the rest of the document is mostly mounts.
		*mounts = make([]specs.Mount, 0, 16+len(d.UnreadBuffer())/256)
	}
	return tokens.List(d, mounts, func(d *jsontext.Decoder, m *specs.Mount) error {
		return tokens.Object(d, func(name []byte) error {
			switch string(name) {
			case "destination":
				return tokens.String(d, &m.Destination)
			case "type":
				return tokens.String(d, &m.Type)
			case "source":
				return tokens.String(d, &m.Source)
			case "options":
				return options.Strings(d, &m.Options)
			case "uidMappings":
				return tokens.List(d, &m.UIDMappings, ReadIDMapping)
			case "gidMappings":
				return tokens.List(d, &m.GIDMappings, ReadIDMapping)
			}
			return d.SkipValue()
		})
	})
}

// ReadIDMapping reads a range of mapped ids.
func ReadIDMapping(d *jsontext.Decoder, m *specs.LinuxIDMapping) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "containerID":
			return tokens.Uint32(d, &m.ContainerID)
		case "hostID":
			return tokens.Uint32(d, &m.HostID)
		case "size":
			return tokens.Uint32(d, &m.Size)
		}
		return d.SkipValue()
	})
}

// ReadHooks reads the hooks of all stages.
func ReadHooks(d *jsontext.Decoder, h *specs.Hooks) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "prestart":
			//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
			return tokens.List(d, &h.Prestart, ReadHook)
		case "createRuntime":
			return tokens.List(d, &h.CreateRuntime, ReadHook)
		case "createContainer":
			return tokens.List(d, &h.CreateContainer, ReadHook)
		case "startContainer":
			return tokens.List(d, &h.StartContainer, ReadHook)
		case "poststart":
			return tokens.List(d, &h.Poststart, ReadHook)
		case "poststop":
			return tokens.List(d, &h.Poststop, ReadHook)
		}
		return d.SkipValue()
	})
}

// ReadHook reads a hook.
func ReadHook(d *jsontext.Decoder, h *specs.Hook) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "path":
			return tokens.String(d, &h.Path)
		case "args":
			return tokens.Strings(d, &h.Args)
		case "env":
			return tokens.Strings(d, &h.Env)
		case "timeout":
			return tokens.Pointer(d, &h.Timeout, tokens.Int[int])
		}
		return d.SkipValue()
	})
}

// ReadDevice reads a device node.
func ReadDevice(d *jsontext.Decoder, n *specs.LinuxDevice) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "path":
			return tokens.String(d, &n.Path)
		case "type":
			return tokens.String(d, &n.Type)
		case "major":
			return tokens.Int(d, &n.Major)
		case "minor":
			return tokens.Int(d, &n.Minor)
		case "fileMode":
			return tokens.Pointer(d, &n.FileMode, tokens.Uint32)
		case "uid":
			return tokens.Pointer(d, &n.UID, tokens.Uint32[uint32])
		case "gid":
			return tokens.Pointer(d, &n.GID, tokens.Uint32[uint32])
		}
		return d.SkipValue()
	})
}

// ReadNamespace reads a namespace.
func ReadNamespace(d *jsontext.Decoder, n *specs.LinuxNamespace) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "type":
			return tokens.String(d, &n.Type)
		case "path":
			return tokens.String(d, &n.Path)
		}
		return d.SkipValue()
	})
}

// ReadRule reads a rule of the device cgroup.
func ReadRule(d *jsontext.Decoder, r *specs.LinuxDeviceCgroup) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "allow":
			return tokens.Bool(d, &r.Allow)
		case "type":
			return tokens.String(d, &r.Type)
		case "major":
			return tokens.Pointer(d, &r.Major, tokens.Int[int64])
		case "minor":
			return tokens.Pointer(d, &r.Minor, tokens.Int[int64])
		case "access":
			return tokens.String(d, &r.Access)
		}
		return d.SkipValue()
	})
}
