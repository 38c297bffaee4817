package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// plant is a wrong line in the product: old becomes wrong where the variable names it. promise is
// a regular expression for the line of the check that must notice it.
type plant struct{ name, promise, file, old, wrong string }

const failpoints = "github.com/gpuledger/gpuledger/internal/failpoint"

// Beginnings of the lines that the mistakes stand before.
const (
	secondDecision = "		if d = decide(f, view); !d.Touches() {\n"
	dirSynced      = "	if err := syncDir(filepath.Dir(path)); err != nil {\n"
	undone         = dirSynced + "		return true, errors.Join(err, undoReplace"
	heldIDAsked    = "	held, err := heldID(tx, f.Container)\n"
	removalSynced  = dirSynced + "		return errors.Join(err, putBack"
)

// limitsOfMPS are the lines about limits that a server has, or that servers to come will have.
const limitsOfMPS = `MPS daemon .* has the limits`

// plants are mistakes that a simulated node must notice. on() is true for the one that is chosen.
var plants = []plant{
	{"no fsync of a file", `^grant \S+ is damaged`, "internal/ledger/durable.go",
		"	host.Go(&beside, func() { err = host.SyncFiles(files...) })\n",
		"	if !on { err = host.SyncFiles(files...) }\n"},
	{"no fsync of the directory", `was acknowledged, and is lost`, "internal/ledger/durable.go",
		undone,
		"	if on { return true, nil }\n" +
			undone},
	{"a removal without fsync", `was released, and is back`, "internal/ledger/durable.go",
		removalSynced,
		"	if on { return host.Remove(gone) }\n" +
			removalSynced},
	{"rename before fsync", `^grant \S+ is damaged`, "internal/ledger/durable.go",
		"	draft, err := writeNew(tmp, data)\n",
		"	if on {\n" +
			"		f, err := writeNew(tmp, data)\n" +
			"		if f != nil { err = errors.Join(err, f.Close()) }\n" +
			"		if err == nil { err = host.Rename(tmp, path) }\n" +
			"		if err != nil { return false, err }\n" +
			"		if f, err = os.Open(path); err != nil { return true, err }\n" +
			"		return true, syncAndClose([]*os.File{f}, append(unsynced, filepath.Dir(path)))\n" +
			"	}\n" +
			"	draft, err := writeNew(tmp, data)\n"},
	{"no undo of a rename", `returned an error, and its grant is there`, "internal/ledger/durable.go",
		"	if kept {\n		return host.Rename(old, path)",
		"	if on { return nil }\n	if kept {\n		return host.Rename(old, path)"},
	{"no lock", `are granted of`, "internal/ledger/ledger.go",
		"	unlock, err := lock(l.files.lock, l.Wait)\n",
		"	unlock, err := func() {}, error(nil)\n" +
			"	if !on { unlock, err = lock(l.files.lock, l.Wait) }\n"},
	{"the start time is ignored", `^grant \S+ is held for`, "internal/host/host.go",
		"		case s.start != p.Start:\n",
		"		case !on && s.start != p.Start:\n"},
	{"the boot id is ignored", `^grant \S+ is held for`, "internal/containers/life.go",
		"	if b.BootID != boot {\n",
		"	if !on && b.BootID != boot {\n"},
	{"the creator is ignored", `which is not bound to it`, "internal/containers/life.go",
		"	if created {\n",
		"	if created && !on {\n"},
	{"the cgroup is ignored", `which is not bound to it`, "internal/containers/life.go",
		"	populated, err := state.cgroup.populated(r.Host)\n",
		"	populated, err := state.cgroup.populated(r.Host)\n	populated = populated && !on\n"},
	{"a state alone is a life", `^grant \S+ is held for`, "internal/containers/life.go",
		"	return grant.Dead, 0, false\n",
		"	if on { return grant.Alive, 0, false }\n	return grant.Dead, 0, false\n"},
	{"compute is not counted", `% of the compute of \S+ are granted`, "internal/admission/seats.go",
		"		s.compute -= g.Compute\n",
		"		if !on { s.compute -= g.Compute }\n"},
	{"a second grant of an owner", `^pod:\S+ has the grants`, "internal/grants/enter.go",
		"		if err := onlyOne(tx, ask.Owner, v); err != nil {\n",
		"		if err := onlyOne(tx, ask.Owner, v); !on && err != nil {\n"},
	{"an expired grant is used", `which had expired before`, "internal/admission/check.go",
		"	case g.Expired(q.view.Now):\n",
		"	case !on && g.Expired(q.view.Now):\n"},
	{"a grant is not counted", `are granted of`, "internal/admission/seats.go",
		"		s.free = subtract(s.free, share.Memory)\n",
		"		if !on || g.Source != grant.Adopted { s.free = subtract(s.free, share.Memory) }\n"},
	{"a sweep takes what is in use", `which is not bound to it`, "internal/ledger/repair.go",
		"		if len(g.Bindings) == 0 && (",
		"		if (on || len(g.Bindings) == 0) && ("},
	{"a release ignores the binding", `which is not bound to it`, "internal/grants/release.go",
		"		g.Draining = len(g.Bindings) > 0 && !force\n",
		"		g.Draining = !on && len(g.Bindings) > 0 && !force\n"},
	{"no second decision", `are granted of`, "internal/node/bind.go", secondDecision,
		"		if on { d, settled = p.Decision, true; return bindLocked(n, tx, f, &d) }\n" +
			secondDecision},
	{"a newer inventory is not noticed", `the inventory says cannot be used`, "internal/node/bind.go",
		"		if !f.suffice(view) || f.outdated(n) {\n",
		"		if !f.suffice(view) || !on && f.outdated(n) {\n"},
	{"use without a grant is not counted", `^grant \S+ has a part of`, "internal/admission/seats.go",
		"		if s.space = d.Memory(); d.MIG == nil {",
		"		if s.space = d.Memory(); d.MIG == nil && !on {"},
	{"what another grant's containers use is not counted", `^grant \S+ has a part of`,
		"internal/grant/view.go",
		"		if e.Grant == id && e.GPU == gpu {\n",
		"		if (on || e.Grant == id) && e.GPU == gpu {\n"},
	{"what a container has is granted whole", `^grant \S+ has all of .*\(held: true\)`,
		"internal/admission/place.go",
		"	case a.isWhole() && s.held:\n", "	case a.isWhole() && s.held && !on:\n"},
	{"a MIG device twice", `^MIG-\S+ has the grants`, "internal/admission/place.go",
		"	case s.mode == grant.MIG:\n",
		"	case s.mode == grant.MIG && !on:\n"},
	{"a GPU beside its MIG devices", `the inventory says cannot be used`, "internal/grant/device.go",
		"	case d.MIG == nil && len(d.GPU.MIG) > 0:\n",
		"	case !on && d.MIG == nil && len(d.GPU.MIG) > 0:\n"},
	{"an id twice at once", `which is not bound to it`, "internal/node/bind.go", "	if held != nil {\n",
		"	if held != nil && !on {\n"},

	{"a quota is not counted", `which is more than the quota`, "internal/admission/quota.go",
		"	has := UseOf(a.User, updated, v)\n",
		"	has := UseOf(a.User, updated, v)\n	if on { has = Use{} }\n"},
	{"no turns", `was served \d+ times while`, "internal/daemon/userqueue/queue.go",
		"	w.out, q.last = &out, w.User\n",
		"	w.out, q.last = &out, w.User\n	if on { q.last = 0 }\n"},
	{"the last request first", `was served before`, "internal/daemon/userqueue/queue.go",
		"			return cmp.Or(a.Since.Compare(b.Since),",
		"			if on { return cmp.Compare(b.number, a.number) }\n" +
			"			return cmp.Or(a.Since.Compare(b.Since),"},
	{"nothing is taken back", `has ended without a grant, and has`, "internal/daemon/userqueue/grant.go",
		"	if released, _ := grants.ReleaseUnused(n, id); released {\n",
		"	if on { return }\n	if released, _ := grants.ReleaseUnused(n, id); released {\n"},
	{"a lost answer is forgotten", `^ask-\d+ has \d+ grants`, "internal/daemon/userqueue/grant.go",
		"	case found:\n		return g, nil, r.rejoin(n, g)\n",
		"	case found && !on:\n		return g, nil, r.rejoin(n, g)\n"},
	{"idle too early", `was acknowledged, and is lost|was released as idle`,
		"internal/daemon/userqueue/idle.go",
		"		if !due {\n", "		if !on && !due {\n"},
	{"a request in use is idle", `was acknowledged, and is lost|was released as idle|is not bound to it`,
		"internal/grants/ofuser.go",
		"		if used(g) {\n", "		if !on && used(g) {\n"},
	{"a use just before the release", `was acknowledged, and is lost|was released as idle`,
		"internal/daemon/userqueue/idle.go",
		"		released, e := grants.ReleaseIdle(n, g.ID, idle.stamp)\n",
		"		if on { idle.stamp = n.Ledger.Bindings.UseStamp(g.ID) }\n" +
			"		released, e := grants.ReleaseIdle(n, g.ID, idle.stamp)\n"},

	{"no record for the shim", `runs without the record of grant`, "internal/node/bind.go",
		"	if d.Limited {\n", "	if d.Limited && !on {\n"},
	{"a limit that grows before the grant", `^the record of grant \S+ has`, "internal/grants/update.go",
		"	if err := l.Set(limitfiles.Smaller(before.GPUs, after.GPUs), share); err != nil {\n",
		"	if on { before = after }\n" +
			"	if err := l.Set(limitfiles.Smaller(before.GPUs, after.GPUs), share); err != nil {\n"},
	{"a record stays", `^the record of \S+ is left, which is over`, "internal/limitfiles/limitfiles.go",
		"			problem, err = \"the limits of a grant that is over\", limits.Remove(dir)\n",
		"			if on { continue }\n" +
			"			problem, err = \"the limits of a grant that is over\", limits.Remove(dir)\n"},
	{"a record is not corrected", `^the record of grant \S+ has`, "internal/limitfiles/limitfiles.go",
		"			return \"the limits are not what the ledger says\", l.Set(g.GPUs, share)\n",
		"			if on { return \"\", nil }\n" +
			"			return \"the limits are not what the ledger says\", l.Set(g.GPUs, share)\n"},

	{"two MPS daemons of a GPU", `^MPS daemon .* runs beside`, "internal/mps/manager.go",
		"		if o := m.daemons[name]; o.runs() || o.launching {\n",
		"		if o := m.daemons[name]; (o.runs() || o.launching) && !on {\n"},
	{"an MPS daemon that ended is ready", `and no daemon was ready`, "internal/mpsstate/mpsstate.go",
		"		if runs, err := h.Runs(p); err != nil || !runs {\n",
		"		if runs, err := h.Runs(p); !on && (err != nil || !runs) {\n"},
	{"a second MPS daemon after an error", `^MPS daemon .* runs beside`, "internal/mps/daemon.go",
		"	return runs || err != nil\n", "	return runs || err != nil && !on\n"},
	{"an MPS daemon is kept", `^MPS daemon .* is left without a grant`, "internal/mps/plan.go",
		"	return dismiss\n",
		"	if on { return keep }\n	return dismiss\n"},
	{"an MPS daemon is ready at once", `and no daemon was ready`, "internal/mps/daemon.go",
		"	return d.writeState(grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Problem: ",
		"	if on { return d.writeState(grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Limits: w.limits, " +
			"Threads: w.threads}) }\n" +
			"	return d.writeState(grant.MPSDaemon{GPUs: w.uuids, Daemon: p, Problem: "},

	{"two modes of a GPU", `is in mode \S+ by grant`, "internal/admission/place.go",
		"(s.mode != a.Mode || ", "(s.mode != a.Mode && !on || "},
	{"exclusive to two", `is exclusive to grant`, "internal/admission/place.go",
		" || a.Mode == grant.Exclusive):\n", " || a.Mode == grant.Exclusive && !on):\n"},
	{"a MIG device of a GPU that is granted", `is in mode \S+ by grant`, "internal/admission/seats.go",
		"		case other.device.MIG == nil:\n", "		case other.device.MIG == nil && !on:\n"},
	{"a dead binding counts for the next container", `which runs without it`, "internal/node/admit.go",
		"	if !d.Bound && (d.Kind", "	if !on && !d.Bound && (d.Kind"},
	{"bound before it is refused", `is refused \(\S+\), and grant \S+ is bound to it`,
		"internal/node/bind.go", heldIDAsked,
		"	if on { if self, err := n.Host.Self(); err == nil { _ = record(n, tx, f, d, self) } }\n" +
			heldIDAsked},
	{"what asks for no GPU is judged", `asks for no GPU: refuse`, "internal/node/cgroup.go",
		"	return n.Ledger.Bindings.Occupied(possible, f.isOwn,",
		"	if on { return n.Ledger.Bindings.NameCgroups() }\n" +
			"	return n.Ledger.Bindings.Occupied(possible, f.isOwn,"},
	{"what will expire has expired", `does not get it, and no fault was left`, "internal/admission/check.go",
		"g.Expired(q.view.Now):\n", "(g.Expired(q.view.Now) || on && !g.Expires.IsZero()):\n"},
	{"a draft is taken for an entry", `^a check of the ledger finds`, "internal/ledger/survey.go",
		"		if name[0] == '.' {\n", "		if name[0] == '.' && !on {\n"},
	{"a draft stays", `^run/\S+ is left|^state/\S+ is left`, "internal/ledger/repair.go",
		"	for _, path := range s.drafts {\n",
		"	for _, path := range s.drafts {\n		if on { continue }\n"},
	{"a change past the seam", `was made past internal/host`, "internal/ledger/durable.go",
		"	if kept {\n		_ = host.Remove(old)\n",
		"	if kept && on { _ = os.Remove(old) }\n	if kept && !on {\n		_ = host.Remove(old)\n"},
	{"never all GPUs", `are free, and cannot be granted`, "internal/admission/place.go",
		"		if fits := fitting[set]; len(fits) >= a.count() {\n",
		"		if fits := fitting[set]; len(fits) >= a.count() && (len(fits) < len(seats) || !on) {\n"},
	{"an update is not written", `acknowledged are`, "internal/grants/update.go",
		"	put := func() error { return tx.Put(after) }\n",
		"	put := func() error { if on { return nil }; return tx.Put(after) }\n"},
	{"an update releases", `is draining, and was never released`, "internal/grants/update.go",
		"		return putLimited(n, tx, before, g)\n",
		"	if on { g.Draining = len(g.Bindings) > 0 }\n	return putLimited(n, tx, before, g)\n"},
	{"what has expired in use is not counted", `run on one GPU, one of them alone`,
		"internal/grant/grant.go",
		"	return len(g.Bindings) > 0 || !g.Draining",
		"	return len(g.Bindings) > 0 && !on || !g.Draining"},
	{"a lock is taken twice", `waits for a lock that no process holds`, "internal/grants/release.go",
		"	err := tx.Delete(id)\n",
		"	if on { _ = n.Ledger.Update(func(*ledger.Tx) error { return nil }) }\n" +
			"	err := tx.Delete(id)\n"},
	{"another user's release", `^user \d+ has released grant`, "internal/grants/ofuser.go",
		"(g.User != user || user == 0)", "(g.User != user && !on || user == 0)"},

	{"the first that waits holds up the others", `waits, and could be granted`,
		"internal/daemon/userqueue/grant.go", "		case errors.Is(err, errLater):\n",
		"		case errors.Is(err, errLater):\n			if on { return false, nil }\n"},
	{"what is served is not woken", `waits for ever, and everything is free`,
		"internal/daemon/userqueue/queue.go", "	w.poke()\n	q.Poke()\n",
		"	if !on { w.poke() }\n	q.Poke()\n"},
	{"idle for ever", `is idle, and was not released`, "internal/daemon/userqueue/idle.go",
		"		due := !limit.unknown &&", "		due := !on && !limit.unknown &&"},
	{"no MPS daemon", `has no daemon for`, "internal/mps/plan.go",
		"	case !f.runs && wanted:\n", "	case !f.runs && wanted && on:\n		return keep\n" +
			"	case !f.runs && wanted:\n"},

	{"what may be idle for ever is released", `grant .* of user 1002 was released as idle`,
		"internal/daemon/userqueue/idle.go",
		"		if !limit.unknown && limit.after == 0 {\n",
		"		if !limit.unknown && limit.after == 0 && !on {\n"},
	{"a grant does not end", `the time of grant .* was over at`,
		"internal/grant/grant.go",
		"	return g.Over || !g.Expires.IsZero() && !now.Before(g.Expires)\n",
		"	return g.Over || !g.Expires.IsZero() && !now.Before(g.Expires) && !on\n"},
	{"a grant has no end", `grant .* ends at .*; it was made at`,
		"internal/grants/enter.go",
		"	g.Begin(v.Now, ask.TTL)\n",
		"	if on { ask.TTL = 0 }\n	g.Begin(v.Now, ask.TTL)\n"},
	{"a grant has another time than its own", `grant .* was entered between`,
		"internal/grants/enter.go",
		"	g.GPUs, err = admission.Place(ask, \"\", v, inv, n.Policy)\n",
		"	if on { g.Begin(v.Now.AddDate(0, 0, -1), ask.TTL) }\n" +
			"	g.GPUs, err = admission.Place(ask, \"\", v, inv, n.Policy)\n"},
	{"the modes of a quota are not looked at", `user .* has grant .* in mode .*, the quota is for`,
		"internal/admission/quota.go",
		"	case !slices.Contains(q.MayModes(), a.Mode):\n",
		"	case !slices.Contains(q.MayModes(), a.Mode) && !on:\n"},
	{"the time of a quota is not looked at", `user .* has grant .* for .*, the quota is for`,
		"internal/admission/quota.go",
		"	case longest > 0 && (a.TTL <= 0 || a.TTL > longest):\n",
		"	case longest > 0 && (a.TTL <= 0 || a.TTL > longest) && !on:\n"},

	{"new limits of MPS do not reach a server", limitsOfMPS, "internal/mps/control.go",
		"			if _, err := c.ask(ctx, \"set_device_pinned_mem_limit",
		"			if on { continue }\n			if _, err := c.ask(ctx, \"set_device_pinned_mem_limit"},
	{"limits of MPS that a client has changed stay", limitsOfMPS, "internal/mps/daemon.go",
		"	if !asSaid || len(servers) == 0 || d.now().Sub(d.looked) > lookEvery {\n",
		"	if !asSaid || len(servers) == 0 || d.now().Sub(d.looked) > lookEvery && !on {\n"},
	{"an MPS daemon has the limits of its last grant", limitsOfMPS, "internal/mps/plan.go",
		"			w.limits[s.UUID] = max(w.limits[s.UUID], s.Memory)\n",
		"			w.limits[s.UUID] = max(w.limits[s.UUID], s.Memory)\n" +
			"			if on { w.limits[s.UUID] = s.Memory }\n"},

	{"a GPU takes one grant", `is refused .*, and there is room`,
		"internal/admission/place.go",
		"	case a.Mode != grant.MIG && a.each() > s.space: // in any mode\n",
		"	case on && s.mode != \"\":\n		return gpu + \"is held\", false\n" +
			"	case a.Mode != grant.MIG && a.each() > s.space: // in any mode\n"},
	{"a quota counts what is over", `is refused .*, and there is room|waits, and could be granted`,
		"internal/admission/quota.go",
		"		if g.User == user && g.ID != updated && g.Live(v.Now) {\n",
		"		if g.User == user && g.ID != updated && (on || g.Live(v.Now)) {\n"},
	{"compute of other GPUs is counted", `is refused .*, and there is room`,
		"internal/admission/seats.go",
		"		if share.UUID != s.device.UUID() {\n",
		"		if on && share.UUID != s.device.UUID() { s.compute -= g.Compute }\n" +
			"		if share.UUID != s.device.UUID() {\n"},
}

