package admission

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// resolution is the grant that a container's identity and references lead to.
type resolution struct {
	grant    *grant.Grant // nil: none
	recorded []string     // for the audit log
	found    findings
}

// resolveGrant finds the grant of the container. Its identity and all references must lead to one
// grant. Each reference that does not is a finding.
func resolveGrant(q *question) resolution {
	resolved := resolution{grant: ownedGrant(q)}
	for _, d := range q.view.Damaged {
		if isOwnDamage(q, d) {
			resolved.found.add(grant.LedgerUnreadable, "owner", string(d.ID))
		}
	}
	for _, m := range q.request.References {
		switch g := lookUp(q, m, &resolved.found); {
		case g == nil:
		case resolved.grant == nil:
			resolved.grant = g
		case resolved.grant.ID != g.ID:
			resolved.found.add(grant.AnnotationMismatch, m.Source, string(m.ID))
		}
	}
	for _, m := range q.request.Injected {
		if resolved.grant != nil && resolved.grant.ID != m.ID {
			resolved.found.twoGrants(m, resolved.grant.ID)
		}
	}
	for _, a := range q.request.Allocations {
		if a.Malformed != "" && !(a.Env && ignoresVariables(q, resolved.grant)) {
			resolved.found.add(grant.AnnotationMalformed, a.Source, a.Malformed)
		}
	}
	return resolved
}

// twoGrants adds that a container was given another grant beside the one that it refers to.
func (f *findings) twoGrants(m grant.Mention, its grant.ID) {
	what, hint := "the CDI names", hintOneGrant
	if strings.HasPrefix(m.Source, "annotation:") {
		what, hint = "resources of the device plugin", hintOneResource
	}
	f.explain(grant.AnnotationMismatch, m.Source, string(m.ID), "has "+what+" of grant "+
		grant.Printable(string(m.ID))+" and of grant "+string(its)+", and a container uses one grant", hint)
}

// ignoresVariables reports whether what a container's variables ask for says nothing, because it
// has a grant or a scheduler's allocation. Its image may have set them.
func ignoresVariables(q *question, g *grant.Grant) bool {
	return g != nil && g.Source != grant.Asked || entersAs(q) == grant.Adopted
}

// lookUp returns the grant of a reference, or nil after it has found why there is none. An unknown
// id and a wrong secret get the same answer, so guessing shows nothing.
func lookUp(q *question, m grant.Mention, found *findings) *grant.Grant {
	if m.Malformed != "" {
		found.add(grant.AnnotationMalformed, m.Source, m.Malformed)
		return nil
	}
	if slices.ContainsFunc(q.view.Damaged, func(d grant.Damage) bool { return d.ID == m.ID }) {
		found.add(grant.LedgerUnreadable, m.Source, string(m.ID))
		return nil
	}
	g := grantByID(q.view.Grants, m.ID)
	switch pod := q.request.Container.Pod; {
	case g == nil:
		found.add(grant.GrantNotFound, m.Source, string(m.ID))
	case g.Owner.IsPod() && g.Owner != pod.Owner():
		found.add(grant.GrantOwnerMismatch, m.Source, string(m.ID))
	case !g.Owner.IsPod() && !m.Opens(g.Secret):
		found.add(grant.GrantNotFound, m.Source, string(m.ID))
	case !g.InTies(pod):
		found.outsideTies(pod, m, g)
	default:
		return g
	}
	return nil
}

func grantByID(grants []grant.Grant, id grant.ID) *grant.Grant {
	for i := range grants {
		if grants[i].ID == id {
			return &grants[i]
		}
	}
	return nil
}

// outsideTies adds that a container has the reference of a grant that is tied to other pods. It
// names none of them.
func (f *findings) outsideTies(pod grant.Identity, m grant.Mention, g *grant.Grant) {
	var tied, hint string
	late := false
	switch {
	case pod == (grant.Identity{}):
		tied, hint = "pods, and its engine proves none", hintNoIdentity
	case !g.InNamespace(pod):
		tied, hint = "another namespace", hintTied
	case pod.UID == "":
		tied, hint = "pods, and its engine does not say which pod it is", hintNoUID
	default:
		tied, hint, late = "other pods", hintTied, g.Owner.IsClaim()
	}
	f.explain(grant.GrantOwnerMismatch, m.Source, string(m.ID), "refers to grant "+string(m.ID)+
		" by "+vectorName(grant.Printable(m.Source))+", which is tied to "+tied, hint)
	(*f)[len(*f)-1].late = late
}
