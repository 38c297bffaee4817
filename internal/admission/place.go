package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Ask is what somebody wants granted.
type Ask struct {
	Memory  grant.Bytes // over all GPUs; 0 for an exclusive grant
	GPUs    int         // how many; 0: as many as Names, else 1
	Compute int         // percent of each GPU; 0: no share of its own
	Mode    grant.Mode
	Place   grant.Placement // "": the pool's
	Names   []string        // GPUs by UUID or index, MIG devices by UUID or as 0:1; nil: placement chooses
	Profile string          // of MIG devices, as 1g.10gb; "": whatever is large enough
	Owner   grant.Owner
	Label   string
	TTL     time.Duration // 0: for ever
	For     []grant.Tie   // who may use it, of those who have its reference; none: all of them
	Source  string        // who asks: "cli", ...
}

// Place chooses the GPUs of a new grant, or of the grant called updated as it would be after a
// change. It gives all of them or an error: *grant.UsageError for what can never be,
// *grant.NotFoundError for a GPU that is not there, *grant.Refusal with NoCapacity or ModeConflict
// for what cannot be now, LimitUnenforceable for a share of compute that nothing keeps, and
// MPSNotReady for mode mps where the node has no MPS. Their texts name holders: they are for the
// administrator.
func Place(ask Ask, updated grant.ID, v grant.View, inv grant.Inventory,
	p grant.Policy) ([]grant.Share, error) {
	if err := ask.Validate(); err != nil {
		return nil, err
	}
	if err := ask.Keepable(inv, p); err != nil {
		return nil, err
	}
	if len(inv.GPUs) == 0 {
		return nil, &grant.Refusal{Code: grant.NoCapacity, Message: "this node has no GPU",
			Hint: "`gpuledger inventory refresh` looks again"}
	}
	seats, err := survey(updated, v, inv, p)
	if err != nil {
		return nil, err
	}
	shares, err := ask.placed(seats)
	if err == nil && updated == "" {
		err = ask.startable(inv)
	}
	if err != nil {
		return nil, err
	}
	return shares, nil
}

// placed chooses among the seats.
func (a Ask) placed(seats []seat) ([]grant.Share, error) {
	if len(a.Names) > 0 {
		return a.named(seats)
	}
	return a.choose(a.ofKind(seats))
}

// maxGPUs is more than any node has, and little enough to multiply with.
const maxGPUs = 1 << 12

// count is how many GPUs are wanted.
func (a Ask) count() int {
	switch {
	case a.GPUs > 0:
		return a.GPUs
	case len(a.Names) > 0:
		return len(a.Names)
	}
	return 1
}

// wholly reports whether the grant takes all of each GPU or MIG device.
func (a Ask) wholly() bool { return a.Mode == grant.Exclusive || a.Mode == grant.MIG }

// kind is what the grant is of, in words.
func (a Ask) kind() string {
	if a.Mode == grant.MIG {
		return "MIG devices"
	}
	return "GPUs"
}

// each is the memory on each GPU.
func (a Ask) each() grant.Bytes { return a.Memory / grant.Bytes(a.count()) }