// brokenPromise is the line by which a life has failed: the step, and what the check says.
var brokenPromise = regexp.MustCompile(`(?m)^ +sim_test.go:\d+: life \d+, (step \d+: (.*))$`)

// failingSeed is the seed of that life.
var failingSeed = regexp.MustCompile(`(?m)-seed (\d+)$`)

// mostTime is how long lives may take that are run in one go, on a busy machine.
const mostTime = 30 * time.Minute

// rare are the mistakes for which hundreds of lives are needed. They are looked for with -rare.
var rare = []string{"no turns", "a lost answer is forgotten", "a request in use is idle",
	"a use just before the release",
	"a second MPS daemon after an error",
	"a record is not corrected", "two MPS daemons of a GPU", "an MPS daemon that ended is ready",
	"an MPS daemon is ready at once", "the first that waits holds up the others",
	"what a container has is granted whole", "no undo of a rename", "a second grant of an owner",
	"an expired grant is used", "what has expired in use is not counted",
	"what another grant's containers use is not counted"}

// TestPlanted builds this test with all mistakes in it. It runs it with one at a time until a life
// breaks the promise that must notice the mistake. The seed of that life must print the same line
// again, and pass without the mistake: otherwise something else was noticed.
func TestPlanted(t *testing.T) {
	if os.Getenv("SIM_PLANTED") != "" || *oneSeed != 0 || *duration != 0 {
		t.Skip("this run is for lives alone")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("misses the go tool, to build itself with planted mistakes: ", err)
	}
	binary := buildPlanted(t, tool)
	for i, p := range plants {
		if slices.Contains(rare, p.name) != *withRare {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel() // with seeds of its own
			began := time.Now()
			seed, found := notice(t, binary, p, uint64(10000*(i+1)))
			t.Logf("after %s: %.160s", time.Since(began).Round(time.Millisecond), found)
			if out, again := liveWith(t, binary, p.name, seed, 1); again == nil || again[1] != found {
				t.Errorf("seed %d fails otherwise the second time: %.600s", seed, out)
			}
			if out, wrong := liveWith(t, binary, "none", seed, 1); wrong != nil {
				t.Errorf("seed %d fails without the mistake, too: %.600s", seed, out)
			}
		})
	}
}

