package node

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Settle judges a container that is created already, by the spec that the real runtime was given: nothing can be edited
// any more, so whatever would have to be is a refusal. An admission binds the grant to holder, the container's init, or
// with Reserve this process, unless the container's own create has bound it before. Only refusals are recorded.
func (n *Node) Settle(c Create, holder grant.Process) Decision {
	d := n.settle(c, holder)
	if d.Kind != grant.Refused {
		return d
	}
	switch mode := n.Mode(); {
	case mode != grant.Enforce:
		d.Mode = mode
	case c.Running:
		d.Mode = grant.Observed
	}
	n.audit(c.Container, d.pod, d)
	return d
}

func (n *Node) settle(c Create, holder grant.Process) Decision {
	v, refused := n.visit(c)
	if refused != nil {
		return *refused
	}
	d := v.look(v.standing)
	if d.Kind == grant.Admit {
		return v.adopt(holder)
	}
	return d
}

// standing judges the spec as it stands.
func (v visit) standing(view grant.View) Decision {
	d := v.judge(view)
	if d.Kind == grant.Refused || d.Kind == grant.Pass && v.Mode() != grant.Enforce {
		return d
	}
	what := missing(d.Verdict, v.environment)
	if d.Limited && what == "" {
		what = v.unheld(d)
		if what != "" && v.Running { // since before there was a shim: it is told as what it is
			d.Weaker = "the container runs without what would hold it to its memory (" + what + ")"
			d.Limited, d.Throttled, d.Strength, what = false, false, grant.StrengthNone, ""
		}
	}
	if what == "" {
		return d
	}
	return *late(v.Container, what, d.pod)
}

// late is a refusal of a container that is created already, and not as it should have been.
func late(c grant.Container, what string, pod grant.Identity) *Decision {
	r := refusal(grant.InjectionImpossible, "container %q was created without gpuledger's edits (%s)", c.Name(), grant.Printable(what))
	r.Hint, r.pod = "gpuledgerd was not connected to the engine then; delete the container and create it again", pod
	return r
}

// missing names an edit that a spec of this environment has not seen, by the verdict about that spec; "" if it has seen all that
// take something away.
func missing(verdict grant.Verdict, env func() []string) string {
	if verdict.Narrow {
		return "device rules"
	}
	i := slices.IndexFunc(verdict.Removed, func(r grant.Removal) bool {
		return r.Kind != grant.RemoveEnv || !isSet(verdict.Edits.Env, r.Name, env())
	})
	if i < 0 {
		return ""
	}
	return verdict.Removed[i].String()
}

// unheld names what keeps the spec's container from being held to its memory by the shim; "" if nothing does.
func (v visit) unheld(d Decision) string {
	spec, err := request.Parse(v.Config)
	if err != nil {
		return "its memory limit"
	}
	inv, _ := v.inventory()
	at := map[string]string{} // what is mounted where, the last one counts
	for _, m := range spec.Mounts {
		at[filepath.Clean("/"+m.Destination)] = m.Source
	}
	for _, m := range v.Policy.RecordMounts(d.Grant.ID) {
		if at[m.ContainerPath] != m.HostPath {
			return "its memory limit at " + m.ContainerPath
		}
	}
	for place, source := range at {
		if shimmed(place) != "" && !strings.HasPrefix(place, grant.ShimPlace+"/") && filepath.Dir(source) != inv.Shim.Dir {
			return "the limiting " + place
		}
		if d.Throttled && strings.HasPrefix(shimmed(place), "libcuda.") && !strings.HasPrefix(place, grant.ShimPlace+"/") && filepath.Base(source) != grant.ThrottleLibrary {
			return "the throttling " + place
		}
	}
	if v.unseen() {
		return ""
	}
	for _, own := range v.own() {
		if at[own.Place] == "" {
			return "one over its image's own " + own.Place
		}
	}
	return ""
}

// environment is that of the spec as it stands.
func (v visit) environment() []string {
	spec, err := request.Parse(v.Config)
	if err != nil || spec.Process == nil {
		return nil
	}
	return spec.Process.Env
}

// isSet reports whether a variable stands in an environment, and every occurrence of it has the value that the edits give it.
func isSet(edits []string, name string, env []string) bool {
	ofName := func(entry string) bool { return strings.HasPrefix(entry, name+"=") }
	i := slices.IndexFunc(edits, ofName)
	return i >= 0 && slices.ContainsFunc(env, ofName) &&
		!slices.ContainsFunc(env, func(entry string) bool { return ofName(entry) && entry != edits[i] })
}

// adopt decides again with the ledger locked, and binds.
func (v visit) adopt(holder grant.Process) (d Decision) {
	v.inCgroups()
	v.examineOwn()
	err := v.Ledger.Update(func(tx *ledger.Tx) error {
		if d = v.standing(v.withWhole(tx, v.view(tx, v.request))); d.Kind != grant.Admit {
			return nil
		}
		if d.Grant.ID != "" { // one that is adopted here has none yet
			if g, err := tx.Get(d.Grant.ID); err != nil || v.holds(g) {
				return err
			}
		}
		if d.Driven { // the hook in its spec has limited nothing that the ledger knows of
			if !v.Running {
				d = *late(v.Container, "the driver's memory limit", d.pod)
				return nil
			}
			d.Driven, d.Strength = false, grant.StrengthNone // it is told as what it is
			d.Weaker = "the container runs without the driver's memory limit"
		}
		return v.use(tx, &d, holder)
	})
	if err != nil {
		return *refusal(grant.LedgerUnreadable, "cannot bind the grant of container %q: %v", v.Container.Name(), err)
	}
	return d
}

// Abandon forgets what was reserved for a container that will not be created any more.
func (n *Node) Abandon(container string) error {
	return n.Ledger.Update(func(tx *ledger.Tx) error {
		tx.DropReserved("", container)
		return nil
	})
}