// Validate says what can never be, on any node: a *grant.UsageError.
func (a Ask) Validate() error {
	usage := func(format string, args ...any) error {
		return &grant.UsageError{Message: fmt.Sprintf("cannot grant: "+format, args...)}
	}
	switch n := grant.Bytes(a.count()); {
	case a.migUsage() != "":
		return usage("%s", a.migUsage())
	case a.GPUs < 0 || a.GPUs > maxGPUs:
		return usage("want 1 to %d GPUs, not %d", maxGPUs, a.GPUs)
	case len(a.Names) > 0 && len(a.Names) != a.count():
		return usage("%d GPUs are named, but %d are asked for", len(a.Names), a.GPUs)
	case len(a.For) > grant.MaxTies:
		return usage("a grant is tied to %d at most, not to %d", grant.MaxTies, len(a.For))
	case len(a.For) > 0 && a.Owner.IsPod():
		return usage("%s proves its grant by what it is; only a bearer's or a claim's can be tied", a.Owner)
	case a.Compute < 0 || a.Compute > 100:
		return usage("compute is a percentage from 1 to 100, not %d", a.Compute)
	case a.Mode == grant.Exclusive && a.Memory != 0:
		return usage("an exclusive grant has all memory of its GPUs; leave the memory out")
	case a.Mode == grant.Exclusive && a.Compute != 0:
		return usage("an exclusive grant has all compute of its GPUs; leave the compute out")
	case a.Mode != grant.Exclusive && a.Mode != grant.MIG && a.Memory == 0:
		return usage("mode %s needs an amount of memory, as 4GiB", a.Mode)
	case a.Memory%(n*grant.MiB) != 0:
		return usage("%s over %d GPUs does not divide evenly in MiB; %s would", a.Memory,
			n, (a.Memory/(n*grant.MiB)+1)*n*grant.MiB)
	}
	return nil
}

// misfit says why a seat cannot take the ask, as "GPU 0 has 2GiB free"; conflict is true when only
// its mode forbids it.
func (a Ask) misfit(s seat) (why string, conflict bool) {
	gpu := fmt.Sprintf("GPU %s ", s.device.Name())
	switch {
	case a.otherKind(s):
		return gpu + a.notOfKind(s), true
	case len(s.parts) > 0:
		return gpu + "is in mode mig, held by " + strings.Join(s.parts, ", "), true
	case s.closed != "":
		return gpu + s.closed, false
	case s.pool != nil && len(s.pool.Modes) > 0 && !slices.Contains(s.pool.Modes, a.Mode):
		return gpu + fmt.Sprintf("is in a pool for %v", s.pool.Modes), true
	case s.mode != "" && (s.mode != a.Mode || a.Mode == grant.Exclusive):
		return gpu + fmt.Sprintf("is in mode %s, held by %s", s.mode, strings.Join(s.holders, ", ")), true
	case s.mode == grant.MIG:
		return gpu + "is held by " + strings.Join(s.holders, ", "), false
	case len(s.together) > 0 && len(s.together) != a.count():
		return gpu + s.served(), true
	case a.wholly() && s.held:
		return gpu + "is held by a container that has no grant of it", false
	case a.wholly() && s.outside > 0:
		return gpu + fmt.Sprintf("has %s in use outside the ledger", s.outside), false
	case a.otherSize(s) != "":
		return gpu + a.otherSize(s), false
	case a.each() > s.free:
		return gpu + fmt.Sprintf("has %s of %s free", s.free, s.space), false
	case a.Compute > s.compute:
		return gpu + fmt.Sprintf("has %d%% of its compute free", s.compute), false
	}
	return "", false
}

// named takes exactly the GPUs that the caller named.
func (a Ask) named(seats []seat) ([]grant.Share, error) {
	var chosen []seat
	for _, name := range a.Names {
		i := slices.IndexFunc(seats, func(s seat) bool {
			return s.device.UUID() == name || s.device.Name() == name
		})
		if i < 0 {
			return nil, &grant.NotFoundError{Message: fmt.Sprintf(
				"cannot grant: this node has no GPU %q; it has %s", name, indexes(seats))}
		}
		if slices.ContainsFunc(chosen, func(s seat) bool {
			return s.device.UUID() == seats[i].device.UUID()
		}) {
			return nil, &grant.UsageError{Message: fmt.Sprintf("cannot grant: GPU %q is named twice", name)}
		}
		chosen = append(chosen, seats[i])
	}
	var misfits []string
	conflicts := 0
	for _, s := range chosen {
		if why, conflict := a.misfit(s); why != "" {
			misfits = append(misfits, why)
			if conflict {
				conflicts++
			}
		}
	}
	if why := apart(chosen); why != "" && len(misfits) == 0 {
		misfits, conflicts = []string{why}, 1
	}
	if len(misfits) > 0 {
		return nil, a.cannot(misfits, conflicts > 0)
	}
	return a.shares(chosen), nil
}