// mostLives is how many lives one mistake is looked for in.
const mostLives = 5000

// notice is the first seed that fails by the promise of a plant, and the line that it prints. Other
// promises may be broken before.
func notice(t *testing.T, binary string, p plant, first uint64) (seed uint64, line string) {
	promise, others := regexp.MustCompile(p.promise), ""
	for seed = first; seed < first+mostLives; seed++ {
		out, found := liveWith(t, binary, p.name, seed, first+mostLives-seed)
		if found == nil {
			break
		}
		failed := failingSeed.FindStringSubmatch(out)
		if failed == nil {
			t.Fatalf("no seed is printed: %.600s", out)
		}
		seed, _ = strconv.ParseUint(failed[1], 10, 64)
		if promise.MatchString(found[2]) {
			return seed, found[1]
		}
		others += fmt.Sprintf("\n%.160s", found[1])
	}
	t.Fatalf("no check said that %q; noticed was:%.2000s", p.promise, others)
	return 0, ""
}

// liveWith runs lives with a mistake, or with "none". It returns what is printed, and the match of
// brokenPromise, nil if all lives have passed.
func liveWith(t *testing.T, binary, mistake string, first, lives uint64) (string, []string) {
	ctx, cancel := context.WithTimeout(t.Context(), mostTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^TestSeed$", "-test.v", "-test.timeout", "0",
		"-workers", "1", "-lives", fmt.Sprint(lives), "-first", fmt.Sprint(first))
	cmd.Env = append(os.Environ(), "SIM_PLANTED="+mistake)
	out, err := cmd.CombinedOutput()
	wrong := brokenPromise.FindStringSubmatch(string(out))
	if err = errors.Join(err, ctx.Err()); (err != nil) != (wrong != nil) {
		t.Fatalf("lives with %q have neither passed nor broken a promise: %v, %.600s", mistake, err, out)
	}
	return string(out), wrong
}

