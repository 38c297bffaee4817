package node

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/request"
)

// JudgeCreated judges a container that is created already, by the spec that the real runtime was
// given: nothing can be edited any more, so whatever would have to be edited is a refusal. An
// admission binds the grant to holder, the container's init, or with Reserve to this process,
// unless the container's own create has bound it before. Only refusals are recorded.
func (n *Node) JudgeCreated(c Create, holder grant.Process) Decision {
	d := judgeCreated(n, c, holder)
	if d.Kind != grant.Refused {
		return d
	}
	switch mode := n.Mode(); {
	case mode != grant.Enforce:
		d.NotEnforced = mode
	case c.Running:
		d.NotEnforced = grant.Observed
	}
	recordDecision(n, c.Container, d)
	return d
}

func judgeCreated(n *Node, c Create, holder grant.Process) Decision {
	n = forOneCreate(n)
	reported := grant.Pass
	if c.Reported != nil {
		d := judgeReported(n, c)
		if reported = d.Kind; reported == grant.Refused {
			return d
		}
	}
	f, refused := readFacts(n, c)
	if refused != nil {
		return *refused
	}
	d := judgeStanding(n, f, holder)
	if reported == grant.Admit && d.Kind == grant.Pass {
		d = *createdUnedited(f.Container, "what its grant gives it")
	}
	d.pod = f.pod()
	return d
}

// judgeReported judges the spec that the engine reports as a create would: it may lack edits, which
// the spec that the real runtime was given has.
func judgeReported(n *Node, c Create) Decision {
	c.Config, c.Unread = c.Reported, nil
	f, refused := readFacts(n, c)
	if refused != nil {
		return *refused
	}
	d := decide(readLedger(n, f))
	d.pod = f.pod()
	return d
}

// judgeStanding judges the spec as it stands, and binds what it admits.
func judgeStanding(n *Node, f *createFacts, holder grant.Process) Decision {
	var refused *Decision
	var view grant.View
	for range maxTries {
		if f, refused = renewed(n, f); refused != nil {
			return *refused
		}
		f, view = readLedger(n, f)
		d := standing(n, f, view)
		if d.Kind != grant.Admit {
			return d
		}
		if d, settled, err := commitCreated(n, f, holder); err != nil {
			return *cannotBind(f.Container, err)
		} else if settled {
			return d
		}
	}
	return *refusal(grant.LedgerUnreadable, tooManyChanges, f.Container.Name(), maxTries)
}

// standing judges the spec as it stands.
func standing(n *Node, f *createFacts, view grant.View) Decision {
	d := decide(f, view)
	if d.Kind == grant.Refused || d.Kind == grant.Pass && n.Mode() != grant.Enforce {
		return d
	}
	what := missing(d.Verdict, f.env)
	if d.Limited && what == "" {
		what = unheld(f, d)
		if what != "" && f.Running { // and is not stopped: it is recorded as what it is
			d.Weaker = "the container runs without what would hold it to its memory (" + what + ")"
			d.Limited, d.Throttled, d.Strength, what = false, false, grant.StrengthNone, ""
		}
	}
	if what == "" {
		return d
	}
	return *createdUnedited(f.Container, what)
}

// createdUnedited returns a refusal of a container that is created already, and not as it should
// have been.
func createdUnedited(c grant.Container, what string) *Decision {
	r := refusal(grant.InjectionImpossible, "container %q was created without gpuledger's edits (%s)",
		c.Name(), grant.Printable(what))
	r.Hint = "gpuledgerd was not connected to the engine then; delete the container and create it again"
	return r
}

// unheld names what keeps the spec's container from being held to its memory by the shim; "" if
// nothing does.
func unheld(f *createFacts, d Decision) string {
	spec, err := request.Parse(f.Config)
	if err != nil {
		return "its memory limit"
	}
	at := map[string]string{} // what is mounted where, the last one counts
	for _, m := range spec.Mounts {
		at[filepath.Clean("/"+m.Destination)] = m.Source
	}
	for _, m := range f.policy.RecordMounts(d.Grant.ID) {
		if at[m.ContainerPath] != m.HostPath {
			return "its memory limit at " + m.ContainerPath
		}
	}
	for place, source := range at {
		if shimmed(place) != "" && !strings.HasPrefix(place, grant.ShimPlace+"/") &&
			filepath.Dir(source) != f.gpu.inventory.Shim.Dir {
			return "the limiting " + place
		}
		if d.Throttled && strings.HasPrefix(shimmed(place), "libcuda.") &&
			!strings.HasPrefix(place, grant.ShimPlace+"/") && filepath.Base(source) != grant.ThrottleLibrary {
			return "the throttling " + place
		}
	}
	if f.image.Root == "" {
		return ""
	}
	for _, own := range f.gpu.own {
		if at[own.Place] == "" {
			return "one over its image's own " + own.Place
		}
	}
	return ""
}

// commitCreated decides again with the ledger locked, and binds. It is not settled if facts are
// needed that were not read, or a newer inventory.
func commitCreated(n *Node, f *createFacts, holder grant.Process) (d Decision, settled bool, err error) {
	f = withCgroups(n, f)
	examineOwn(n, f.Container)
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		view, err := lastingView(n, tx, f)
		if err != nil {
			return err
		}
		if settled = f.suffice(view) && !f.outdated(n); !settled {
			return nil
		}
		if d = standing(n, f, view); d.Kind != grant.Admit {
			return nil
		}
		if d.Grant.ID != "" { // one that is adopted here has none yet
			if g, err := tx.Get(d.Grant.ID); err != nil || f.holds(g) {
				return err
			}
		}
		if d.Driven { // the hook in its spec has limited nothing that the ledger knows of
			if !f.Running {
				d = *createdUnedited(f.Container, "the driver's memory limit")
				return nil
			}
			d.Driven, d.Strength = false, grant.StrengthNone // it is told as what it is
			d.Weaker = "the container runs without the driver's memory limit"
		}
		return record(n, tx, f, &d, holder)
	})
	return d, settled, err
}

// Abandon forgets what was reserved for containers that will not be created any more.
func (n *Node) Abandon(containers ...string) error {
	return n.Ledger.Update(func(tx *ledger.Tx) error {
		var errs []error
		for _, c := range containers {
			errs = append(errs, tx.DropReserved("", c, nil))
		}
		return errors.Join(errs...)
	})
}
