package test

import (
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestATiedGrantServesOnlyItsPods: a reference that another pod has read is refused by the wrapper,
// by the hook and by the hook of a CDI name, while its grant is in use and when it is free, and the
// pods that it is for share it meanwhile. On cgroup v1 and v2, with runc and crun; the corpus has
// it for NRI.
func TestATiedGrantServesOnlyItsPods(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					tiedGrant(t, runtime)
				})
			}
		})
	}
}

func tiedGrant(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime, Engine: "containerd"})
	realHook(t, n)
	reference := n.Grant("--memory", "4GiB", "--gpu", "1", "--cdi", "--owner", "claim:c1", "--for",
		"namespace:team", "--for", "pod:u1", "--for", "pod:u2")
	byCDI := injected(t, n, grant.CDIKindGrant+"="+reference.String())
	byEnv := rig.Env("GPULEDGER_GRANT=" + reference.String())
	first, second := rig.Identity("u1", "team", "one", "main"), rig.Identity("u2", "team", "two", "main")
	thief, unknown := rig.Identity("u9", "other", "thief", "main"), rig.Edit(rig.Light)
	for name, entry := range map[string]struct {
		by          rig.Edit
		run, create func(*rig.Bundle) rig.Result
		refused     func(*testing.T, rig.Result)
		hooked      bool
	}{
		"wrapper": {by: byEnv, run: (*rig.Bundle).Run, create: (*rig.Bundle).Create,
			refused: func(t *testing.T, r rig.Result) {
				t.Helper()
				wantRefused(t, r, string(grant.GrantOwnerMismatch))
			}},
		"hook": {by: byEnv, run: (*rig.Bundle).RealRun, create: (*rig.Bundle).RealCreate, hooked: true,
			refused: func(t *testing.T, r rig.Result) {
				t.Helper()
				isRefusedByHook(t, r, grant.GrantOwnerMismatch)
			}},
		"cdi": {by: byCDI, run: (*rig.Bundle).RealRun, create: (*rig.Bundle).RealCreate,
			refused: func(t *testing.T, r rig.Result) {
				t.Helper()
				isRefusedByHook(t, r, grant.GrantOwnerMismatch)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := func(id string, edits ...rig.Edit) *rig.Bundle {
				if edits = append(edits, entry.by); entry.hooked {
					edits = append(edits, n.Hooked)
				}
				return n.Bundle(name+"-"+id, edits...)
			}
			one := bundle("one", first)
			if r := entry.create(one); r.Code != 0 || n.State(reference.ID) != grant.Bound {
				t.Fatalf("%+v, the grant is %s", r, n.State(reference.ID))
			}
			if r := entry.run(bundle("two", second, rig.Shell(probe))); r.Stdout != exactlyOne ||
				r.Code != 0 {
				t.Errorf("the second pod of the claim: %+v\nwant:\n%s", r, exactlyOne)
			}
			entry.refused(t, entry.create(bundle("beside", thief)))
			entry.refused(t, entry.create(bundle("another", unknown)))
			if all := n.Grants(); len(all) != 1 || len(all[0].Bindings) != 1 {
				t.Errorf("in use by %+v, want by the first pod alone", all)
			}
			one.End()
			entry.refused(t, entry.create(bundle("after", thief)))
			if state := n.State(reference.ID); state != grant.Free {
				t.Errorf("the grant is %s after its pod", state)
			}
		})
	}
	n.CheckSound("at the end")
}
