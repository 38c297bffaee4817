package request

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Spec is the part of an OCI spec that can reach a GPU. The rest is passed through unread, so a
// newer spec's fields survive.
type Spec struct {
	Process     *Process          `json:"process"`
	Root        *specs.Root       `json:"root"`
	Mounts      []specs.Mount     `json:"mounts"`
	Hooks       *specs.Hooks      `json:"hooks"`
	Annotations map[string]string `json:"annotations"`
	Linux       *Linux            `json:"linux"`
}

// Process is the part that Find reads of specs.Process.
type Process struct {
	Args         []string                 `json:"args"`
	Env          []string                 `json:"env"`
	User         specs.User               `json:"user"`
	Capabilities *specs.LinuxCapabilities `json:"capabilities"`

	NoNewPrivileges bool `json:"noNewPrivileges"`
}

// Linux is the part that Find reads of specs.Linux.
type Linux struct {
	Devices    []specs.LinuxDevice    `json:"devices"`
	Namespaces []specs.LinuxNamespace `json:"namespaces"`
	Resources  *Resources             `json:"resources"`

	CgroupsPath string                 `json:"cgroupsPath"`
	UIDMappings []specs.LinuxIDMapping `json:"uidMappings"`
	GIDMappings []specs.LinuxIDMapping `json:"gidMappings"`

	RootfsPropagation string    `json:"rootfsPropagation"`
	IntelRdt          *IntelRdt `json:"intelRdt"`
}

// IntelRdt is the part that Find reads of specs.LinuxIntelRdt.
type IntelRdt struct {
	ClosID string `json:"closID"`
}

// Resources is the part that Find reads of specs.LinuxResources.
type Resources struct {
	Devices []specs.LinuxDeviceCgroup `json:"devices"`
	Unified map[string]string         `json:"unified"`
}

// MaxSpec bounds a config.json in bytes. The largest that an engine writes is some hundred
// kilobytes.
const MaxSpec = 16 << 20

// Parse reads a config.json. It is stricter than the runtimes, because they disagree: it refuses
// duplicate keys, invalid UTF-8, fields that it reads in another case, and NUL in words, each of
// which one runtime would read and another would ignore.
func Parse(config []byte) (Spec, error) {
	if len(config) > MaxSpec {
		return Spec{}, fmt.Errorf("it has %d bytes, more than %d", len(config), MaxSpec)
	}
	var spec Spec
	if err := tokens.Whole(config, spec.read); err != nil {
		return Spec{}, plain(err)
	}
	if err := checkNames(config, specFields); err != nil {
		return Spec{}, err
	}
	if err := checkWords(config); err != nil {
		return Spec{}, err
	}
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return spec, nil
	}
	return spec, checkRules(spec.Linux.Resources.Devices)
}

// maxRules bounds a list of device rules. Ours for a confined container, the longest there is, has
// some 500; what a longer one opens would take time that grows with its square.
const maxRules = 4096

func checkRules(rules []specs.LinuxDeviceCgroup) error {
	if len(rules) > maxRules {
		return fmt.Errorf("it has %d device rules, more than %d", len(rules), maxRules)
	}
	return nil
}

// plain shortens an error of the JSON library to what a person needs: where it is, and what it is.
func plain(err error) error {
	var syntactic *jsontext.SyntacticError
	var wrong *tokens.WrongTypeError
	var tooMany *tokens.TooManyError
	switch {
	case errors.As(err, &tooMany):
		return fmt.Errorf("%s has more than %d elements", printable(tooMany.Pointer), tooMany.Max)
	case errors.As(err, &syntactic):
		return plainSyntax(syntactic)
	case errors.As(err, &wrong):
		return fmt.Errorf("%s is of the wrong type", printable(wrong.Pointer))
	}
	return err
}

func plainSyntax(err *jsontext.SyntacticError) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("it ends too early, at byte %d", err.ByteOffset)
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("at byte %d: duplicate name %s; runtimes disagree on which counts", err.ByteOffset,
			printable(err.JSONPointer))
	}
	return fmt.Errorf("at byte %d: %s", err.ByteOffset, grant.Printable(err.Err.Error()))
}

// printable returns the name of a JSON pointer for a message.
func printable(pointer jsontext.Pointer) string { return grant.Printable(name(string(pointer))) }

// name writes a JSON pointer as runtime-spec's documents do: linux.devices[0].type becomes
// linux.devices.0.type.
func name(pointer string) string {
	if pointer == "" {
		return "the whole file"
	}
	return strings.ReplaceAll(strings.TrimPrefix(pointer, "/"), "/", ".")
}

// escapedNUL is the only way to write a NUL in JSON.
var escapedNUL = []byte(`\u0000`)

// checkWords refuses NUL in names and in values. A runtime in Go takes it for a character, one in C
// for the end: the key "linux\u0000x" is linux to crun. In annotations a NUL
// concerns their reader alone. A document without NUL is not walked; engines write no other.
func checkWords(config []byte) error {
	if !bytes.Contains(config, escapedNUL) {
		return nil
	}
	inAnnotations := false
	for d := jsontext.NewDecoder(bytes.NewBuffer(config)); ; {
		token, err := d.ReadToken()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return plain(err)
		}
		if token.Kind() != '"' {
			continue
		}
		kind, n := d.StackIndex(d.StackDepth())
		isName := kind == '{' && n%2 == 1
		if isName && d.StackDepth() == 1 {
			inAnnotations = token.String() == "annotations"
		}
		if strings.Contains(token.String(), "\x00") && (isName || !inAnnotations) {
			return fmt.Errorf("%s has a NUL; runtimes disagree on what it ends", printable(d.StackPointer()))
		}
	}
}

// recent are names that were found to be right a moment ago: all elements of a list have the same
// few names.
type recent struct {
	names [8]string
	next  int
}

func (r *recent) has(name []byte) bool {
	for i := range r.names {
		if r.names[i] == string(name) {
			return true
		}
	}
	return false
}

func (r *recent) add(name string) {
	r.names[r.next%len(r.names)] = name
	r.next++
}

// quotedAt returns the string that text begins with, in its quotes.
func quotedAt(text []byte) []byte {
	for end := 1; ; end++ {
		next := bytes.IndexByte(text[end:], '"')
		if next < 0 {
			return text
		}
		end += next
		if text[end-1] != '\\' {
			return text[:end+1]
		}
		before := bytes.TrimRight(text[:end], `\`)
		if (end-len(before))%2 == 0 { // else the quote is escaped
			return text[:end+1]
		}
	}
}

// isColon reports whether the next character is a colon.
func isColon(text []byte) bool {
	for _, c := range text {
		switch c {
		case ' ', '\t', '\n', '\r':
		default:
			return c == ':'
		}
	}
	return false
}
