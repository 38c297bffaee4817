package containers

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// runcState is runc's state (libcontainer's BaseState and State). cgroup_paths has a path by v1
// controller, and that of v2 under "".
type runcState struct {
	PID     int               `json:"init_process_pid"`
	Start   uint64            `json:"init_process_start"`
	Cgroups map[string]string `json:"cgroup_paths"`
}

func (s *runcState) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "init_process_pid":
			return tokens.Int(d, &s.PID)
		case "init_process_start":
			return tokens.Uint64(d, &s.Start)
		case "cgroup_paths":
			return tokens.Map(d, &s.Cgroups, tokens.String[string])
		}
		return skip(d)
	})
}

// crunState is crun's status. Its cgroup's path is the same in every hierarchy, from the
// hierarchy's root.
type crunState struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"process-start-time"`
	Cgroup string `json:"cgroup-path"`
}

func (s *crunState) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "pid":
			return tokens.Int(d, &s.PID)
		case "process-start-time":
			return tokens.Uint64(d, &s.Start)
		case "cgroup-path":
			return tokens.String(d, &s.Cgroup)
		}
		return skip(d)
	})
}

// crunBundle is crun's status, of which it reads the bundle.
type crunBundle struct {
	Bundle string `json:"bundle"`
}

func (b *crunBundle) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		if string(name) == "bundle" {
			return tokens.String(d, &b.Bundle)
		}
		return skip(d)
	})
}

// runcLabels is runc's state, of which it reads the labels: one of each annotation, and then runc's
// own "bundle=/path".
type runcLabels struct {
	Config runcConfig `json:"config"`
}

// bundle returns the bundle by runc's own label, "" without one. An annotation "bundle" has a label
// of the same name before it; runc, too, takes the last one (utils.Annotations).
func (l *runcLabels) bundle() (bundle string) {
	for _, label := range l.Config.Labels {
		if path, found := strings.CutPrefix(label, "bundle="); found {
			bundle = path
		}
	}
	return bundle
}

type runcConfig struct {
	Labels []string `json:"labels"`
}

func (l *runcLabels) read(d *jsontext.Decoder) error {
	return tokens.Object(d, func(name []byte) error {
		if string(name) == "config" {
			return l.Config.read(d)
		}
		return skip(d)
	})
}

func (c *runcConfig) read(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		*c = runcConfig{} // a second member of the same name, for which the library does the same
	}
	return tokens.Object(d, func(name []byte) error {
		if string(name) == "labels" {
			return tokens.Strings(d, &c.Labels)
		}
		return skip(d)
	})
}

// skip skips a value. For runc's copy of the spec, ReadValue takes a third of SkipValue's time,
// which reads it token by token: 0.13 ms for a state of 27 KB, and not 0.41.
func skip(d *jsontext.Decoder) error {
	_, err := d.ReadValue()
	return err
}
