package ledger

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Report is what Check found.
type Report struct {
	Grants   int            `json:"grants"`   // that can be read
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

// Check verifies the whole ledger under the lock and repairs what is derived: links, dead bindings,
// leftovers of interrupted writes. Entries themselves it never touches. With an inventory it
// compares the grants with the GPUs' memory less reserve. An error says that the ledger can't be
// looked at.
func (l *Ledger) Check(inv *grant.Inventory, reserve grant.Bytes) (Report, error) {
	return l.verify(inv, reserve, func(*survey) {})
}

// Reconcile is Check that removes as well what is over, as Sweep does.
func (l *Ledger) Reconcile(inv *grant.Inventory, reserve grant.Bytes) (Report, error) {
	return l.verify(inv, reserve, (*survey).removeOverdue)
}

func (l *Ledger) verify(inv *grant.Inventory, reserve grant.Bytes, first func(*survey)) (Report, error) {
	var report Report
	err := l.Update(func(tx *Tx) error {
		s, err := tx.survey()
		if err != nil {
			return err
		}
		first(s)
		s.repairAll()
		s.findDamage()
		s.findStrays()
		s.findOpenDirs()
		report = s.report()
		report.Findings = append(report.Findings, judge(s.sorted, l.Host.Now(), inv, reserve)...)
		return nil
	})
	slices.SortFunc(report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Problem, b.Problem))
	})
	return report, err
}

func (s *survey) report() Report {
	r := Report{Grants: len(s.grants), Bindings: len(s.bindings) + len(s.broken), Findings: s.findings}
	for _, d := range s.damaged {
		r.Damaged = append(r.Damaged, d)
	}
	slices.SortFunc(r.Damaged, func(a, b grant.Damage) int { return cmp.Compare(a.ID, b.ID) })
	return r
}

func (s *survey) findDamage() {
	for _, d := range s.damaged {
		closed := "every GPU"
		if len(d.GPUs) > 0 {
			closed = strings.Join(d.GPUs, ", ")
		}
		s.find(d.Path, fmt.Sprintf("grant %s can't be read: %s; it closes %s until it is released by force",
			d.ID, d.Err, closed),
			fmt.Sprintf("`gpuledger release --force %s` drops it", d.ID))
	}
}

// findStrays names files that are no entry. They may be an operator's copies, so they are left.
func (s *survey) findStrays() {
	for _, name := range s.list(s.tx.l.grantsDir()) {
		if _, ok := idOf(name); !ok && name[0] != '.' {
			s.find(filepath.Join(s.tx.l.grantsDir(), name), "it is no entry of the ledger", hintStray)
		}
	}
	for _, name := range s.list(s.tx.l.ownersDir()) {
		path := filepath.Join(s.tx.l.ownersDir(), name)
		if _, err := os.Readlink(path); err != nil && name[0] != '.' {
			s.find(path, "it is no link to a grant", hintStray)
		}
	}
}

// findOpenDirs: who can write into the ledger grants itself GPUs, and who can read it sees its
// neighbours.
func (s *survey) findOpenDirs() {
	dirs := append([]string{s.tx.l.State, s.tx.l.Run}, s.tx.l.dirs()...)
	for _, uuid := range s.list(s.tx.l.gpusDir()) {
		dirs = append(dirs, s.tx.l.gpuPath(uuid))
	}
	for _, dir := range dirs {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			s.find(dir, "cannot look at it: "+err.Error(), hintDisk)
			continue
		}
		if mode := st.Mode & 0o7777; mode != 0o700 || int(st.Uid) != os.Geteuid() {
			s.find(dir, fmt.Sprintf("it has mode %#o and belongs to user %d, want 0700 and %d", mode, st.Uid,
				os.Geteuid()), fmt.Sprintf("chown %d %s && chmod 0700 %s", os.Geteuid(), dir, dir))
		}
	}
}
