package admission

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/order"
)

// Place chooses the GPUs of a new grant, or of the grant with the id updated as it would be after a
// change. Where the ask names GPUs, it only checks them: a person has named them, or a cluster's
// scheduler has chosen them (with DRA Kubernetes' own, else package kube/placement). It returns all
// of them or an error:
//   - *grant.UsageError for an ask that can never be granted
//   - *grant.NotFoundError for a GPU that does not exist
//   - *grant.Refusal with QuotaExceeded where Ask.Quota does not have room
//   - *grant.Refusal with NoCapacity or ModeConflict for an ask that cannot be granted now, with
//     LimitUnenforceable for a share of compute that nothing enforces, and with MPSNotReady for
//     mode mps on a node without MPS
//
// The errors name holders of grants, so they are for the administrator.
func Place(
	ask Ask, updated grant.ID, v grant.View, inv grant.Inventory, p grant.Policy,
) ([]grant.Share, error) {
	if err := ask.Validate(); err != nil {
		return nil, err
	}
	if err := ask.checkTerms(); err != nil {
		return nil, err
	}
	if err := ask.Keepable(inv, p); err != nil {
		return nil, err
	}
	if len(inv.GPUs) == 0 {
		return nil, &grant.Refusal{Code: grant.NoCapacity, Message: "this node has no GPU",
			Hint: "`gpuledger inventory refresh` looks again"}
	}
	seats, err := allSeats(updated, v, inv, p)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(ask, seats)
	if err != nil {
		return nil, advise(err, ask, updated, v, inv, p)
	}
	if updated == "" {
		err = ask.startable(inv)
	}
	if err != nil {
		return nil, err
	}
	shares := ask.shares(chosen)
	if err := ask.checkQuota(shares, updated, v); err != nil {
		return nil, err
	}
	return shares, nil
}

// choose returns GPUs that can serve the ask.
func choose(a Ask, seats []seat) ([]seat, error) {
	if len(a.Names) > 0 {
		return a.chooseNamed(seats)
	}
	return a.chooseFree(a.ofKind(seats))
}

// chooseNamed returns exactly the GPUs that the caller named.
func (a Ask) chooseNamed(seats []seat) ([]seat, error) {
	var chosen []seat
	for _, name := range a.Names {
		i := slices.IndexFunc(seats,
			func(s seat) bool { return s.device.UUID() == name || s.device.Name() == name })
		if i < 0 {
			return nil, &grant.NotFoundError{Message: fmt.Sprintf(
				"cannot grant: this node has no GPU %q; it has %s", name, namesOf(seats))}
		}
		uuid := seats[i].device.UUID()
		if slices.ContainsFunc(chosen, func(s seat) bool { return s.device.UUID() == uuid }) {
			return nil, &grant.UsageError{Message: fmt.Sprintf("cannot grant: GPU %q is named twice", name)}
		}
		chosen = append(chosen, seats[i])
	}
	var misfits []string
	conflict := false
	for _, s := range chosen {
		if why, onlyMode := a.misfit(s); why != "" {
			misfits = append(misfits, why)
			conflict = conflict || onlyMode
		}
	}
	if why := daemonConflict(chosen); why != "" && len(misfits) == 0 {
		misfits, conflict = []string{why}, true
	}
	if len(misfits) > 0 {
		return nil, a.noRoom(misfits, conflict)
	}
	return chosen, nil
}

// chooseFree chooses GPUs by the placement. All are from one pool, the first that has room.
func (a Ask) chooseFree(seats []seat) ([]seat, error) {
	var misfits []string
	conflicts := 0
	fitting := map[seatSet][]seat{}
	var sets []seatSet
	for _, s := range seats {
		if why, onlyMode := a.misfit(s); why != "" {
			misfits = append(misfits, why)
			if onlyMode {
				conflicts++
			}
			continue
		}
		set := a.setOf(s)
		sets = append(sets, set) // once for each of its seats
		fitting[set] = append(fitting[set], s)
	}
	order.Stable(sets, a.compareSets)
	for _, set := range sets {
		if fits := fitting[set]; len(fits) >= a.count() {
			order.Stable(fits, a.compareSeats(set.pool))
			return fits[:a.count()], nil
		}
	}
	conflict := conflicts > 0 && len(seats)-len(misfits)+conflicts >= a.count()
	switch {
	case a.count() > len(seats):
		misfits = []string{fmt.Sprintf("%s on this node: %d", a.kind(), len(seats))}
	case len(seats)-len(misfits) >= a.count():
		misfits = append(misfits, fmt.Sprintf("no pool has %d %s with that much free", a.count(), a.kind()))
	}
	return nil, a.noRoom(misfits, conflict)
}

