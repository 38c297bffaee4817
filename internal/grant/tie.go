package grant

import (
	"fmt"
	"slices"
	"strings"
)

// Tie is one of those who may use a tied grant, beside what its owner says: "pod:UID" or
// "namespace:NAME". A grant with ties to pods is for these pods, one with ties to namespaces for
// pods in these, and one with both for these pods in these namespaces.
type Tie string

// MaxTies bounds the ties of a grant. A claim is reserved for 256 at most
// (ResourceClaimReservedForMaxSize).
const MaxTies = 512

// PodTie and NamespaceTie are the two kinds.
func PodTie(uid string) Tie        { return Tie("pod:" + uid) }
func NamespaceTie(name string) Tie { return Tie("namespace:" + name) }

// ParseTie reads a tie.
func ParseTie(text string) (Tie, error) {
	kind, name, _ := strings.Cut(text, ":")
	if kind != "pod" && kind != "namespace" || !isName(name) {
		return "", fmt.Errorf("cannot read %q: want pod:UID or namespace:NAME", text)
	}
	return Tie(text), nil
}

// Vouches reports whether the engine proves who a container is. The others start containers of
// whoever calls them, with annotations that the caller chooses.
func (e Engine) Vouches() bool { return e == Containerd || e == CRIO }

// tied are the names of one kind.
func (g Grant) tied(kind string) (names []string) {
	for _, t := range g.For {
		if k, name, _ := strings.Cut(string(t), ":"); k == kind {
			names = append(names, name)
		}
	}
	return names
}

// InTies reports whether an identity is among those that a grant is tied to. One that is tied is
// nobody's whose identity no engine vouches for.
func (g Grant) InTies(id Identity) bool {
	return len(g.For) == 0 || g.InNamespace(id) && among(g.tied("pod"), id.UID)
}

// InNamespace reports whether an identity is in a namespace that a grant is tied to, if to any.
func (g Grant) InNamespace(id Identity) bool {
	return len(g.For) == 0 || id != (Identity{}) && among(g.tied("namespace"), id.Namespace)
}

func among(names []string, name string) bool {
	return len(names) == 0 || name != "" && slices.Contains(names, name)
}

// Strangers are the containers that use a grant and are not among its ties: they came before it had
// them.
func (g Grant) Strangers() []Binding {
	return slices.DeleteFunc(slices.Clone(g.Bindings), func(b Binding) bool { return g.InTies(b.Pod) })
}
