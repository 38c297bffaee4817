package grant

import (
	"fmt"
	"slices"
	"strings"
)

// Tie is a pod or a namespace that a grant is for, in addition to its owner: "pod:UID" or
// "namespace:NAME". A grant with ties to pods is for these pods. One with ties to namespaces is for
// pods in these namespaces. One with both is for these pods in these namespaces.
type Tie string

// MaxTies is the largest number of ties of a grant. A claim is reserved for at most 256 consumers
// (ResourceClaimReservedForMaxSize).
const MaxTies = 512

// PodTie returns a tie to a pod, NamespaceTie one to a namespace.
func PodTie(uid string) Tie        { return Tie("pod:" + uid) }
func NamespaceTie(name string) Tie { return Tie("namespace:" + name) }

// ParseTie parses a tie.
func ParseTie(text string) (Tie, error) {
	kind, name, _ := strings.Cut(text, ":")
	if kind != "pod" && kind != "namespace" || !isName(name) {
		return "", fmt.Errorf("cannot read %q: want pod:UID or namespace:NAME", text)
	}
	return Tie(text), nil
}

// ProvesPods reports whether the engine proves a container's identity. The others start containers
// for any caller, with annotations that the caller chooses.
func (e Engine) ProvesPods() bool { return e == Containerd || e == CRIO }

// tied returns the names of the ties of one kind.
func (g Grant) tied(kind string) (names []string) {
	for _, t := range g.For {
		if k, name, _ := strings.Cut(string(t), ":"); k == kind {
			names = append(names, name)
		}
	}
	return names
}

// InTies reports whether the grant's ties admit an identity. An identity that no engine proves
// is in no tied grant.
func (g Grant) InTies(id Identity) bool {
	return len(g.For) == 0 || g.InNamespace(id) && among(g.tied("pod"), id.UID)
}

// InNamespace reports whether an identity is in a namespace that the grant is tied to. It is true
// without such ties.
func (g Grant) InNamespace(id Identity) bool {
	return len(g.For) == 0 || id != (Identity{}) && among(g.tied("namespace"), id.Namespace)
}

func among(names []string, name string) bool {
	return len(names) == 0 || name != "" && slices.Contains(names, name)
}

// BindingsOutsideTies returns the bindings of containers that are not among the grant's ties: they
// were made before the ties.
func (g Grant) BindingsOutsideTies() []Binding {
	return slices.DeleteFunc(slices.Clone(g.Bindings), func(b Binding) bool { return g.InTies(b.Pod) })
}
