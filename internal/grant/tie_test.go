package grant_test

import (
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestATieIsAPodOrANamespace(t *testing.T) {
	for text, want := range map[string]bool{
		"pod:3f0c": true, "namespace:team-1": true, string(grant.PodTie("u")): true,
		string(grant.NamespaceTie("n")): true,
		"":                              false, "pod": false, "pod:": false, "pod:u/c": false,
		"pod:../x": false, "namespace:a b": false,
		"Namespace:n": false, "team": false, "claim:u": false, "bearer": false,
	} {
		if tie, err := grant.ParseTie(text); (err == nil) != want || want && string(tie) != text {
			t.Errorf("%q: got %q, %v", text, tie, err)
		}
	}
}

func TestPodsThatTiesAllow(t *testing.T) {
	pod := func(uid, namespace string) grant.Identity {
		return grant.Identity{UID: uid, Namespace: namespace, Pod: "p", Container: "c"}
	}
	for name, c := range map[string]struct {
		ties                 []grant.Tie
		identity             grant.Identity
		inTies, inNamespaces bool
	}{
		"no ties, no proven identity":                {nil, grant.Identity{}, true, true},
		"no ties, a pod":                             {nil, pod("u1", "n1"), true, true},
		"its pod":                                    {[]grant.Tie{"pod:u1"}, pod("u1", "n1"), true, true},
		"one of its pods":                            {[]grant.Tie{"pod:u0", "pod:u1"}, pod("u1", "n1"), true, true},
		"another pod":                                {[]grant.Tie{"pod:u0", "pod:u2"}, pod("u1", "n1"), false, true},
		"its namespace":                              {[]grant.Tie{"namespace:n1"}, pod("u1", "n1"), true, true},
		"another namespace":                          {[]grant.Tie{"namespace:n2"}, pod("u1", "n1"), false, false},
		"its pod in its namespace":                   {[]grant.Tie{"namespace:n1", "pod:u1"}, pod("u1", "n1"), true, true},
		"its pod, with another namespace":            {[]grant.Tie{"namespace:n2", "pod:u1"}, pod("u1", "n1"), false, false},
		"another pod of its namespace":               {[]grant.Tie{"namespace:n1", "pod:u2"}, pod("u1", "n1"), false, true},
		"a pod whose engine does not report its UID": {[]grant.Tie{"pod:u1"}, pod("", "n1"), false, true},
		"the same, with a namespace alone":           {[]grant.Tie{"namespace:n1"}, pod("", "n1"), true, true},
		"no proven identity, with a pod":             {[]grant.Tie{"pod:u1"}, grant.Identity{}, false, false},
		"no proven identity, with a namespace":       {[]grant.Tie{"namespace:n1"}, grant.Identity{}, false, false},
		"no namespace is not the one of that name":   {[]grant.Tie{"namespace:n1"}, grant.Identity{UID: "u1", Container: "c"}, false, false},
		"a pod is not the namespace of its name":     {[]grant.Tie{"pod:n1"}, pod("u1", "n1"), false, true},
		"a namespace is not the pod of its own UID":  {[]grant.Tie{"namespace:u1"}, pod("u1", "n1"), false, false},
	} {
		g := grant.Grant{For: c.ties}
		if got := g.InTies(c.identity); got != c.inTies {
			t.Errorf("%s: among the ties: %v", name, got)
		}
		if got := g.InNamespace(c.identity); got != c.inNamespaces {
			t.Errorf("%s: in the namespaces: %v", name, got)
		}
		g.Bindings = []grant.Binding{{Container: "x", Pod: c.identity}}
		if strangers := g.BindingsOutsideTies(); (len(strangers) == 0) != c.inTies || len(g.Bindings) != 1 {
			t.Errorf("%s: excluded %v", name, strangers)
		}
	}
}
