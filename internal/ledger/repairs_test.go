package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"golang.org/x/sys/unix"
)

// findings are what a report says, a line each, with paths below the ledger's directory.
func (b *testLedger) findings(r Report) []string {
	var lines []string
	for _, f := range r.Findings {
		line := fmt.Sprintf("%s: %s", f.Subject, f.Problem)
		if f.Repaired {
			line += " (repaired)"
		}
		if f.Hint != "" {
			line += " -> " + f.Hint
		}
		lines = append(lines, strings.ReplaceAll(line, filepath.Dir(b.State)+"/", ""))
	}
	return lines
}

// reports checks the ledger and compares all findings.
func (b *testLedger) reports(want ...string) {
	b.t.Helper()
	report, err := b.Check(nil)
	if got := b.findings(report); err != nil || !slices.Equal(got, want) {
		b.t.Errorf("%v\nfound:\n  %s\nwant:\n  %s", err, strings.Join(got, "\n  "),
			strings.Join(want, "\n  "))
	}
}

func keyOf(container string) string { return bindingKey(bindingOf("", "").RuntimeRoot, container) }

// TestLinksOfCgroupsAreRepaired: each leads to the binding that occupies the cgroup. A link to a
// binding that cannot be read stays: the cgroup counts as occupied then.
func TestLinksOfCgroupsAreRepaired(t *testing.T) {
	b := newLedger(t)
	link := b.files.bindings.cgroups.path
	b.unsound()
	b.put(sample(1))
	of := func(container string, cgroups ...string) grant.Binding {
		binding := bindingOf(id(1), container)
		binding.Occupies = cgroups
		return binding
	}
	b.bind(of("right", "/right"), of("missing", "/missing"), of("another", "/another"), of("file", "/file"),
		of("broken", "/broken"), of("gone", "/gone"))
	for _, err := range []error{
		os.Remove(link("/missing")),
		replaceLink("../bindings/"+keyOf("right")+".json", link("/another")),
		os.Remove(link("/file")), os.WriteFile(link("/file"), nil, 0o600),
		os.WriteFile(b.files.bindings.path(keyOf("broken")), []byte("{"), 0o600),
		os.Remove(b.files.bindings.path(keyOf("gone"))),
		os.Remove(b.files.bindings.linksOf(id(1)) + "/" + keyOf("gone")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	name := func(cgroup string) string {
		return "run/cgroups/" + filepath.Base(link(cgroup))
	}
	broken := "run/bindings/" + keyOf("broken") +
		".json: the binding cannot be read, so its grant stays in use until it is released by force: " +
		"cannot read run/bindings/" + keyOf("broken") +
		".json: jsontext: unexpected EOF after offset 1 -> `gpuledger release --force ID` of its " +
		"grant drops it"
	missing := ": the link of a cgroup to its binding is missing (repaired)"
	want := []string{broken, name("/missing") + missing, name("/another") + missing, name("/file") + missing,
		name("/gone") + ": link of a cgroup to a binding that is gone (repaired)"}
	slices.Sort(want)
	b.reports(want...)
	for cgroup, container := range map[string]string{"/right": "right", "/missing": "missing",
		"/another": "another", "/file": "file", "/broken": "broken", "/gone": ""} {
		target, _ := os.Readlink(link(cgroup))
		if want := "../bindings/" + keyOf(container) + ".json"; container != "" && target != want ||
			container == "" && target != "" {
			t.Errorf("%s leads to %q", cgroup, target)
		}
		_ = b.View(func(tx *Tx) error {
			if got := tx.Bindings.Occupied([]string{cgroup}, nobody, closed); got != (container != "") {
				t.Errorf("%s is occupied: %v", cgroup, got)
			}
			return nil
		})
	}
	b.reports(broken)
}

// TestALinkOfACgroupIsNoProof: only the cgroups that the binding names count.
func TestALinkOfACgroupIsNoProof(t *testing.T) {
	b := newLedger(t)
	link := b.files.bindings.cgroups.path
	b.put(sample(1))
	its := bindingOf(id(1), "c")
	its.Occupies = []string{"/a"}
	b.bind(its)
	for _, err := range []error{replaceLink("../bindings/"+keyOf("c")+".json", link("/b")),
		replaceLink("nowhere", link("/n"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = b.View(func(tx *Tx) error {
		for cgroups, want := range map[string]bool{"/a": true, "/a/x": true, "/b": false, "/b/x": false,
			"/n": false, "/b /a": true, "/n /b": false} {
			if got := tx.Bindings.Occupied(strings.Fields(cgroups), nobody, closed); got != want {
				t.Errorf("%s: occupied %v", cgroups, got)
			}
		}
		return nil
	})
}

// TestAReportHasEveryFinding with its subject, what is wrong, whether it is repaired, and what to
// do if it is not.
func TestAReportHasEveryFinding(t *testing.T) {
	b := newLedger(t)
	b.unsound()
	lone := sample(4)
	lone.GPUs = []grant.Share{{UUID: gpu1, Index: 1, Memory: grant.GiB}}
	b.put(sample(1), sample(2), sample(3), lone)
	dead := bindingOf(id(1), "dead")
	dead.BootID = "another"
	b.bind(bindingOf(id(1), "alive"), dead, bindingOf(id(2), "broken"), bindingOf(id(1), "lost"),
		bindingOf(id(4), "orphan"))
	stranger := strings.Repeat("ab", 16)
	for _, err := range []error{
		os.WriteFile(b.files.bindings.path(keyOf("broken")), nil, 0o600),
		os.WriteFile(b.files.bindings.path(stranger), nil, 0o600),
		os.WriteFile(b.files.bindings.records+"/notes", nil, 0o600),
		os.WriteFile(b.files.bindings.linksOf(id(1))+"/notes", nil, 0o600),
		os.WriteFile(string(b.files.grants)+"/notes", nil, 0o600),
		os.WriteFile(string(b.files.owners)+"/notes", nil, 0o600),
		os.WriteFile(string(b.files.owners)+"/.x.tmp", nil, 0o600),
		os.WriteFile(b.files.gpus.of(gpu0)+"/.x", nil, 0o600),
		os.WriteFile(b.Run+"/.outside.json.7", nil, 0o600),
		os.WriteFile(b.Run+"/.another", nil, 0o600),
		os.WriteFile(b.files.grants.path(id(3)), nil, 0o600),
		os.Remove(filepath.Join(b.files.bindings.linksOf(id(1)), keyOf("lost"))),
		os.Remove(b.files.owners.path(sample(1).Owner)),
		os.Remove(b.files.gpus.of(gpu0) + "/" + string(id(2))),
		os.Remove(b.files.grants.path(id(4))),
		os.Symlink(ownerTarget(id(9)), b.files.owners.path("claim:x")),
		os.Chmod(b.files.gpus.of(gpu0), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	interrupted := ": left over from a write that was interrupted (repaired)"
	empty := "it is empty"
	owner := func(o grant.Owner) string { return "state/owners/" + ownerKey(o) }
	binding := func(container string) string { return "run/bindings/" + keyOf(container) + ".json" }
	stays := []string{
		binding("orphan") + `: container "orphan" is bound to grant ` + string(id(4)) + `, which is not in ` +
			"the ledger; no GPU takes new grants meanwhile -> if state is not mounted, or was restored " +
			"from an older copy, bring back the one that the container started with; else stop the " +
			"container, or `gpuledger release --force " + string(id(4)) + "` if it reaches no GPU",
		binding("broken") + ": the binding cannot be read, so its grant stays in use until it is released " +
			"by force: cannot read " + binding("broken") + ": " + empty +
			" -> `gpuledger release --force ID` of its grant drops it",
		"state/grants/notes: it is no entry of the ledger -> move it away",
		"state/owners/notes: it is no link to a grant -> move it away",
		fmt.Sprintf("state/grants/%s.json: grant %s cannot be read: %s; it closes %s until it is released "+
			"by force -> `gpuledger release --force %s` drops it", id(3), id(3), empty, gpu0, id(3)),
		fmt.Sprintf("state/gpus/%s: it has mode 0755 and belongs to user %d, want 0700 and %d -> chown %d "+
			"state/gpus/%[1]s && chmod 0700 state/gpus/%[1]s", gpu0, os.Geteuid(), os.Geteuid(),
			os.Geteuid()),
	}
	slices.Sort(stays)
	want := append(slices.Clone(stays),
		binding("dead")+`: container "dead" is gone (repaired)`,
		"run/bindings/"+stranger+".json: a binding of no grant: cannot read run/bindings/"+stranger+".json: "+
			empty+" (repaired)",
		fmt.Sprintf("run/grants/%s/%s: the link to a binding is missing (repaired)", id(1), keyOf("lost")),
		owner(sample(1).Owner)+": the link to grant "+string(id(1))+" is missing (repaired)",
		owner(sample(4).Owner)+": it leads to "+ownerTarget(id(4))+", which is not its owner's (repaired)",
		owner("claim:x")+": it leads to "+ownerTarget(id(9))+", which is not its owner's (repaired)",
		fmt.Sprintf("state/gpus/%s/%s: the link to a grant was missing (repaired)", gpu0, id(2)),
		fmt.Sprintf("state/gpus/%s/%s: link to a grant that is gone (repaired)", gpu1, id(4)),
		"state/owners/.x.tmp"+interrupted, "state/gpus/"+gpu0+"/.x"+interrupted, "run/.outside.json.7"+
			interrupted)
	slices.Sort(want)
	report, err := b.Check(nil)
	got := b.findings(report)
	if !slices.IsSortedFunc(report.Findings, func(a, b Finding) int {
		return strings.Compare(a.Subject, b.Subject)
	}) {
		t.Error("the findings are not sorted by their subjects")
	}
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v\nfound:\n  %s\nwant:\n  %s", err, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if report.Grants != 2 || len(report.Damaged) != 1 || report.Damaged[0].ID != id(3) || report.Sound() {
		t.Errorf("%+v", report)
	}
	again, err := b.Check(nil)
	if again.Grants != 2 || again.Bindings != 4 {
		t.Errorf("%d grants and %d bindings are left", again.Grants, again.Bindings)
	}
	got = b.findings(again)
	if slices.Sort(got); err != nil || !slices.Equal(got, stays) {
		t.Errorf("%v\na second time:\n  %s\nwant:\n  %s", err, strings.Join(got, "\n  "),
			strings.Join(stays, "\n  "))
	}
}

// TestALedgerThatCannotBeListedIsNotEmpty: with a file in the place of a directory, a reader gets
// an error. A grant whose bindings cannot be listed would look free.
func TestALedgerThatCannotBeListedIsNotEmpty(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.bind(bindingOf(id(1), "c"))
	looks := map[string]func(*Tx) error{
		"Get":   func(tx *Tx) error { _, err := tx.Get(id(1)); return err },
		"All":   func(tx *Tx) error { _, _, err := tx.All(); return err },
		"owner": func(tx *Tx) error { _, err := tx.ByOwner(sample(1).Owner); return err },
		"Sweep": func(tx *Tx) error { return tx.Sweep() },
	}
	for dir, fails := range map[string][]string{
		b.files.bindings.linksOf(id(1)): {"Get", "All", "owner", "Sweep"},
		b.files.bindings.byGrant:        {"Get", "All", "owner", "Sweep"},
		b.files.bindings.records:        {"Get", "All", "owner", "Sweep"},
		string(b.files.grants):          {"Get", "All", "owner", "Sweep"},
	} {
		b.update(func(tx *Tx) error {
			if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			for name, look := range looks {
				err := look(tx)
				g, _ := tx.Get(id(1))
				if failed := err != nil && !errors.Is(err, ErrNotFound); failed != slices.Contains(fails,
					name) && g.State(noon) != grant.Unknown {
					t.Errorf("%s, where %s is a file: %v", name, filepath.Base(dir), err)
				}
			}
			return errors.Join(os.Remove(dir), os.Rename(dir+".away", dir))
		})
	}
}

// TestLinksOfOwnersAreRepaired: a link leads to its owner's newest live grant. Without a live one,
// a link that exists leads to the newest grant that is over.
func TestLinksOfOwnersAreRepaired(t *testing.T) {
	const owner = grant.Owner("pod:uid/train")
	live := func(g *grant.Grant) {}
	over := func(g *grant.Grant) { g.Expires = noon }
	for name, c := range map[string]struct {
		grants []func(*grant.Grant) // 1 and on, the oldest first
		link   grant.ID             // where it leads before; "" is nowhere
		want   grant.ID
		finds  int
	}{
		"it is right":                       {[]func(*grant.Grant){live}, id(1), id(1), 0},
		"it is missing":                     {[]func(*grant.Grant){live}, "", id(1), 1},
		"it leads nowhere":                  {[]func(*grant.Grant){live}, id(9), id(1), 1},
		"the newest of two":                 {[]func(*grant.Grant){live, live}, id(1), id(2), 1},
		"the live one is older":             {[]func(*grant.Grant){live, over}, id(2), id(1), 1},
		"the live one is older, and linked": {[]func(*grant.Grant){live, over}, id(1), id(1), 0},
		"the live one is newer":             {[]func(*grant.Grant){over, live}, id(1), id(2), 1},
		"all are over":                      {[]func(*grant.Grant){over, over}, id(1), id(2), 1},
		"all are over, and none is linked":  {[]func(*grant.Grant){over, over}, "", "", 0},
		"of no grant":                       {nil, id(9), "", 1},
	} {
		b := newLedger(t)
		b.update(func(*Tx) error { return nil })
		for i, change := range c.grants {
			g := sample(i + 1)
			g.Owner = owner
			change(&g)
			b.put(g)
		}
		_ = os.Remove(b.files.owners.path(owner))
		if c.link != "" {
			if err := os.Symlink(ownerTarget(c.link), b.files.owners.path(owner)); err != nil {
				t.Fatal(err)
			}
		}
		report, err := b.Check(nil)
		links := 0
		for _, f := range report.Findings {
			if f.Subject == b.files.owners.path(owner) && f.Repaired {
				links++
			}
		}
		target, _ := os.Readlink(b.files.owners.path(owner))
		if c.want == "" && target != "" || c.want != "" && target != ownerTarget(c.want) ||
			links != c.finds || err != nil {
			t.Errorf("%s: it leads to %q after %d repairs (%v), want %s after %d", name, target, links, err,
				c.want, c.finds)
		}
		// two live grants of one owner
		if c.grants != nil && report.Sound() == (strings.Contains(name, "of two")) {
			t.Errorf("%s: %q", name, b.findings(report))
		}
		b.update(func(tx *Tx) error { _ = tx.Delete(id(1)); return nil }) // so that there is one live grant
	}
}

// TestTheLinkToADamagedGrantStays: only the link can say whose grant that is.
func TestTheLinkToADamagedGrantStays(t *testing.T) {
	const owner = grant.Owner("pod:uid/train")
	b := newLedger(t)
	b.unsound()
	g, newer := sample(1), sample(2)
	g.Owner, newer.Owner = owner, owner
	b.put(newer, g)
	b.setFile(id(1), "")
	if _, err := b.Check(nil); err != nil {
		t.Fatal(err)
	}
	var damaged *DamagedError
	if _, err := b.byOwner(owner); !errors.As(err, &damaged) {
		t.Errorf("the grant of an owner that cannot be read: %v", err)
	}
}

// TestALinkThatLeadsElsewhereIsNoProof: a link to another grant's binding gives a grant no
// container, and the grant's delete does not remove that binding.
func TestALinkThatLeadsElsewhereIsNoProof(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1), sample(2))
	b.bind(bindingOf(id(2), "c"))
	if err := errors.Join(os.Mkdir(b.files.bindings.linksOf(id(1)), 0o700),
		os.Symlink("../../bindings/"+keyOf("c")+".json",
			filepath.Join(b.files.bindings.linksOf(id(1)), keyOf("c")))); err != nil {
		t.Fatal(err)
	}
	if one, two := b.usedBy(id(1)), b.usedBy(id(2)); one != "" || two != "c" {
		t.Errorf("grant 1 is used by %q and grant 2 by %q", one, two)
	}
	b.update(func(tx *Tx) error { return tx.Delete(id(1)) })
	if two := b.usedBy(id(2)); two != "c" {
		t.Errorf("after the other was deleted grant 2 is used by %q", two)
	}
	if err := os.Remove(b.files.owners.path(sample(2).Owner)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../grants/notes.txt", b.files.owners.path(sample(2).Owner)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.byOwner(sample(2).Owner); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("an owner whose link leads to no grant passes for one without any: %v", err)
	}
}

// TestStraysHideNoDamage: a file among the GPUs is no GPU, and does not change which GPUs a damaged
// grant closes. A directory that cannot be read may have the grant: then all GPUs are closed.
func TestStraysHideNoDamage(t *testing.T) {
	b := newLedger(t)
	b.unsound()
	b.put(sample(1))
	b.setFile(id(1), "")
	for _, dir := range []string{string(b.files.gpus), b.files.bindings.byGrant} {
		if err := os.WriteFile(dir+"/stray", nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	closes := func() []string {
		_, damaged := b.all()
		return damaged[0].GPUs
	}
	b.update(func(tx *Tx) error { return tx.Sweep() })
	if got := closes(); !slices.Equal(got, []string{gpu0}) {
		t.Errorf("beside a stray file it closes %q", got)
	}
	loop := string(b.files.gpus) + "/loop"
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if got := closes(); got != nil {
		t.Errorf("where a place cannot be looked into it closes %q, want all", got)
	}
	if err := b.Update(func(tx *Tx) error { return tx.Sweep() }); err == nil {
		t.Error("Sweep passes a place that it cannot look into")
	}
	if report, err := b.Check(nil); err != nil || !hasFinding(report, "/loop", "too many", false) {
		t.Errorf("Check does not name it: %q (%v)", b.findings(report), err)
	}
	if err := os.Remove(loop); err != nil {
		t.Fatal(err)
	}
}

// TestADraftOfALinkGoes: a repair that was killed leaves the draft of a link to a binding. It goes
// with the next pass, and so does the directory of a grant that is over.
func TestADraftOfALinkGoes(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	for _, n := range []int{1, 2} { // there is no second grant
		if err := os.MkdirAll(b.files.bindings.linksOf(id(n)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("x", temporary(b.files.bindings.linksOf(id(n))+"/key")); err != nil {
			t.Fatal(err)
		}
	}
	b.update(func(tx *Tx) error { return tx.Sweep() })
	if left, err := os.ReadDir(b.files.bindings.linksOf(id(1))); err != nil || len(left) > 0 {
		t.Errorf("of a live grant are left: %v (%v)", left, err)
	}
	if _, err := os.Stat(b.files.bindings.linksOf(id(2))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of a grant that is over is left: %v", err)
	}
}

// TestExpiredGrantsStayForADay to the nanosecond.
func TestExpiredGrantsStayForADay(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	g.Expires = noon
	b.put(g)
	for after, left := range map[time.Duration]int{keepExpired - 1: 1, keepExpired: 0} {
		b.put(g)
		b.now = noon.Add(after)
		b.update(func(tx *Tx) error { return tx.Sweep() })
		if grants, _ := b.all(); len(grants) != left {
			t.Errorf("%s after its time there are %d", after, len(grants))
		}
	}
}

// TestNamesOfFiles: which UUIDs can be names of files.
func TestNamesOfFiles(t *testing.T) {
	for c := range 256 {
		name := "a" + string([]byte{byte(c)})
		want := strings.Contains("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:",
			name[1:])
		if isFileName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	for name, want := range map[string]bool{"": false, ".": false, ".a": false, "a.": true,
		strings.Repeat("a", 128): true, strings.Repeat("a", 129): false} {
		if isFileName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	for name, want := range map[string]bool{strings.Repeat("ab", 16): true, strings.Repeat("ab", 15): false,
		strings.Repeat("ab", 17): false, strings.Repeat("xy", 16): false, "": false} {
		if isKey(name) != want {
			t.Errorf("%q is a key: %v", name, !want)
		}
	}
}

func TestStampChangesWithGrantsAndBindings(t *testing.T) {
	old, young := host.StampOf("/"), host.StampOf(t.TempDir())
	now := time.Now()
	if !old.Before(now) || young.Before(now) {
		t.Skip("misses a directory that is as it was, and one that is not")
	}
	for s, want := range map[Stamp]bool{{old, old}: true, {old, young}: false, {young, old}: false,
		{young, young}: false} {
		if s.Before(now) != want {
			t.Errorf("%+v: %v", s, !want)
		}
	}
	b := newLedger(t)
	b.put(sample(1))
	first := b.Stamp()
	b.put(sample(2))
	second := b.Stamp()
	b.bind(bindingOf(id(1), "c"))
	if third := b.Stamp(); first == second || second == third || first == third || b.Stamp() != third {
		t.Errorf("stamps %+v, %+v, %+v", first, second, third)
	}
}

// TestNoBindingIsWrittenWithoutItsLink: its grant would look free.
func TestNoBindingIsWrittenWithoutItsLink(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	if err := os.WriteFile(b.files.bindings.linksOf(id(1)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(func(tx *Tx) error { return tx.Bind(bindingOf(id(1), "c")) }); err == nil ||
		b.Bindings.Has(bindingOf("", "").RuntimeRoot, "c") {
		t.Errorf("Bind: %v, and the container has a binding: %v", err,
			b.Bindings.Has(bindingOf("", "").RuntimeRoot, "c"))
	}
	if err := os.Remove(b.files.bindings.linksOf(id(1))); err != nil {
		t.Fatal(err)
	}
}

// nobody says that no binding is the caller's own, and closed that no cgroup is a parent.
func nobody(grant.Binding) bool         { return false }
func closed(grant.Binding, string) bool { return false }

// TestSweepReportsAGrantThatItCannotRemove, although all the repairs after it succeed.
func TestSweepReportsAGrantThatItCannotRemove(t *testing.T) {
	privateMounts(t)
	b := newLedger(t)
	over := sample(1)
	over.Draining = true
	b.put(over)
	dir := string(b.files.grants)
	for _, flags := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY} {
		if err := unix.Mount(dir, dir, "", flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Update(func(tx *Tx) error { return tx.Sweep() }); !errors.Is(err, unix.EROFS) {
		t.Errorf("Sweep: %v, want EROFS", err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	b.update(func(tx *Tx) error { return tx.Sweep() })
	if _, err := b.get(over.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("after another Sweep: %v", err)
	}
}

// TestAnEndIsFinal: a sweep comes before a placement, so what was over in it stays over.
func TestAnEndIsFinal(t *testing.T) {
	b := newLedger(t)
	short, used := sample(1), sample(2)
	short.Expires = b.now.Add(time.Hour)
	used.Expires = short.Expires
	b.put(short)
	b.put(used)
	b.bind(bindingOf(used.ID, "c"))
	began := b.now
	b.now = began.Add(2 * time.Hour)
	b.update(func(tx *Tx) error { return tx.Sweep() })
	b.now = began
	for want, id := range map[bool]grant.ID{false: short.ID, true: used.ID} {
		b.update(func(tx *Tx) error {
			g, err := tx.Get(id)
			if err != nil || g.Live(b.now) != want {
				t.Errorf("%s counts: %v, want %v (%v)", id, g.Live(b.now), want, err)
			}
			return nil
		})
	}
}

// TestADraftOfAGrantThatEnds goes with the writing that ends the grant, and the tidying afterwards
// does not miss it.
func TestADraftOfAGrantThatEnds(t *testing.T) {
	for _, ending := range []string{"", ".old"} {
		b := newLedger(t)
		g := sample(1)
		g.Expires = b.now.Add(time.Hour)
		b.put(g)
		draft := temporary(b.files.grants.path(g.ID)) + ending
		if err := os.WriteFile(draft, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.now = g.Expires
		if err := b.Update(func(tx *Tx) error {
			v, err := tx.Swept()
			if err == nil && (len(v.Grants) != 1 || !v.Grants[0].Over) {
				t.Errorf("%+v, want one that is over", v.Grants)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(draft); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", filepath.Base(draft), err)
		}
	}
}