// seatSet identifies the seats among which one grant can be placed: those of one pool. A grant over
// several GPUs in mode mps needs those of one daemon, or those without a daemon.
type seatSet struct {
	pool   *grant.Pool
	daemon string // the GPUs of the daemon; "": without one, or not distinguished
}

func (a Ask) setOf(s seat) seatSet {
	if a.count() == 1 {
		return seatSet{pool: s.pool}
	}
	return seatSet{pool: s.pool, daemon: strings.Join(s.daemonGPUs, ",")}
}

// compareSets keeps the order of pools. In one pool, the placement says whether the GPUs of a
// daemon that runs already come first or last.
func (a Ask) compareSets(x, y seatSet) int {
	if x.pool != y.pool {
		return 0
	}
	if a.placement(x.pool) == grant.Spread {
		return count(x.daemon != "") - count(y.daemon != "")
	}
	return count(y.daemon != "") - count(x.daemon != "")
}

// compareSeats orders the seats of a pool by the placement, the best one first.
func (a Ask) compareSeats(pool *grant.Pool) func(x, y seat) int {
	if a.placement(pool) == grant.Spread {
		own := grant.GroupsOf(a.App, a.Owner)
		serves := func(s seat) (n int) {
			for _, group := range s.groups {
				n += count(slices.Contains(own, group))
			}
			return n
		}
		return func(x, y seat) int {
			return cmp.Or(a.compareSizes(x, y), serves(x)-serves(y), x.siblings-y.siblings,
				cmp.Compare(y.free, x.free))
		}
	}
	used := func(s seat) int { return count(s.mode != "") }
	return func(x, y seat) int {
		return cmp.Or(a.compareSizes(x, y), used(y)-used(x), y.siblings-x.siblings,
			cmp.Compare(x.free, y.free))
	}
}

