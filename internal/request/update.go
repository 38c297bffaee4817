package request

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Update is the part that gpuledger reads of the resources that a runtime's update is given.
type Update struct {
	Devices []specs.LinuxDeviceCgroup `json:"devices"`
	Unified map[string]string         `json:"unified"`
}

func (u *Update) read(d *jsontext.Decoder) error { return readResources(d, (*Resources)(u)) }

// ParseUpdate reads the resources of an update as strictly as Parse reads a spec.
func ParseUpdate(resources []byte) (Update, error) {
	if len(resources) > MaxSpec {
		return Update{}, fmt.Errorf("it has more than %d bytes", MaxSpec)
	}
	var u Update
	if err := tokens.Whole(resources, u.read); err != nil {
		return Update{}, plain(err)
	}
	if err := checkNames(resources, resourceFields); err != nil {
		return Update{}, err
	}
	if err := checkWords(resources); err != nil {
		return Update{}, err
	}
	return u, checkRules(u.Devices)
}

// Widens reports whether device rules open a GPU that the spec's own rules do not, and by which
// rule.
func Widens(rules []specs.LinuxDeviceCgroup, spec Spec, node NodeFacts) (rule string, widens bool,
	err error) {
	if len(rules) == 0 {
		return "", false, nil
	}
	// an update adds to nothing, or to what is covered
	closed := []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	wanted, err := opened(Spec{Linux: &Linux{Resources: &Resources{Devices: append(closed, rules...)}}}, node)
	if err != nil {
		return "", false, err
	}
	had, err := opened(spec, node)
	if err != nil {
		return "", false, err
	}
	for _, o := range wanted {
		if !slices.ContainsFunc(had, func(h opening) bool { return h.covers(o) }) {
			return o.device() + " " + o.access, true, nil
		}
	}
	return "", false, nil
}

// covers reports whether an opening opens all that another one does.
func (o opening) covers(other opening) bool {
	return o.kind == "a" || o.kind == other.kind &&
		(o.major == wildcard || o.major == other.major) && (o.minor == wildcard || o.minor == other.minor)
}

// opened evaluates a spec's device rules alone.
func opened(spec Spec, node NodeFacts) ([]opening, error) {
	spec = normal(spec)
	d := devices{node: &node, numbers: &numbers{}}
	if node.Seen != nil {
		d.numbers = &node.Seen.numbers
	}
	if namesDRM(spec, nil) {
		d.readDRM()
	}
	if d.err != nil || isUnruled(node) {
		return nil, d.err // no rule takes effect, so none opens more than another
	}
	open := openings(spec.Linux.Resources.Devices, &d)
	return open, d.err
}

// CgroupRule is a device rule as runtime-spec writes it.
type CgroupRule = specs.LinuxDeviceCgroup
