package admission

import (
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Ask is what a caller wants granted.
type Ask struct {
	Memory  grant.Bytes // over all GPUs; 0 for an exclusive grant
	GPUs    int         // how many; 0: as many as Names, else 1
	Compute int         // percent of each GPU; 0: no share of its own
	Mode    grant.Mode
	Place   grant.Placement // "": the pool's
	Names   []string        // GPUs by UUID or index, MIG devices by UUID or as 0:1; nil: placement chooses
	Profile string          // of MIG devices, as 1g.10gb; "": any that is large enough
	Owner   grant.Owner
	Label   string
	App     string        // the application, whose grants spread keeps on different GPUs
	TTL     time.Duration // 0: the grant does not expire
	For     []grant.Tie   // which of the containers with its reference may use it; none: all of them
	User    uint32        // the uid of the user to whom the grant belongs; 0: to nobody but root
	Source  string        // what asks: "cli", ...
	Secret  string        // of the new grant; "": a new one
	Quota   *grant.Quota  // what the user may have; nil: no bound
	// the least strength that must hold the grant's containers to it, beside the policy's; "": any
	MinimumStrength grant.Strength
	Part            int // percent of each GPU's memory for all grants from this source; 0: no bound
}

// maxGPUs is more than any node has, and small enough to multiply with.
const maxGPUs = 1 << 12

// count returns how many GPUs are wanted.
func (a Ask) count() int {
	switch {
	case a.GPUs > 0:
		return a.GPUs
	case len(a.Names) > 0:
		return len(a.Names)
	}
	return 1
}

// each returns the memory on each GPU.
func (a Ask) each() grant.Bytes { return a.Memory / grant.Bytes(a.count()) }

// isWhole reports whether the grant takes all of each GPU or MIG device.
func (a Ask) isWhole() bool { return a.Mode.IsWhole() }

// placement returns the ask's own placement, otherwise the pool's.
func (a Ask) placement(pool *grant.Pool) grant.Placement {
	if a.Place == "" && pool != nil {
		return pool.Place
	}
	return a.Place
}

// Validate returns a *grant.UsageError for an ask that no node can ever grant.
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
	case !a.isWhole() && a.Memory == 0:
		return usage("mode %s needs an amount of memory, as 4GiB", a.Mode)
	case a.Memory%(n*grant.MiB) != 0:
		return usage("%s over %d GPUs does not divide evenly in MiB; %s would",
			a.Memory, n, (a.Memory/(n*grant.MiB)+1)*n*grant.MiB)
	}
	return nil
}

// migUsage says what is invalid about an ask for MIG devices, or for a profile in another mode; ""
// if nothing is.
func (a Ask) migUsage() string {
	switch {
	case a.Mode != grant.MIG && a.Profile != "":
		return fmt.Sprintf("a profile is a MIG device's, and mode %s grants none; use mode mig", a.Mode)
	case a.Mode != grant.MIG:
	case a.Compute != 0:
		return "a MIG device has compute of its own; leave the compute out"
	case a.Profile == "" && a.Memory == 0 && len(a.Names) == 0:
		return "mode mig needs a profile, as 1g.10gb, an amount of memory, " +
			"or the names of MIG devices, as 0:1"
	}
	return ""
}

// startable returns nil if a container of the grant could start on this node. In mode mps it cannot
// without NVIDIA's programs, so a grant would only keep its GPUs from others.
func (a Ask) startable(inv grant.Inventory) error {
	if a.Mode != grant.MPS {
		return nil
	}
	problem := inv.Driver.MPSProblem()
	if problem == "" {
		return nil
	}
	return &grant.Refusal{Code: grant.MPSNotReady,
		Message: "cannot grant in mode mps: this node cannot run MPS, " +
			"because " + problem,
		Hint: "install what the driver lacks and run `gpuledger inventory refresh`, " +
			"or grant in another mode (--mode limit)"}
}

// kind returns what the grant consists of, in words.
func (a Ask) kind() string {
	if a.Mode == grant.MIG {
		return "MIG devices"
	}
	return "GPUs"
}

// size returns what a tenant asked for, in words.
func (a Ask) size() string {
	if a.isWhole() && a.Memory == 0 {
		return fmt.Sprintf("%d whole", a.count())
	}
	return fmt.Sprintf("%s over %d", a.Memory, a.count())
}

// wanted returns the size, in the words of an error for the administrator.
func (a Ask) wanted() string {
	wanted := fmt.Sprintf("%s on each of %d GPUs", a.each(), a.count())
	switch {
	case a.Mode == grant.MIG:
		wanted = a.wantedMIG()
	case a.Mode == grant.Exclusive && a.count() == 1:
		wanted = "a whole GPU"
	case a.Mode == grant.Exclusive:
		wanted = fmt.Sprintf("%d whole GPUs", a.count())
	case a.count() == 1:
		wanted = a.each().String() + " on a GPU"
	}
	if a.Compute > 0 {
		wanted += fmt.Sprintf(" with %d%% of its compute", a.Compute)
	}
	return wanted
}

func (a Ask) wantedMIG() string {
	what := "MIG device"
	if a.Profile != "" {
		what += " " + a.Profile
	}
	if a.count() > 1 {
		what = fmt.Sprintf("%d times a %s", a.count(), what)
	} else {
		what = "a " + what
	}
	if a.Memory > 0 {
		what += " of " + a.each().String()
	}
	return what
}
