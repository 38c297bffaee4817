package verdict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var errSpec = errors.New("cannot read config.json as all runtimes do")

// ReadSpec reads config.json. What runtimes would read differently is an error (ADR 1;
// spec-invalid in docs/refusals.md): a name twice, a judged field in another case, no UTF-8, NUL
// in a word.
func ReadSpec(config []byte) (spec specs.Spec, err error) {
	if !utf8.Valid(config) || len(config) > 16<<20 {
		return spec, errSpec
	}
	decoder := json.NewDecoder(bytes.NewReader(config))
	decoder.UseNumber()
	if err := walk(decoder, ""); err != nil {
		return spec, err
	}
	if decoder.More() {
		return spec, errSpec
	}
	if err := json.Unmarshal(config, &spec); err != nil {
		return spec, errors.Join(errSpec, err)
	}
	return spec, nil
}

// judged are the names of fields that gpuledger reads or writes, by the object that has them. An
// object is named by its path without the numbers of lists.
var judged = map[string][]string{
	".":                        {"process", "root", "mounts", "hooks", "annotations", "linux"},
	".process":                 {"user", "env", "capabilities"},
	".process.user":            {"uid"},
	".process.capabilities":    {"bounding", "effective", "permitted"},
	".root":                    {"path"},
	".mounts":                  {"destination", "source", "type", "options"},
	".hooks":                   {"prestart", "createRuntime", "createContainer", "startContainer"},
	".hooks.prestart":          {"path"},
	".hooks.createRuntime":     {"path"},
	".linux":                   {"devices", "resources", "namespaces", "cgroupsPath", "uidMappings"},
	".linux.devices":           {"path", "type", "major", "minor"},
	".linux.resources":         {"devices", "unified"},
	".linux.resources.devices": {"allow", "type", "major", "minor", "access"},
	".linux.namespaces":        {"type", "path"},
}

// walk reads one value and checks its names and words.
func walk(decoder *json.Decoder, path string) error {
	token, err := decoder.Token()
	if err != nil {
		return errors.Join(errSpec, err)
	}
	switch token {
	case json.Delim('{'):
		names := map[string]bool{}
		for decoder.More() {
			token, err := decoder.Token()
			if err != nil {
				return errors.Join(errSpec, err)
			}
			name := token.(string)
			if names[name] || misspelt(path, name) {
				return fmt.Errorf("%w: the name %q", errSpec, name)
			}
			names[name] = true
			if err := walk(decoder, path+"."+name); err != nil {
				return err
			}
		}
		_, err = decoder.Token()
	case json.Delim('['):
		for decoder.More() {
			if err := walk(decoder, path); err != nil {
				return err
			}
		}
		_, err = decoder.Token()
	default:
		if word, ok := token.(string); ok && strings.ContainsRune(word, 0) {
			return errSpec
		}
	}
	return err
}

func misspelt(path, name string) bool {
	if path == "" {
		path = "."
	}
	return slices.ContainsFunc(judged[path], func(known string) bool {
		return known != name && strings.EqualFold(known, name)
	})
}

// variable is the value of a variable: of duplicates the last one wins (the contract). An entry
// without `=` is no variable.
func variable(spec specs.Spec, name string) (value string, set bool) {
	if spec.Process == nil {
		return "", false
	}
	for _, entry := range spec.Process.Env {
		if n, v, ok := strings.Cut(entry, "="); ok && n == name {
			value, set = v, true
		}
	}
	return value, set
}

func linux(spec specs.Spec) specs.Linux {
	if spec.Linux == nil {
		return specs.Linux{}
	}
	return *spec.Linux
}

func namespace(spec specs.Spec, kind specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(linux(spec).Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

func capable(spec specs.Spec, name string) bool {
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return false
	}
	c := spec.Process.Capabilities
	return slices.Contains(c.Bounding, name) || slices.Contains(c.Effective, name) ||
		slices.Contains(c.Permitted, name)
}
