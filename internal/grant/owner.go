package grant

import (
	"fmt"
	"strings"
)

// Owner is who may use a grant: "pod:UID/CONTAINER", "claim:UID" or "bearer". An owner other than
// bearer has at most one live grant. The DRA driver names a request of a claim "claim:UID.REQUEST".
type Owner string

// Bearer is the owner of a grant that any container can use which presents its id and secret.
const Bearer Owner = "bearer"

// PodOwner returns the owner for one container of a pod, which its trusted identity proves.
func PodOwner(uid, container string) Owner { return Owner("pod:" + uid + "/" + container) }

// ParseOwner parses an owner. UIDs and container names have letters, digits, '.', '_' and '-'.
func ParseOwner(text string) (Owner, error) {
	if !isOwner(text) {
		return "", fmt.Errorf("cannot read owner %q: want pod:UID/CONTAINER, claim:UID or bearer", text)
	}
	return Owner(text), nil
}

func isOwner(text string) bool {
	switch kind, rest, _ := strings.Cut(text, ":"); kind {
	case "bearer":
		return text == "bearer"
	case "pod":
		uid, container, found := strings.Cut(rest, "/")
		return found && isName(uid) && isName(container)
	case "claim":
		return isName(rest)
	}
	return false
}

// HasSecret reports whether a container needs the grant's secret. A pod's identity is proof without
// one.
func (o Owner) HasSecret() bool { return !o.IsPod() }

// IsPod reports whether a container's trusted identity proves the owner.
func (o Owner) IsPod() bool { return strings.HasPrefix(string(o), "pod:") }

// IsClaim reports whether the owner is a ResourceClaim, whose containers share the grant.
func (o Owner) IsClaim() bool { return strings.HasPrefix(string(o), "claim:") }

// Group returns the pod or the claim, which spread placement keeps apart. A bearer has none.
func (o Owner) Group() string {
	group, _, _ := strings.Cut(string(o), "/")
	if o == Bearer {
		return ""
	}
	return group
}

// isName accepts Kubernetes UIDs and names, and no path.
func isName(s string) bool {
	if s == "" || len(s) > 253 || s == "." || s == ".." {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}
