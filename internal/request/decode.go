package request

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/ocispec"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// read decodes the parts of a config.json that Spec has, and skips the rest. TestReadIsTheLibrarys
// holds it to the fields' tags.
func (s *Spec) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "process":
			return tokens.Pointer(d, &s.Process, readProcess)
		case "root":
			return tokens.Pointer(d, &s.Root, ocispec.ReadRoot)
		case "mounts":
			return ocispec.ReadMounts(d, &s.Mounts)
		case "hooks":
			return tokens.Pointer(d, &s.Hooks, ocispec.ReadHooks)
		case "annotations":
			return tokens.Map(d, &s.Annotations, tokens.String[string])
		case "linux":
			return tokens.Pointer(d, &s.Linux, readLinux)
		}
		return d.SkipValue()
	})
}

func readProcess(d *jsontext.Decoder, p *Process) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "args":
			return tokens.Strings(d, &p.Args)
		case "env":
			return tokens.Strings(d, &p.Env)
		case "user":
			return ocispec.ReadUser(d, &p.User)
		case "capabilities":
			return tokens.Pointer(d, &p.Capabilities, ocispec.ReadCapabilities)
		case "noNewPrivileges":
			return tokens.Bool(d, &p.NoNewPrivileges)
		}
		return d.SkipValue()
	})
}

func readLinux(d *jsontext.Decoder, l *Linux) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "devices":
			return tokens.List(d, &l.Devices, ocispec.ReadDevice)
		case "namespaces":
			return tokens.List(d, &l.Namespaces, ocispec.ReadNamespace)
		case "resources":
			return tokens.Pointer(d, &l.Resources, readResources)
		case "cgroupsPath":
			return tokens.String(d, &l.CgroupsPath)
		case "rootfsPropagation":
			return tokens.String(d, &l.RootfsPropagation)
		case "intelRdt":
			return tokens.Pointer(d, &l.IntelRdt, readIntelRdt)
		case "uidMappings":
			return tokens.List(d, &l.UIDMappings, ocispec.ReadIDMapping)
		case "gidMappings":
			return tokens.List(d, &l.GIDMappings, ocispec.ReadIDMapping)
		}
		return d.SkipValue()
	})
}

func readIntelRdt(d *jsontext.Decoder, r *IntelRdt) error {
	return tokens.Object(d, func(name []byte) error {
		if string(name) == "closID" {
			return tokens.String(d, &r.ClosID)
		}
		return d.SkipValue()
	})
}

func readResources(d *jsontext.Decoder, r *Resources) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "devices":
			return tokens.List(d, &r.Devices, ocispec.ReadRule)
		case "unified":
			return tokens.Map(d, &r.Unified, tokens.String[string])
		}
		return d.SkipValue()
	})
}
