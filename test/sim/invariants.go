package sim

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// check compares the ledger with the promises of a node, after every step.
func (l *life) check() {
	if l.failed != "" {
		l.fail("%s", l.failed)
	}
	v := l.view()
	for _, d := range v.Damaged {
		l.fail("grant %s is damaged: %s", d.ID, d.Err)
	}
	l.report(checkSums(v, l.gpus))
	l.report(checkModes(v, l.inventory))
	l.report(checkDevices(v))
	if l.watches {
		l.report(l.last.checkFound(v))
	}
	l.report(checkOwners(v))
	l.report(checkBoxes(v, l.containers.boxes))
	l.report(checkAlive(v, l.containers.boxes, l.all))
	l.sawGrants(v)
	l.report(l.checkEnds(v))
	l.holdings.checkHeld(v)
	if l.checkedAt != l.seen.steps { // opening all records takes long
		l.checkedAt = l.seen.steps
		l.report(checkLimits(v, l.containers.boxes, l.eyes.Policy))
	}
	l.report(checkQuotas(v))
	l.report(checkSecrets(v, l.users.requests, l.rates.fault == 0 && !l.calm))
	l.users.checkTurns(v)
	l.report(checkControls(l.controls))
	for _, p := range l.all {
		if p.creates && !p.done {
			p.sawReady(l.controls)
		}
	}
}

// checkSums: no GPU has more memory or compute granted than it has, or is exclusive to two.
func checkSums(v grant.View, gpus int) string {
	for i := range gpus {
		var sum grant.Bytes
		compute := 0
		var alone grant.ID
		var has []string
		for _, g := range v.Grants {
			if !g.Live(v.Now) || !g.Has(uuid(i)) {
				continue
			}
			if g.Mode == grant.Exclusive && alone != "" {
				return fmt.Sprintf("%s is exclusive to grant %s, and to grant %s", uuid(i), alone, g.ID)
			}
			if compute += g.Compute; g.Mode == grant.Exclusive {
				alone = g.ID
			}
			for _, s := range g.GPUs {
				if s.UUID == uuid(i) {
					sum += s.Memory
					has = append(has, string(g.ID)+" "+s.Memory.String())
				}
			}
		}
		if sum > card {
			return fmt.Sprintf("%s are granted of %s, which has %s: %v", sum, uuid(i), card, has)
		}
		if compute > 100 {
			return fmt.Sprintf("%d%% of the compute of %s are granted: %v", compute, uuid(i), has)
		}
	}
	return ""
}

// checkOwners: a pod's container has one live grant. A bearer may have many.
func checkOwners(v grant.View) string {
	has := map[grant.Owner]grant.ID{}
	for _, g := range v.Grants {
		if g.Owner == grant.Bearer || !g.Live(v.Now) {
			continue
		}
		if other := has[g.Owner]; other != "" {
			return fmt.Sprintf("%s has the grants %s and %s", g.Owner, other, g.ID)
		}
		has[g.Owner] = g.ID
	}
	return ""
}

// checkAlive: a grant is held for a container that has it and runs, or whose creator does. A view
// has no bindings of containers that the kernel shows to be dead.
func checkAlive(v grant.View, boxes []*box, processes []*process) string {
	for _, g := range v.Grants {
		for _, at := range g.Bindings {
			isBox := func(b *box) bool { return nameOf(b.name) == at.Container && b.runs() }
			creates := func(p *process) bool {
				return p.binds && !p.done && at.Creator == grant.Process{PID: p.pid, Start: p.start}
			}
			created := slices.ContainsFunc(processes, creates)
			if created {
				noteBeside(boxes, processes, g.ID, at.Container)
			}
			mayHave := func(b *box) bool { return isBox(b) && b.mayHave(g.ID) }
			switch {
			case created || slices.ContainsFunc(boxes, mayHave):
			case slices.ContainsFunc(boxes, isBox):
				return fmt.Sprintf("grant %s is held for %s, which runs without it", g.ID, at.Container)
			default:
				return fmt.Sprintf("grant %s is held for %s, of which nothing runs", g.ID, at.Container)
			}
		}
	}
	return ""
}

// noteBeside notes for what runs, or is being decided about, that another create of its id is at
// work with a grant.
func noteBeside(boxes []*box, processes []*process, id grant.ID, container string) {
	for _, p := range processes {
		if p.creates && !p.done && nameOf(p.makes) == container {
			p.beside = append(p.beside, id)
		}
	}
	for _, b := range boxes {
		if nameOf(b.name) == container && b.runs() {
			b.beside = append(b.beside, id)
		}
	}
}

// mayHave reports whether the binding of a grant may count as this container's: the container has
// the grant, or nothing could remove the binding before it ran. That is so where its create met
// errors of the disk, and where another create of the id was at work with the grant at any time of
// its life: killed, or with a disk that fails, that leaves a binding of a name that runs.
func (b *box) mayHave(id grant.ID) bool {
	return b.grant == id || b.creator != nil || b.faulty || slices.Contains(b.beside, id)
}

// checkBoxes: what runs with a grant is bound to it, alone.
func checkBoxes(v grant.View, boxes []*box) string {
	for i, b := range boxes {
		if b.grant == "" {
			continue
		}
		bound := slices.ContainsFunc(v.Grants, func(g grant.Grant) bool {
			return g.ID == b.grant && slices.ContainsFunc(g.Bindings, func(at grant.Binding) bool {
				return at.Container == nameOf(b.name)
			})
		})
		if !bound {
			return fmt.Sprintf("container %s runs with grant %s, which is not bound to it", nameOf(b.name),
				b.grant)
		}
		for _, other := range boxes[:i] {
			if other.grant == b.grant {
				return fmt.Sprintf("containers %s and %s run with grant %s", nameOf(b.name),
					nameOf(other.name), b.grant)
			}
			has := func(u string) bool { return slices.Contains(b.gpus, u) }
			shares := slices.ContainsFunc(other.gpus, has)
			if shares && (b.alone || other.alone) {
				return fmt.Sprintf("containers %s and %s run on one GPU, one of them alone", nameOf(b.name),
					nameOf(other.name))
			}
		}
	}
	return ""
}

// checkSound: a check of the ledger leaves nothing wrong, whatever crashes and failing disks have
// left before.
func checkSound(r ledger.Report) string {
	for _, f := range r.Findings {
		if !f.Repaired {
			return fmt.Sprintf("a check of the ledger finds %s: %s", f.Subject, f.Problem)
		}
	}
	return ""
}
