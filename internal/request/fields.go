package request

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// field is a member of a structure of the spec, and what is read of its own members. The elements
// of a list have a list's.
type field struct {
	name string
	in   []field
}

// specFields are the fields of a config.json that Spec has, and those that an edit writes. A test
// derives the former from the types.
var specFields = []field{
	{"process", []field{
		{"args", nil}, {"env", nil}, {"noNewPrivileges", nil},
		{"user", []field{{"uid", nil}, {"gid", nil}, {"umask", nil}, {"additionalGids", nil},
			{"username", nil}}},
		{"capabilities", []field{{"bounding", nil}, {"effective", nil}, {"permitted", nil},
			{"inheritable", nil}, {"ambient", nil}}},
	}},
	{"root", []field{{"path", nil}, {"readonly", nil}}},
	{"mounts", []field{
		{"destination", nil}, {"type", nil}, {"source", nil}, {"options", nil},
		{"uidMappings", mappingFields}, {"gidMappings", mappingFields},
	}},
	{"hooks", []field{
		{"prestart", hookFields}, {"createRuntime", hookFields}, {"createContainer", hookFields},
		{"startContainer", hookFields}, {"poststart", hookFields}, {"poststop", hookFields},
	}},
	{"annotations", nil},
	{"linux", []field{
		{"devices", []field{{"path", nil}, {"type", nil}, {"major", nil}, {"minor", nil},
			{"fileMode", nil}, {"uid", nil}, {"gid", nil}}},
		{"namespaces", []field{{"type", nil}, {"path", nil}}},
		{"resources", resourceFields},
		{"cgroupsPath", nil}, {"uidMappings", mappingFields}, {"gidMappings", mappingFields},
		{"rootfsPropagation", nil}, {"intelRdt", []field{{"closID", nil}}},
		{"maskedPaths", nil}, // written by package edit
	}},
}

// resourceFields are those of a container's resources, and of an update's.
var resourceFields = []field{
	{"devices", []field{{"allow", nil}, {"type", nil}, {"major", nil}, {"minor", nil}, {"access", nil}}},
	{"unified", nil},
}

var (
	mappingFields = []field{{"containerID", nil}, {"hostID", nil}, {"size", nil}}
	hookFields    = []field{{"path", nil}, {"args", nil}, {"env", nil}, {"timeout", nil}}
)

// fieldNames are the names in specFields, each once. A test holds them to each other.
var fieldNames = [...]string{
	"access", "additionalGids", "allow", "ambient", "annotations", "args", "bounding",
	"capabilities", "cgroupsPath", "closID", "containerID", "createContainer", "createRuntime",
	"destination", "devices", "effective", "env", "fileMode", "gid", "gidMappings", "hooks",
	"hostID", "inheritable", "intelRdt", "linux", "major", "maskedPaths", "minor", "mounts",
	"namespaces", "noNewPrivileges", "options", "path", "permitted", "poststart", "poststop",
	"prestart", "process", "readonly", "resources", "root", "rootfsPropagation", "size", "source",
	"startContainer", "timeout", "type", "uid", "uidMappings", "umask", "unified", "user",
	"username",
}

// checkNames refuses a field of these that is spelt in another case, in a document that has been
// read: runc takes it for the field and crun does not. The spelling of any other field does not
// concern the ledger. Nearly no document has such a name, so checkNames searches the text first: in
// valid JSON a string before a colon is a name, and nothing else is.
func checkNames(config []byte, in []field) error {
	var right recent
	for i := 0; i < len(config); i++ {
		if config[i] != '"' {
			continue
		}
		quoted := quotedAt(config[i:])
		i += len(quoted) - 1
		if !isColon(config[i+1:]) {
			continue
		}
		name := tokens.Name(quoted)
		if right.has(name) {
			continue
		}
		if resemblesField(name) {
			return tokens.Whole(config, func(d *jsontext.Decoder) error { return checkMembers(d, in) })
		}
		right.add(string(name))
	}
	return nil
}

// resemblesField reports whether a name is one of fieldNames in another case.
func resemblesField(name []byte) bool {
	resembles := false
	for _, known := range fieldNames {
		switch {
		case len(name) == 0, name[0] < utf8.RuneSelf && name[0]|0x20 != known[0]: // most names
		case string(name) == known:
			return false
		default:
			resembles = resembles || bytes.EqualFold(name, []byte(known))
		}
	}
	return resembles
}

// checkMembers checks the names of a structure, or of each structure in a list, and those of its
// members that are read. It compares them as encoding/json does, which ignores case: 'ſ' is an s
// there, and the Kelvin sign a k.
func checkMembers(d *jsontext.Decoder, in []field) error {
	switch d.PeekKind() {
	case '[':
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		for d.PeekKind() != ']' {
			if err := checkMembers(d, in); err != nil {
				return err
			}
		}
		_, err := d.ReadToken()
		return err
	case '{':
		return tokens.Object(d, func(name []byte) error { return checkMember(d, name, in) })
	}
	return d.SkipValue()
}

func checkMember(d *jsontext.Decoder, name []byte, in []field) error {
	for _, f := range in {
		switch {
		case string(name) == f.name && f.in != nil:
			return checkMembers(d, f.in)
		case string(name) != f.name && bytes.EqualFold(name, []byte(f.name)):
			return fmt.Errorf("%s is spelt \"%s\" there; runtimes disagree on whether it counts", f.name,
				grant.Printable(string(name)))
		}
	}
	return d.SkipValue()
}
