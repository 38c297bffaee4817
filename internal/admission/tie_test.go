package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// tie ties a grant to pods or namespaces.
func (w *world) tie(id grant.ID, ties ...grant.Tie) {
	i := slices.IndexFunc(w.v.Grants, func(g grant.Grant) bool { return g.ID == id })
	w.v.Grants[i].For, w.v.Grants[i].Compute = ties, 0
}

// A reference opens its grant only in the pods that the grant is tied to, for all combinations of
// identity, ties, owner and source of the reference.
func TestOnlyTiedPodsOpenATiedGrant(t *testing.T) {
	identities := []grant.Identity{{}, {UID: "u1", Namespace: "n1", Pod: "p", Container: "c"},
		{UID: "u2", Namespace: "n1", Pod: "q", Container: "c"},
		{UID: "u3", Namespace: "n2", Pod: "p", Container: "c"},
		{Namespace: "n1", Pod: "p", Container: "c"}, {UID: "u1"}, {Namespace: "n1"}}
	ties := [][]grant.Tie{nil, {"pod:u1"}, {"pod:u2", "pod:u3"}, {"namespace:n1"},
		{"namespace:n2", "namespace:n1"}, {"namespace:n1", "pod:u1"}, {"namespace:n2", "pod:u1"}, {
			"pod:gone"}}
	sources := []string{"env:GPULEDGER_GRANT", "annotation:gpuledger.dev/grant", "annotation:cdi.k8s.io/x"}
	admitted, refused := 0, 0
	for _, id := range []grant.ID{bearerGrant, claimGrant} {
		for _, identity := range identities {
			for _, to := range ties {
				for _, source := range sources {
					for _, presented := range []string{secret, wrongSecret} {
						w := newWorld()
						w.tie(id, to...)
						w.r.Container.Pod = identity
						w.refers(source, grant.Reference{ID: id, Secret: presented})
						v, name := w.decide(), fmt.Sprintf("%s tied to %v, by %+v in %s", id, to,
							identity, source)
						pods, namespaces := 0, 0
						its := map[string]bool{}
						for _, tie := range to {
							kind, value, _ := strings.Cut(string(tie), ":")
							if kind == "pod" {
								pods++
							} else {
								namespaces++
							}
							its[kind] = its[kind] || kind == "pod" && value == identity.UID ||
								kind == "namespace" && value == identity.Namespace
						}
						right := (pods == 0 || its["pod"]) && (namespaces == 0 || its["namespace"])
						switch {
						case presented == wrongSecret && (v.Code != grant.GrantNotFound || v.Late):
							t.Errorf("%s with a wrong secret: %s, want no more than that there is "+
								"no such grant", name, summary(v))
						case presented == secret && right != (v.Kind == grant.Admit):
							t.Errorf("%s: %s", name, summary(v))
						case presented == secret && !right && v.Code != grant.GrantOwnerMismatch:
							t.Errorf("%s: %s", name, summary(v))
						case v.Kind == grant.Refused && v.Grant != nil:
							t.Errorf("%s: the refusal has the grant", name)
						}
						late := presented == secret && !right && id == claimGrant && identity.UID != "" &&
							(namespaces == 0 || its["namespace"])
						if v.Late != late {
							t.Errorf("%s: the pod may become known in a moment: %v", name, v.Late)
						}
						for _, other := range append(to, "n2", "u3") {
							_, value, _ := strings.Cut(":"+string(other), ":")
							if text := v.Message + v.Hint; value != "" &&
								strings.Contains(text, value[strings.Index(value, ":")+1:]) {
								t.Errorf("%s: names %s: %s", name, value, text)
							}
						}
						if right && presented == secret {
							admitted++
						} else {
							refused++
						}
					}
				}
			}
		}
	}
	t.Logf("%d admitted, %d refused", admitted, refused)
}

