package watch

import (
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Tracker follows findings from sample to sample: which are new, which are over, and for how long
// each stands.
type Tracker struct {
	Grace    time.Duration // how long a finding stands before its container is stopped
	Interval time.Duration // between two samples, if nothing delays them

	last      time.Time // of the last sample
	standing  map[string]*standing
	sightings map[string]int  // in a row, of findings that need several
	doubted   map[string]bool // GPUs with a finding that was not seen often enough yet, by UUID
	answers   map[string]int  // in a row, of GPUs in samples, by UUID
	Events    map[grant.FindingKind]uint64
	XIDs      map[XID]uint64
}

// XID is an error of the driver on a GPU.
type XID struct {
	GPU    string
	Number int
}

type standing struct {
	grant.Finding
	missed  int           // samples since it was seen last
	stood   time.Duration // observed, since its beginning or since its container was stopped last
	stopped time.Time     // when that was
}

// How often a finding of unexplained memory has to be seen before it is reported, and how often any
// finding has to be missed before it is over. The driver needs a moment to take back the memory of
// a process that ends, and use that goes up and down around a grant is one event.
const (
	sightingsNeeded = 3
	missesAllowed   = 5
)

// Changes are the findings that began and ended with a sample.
type Changes struct{ Begun, Ended []grant.Finding }

// Update takes in a report. It removes findings that were not seen often enough, and sets since
// when the others stand. It counts memory that no process explains as outside the ledger, once that
// finding is reported.
func (t *Tracker) Update(r *Comparison) (n Changes) {
	if t.standing == nil {
		t.standing, t.sightings, t.Events, t.XIDs = map[string]*standing{}, map[string]int{},
			map[grant.FindingKind]uint64{}, map[XID]uint64{}
	}
	for _, g := range r.GPUs {
		for _, number := range g.XIDs {
			t.XIDs[XID{g.UUID, number}]++
		}
	}
	t.countAnswers(r)
	looked := t.observed(r.Taken)
	for _, s := range t.standing {
		s.stood += looked
	}
	r.Findings = t.believe(r)
	seen := map[string]bool{}
	for i := range r.Findings {
		f := &r.Findings[i]
		key := f.Key()
		seen[key] = true
		s, found := t.standing[key]
		if !found {
			s = &standing{}
			s.Since = r.Taken
			t.standing[key] = s
			t.Events[f.Kind]++
		}
		f.Since, s.missed = s.Since, 0
		s.Finding = *f
		if !found {
			n.Begun = append(n.Begun, *f)
		}
	}
	n.Ended = t.removeMissed(seen)
	return n
}

func (t *Tracker) countAnswers(r *Comparison) {
	answers := make(map[string]int, len(r.GPUs))
	for _, g := range r.GPUs {
		if !g.silent {
			answers[g.UUID] = t.answers[g.UUID] + 1
		}
	}
	t.answers = answers
}

// IsSettled reports whether a GPU has answered so often that its reports lack nothing. Memory that
// no process explains is in a report only after several samples, also that of a process which has
// just ended. Nothing is if the GPU does not answer.
func (t *Tracker) IsSettled(uuid string) bool {
	return t.answers[uuid] >= sightingsNeeded && !t.doubted[uuid]
}

// maxUnobserved is how much of a time without samples counts, at most.
const maxUnobserved = 3 * time.Second

// observed is how much of the time since the last sample counts towards a finding's grace. NVML can
// hang, and this program can be stopped: a finding that was seen before and after need not have
// stood in between. Some of that time counts, or a tenant that slows the samples down would never
// be stopped.
func (t *Tracker) observed(now time.Time) (d time.Duration) {
	if !t.last.IsZero() {
		d = min(now.Sub(t.last), max(t.Interval, min(maxUnobserved, t.Grace/2)))
	}
	t.last = now
	return max(d, 0)
}

// believe removes findings that were not seen often enough in a row.
func (t *Tracker) believe(r *Comparison) []grant.Finding {
	sightings, doubted := map[string]int{}, map[string]bool{}
	kept := slices.DeleteFunc(r.Findings, func(f grant.Finding) bool {
		if f.Kind != grant.Unexplained {
			return false
		}
		key := f.Key()
		sightings[key] = t.sightings[key] + 1
		if sightings[key] >= sightingsNeeded {
			return false
		}
		doubted[f.GPU] = true
		return true
	})
	t.sightings, t.doubted = sightings, doubted
	for _, f := range kept {
		i := slices.IndexFunc(r.GPUs, func(g GPUUse) bool { return g.UUID == f.GPU })
		if f.Kind == grant.Unexplained && i >= 0 {
			r.GPUs[i].Outside += f.Bytes
			for device, bytes := range r.hidden[f.GPU] {
				r.GPUs[i].addToMIG(device, bytes)
			}
		}
	}
	return kept
}

func (t *Tracker) removeMissed(seen map[string]bool) (ended []grant.Finding) {
	for key, s := range t.standing {
		if seen[key] {
			continue
		}
		if s.missed++; s.missed >= missesAllowed || s.Kind == grant.GPUError { // an error has no duration
			delete(t.standing, key)
			ended = append(ended, s.Finding)
		}
	}
	slices.SortFunc(ended, func(a, b grant.Finding) int {
		if a.Key() < b.Key() {
			return -1
		}
		return 1
	})
	return ended
}

// HasNew reports whether a report has a finding that does not stand yet.
func (t *Tracker) HasNew(r Comparison) bool {
	return slices.ContainsFunc(r.Findings, func(f grant.Finding) bool { return t.standing[f.Key()] == nil })
}

// Due returns the findings of a report whose containers policy wants stopped, and whose grace is
// over.
func (t *Tracker) Due(r Comparison, rules grant.Rules) (due []grant.Finding) {
	for _, f := range r.Findings {
		s := t.standing[f.Key()]
		if s == nil || Reaction(f, rules) != grant.StopContainer {
			continue
		}
		// from the future: the clock was set back since
		if s.stood >= t.Grace && r.Taken.Sub(s.stopped).Abs() >= time.Second {
			s.stopped, s.stood = r.Taken, 0
			due = append(due, f)
		}
	}
	return due
}

// Reaction is what policy wants done about a finding. Processes of the node itself are never
// stopped: root has put them there. A container is not stopped either while its grant is exceeded
// by no more than the contexts of the grant's processes may take: no library can prevent that.
func Reaction(f grant.Finding, rules grant.Rules) grant.Reaction {
	switch {
	case f.User.Container == "" || f.User.Cgroup == "" || f.User.Exempt:
	case f.Kind == grant.OverGrant && f.Bytes > f.Contexts:
		return rules.OnOverGrant
	case f.Kind == grant.OutsideLedger:
		return rules.OnOutsideLedger
	}
	return grant.ReportFinding
}

// perContext is more than the largest known context takes: 100 to 500 MiB.
const perContext = 600 * grant.MiB

// contextMemory is the most that the context of a process may take. A process that uses less in all
// has a smaller one: the driver also lists processes that only draw, or have just begun.
func contextMemory(p grant.ProcessUse) grant.Bytes { return min(perContext, p.Memory) }
