package ledger

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Report is what Check found.
type Report struct {
	Grants   int            `json:"grants"`   // that can be read and count
	Over     int            `json:"over"`     // grants that do not count any more and are still there
	Bindings int            `json:"bindings"` // alive or unknown
	Damaged  []grant.Damage `json:"-"`        // each is among the findings too
	Findings []Finding      `json:"findings"` // sorted by subject
}

// Finding is one thing that was wrong.
type Finding struct {
	Subject  string `json:"subject"` // a path, a GPU's UUID or an owner
	Problem  string `json:"problem"`
	Repaired bool   `json:"repaired"` // it was derived from other entries, and is right now
	Hint     string `json:"hint"`     // what to do where it is not
}

// What to do about findings of several places.
const (
	hintStray = "move it away"
	hintDisk  = "look at the disk and its mounts"
	hintSum   = "`gpuledger grants` lists them; release one of them"
)

// Sound reports whether nothing is wrong any more. A crash leaves a sound ledger: what it left was
// repaired.
func (r Report) Sound() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.Repaired })
}

// Remains says how many grants are over and were not removed yet, as the end of a sentence; "" if
// there is none. Those that are expired stay for a day (keepExpired).
func (r Report) Remains() string {
	if r.Over == 0 {
		return ""
	}
	return fmt.Sprintf("; entries of grants that are over and not removed yet: %d", r.Over)
}

// Capacity gives what the grants have to fit in: the inventory, and what each GPU keeps back. No
// inventory: that is unknown.
type Capacity func() (inv *grant.Inventory, reserve grant.Bytes)

// Check verifies the whole ledger under the lock and repairs what is derived: links, dead bindings,
// leftovers of interrupted writes. It never touches the entries themselves. With a capacity, which
// is read under the lock too, it compares the grants with the GPUs' memory. An error says that the
// ledger cannot be read or locked.
func (l *Ledger) Check(of Capacity) (Report, error) { return verify(l, of, false) }

// Reconcile is Check that removes as well what is over, as Sweep does.
func (l *Ledger) Reconcile(of Capacity) (Report, error) { return verify(l, of, true) }

func verify(l *Ledger, of Capacity, removes bool) (r Report, err error) {
	err = l.Update(func(tx *Tx) error {
		s, err := readSurvey(tx)
		if err != nil {
			return err
		}
		if removes {
			r.Findings, _ = removeOverdue(tx, s, tx.ledger.Host.Now())
		}
		repaired, _ := repairAll(tx, s)
		var inv *grant.Inventory
		var reserve grant.Bytes
		if of != nil {
			inv, reserve = of()
		}
		count(&r, s, l.Host.Now())
		r.Findings = append(r.Findings, slices.Concat(repaired, damage(s), ungranted(s), strays(s),
			openDirs(s.files), checkInvariants(s.sorted, l.Host.Now(), inv, reserve))...)
		return nil
	})
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Problem, b.Problem))
	})
	return r, err
}

// count enters in a report what there is besides findings.
func count(r *Report, s *survey, now time.Time) {
	r.Bindings, r.Damaged = len(s.broken), s.damaged
	for _, g := range s.left() {
		if g.Live(now) {
			r.Grants++
		} else {
			r.Over++
		}
	}
	for _, b := range s.bindings {
		if !ends(s, b) {
			r.Bindings++
		}
	}
	slices.SortFunc(r.Damaged, func(a, b grant.Damage) int { return cmp.Compare(a.ID, b.ID) })
}

// damage names the entries and the bindings that cannot be read, and count all the same.
func damage(s *survey) (findings []Finding) {
	for _, d := range s.damaged {
		closed := "every GPU"
		if len(d.GPUs) > 0 {
			closed = strings.Join(d.GPUs, ", ")
		}
		findings = append(findings, Finding{Subject: d.Path,
			Problem: fmt.Sprintf("grant %s cannot be read: %s; it closes %s until it is released by force",
				d.ID, d.Err, closed),
			Hint: fmt.Sprintf("`gpuledger release --force %s` drops it", d.ID)})
	}
	linked := linkedBindings(s)
	for key, problem := range s.broken {
		if linked[key] {
			findings = append(findings, Finding{Subject: s.files.bindings.path(key),
				Problem: "the binding cannot be read, so its grant stays in use until it is released by " +
					"force: " + problem,
				Hint: "`gpuledger release --force ID` of its grant drops it"})
		}
	}
	return findings
}

// ungranted names the bindings of containers that may run and whose grant is not in the ledger.
func ungranted(s *survey) (findings []Finding) {
	for key, b := range s.bindings {
		if s.isMissing(b) {
			findings = append(findings, Finding{Subject: s.files.bindings.path(key),
				Problem: fmt.Sprintf("container %q is bound to grant %s, which is not in the ledger; "+
					"no GPU takes new grants meanwhile", b.Container, b.Grant),
				Hint: fmt.Sprintf("if %s is not mounted, or was restored from an older copy, "+
					"bring back the one that the container started with; else stop the container, or "+
					"`gpuledger release --force %s` if it reaches no GPU", s.files.state, b.Grant)})
		}
	}
	return findings
}

// strays names files that are no entry. They may be an operator's copies, so they are left.
func strays(s *survey) (findings []Finding) {
	for _, path := range s.strays {
		problem := "it is no entry of the ledger"
		if filepath.Dir(path) == string(s.files.owners) {
			problem = "it is no link to a grant"
		}
		findings = append(findings, Finding{Subject: path, Problem: problem, Hint: hintStray})
	}
	return findings
}

// openDirs names directories that other users may write or read. A user that can write into the
// ledger can grant itself GPUs, and one that can read it sees its neighbours.
func openDirs(f *files) (findings []Finding) {
	dirs := append(f.dirs(), f.state, f.run)
	uuids, _ := namesIn(string(f.gpus)) // an error was found before
	for _, uuid := range uuids {
		dirs = append(dirs, f.gpus.of(uuid))
	}
	for _, dir := range dirs {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			findings = append(findings, Finding{Subject: dir, Problem: "cannot look at it: " + err.Error(),
				Hint: hintDisk})
			continue
		}
		// A directory below one with setgid has that bit as well. It gives no access.
		if mode := st.Mode & 0o1777; mode != 0o700 || int(st.Uid) != os.Geteuid() {
			findings = append(findings, Finding{Subject: dir,
				Problem: fmt.Sprintf("it has mode %#o and belongs to user %d, want 0700 and %d", mode, st.Uid,
					os.Geteuid()),
				Hint: fmt.Sprintf("chown %d %s && chmod 0700 %s", os.Geteuid(), dir, dir)})
		}
	}
	return findings
}