// buildPlanted builds the test of this package with copies of the product's files.
func buildPlanted(t *testing.T, tool string) string {
	dir, texts := t.TempDir(), map[string]string{}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plants {
		if texts[p.file] == "" {
			data, err := os.ReadFile(filepath.Join(root, p.file))
			if err != nil {
				t.Fatal(err)
			}
			texts[p.file] = regexp.MustCompile(`(?m)^package \w+$`).ReplaceAllString(string(data),
				"$0\n\nimport planted \""+failpoints+"\"\n")
		}
		if found := strings.Count(texts[p.file], p.old); found != 1 {
			t.Fatalf("%s: %s has this text %d times, not once: %s", p.name, p.file, found, p.old)
		}
		wrong := regexp.MustCompile(`\bon\b`).ReplaceAllString(p.wrong, fmt.Sprintf("planted.Is(%q)", p.name))
		texts[p.file] = strings.Replace(texts[p.file], p.old, wrong, 1)
	}
	texts["internal/failpoint/off.go"] = "package failpoint\n\nimport \"os\"\n\nconst Enabled = false\n\n" +
		"func Hit(string) {}\n\nvar chosen = os.Getenv(\"SIM_PLANTED\")\n\n" +
		"func Is(name string) bool { return chosen == name }\n"
	overlay := map[string]map[string]string{"Replace": {}}
	for file, text := range texts {
		copied := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][filepath.Join(root, file)] = copied
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	if err := os.WriteFile(list, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(tool, "test", "-c", "-p", "2", "-overlay", list, "-o", binary,
		".").CombinedOutput(); err != nil {
		t.Fatalf("cannot build the test with planted mistakes: %v\n%s", err, out)
	}
	return binary
}