// choose takes GPUs by the placement: all from one pool, the first that has room.
func (a Ask) choose(seats []seat) ([]grant.Share, error) {
	var misfits []string
	conflicts := 0
	fitting := map[row][]seat{}
	var rows []row
	for _, s := range seats {
		if why, conflict := a.misfit(s); why != "" {
			misfits = append(misfits, why)
			if conflict {
				conflicts++
			}
			continue
		}
		r := a.row(s)
		rows = append(rows, r) // once for each of its seats
		fitting[r] = append(fitting[r], s)
	}
	slices.SortStableFunc(rows, a.orderRows)
	for _, r := range rows {
		if fits := fitting[r]; len(fits) >= a.count() {
			slices.SortStableFunc(fits, a.order(r.pool))
			return a.shares(fits[:a.count()]), nil
		}
	}
	conflict := conflicts > 0 && len(seats)-len(misfits)+conflicts >= a.count()
	switch {
	case a.count() > len(seats):
		misfits = []string{fmt.Sprintf("%s on this node: %d", a.kind(), len(seats))}
	case len(seats)-len(misfits) >= a.count():
		misfits = append(misfits, fmt.Sprintf("no pool has %d %s with that much free", a.count(), a.kind()))
	}
	return nil, a.cannot(misfits, conflict)
}

// order sorts the seats of a pool by the placement, best first.
func (a Ask) order(pool *grant.Pool) func(x, y seat) int {
	if a.placement(pool) == grant.Spread {
		group := a.Owner.Group()
		serves := func(s seat) int { return count(slices.Contains(s.groups, group)) }
		return func(x, y seat) int {
			return cmp.Or(a.bySize(x, y), serves(x)-serves(y), x.beside-y.beside, cmp.Compare(y.free, x.free))
		}
	}
	taken := func(s seat) int { return count(s.mode != "") }
	return func(x, y seat) int {
		return cmp.Or(a.bySize(x, y), taken(y)-taken(x), y.beside-x.beside, cmp.Compare(x.free, y.free))
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// shares turns seats into the grant's shares, by index.
func (a Ask) shares(seats []seat) []grant.Share {
	shares := make([]grant.Share, len(seats))
	for i, s := range seats {
		shares[i] = grant.Share{UUID: s.device.UUID(), Index: s.device.GPU.Index, Memory: a.each()}
		if a.wholly() {
			shares[i].Memory = s.space
		}
		if s.device.MIG != nil {
			shares[i].Profile = s.device.MIG.Profile
		}
	}
	slices.SortStableFunc(shares, func(x, y grant.Share) int { return x.Index - y.Index })
	return shares
}

// cannot says why there is no room, and what is free where.
func (a Ask) cannot(misfits []string, conflict bool) error {
	what := fmt.Sprintf("%s on each of %d GPUs", a.each(), a.count())
	switch {
	case a.Mode == grant.MIG:
		what = a.partitions()
	case a.Mode == grant.Exclusive:
		what = fmt.Sprintf("%d whole GPUs", a.count())
	case a.count() == 1:
		what = a.each().String() + " on a GPU"
	}
	if a.Compute > 0 {
		what += fmt.Sprintf(" with %d%% of its compute", a.Compute)
	}
	r := &grant.Refusal{Code: grant.NoCapacity, Message: fmt.Sprintf("cannot grant %s in mode %s: %s", what,
		a.Mode, strings.Join(misfits, "; ")),
		Hint: "`gpuledger inspect` shows who holds what; release a grant or ask for less"}
	if conflict {
		r.Code = grant.ModeConflict
		r.Hint = "a GPU is in one mode at a time, until its last grant is released"
	}
	return r
}

func indexes(seats []seat) string {
	names := make([]string, len(seats))
	for i, s := range seats {
		names[i] = s.device.Name()
	}
	return strings.Join(names, ", ")
}
