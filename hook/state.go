package hook

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// State is a container's state as a runtime passes it to a hook (runtime-spec, runtime.md), with
// the fields that the hook needs. runc 1.1 has no pid in it after the container's end. crun 1.8
// adds a root that is the spec's root.path.
type State struct {
	ID     string `json:"id"`
	PID    int    `json:"pid"`
	Bundle string `json:"bundle"`
}

func (s *State) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "id":
			return tokens.String(d, &s.ID)
		case "pid":
			return tokens.Int(d, &s.PID)
		case "bundle":
			return tokens.String(d, &s.Bundle)
		}
		return d.SkipValue()
	})
}

// ParseState parses a state. The runtime writes it, but a tenant chooses its annotations.
func ParseState(data []byte) (State, error) {
	var s State
	if err := tokens.AnyUTF8(data, s.read); err != nil {
		return State{}, errors.New("cannot read the container's state: it is not as OCI runtimes write it")
	}
	switch {
	case s.ID == "" || s.ID == "." || s.ID == ".." || strings.ContainsAny(s.ID, "/\x00"):
		return State{}, fmt.Errorf("cannot read the container's state: %q is no container's id", s.ID)
	case !filepath.IsAbs(s.Bundle) || strings.ContainsRune(s.Bundle, 0):
		return State{}, fmt.Errorf("cannot read the container's state: its bundle %q is no absolute path",
			s.Bundle)
	case s.PID < 0:
		return State{}, fmt.Errorf("cannot read the container's state: its pid is %d", s.PID)
	}
	return s, nil
}
