package oracle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// spec is what a runtime reads from a config.json.
type spec struct {
	env           []string
	rules         []rule
	devices       []node
	mounts        []mount
	hooks         []string // their paths
	annotations   map[string]string
	unified       []string // its keys
	userNamespace bool
}

type node struct {
	path, kind   string
	major, minor int64
}

type mount struct {
	source, destination string
	bind                bool
}

// readAsRunc decodes as runc does: encoding/json takes the last of equal keys, in any case.
func readAsRunc(config []byte) (spec, error) {
	var s specs.Spec
	if err := json.NewDecoder(bytes.NewReader(config)).Decode(&s); err != nil {
		return spec{}, err
	}
	return fromSpec(s), nil
}

// readAsCrun decodes as crun does. yajl keeps all equal keys, and a look-up finds the first. Names
// count only in their exact spelling. So this removes equal keys after the first, and names in
// another case, and reads the rest as runc does.
func readAsCrun(config []byte) (spec, error) {
	d := json.NewDecoder(bytes.NewReader(config))
	d.UseNumber()
	tree, err := firsts(d)
	if err != nil {
		return spec{}, err
	}
	data, err := json.Marshal(tree)
	if err != nil {
		return spec{}, err
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return spec{}, err
	}
	return fromSpec(s), nil
}

// names are all names in structures that the oracle reads; crun does not know another spelling of
// one. Names in maps are annotations' keys, and none of them equals one of these in another case.
var names = []string{"process", "env", "linux", "resources", "devices", "allow", "type", "major", "minor",
	"access", "path", "mounts", "source",
	"destination", "options", "hooks", "annotations", "namespaces", "unified", "prestart", "createRuntime",
	"createContainer", "startContainer", "poststart", "poststop"}

func resembles(key string) bool {
	return !slices.Contains(names, key) && slices.ContainsFunc(names, func(name string) bool {
		return bytes.EqualFold([]byte(name), []byte(key))
	})
}

// firsts decodes a value, and takes the first of equal keys.
func firsts(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		object := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			value, err := firsts(d)
			if err != nil {
				return nil, err
			}
			name := key.(string)
			if _, found := object[name]; !found && !resembles(name) {
				object[name] = value
			}
		}
		_, err = d.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			value, err := firsts(d)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('}'), json.Delim(']'):
		return nil, fmt.Errorf("unexpected %v", token)
	}
	return token, nil
}

func fromSpec(from specs.Spec) spec {
	s := spec{annotations: from.Annotations}
	if from.Process != nil {
		s.env = from.Process.Env
	}
	for _, m := range from.Mounts {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		s.mounts = append(s.mounts, mount{m.Source, m.Destination, bind})
	}
	if h := from.Hooks; h != nil {
		//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
		for _, hook := range slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer,
			h.Poststart, h.Poststop) {
			s.hooks = append(s.hooks, hook.Path)
		}
	}
	if from.Linux == nil {
		return s
	}
	s.userNamespace = slices.ContainsFunc(from.Linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	for _, d := range from.Linux.Devices {
		s.devices = append(s.devices, node{d.Path, d.Type, d.Major, d.Minor})
	}
	if from.Linux.Resources != nil {
		s.unified = slices.Collect(maps.Keys(from.Linux.Resources.Unified))
		s.rules = rulesOf(from.Linux.Resources.Devices)
	}
	return s
}

func number(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}