// A container with two resources of the device plugin has the reference of any one of their grants,
// perhaps another one at its next start. It is refused with either.
func TestAContainerWithTwoResourcesIsRefused(t *testing.T) {
	given := func(resource string, id grant.ID) grant.Mention {
		return grant.Mention{Source: "annotation:" + grant.GivenPrefix + resource,
			Reference: grant.Reference{ID: id}}
	}
	w := newWorld()
	w.bearer()
	w.r.Injected = []grant.Mention{given("gpuledger.dev_gpu", bearerGrant)}
	if v := w.decide(); v.Kind != grant.Admit {
		t.Errorf("with one resource: %s", summary(v))
	}
	w.r.Injected = append(w.r.Injected, given("gpuledger.dev_gpu-memory", "g-otherothers"))
	v := w.decide()
	const want = `container "c1" has resources of the device plugin of grant g-otherothers and of grant ` +
		`g-bearerbearer, and a container uses one grant`
	if v.Code != grant.AnnotationMismatch || v.Message != want || v.Hint != hintOneResource {
		t.Errorf("with two resources: %s\n%s\n%s", summary(v), v.Message, v.Hint)
	}
}

func TestTextForAPodThatIsNotTied(t *testing.T) {
	for name, c := range map[string]struct {
		identity      grant.Identity
		message, hint string
	}{
		"another pod":                  {grant.Identity{UID: "u2", Namespace: "n1", Container: "c"}, `container "c" refers to grant g-bearerbearer by GPULEDGER_GRANT, which is tied to other pods`, hintTied},
		"another namespace":            {grant.Identity{UID: "u1", Namespace: "n2", Container: "c"}, `container "c" refers to grant g-bearerbearer by GPULEDGER_GRANT, which is tied to another namespace`, hintTied},
		"an engine that proves no pod": {grant.Identity{}, `container "c1" refers to grant g-bearerbearer by GPULEDGER_GRANT, which is tied to pods, and its engine proves none`, hintNoIdentity},
		"an old containerd":            {grant.Identity{Namespace: "n1", Container: "c"}, `container "c" refers to grant g-bearerbearer by GPULEDGER_GRANT, which is tied to pods, and its engine does not say which pod it is`, hintNoUID},
	} {
		w := newWorld()
		w.tie(bearerGrant, "namespace:n1", "pod:u1")
		w.r.Container.Pod = c.identity
		w.bearer()
		w.hit(all)
		v := w.decide()
		if v.Code != grant.GrantOwnerMismatch || v.Message != c.message || v.Hint != c.hint || v.Late {
			t.Errorf("%s: got %s\n%s\n%s", name, v.Code, v.Message, v.Hint)
		}
		if d := (grant.Detail{Vector: "env:GPULEDGER_GRANT", Value: string(bearerGrant),
			Code: grant.GrantOwnerMismatch}); v.Details[0] != d {
			t.Errorf("%s: got %v", name, v.Details)
		}
	}
}

// A refusal is late if the ledger may still learn about the pod and nothing else is wrong with the
// node.
func TestOnlyAMissingPodIsWaitedFor(t *testing.T) {
	w := newWorld()
	w.tie(claimGrant, "namespace:team", "pod:u1")
	w.r.Container.Pod = grant.Identity{UID: "u2", Namespace: "team", Pod: "p", Container: "train"}
	w.refers("env:GPULEDGER_GRANT", grant.Reference{ID: claimGrant, Secret: secret})
	if v := w.decide(); !v.Late {
		t.Errorf("a pod that may be the claim's in a moment: %s", summary(v))
	}
	w.tie(bearerGrant, "pod:u1")
	w.bearer()
	if v := w.decide(); !v.Late {
		t.Errorf("the same, and what it will never be: %s", summary(v))
	}
	w.problem(grant.InventoryMissing)
	if v := w.decide(); v.Code != grant.InventoryMissing || v.Late {
		t.Errorf("on a node that can grant nothing: %s, late: %v", summary(v), v.Late)
	}
}

func TestGrantsThatCannotBeTied(t *testing.T) {
	ask := Ask{Memory: grant.GiB, Mode: grant.Limit, Owner: "pod:u/c", For: []grant.Tie{"pod:u"}}
	if err := ask.Validate(); err == nil || !strings.Contains(err.Error(),
		"pod:u/c proves its grant by what it is") {
		t.Errorf("a pod's grant: %v", err)
	}
	ask.Owner = grant.Bearer
	if err := ask.Validate(); err != nil {
		t.Errorf("a bearer's: %v", err)
	}
	if ask.For = make([]grant.Tie, grant.MaxTies); ask.Validate() != nil {
		t.Errorf("as many as may be: %v", ask.Validate())
	}
	ask.For = make([]grant.Tie, grant.MaxTies+1)
	if err := ask.Validate(); err == nil || !strings.Contains(err.Error(), "512") {
		t.Errorf("too many: %v", err)
	}
}