// compareSizes puts the smallest MIG device first that is large enough. Sizes of GPUs do not
// matter.
func (a Ask) compareSizes(x, y seat) int {
	if a.Mode != grant.MIG {
		return 0
	}
	return cmp.Compare(x.space, y.space)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// misfit says why a seat cannot serve the ask, as "GPU 0 has 2GiB free"; "" if it can. onlyMode
// reports whether just the seat's mode forbids it.
func (a Ask) misfit(s seat) (why string, onlyMode bool) {
	gpu := fmt.Sprintf("GPU %s ", s.device.Name())
	switch {
	case a.isOtherKind(s):
		return gpu + whyOtherKind(s), true
	case len(s.migHolders) > 0:
		return gpu + "is in mode mig, held by " + strings.Join(s.migHolders, ", "), true
	case s.closed != "":
		return gpu + s.closed, false
	case a.Mode != grant.MIG && a.each() > s.space: // in any mode
		return gpu + fmt.Sprintf("has %s of %s free", s.free, s.space), false
	case s.pool != nil && len(s.pool.Modes) > 0 && !slices.Contains(s.pool.Modes, a.Mode):
		return gpu + fmt.Sprintf("is in a pool for %v", s.pool.Modes), true
	case s.mode != "" && (s.mode != a.Mode || a.Mode == grant.Exclusive):
		return gpu + fmt.Sprintf("is in mode %s, held by %s", s.mode, strings.Join(s.holders, ", ")), true
	case s.mode == grant.MIG:
		return gpu + "is held by " + strings.Join(s.holders, ", "), false
	case len(s.daemonGPUs) > 0 && len(s.daemonGPUs) != a.count():
		return gpu + servedByDaemon(s), true
	case a.isWhole() && s.held:
		return gpu + "is held by a container that has no grant of it", false
	case a.isWhole() && s.outside > 0:
		return gpu + fmt.Sprintf("has %s in use outside the ledger", s.outside), false
	case a.otherSize(s) != "":
		return gpu + a.otherSize(s), false
	case a.Part > 0 && a.on(s) > s.leftOf(a.Part) && (a.isWhole() || s.leftOf(a.Part) <= s.free):
		return gpu + fmt.Sprintf("has %s left of the %d%% for which containers may ask", s.leftOf(a.Part),
			a.Part), false
	case a.Part > 0 && a.Compute > max(a.Part-s.askedPart, 0) && a.Part-s.askedPart <= s.compute:
		return gpu + fmt.Sprintf("has %d%% left of the %d%% of its compute for which containers may ask",
			max(a.Part-s.askedPart, 0), a.Part), false
	case a.each() > s.free:
		return gpu + fmt.Sprintf("has %s of %s free", s.free, s.space), false
	case a.Compute > s.compute:
		return gpu + fmt.Sprintf("has %d%% of its compute free", s.compute), false
	}
	return "", false
}

// on returns how much of a seat the grant would have.
func (a Ask) on(s seat) grant.Bytes {
	if a.isWhole() {
		return s.space
	}
	return a.each()
}

// ofKind returns the seats of the kind that the mode grants: MIG devices in mode mig, otherwise
// GPUs.
func (a Ask) ofKind(seats []seat) []seat {
	return slices.DeleteFunc(slices.Clone(seats), a.isOtherKind)
}

func (a Ask) isOtherKind(s seat) bool { return (a.Mode == grant.MIG) != (s.device.MIG != nil) }

// whyOtherKind says why a seat that was named is not of the kind that the mode grants.
func whyOtherKind(s seat) string {
	if s.device.MIG != nil {
		return "is a MIG device, which mode mig alone grants"
	}
	if n := len(s.device.GPU.MIG); n > 0 {
		return fmt.Sprintf("is partitioned; mode mig grants its MIG devices, %s:0 to %s:%d",
			s.device.Name(), s.device.Name(), n-1)
	}
	return "is not partitioned; mode mig grants MIG devices, which an administrator makes"
}

// otherSize says why a MIG device does not have the size that is asked for; "" if it has.
func (a Ask) otherSize(s seat) string {
	switch {
	case a.Mode != grant.MIG:
	case a.Profile != "" && s.device.MIG.Profile != a.Profile:
		return "is a " + s.device.MIG.Profile
	case a.each() > s.space:
		return fmt.Sprintf("has %s", s.space)
	}
	return ""
}

// servedByDaemon says why a GPU of an MPS daemon cannot serve a grant over other GPUs. A client has
// one daemon, and the GPUs of a daemon are fixed when it starts.
func servedByDaemon(s seat) string {
	return fmt.Sprintf("is served by an MPS daemon over %d GPUs, for %s",
		len(s.daemonGPUs), strings.Join(s.holders, ", "))
}

// daemonConflict says which of the chosen GPUs has a daemon that does not serve all of them; "" if
// none has.
func daemonConflict(chosen []seat) string {
	for _, s := range chosen {
		for _, o := range chosen {
			if len(s.daemonGPUs) > 0 && !slices.Contains(s.daemonGPUs, o.device.UUID()) {
				return fmt.Sprintf("GPU %s ", s.device.Name()) + servedByDaemon(s)
			}
		}
	}
	return ""
}

// shares makes seats the shares of the grant, sorted by index.
func (a Ask) shares(seats []seat) []grant.Share {
	shares := make([]grant.Share, len(seats))
	for i, s := range seats {
		shares[i] = grant.Share{UUID: s.device.UUID(), Index: s.device.GPU.Index, Memory: a.on(s)}
		if s.device.MIG != nil {
			shares[i].Profile = s.device.MIG.Profile
		}
	}
	order.Stable(shares, func(x, y grant.Share) int { return x.Index - y.Index })
	return shares
}

// noRoom returns a refusal that says what is free where.
func (a Ask) noRoom(misfits []string, conflict bool) error {
	r := &grant.Refusal{Code: grant.NoCapacity,
		Message: fmt.Sprintf("cannot grant %s in mode %s: %s",
			a.wanted(), a.Mode, strings.Join(misfits, "; "))}
	if conflict {
		r.Code = grant.ModeConflict
		r.Hint = hintMode
	}
	return r
}

// advise gives a refusal for want of room its hint. What a node without grants would refuse too
// needs another ask: no release makes room for it.
func advise(
	err error, a Ask, updated grant.ID, v grant.View, inv grant.Inventory, p grant.Policy,
) error {
	var r *grant.Refusal
	if !errors.As(err, &r) || r.Hint != "" {
		return err
	}
	seats, failed := allSeats("", grant.View{Now: v.Now, Damaged: v.Damaged}, inv, p)
	if failed == nil {
		_, failed = choose(a, seats)
	}
	switch {
	case failed != nil && len(v.Damaged) > 0:
		r.Hint = "`gpuledger check` says which entries of the ledger close GPUs, and what to do"
	case failed != nil:
		r.Hint = hintNever
	case updated != "":
		r.Hint = hintHeld + "release a grant or ask for less"
	default:
		r.Hint = hintHeld + "release a grant, ask for less, or wait (`--wait 10m`)"
	}
	return r
}

func namesOf(seats []seat) string {
	names := make([]string, len(seats))
	for i, s := range seats {
		names[i] = s.device.Name()
	}
	return strings.Join(names, ", ")
}
