package admission

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// mpsFiles are the files of a driver with MPS.
var mpsFiles = []grant.DriverFile{
	{Kind: grant.FileBinary, Path: "/usr/bin/" + grant.MPSControl, Target: "/usr/bin/" + grant.MPSControl},
	{Kind: grant.FileBinary, Path: "/usr/sbin/" + grant.MPSServer, Target: "/usr/sbin/" + grant.MPSServer},
}

// inventory is a node of n GPUs with 16 GiB each.
func inventory(n int) grant.Inventory {
	inv := grant.Inventory{Driver: grant.Driver{Files: mpsFiles}}
	for i := range n {
		inv.GPUs = append(inv.GPUs, grant.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: i,
			Memory: 16 * grant.GiB, Health: grant.Healthy})
	}
	return inv
}

func held(id grant.ID, owner grant.Owner, mode grant.Mode, compute int, memory grant.Bytes,
	gpus ...int) grant.Grant {
	g := grant.Grant{ID: id, Owner: owner, Mode: mode, Compute: compute}
	for _, i := range gpus {
		g.GPUs = append(g.GPUs, grant.Share{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Memory: memory})
	}
	return g
}

// of is a grant of an application.
func of(app string, g grant.Grant) grant.Grant {
	g.App = app
	return g
}

// overMPS requests several GPUs in mode mps.
func overMPS(gpus int) func(*Ask) {
	return func(a *Ask) { a.Mode, a.GPUs = grant.MPS, gpus }
}

func asked(memory grant.Bytes, more func(*Ask)) Ask {
	a := Ask{Memory: memory, Mode: grant.Limit, Owner: grant.Bearer}
	if more != nil {
		more(&a)
	}
	return a
}

// placed is a placement in one line, or its error with the kind.
func placed(shares []grant.Share, err error) string {
	var refusal *grant.Refusal
	var usage *grant.UsageError
	var missing *grant.NotFoundError
	switch {
	case errors.As(err, &refusal):
		return string(refusal.Code) + ": " + refusal.Message
	case errors.As(err, &usage):
		return "usage: " + usage.Message
	case errors.As(err, &missing):
		return "not found: " + missing.Message
	case err != nil:
		return "error: " + err.Error()
	}
	var texts []string
	for _, s := range shares {
		texts = append(texts, fmt.Sprintf("%d:%s", s.Index, s.Memory))
	}
	return strings.Join(texts, " ")
}

func TestPlace(t *testing.T) {
	const g1, g2 = grant.ID("g-aaaaaaaaaaaa"), grant.ID("g-bbbbbbbbbbbb")
	type node struct {
		view    grant.View
		inv     grant.Inventory
		policy  grant.Policy
		updated grant.ID
	}
	grants := func(gs ...grant.Grant) func(*node) { return func(n *node) { n.view.Grants = gs } }
	pools := func(ps ...grant.Pool) func(*node) { return func(n *node) { n.policy.Pools = ps } }
	spread := func(a *Ask) { a.Place = grant.Spread }
	gpus := func(n int) func(*Ask) { return func(a *Ask) { a.GPUs = n } }
	named := func(names ...string) func(*Ask) { return func(a *Ask) { a.Names = names } }
	mode := func(m grant.Mode) func(*Ask) { return func(a *Ask) { a.Mode = m } }
	compute := func(percent int) func(*Ask) { return func(a *Ask) { a.Compute = percent } }
	for _, c := range []struct {
		name string
		node func(*node)
		ask  Ask
		want string
	}{
		{"an empty node: the first GPU", nil, asked(4*grant.GiB, nil), "0:4GiB"},
		{"a container asks: less is free than it may ask for", grants(held(g1, grant.Bearer, grant.Limit, 90,
			16*grant.GiB, 0)), asked(17*grant.GiB, func(a *Ask) { a.Part, a.Names = 100, []string{"0"} }),
			"no-capacity: cannot grant 17GiB on a GPU in mode limit: GPU 0 has 0MiB of 16GiB free"},
		{"a container asks: less compute is free than it may ask for", grants(held(g1, grant.Bearer,
			grant.Limit, 90, grant.GiB, 0)), asked(grant.GiB, func(a *Ask) {
			a.Part, a.Compute, a.Names = 50, 60, []string{"0"}
		}), "no-capacity: cannot grant 1GiB on a GPU with 60% of its compute in mode limit: " +
			"GPU 0 has 10% of its compute free"},
		{"a container asks: it may ask for less than is free", nil, asked(9*grant.GiB, func(a *Ask) {
			a.Part, a.Names = 50, []string{"0"}
		}), "no-capacity: cannot grant 9GiB on a GPU in mode limit: GPU 0 has 8GiB left of the 50% " +
			"for which containers may ask"},
		{"binpack: the fullest that still fits", grants(held(g1, grant.Bearer, grant.Limit, 0, 8*grant.GiB,
			1), held(g2, grant.Bearer, grant.Limit, 0, 4*grant.GiB, 2)), asked(8*grant.GiB, nil), "1:8GiB"},
		{"binpack: the fullest does not fit", grants(held(g1, grant.Bearer, grant.Limit, 0, 8*grant.GiB, 1),
			held(g2, grant.Bearer, grant.Limit, 0, 4*grant.GiB, 2)), asked(9*grant.GiB, nil), "2:9GiB"},
		{"binpack: one in use before an empty one",
			grants(held(g1, grant.Bearer, grant.Limit, 0, grant.MiB, 3)), asked(grant.GiB, nil), "3:1GiB"},
		{"binpack: one in use before an empty one, though it is larger and has more free", func(n *node) {
			n.inv.GPUs[3].Memory = 80 * grant.GiB
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Limit, 0, 10*grant.GiB, 3)}
		}, asked(grant.GiB, nil), "3:1GiB"},
		{"spread: the emptiest", grants(held(g1, grant.Bearer, grant.Limit, 0, grant.GiB, 0),
			held(g2, grant.Bearer, grant.Limit, 0, grant.GiB, 1)), asked(grant.GiB, spread), "2:1GiB"},
		{"spread: away from the owner's others", grants(held(g1, "pod:u/a", grant.Limit, 0, grant.GiB, 0),
			held(g2, grant.Bearer, grant.Limit, 0, 8*grant.GiB, 1, 2, 3)),
			asked(grant.GiB, func(a *Ask) { a.Place, a.Owner = grant.Spread, "pod:u/b" }), "1:1GiB"},
		{"spread: away from the application's others", grants(of("web", held(g1, grant.Bearer, grant.Limit, 0,
			grant.GiB, 0)), held(g2, grant.Bearer, grant.Limit, 0, 8*grant.GiB, 1, 2, 3)),
			asked(grant.GiB, func(a *Ask) { a.Place, a.App = grant.Spread, "web" }), "1:1GiB"},
		{"spread: where the application has the fewest", grants(of("web", held(g1, "pod:a/c", grant.Limit, 0,
			grant.GiB, 0)), of("web", held(g2, "pod:b/c", grant.Limit, 0, grant.GiB, 0, 1, 2, 3))),
			asked(grant.GiB, func(a *Ask) { a.Place, a.App, a.Owner = grant.Spread, "web", "pod:d/c" }),
			"1:1GiB"},
		{"spread: another application", grants(of("web", held(g1, grant.Bearer, grant.Limit, 0,
			grant.GiB, 0)), held(g2, grant.Bearer, grant.Limit, 0, 8*grant.GiB, 1, 2, 3)),
			asked(grant.GiB, func(a *Ask) { a.Place, a.App = grant.Spread, "batch" }), "0:1GiB"},
		{"spread: bearers are no group", grants(held(g1, grant.Bearer, grant.Limit, 0, grant.GiB, 0),
			held(g2, "pod:u/a", grant.Limit, 0, 8*grant.GiB, 1, 2, 3)), asked(grant.GiB, spread), "0:1GiB"},

		{"8 GiB over 4 GPUs", nil, asked(8*grant.GiB, gpus(4)), "0:2GiB 1:2GiB 2:2GiB 3:2GiB"},
		{"what does not divide", nil, asked(10*grant.MiB, gpus(4)),
			"usage: cannot grant: 10MiB over 4 GPUs does not divide evenly in MiB; 12MiB would"},
		{"half a MiB", nil, asked(grant.KiB*512, nil),
			"usage: cannot grant: 512KiB over 1 GPUs does not divide evenly in MiB; 1MiB would"},
		{"all or nothing", grants(held(g1, grant.Bearer, grant.Limit, 0, 15*grant.GiB, 0)),
			asked(8*grant.GiB, gpus(4)),
			"no-capacity: cannot grant 2GiB on each of 4 GPUs in mode limit: GPU 0 has 1GiB of 16GiB free"},
		{"more GPUs than there are", nil, asked(8*grant.GiB, gpus(8)),
			"no-capacity: cannot grant 1GiB on each of 8 GPUs in mode limit: GPUs on this node: 4"},
		{"more GPUs than there are, all in another mode",
			grants(held(g1, grant.Bearer, grant.Timeslice, 0, grant.GiB, 0, 1, 2, 3)),
			asked(5*grant.GiB, gpus(5)),
			"no-capacity: cannot grant 1GiB on each of 5 GPUs in mode limit: GPUs on this node: 4"},
		{"more GPUs than any node has", nil, asked(grant.GiB, gpus(math.MaxInt/2+1)),
			"usage: cannot grant: want 1 to 4096 GPUs, not 4611686018427387904"},
		{"GPUs so many that bytes would overflow to 0", nil, asked(grant.GiB, gpus(1<<44)),
			"usage: cannot grant: want 1 to 4096 GPUs, not 17592186044416"},
		{"as many as any node could have", nil, asked(4*grant.GiB, gpus(4096)),
			"no-capacity: cannot grant 1MiB on each of 4096 GPUs in mode limit: GPUs on this node: 4"},
		{"fewer than none", nil, asked(grant.GiB, gpus(-1)),
			"usage: cannot grant: want 1 to 4096 GPUs, not -1"},
		{"to the last byte", grants(held(g1, grant.Bearer, grant.Limit, 0, 12*grant.GiB, 0, 1, 2, 3)),
			asked(4*grant.GiB, nil), "0:4GiB"},
		{"one MiB too much", func(n *node) {
			n.inv = inventory(1)
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Limit, 0, 12*grant.GiB, 0)}
		}, asked(4*grant.GiB+grant.MiB, nil),
			"no-capacity: cannot grant 4097MiB on a GPU in mode limit: GPU 0 has 4GiB of 16GiB free"},
		{"no memory", nil, asked(0, nil),
			"usage: cannot grant: mode limit needs an amount of memory, as 4GiB"},
		{"exclusive: no GPU that is used without a grant", func(n *node) {
			n.view.Held = map[string]bool{"GPU-0": true}
		}, asked(0, mode(grant.Exclusive)), "1:16GiB"},
		{"exclusive: all are held", func(n *node) {
			n.inv, n.view.Held = inventory(1), map[string]bool{"GPU-0": true}
		}, asked(0, mode(grant.Exclusive)), "no-capacity: cannot grant a whole GPU in mode exclusive: GPU " +
			"0 is held by a container that has no grant of it"},
		{"a part of a GPU that is used without a grant", func(n *node) {
			n.view.Held = map[string]bool{"GPU-0": true}
		}, asked(grant.GiB, nil), "0:1GiB"},
		{"no GPU at all", func(n *node) { n.inv = grant.Inventory{} }, asked(grant.GiB, nil),
			"no-capacity: this node has no GPU"},

		{"compute that is left", grants(held(g1, grant.Bearer, grant.Limit, 70, grant.GiB, 0)),
			asked(grant.GiB, compute(30)), "0:1GiB"},
		{"compute that is not left goes elsewhere",
			grants(held(g1, grant.Bearer, grant.Limit, 71, grant.GiB, 0)),
			asked(grant.GiB, compute(30)), "1:1GiB"},
		{"compute, together with N over M", grants(held(g1, grant.Bearer, grant.Limit, 71, grant.GiB, 0, 1,
			2)), asked(2*grant.GiB, func(a *Ask) { a.GPUs, a.Compute = 2, 30 }),
			"no-capacity: cannot grant 1GiB on each of 2 GPUs with 30% of its compute in mode limit: GPU 0 " +
				"has 29% of its compute free; GPU 1 has 29% of its compute free; GPU 2 has 29% of its " +
				"compute free"},
		{"compute below 0", nil, asked(grant.GiB, compute(-1)),
			"usage: cannot grant: compute is a percentage from 1 to 100, not -1"},
		{"compute above 100", nil, asked(grant.GiB, compute(101)),
			"usage: cannot grant: compute is a percentage from 1 to 100, not 101"},

		{"named", nil, asked(4*grant.GiB, named("GPU-2", "0")), "0:2GiB 2:2GiB"},
		{"named, none such", nil, asked(grant.GiB, named("7")),
			`not found: cannot grant: this node has no GPU "7"; it has 0, 1, 2, 3`},
		{"named twice", nil, asked(2*grant.GiB, named("1", "GPU-1")),
			`usage: cannot grant: GPU "GPU-1" is named twice`},
		{"named, but another number", nil, asked(2*grant.GiB, func(a *Ask) {
			a.Names, a.GPUs = []string{"1"}, 2
		}), "usage: cannot grant: 1 GPUs are named, but 2 are asked for"},
		{"named, full", grants(held(g1, grant.Bearer, grant.Limit, 0, 16*grant.GiB, 1)),
			asked(2*grant.GiB, named("0", "1")),
			"no-capacity: cannot grant 1GiB on each of 2 GPUs in mode limit: GPU 1 has 0MiB of 16GiB free"},

		{"named, one in another mode, one full", grants(held(g1, grant.Bearer, grant.Timeslice, 0,
			grant.GiB, 0), held(g2, grant.Bearer, grant.Limit, 0, 16*grant.GiB, 1)),
			asked(2*grant.GiB, named("0", "1")),
			"mode-conflict: cannot grant 1GiB on each of 2 GPUs in mode limit: GPU 0 is in mode " +
				"timeslice, held by g-aaaaaaaaaaaa (timeslice, 1GiB); GPU 1 has 0MiB of 16GiB free"},

		{"another mode: an empty GPU is taken", grants(held(g1, grant.Bearer, grant.Timeslice, 0, grant.GiB,
			0)), asked(grant.GiB, nil), "1:1GiB"},
		{"another mode everywhere names the holders", func(n *node) {
			n.inv = inventory(2)
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Timeslice, 0, grant.GiB, 0, 1),
				held(g2, grant.Bearer, grant.Timeslice, 0, 2*grant.GiB, 1)}
		}, asked(grant.GiB, nil), "mode-conflict: cannot grant 1GiB on a GPU in mode limit: GPU 0 is in " +
			"mode timeslice, held by g-aaaaaaaaaaaa (timeslice, 1GiB); " +
			"GPU 1 is in mode timeslice, held by g-aaaaaaaaaaaa (timeslice, 1GiB), g-bbbbbbbbbbbb " +
			"(timeslice, 2GiB)"},
		{"one in another mode, one full", func(n *node) {
			n.inv = inventory(2)
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Timeslice, 0, grant.GiB, 0),
				held(g2, grant.Bearer, grant.Limit, 0, 16*grant.GiB, 1)}
		}, asked(2*grant.GiB, gpus(2)), "no-capacity: cannot grant 1GiB on each of 2 GPUs in mode limit: " +
			"GPU 0 is in mode timeslice, held by g-aaaaaaaaaaaa (timeslice, 1GiB); GPU 1 has 0MiB " +
			"of 16GiB free"},

		{"exclusive: whole GPUs", grants(held(g1, grant.Bearer, grant.Limit, 0, grant.MiB, 0)),
			asked(0, func(a *Ask) { a.Mode, a.GPUs = grant.Exclusive, 2 }), "1:16GiB 2:16GiB"},
		{"exclusive beside exclusive", func(n *node) {
			n.inv = inventory(1)
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Exclusive, 0, 16*grant.GiB, 0)}
		},
			asked(0, mode(grant.Exclusive)), "mode-conflict: cannot grant a whole GPU in mode exclusive: " +
				"GPU 0 is in mode exclusive, held by g-aaaaaaaaaaaa (exclusive, 16GiB)"},
		{"exclusive where something runs outside the ledger", func(n *node) {
			n.inv = inventory(1)
			n.view.Outside = map[string]grant.Bytes{"GPU-0": grant.MiB}
		}, asked(0, mode(grant.Exclusive)),
			"no-capacity: cannot grant a whole GPU in mode exclusive: GPU 0 has 1MiB in use " +
				"outside the ledger"},
		{"exclusive with memory", nil, asked(grant.GiB, mode(grant.Exclusive)),
			"usage: cannot grant: an exclusive grant has all memory of its GPUs; leave the memory out"},
		{"exclusive with compute", nil, asked(0, func(a *Ask) { a.Mode, a.Compute = grant.Exclusive, 10 }),
			"usage: cannot grant: an exclusive grant has all compute of its GPUs; leave the compute out"},
		{"MPS", nil, asked(grant.GiB, mode(grant.MPS)), "0:1GiB"},
		{"MPS: beside others, with compute", grants(held(g1, grant.Bearer, grant.MPS, 60, 4*grant.GiB, 2)),
			asked(grant.GiB, func(a *Ask) { a.Mode, a.Compute = grant.MPS, 40 }), "2:1GiB"},
		{"MPS: no compute left", grants(held(g1, grant.Bearer, grant.MPS, 60, 4*grant.GiB, 2)),
			asked(grant.GiB, func(a *Ask) { a.Mode, a.Compute, a.Names = grant.MPS, 41, []string{"2"} }),
			"no-capacity: cannot grant 1GiB on a GPU with 41% of its compute in mode mps: GPU 2 has 40% of " +
				"its compute free"},
		{"MPS over two: those of a daemon that is there",
			grants(held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1, 3)),
			asked(2*grant.GiB, overMPS(2)), "1:1GiB 3:1GiB"},
		{"MPS over two, spread: others", grants(held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 0, 3)),
			asked(2*grant.GiB, func(a *Ask) { overMPS(2)(a); a.Place = grant.Spread }), "1:1GiB 2:1GiB"},
		{"MPS over three, two of them served together",
			grants(held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1, 3)), asked(3*grant.GiB, overMPS(3)),
			"mode-conflict: cannot grant 1GiB on each of 3 GPUs in mode mps: GPU 1 is served by an MPS " +
				"daemon over 2 GPUs, for g-aaaaaaaaaaaa (mps, 1GiB); " +
				"GPU 3 is served by an MPS daemon over 2 GPUs, for g-aaaaaaaaaaaa (mps, 1GiB)"},
		{"MPS over one that is served with another",
			grants(held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1, 3)),
			asked(grant.GiB, func(a *Ask) { a.Mode, a.Names = grant.MPS, []string{"3"} }),
			"mode-conflict: cannot grant 1GiB on a GPU in mode mps: GPU 3 is served by an MPS daemon over " +
				"2 GPUs, for g-aaaaaaaaaaaa (mps, 1GiB)"},
		{"MPS over two that are served with others",
			grants(held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1, 3)),
			asked(2*grant.GiB, func(a *Ask) { a.Mode, a.Names = grant.MPS, []string{"1", "2"} }),
			"mode-conflict: cannot grant 1GiB on each of 2 GPUs in mode mps: GPU 1 is served by an MPS " +
				"daemon over 2 GPUs, for g-aaaaaaaaaaaa (mps, 1GiB)"},
		{"MPS over two that are served together, named",
			grants(held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1, 3)),
			asked(2*grant.GiB, func(a *Ask) { a.Mode, a.Names = grant.MPS, []string{"1", "3"} }),
			"1:1GiB 3:1GiB"},
		{"MPS over two, one served with others and one in another mode: the mode is what is wrong",
			grants(held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1, 3),
				held(g2, grant.Bearer, grant.Limit, 0, grant.GiB, 2)),
			asked(2*grant.GiB, func(a *Ask) { a.Mode, a.Names = grant.MPS, []string{"1", "2"} }),
			"mode-conflict: cannot grant 1GiB on each of 2 GPUs in mode mps: GPU 2 is in mode limit, held " +
				"by g-bbbbbbbbbbbb (limit, 1GiB)"},
		{"MPS over two: no GPU of a daemon whose other GPU is full", func(n *node) {
			n.view.Grants, n.view.Outside = []grant.Grant{
				held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1, 3)},
				map[string]grant.Bytes{"GPU-1": 15 * grant.GiB}
		}, asked(2*grant.GiB, overMPS(2)), "0:1GiB 2:1GiB"},
		{"MPS over two: the order of pools comes before a running daemon", func(n *node) {
			n.policy.Pools = []grant.Pool{{GPUs: []string{"0-1"}}, {GPUs: []string{"2-3"}}}
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 2, 3)}
		}, asked(2*grant.GiB, overMPS(2)), "0:1GiB 1:1GiB"},
		{"MPS on one: the fullest, whichever daemon serves it",
			grants(held(g1, grant.Bearer, grant.MPS, 0, 4*grant.GiB, 0),
				held(g2, grant.Bearer, grant.MPS, 0, 8*grant.GiB, 1)),
			asked(grant.GiB, mode(grant.MPS)), "1:1GiB"},

		{"MPS that the node does not have", func(n *node) { n.inv.Driver.Files = nil },
			asked(grant.GiB, mode(grant.MPS)),
			"mps-not-ready: cannot grant in mode mps: this node cannot run MPS, because the driver's files " +
				"in the inventory have no nvidia-cuda-mps-control"},
		{"MPS without its server", func(n *node) { n.inv.Driver.Files = mpsFiles[:1] },
			asked(grant.GiB, mode(grant.MPS)),
			"mps-not-ready: cannot grant in mode mps: this node cannot run MPS, because the driver's files " +
				"in the inventory have no nvidia-cuda-mps-server"},
		{"MPS that limits no memory", func(n *node) { n.inv.Driver.Version = "470.256.02" },
			asked(grant.GiB, mode(grant.MPS)),
			"mps-not-ready: cannot grant in mode mps: this node cannot run MPS, because driver 470.256.02 " +
				"does not limit the memory of MPS clients, as driver 495 and newer do"},
		{"MPS that the node does not have, on a GPU in another mode", func(n *node) {
			n.inv.Driver.Files, n.view.Grants = nil, []grant.Grant{
				held(g1, grant.Bearer, grant.Limit, 0, grant.GiB, 1)}
		}, asked(grant.GiB, func(a *Ask) { a.Mode, a.Names = grant.MPS, []string{"1"} }),
			"mode-conflict: cannot grant 1GiB on a GPU in mode mps: GPU 1 is in mode limit, held by " +
				"g-aaaaaaaaaaaa (limit, 1GiB)"},
		{"MPS that the node had, grown", func(n *node) {
			n.inv.Driver.Files, n.updated, n.view.Grants = nil,
				g1, []grant.Grant{held(g1, grant.Bearer, grant.MPS, 0, grant.GiB, 1)}
		}, asked(2*grant.GiB, func(a *Ask) { a.Mode, a.Names = grant.MPS, []string{"1"} }), "1:2GiB"},
		{"the reserve", func(n *node) {
			n.inv = inventory(1)
			n.policy.Rules.Reserve = grant.Size(grant.GiB)
		}, asked(16*grant.GiB, nil),
			"no-capacity: cannot grant 16GiB on a GPU in mode limit: GPU 0 has 15GiB of 15GiB free"},
		{"a reserve larger than the GPU", func(n *node) {
			n.inv = inventory(1)
			n.policy.Rules.Reserve = grant.Size(grant.TiB)
		}, asked(grant.MiB, nil),
			"no-capacity: cannot grant 1MiB on a GPU in mode limit: GPU 0 has 0MiB of 0MiB free"},
		{"use outside the ledger", func(n *node) {
			n.inv = inventory(1)
			n.view.Outside = map[string]grant.Bytes{"GPU-0": 2 * grant.GiB}
		}, asked(15*grant.GiB, nil),
			"no-capacity: cannot grant 15GiB on a GPU in mode limit: GPU 0 has 14GiB of 14GiB free"},
		{"a damaged entry closes its GPU", func(n *node) {
			n.view.Damaged = []grant.Damage{{ID: g1, GPUs: []string{"GPU-0"}}}
		}, asked(grant.GiB, nil), "1:1GiB"},
		{"a damaged entry of unknown GPUs closes all", func(n *node) {
			n.inv = inventory(1)
			n.view.Damaged = []grant.Damage{{ID: g1}}
		}, asked(grant.GiB, nil),
			"no-capacity: cannot grant 1GiB on a GPU in mode limit: GPU 0 is closed: the ledger's entry " +
				"g-aaaaaaaaaaaa is damaged or missing (`gpuledger check` says how)"},
		{"a container has a MIG device that is gone", func(n *node) {
			n.inv, n.view.Grants = inventory(2), []grant.Grant{lostMIGDevice(g1, "c")}
		}, asked(grant.GiB, named("0")),
			"no-capacity: cannot grant 1GiB on a GPU in mode limit: GPU 0 is closed: a container of grant " +
				"g-aaaaaaaaaaaa has a MIG device of it that is gone, and can open what took its place"},
		{"beside such a GPU", func(n *node) {
			n.inv, n.view.Grants = inventory(2), []grant.Grant{lostMIGDevice(g1, "c")}
		}, asked(grant.GiB, nil), "1:1GiB"},
		{"no container has a MIG device that is gone", func(n *node) {
			n.inv, n.view.Grants = inventory(1), []grant.Grant{lostMIGDevice(g1)}
		}, asked(grant.GiB, nil), "0:1GiB"},
		{"a container has a MIG device that is there", func(n *node) {
			g := heldMIG(g1, grant.Bearer, "MIG-a")
			g.Bindings = lostMIGDevice(g1, "c").Bindings
			n.inv, n.view.Grants = partitioned(), []grant.Grant{g}
		}, Ask{Mode: grant.MIG, GPUs: 1, Owner: grant.Bearer, Names: []string{"MIG-b"}}, "0:10GiB"},
		{"a sick GPU, named", func(n *node) { n.inv.GPUs[1].Health = "xid 79" }, asked(grant.GiB, named("1")),
			"no-capacity: cannot grant 1GiB on a GPU in mode limit: GPU 1 is unhealthy: xid 79"},
		{"a partitioned GPU", func(n *node) { n.inv.GPUs[0].MIG = []grant.MIGDevice{{UUID: "MIG-a"}} },
			asked(grant.GiB, nil), "1:1GiB"},

		{"a pool for another mode", pools(grant.Pool{GPUs: []string{"0-3"},
			Modes: []grant.Mode{grant.Exclusive}}), asked(grant.GiB, named("0")),
			"mode-conflict: cannot grant 1GiB on a GPU in mode limit: GPU 0 is in a pool for [exclusive]"},
		{"a pool for this mode and another", pools(grant.Pool{
			GPUs: []string{"0-3"}, Modes: []grant.Mode{grant.Exclusive, grant.Limit}}),
			asked(grant.GiB, nil), "0:1GiB"},
		{"the pool that takes the mode", pools(grant.Pool{
			GPUs: []string{"0-1"}, Modes: []grant.Mode{grant.Exclusive}}, grant.Pool{GPUs: []string{"2-3"}}),
			asked(grant.GiB, nil), "2:1GiB"},
		{"a GPU in no pool", pools(grant.Pool{GPUs: []string{"1-3"}}), asked(grant.GiB, named("0")),
			"no-capacity: cannot grant 1GiB on a GPU in mode limit: GPU 0 is in no pool"},
		{"not over two pools", pools(grant.Pool{GPUs: []string{"0-1"}}, grant.Pool{GPUs: []string{"2-3"}}),
			asked(3*grant.GiB, gpus(3)),
			"no-capacity: cannot grant 1GiB on each of 3 GPUs in mode limit: no pool has 3 GPUs with " +
				"that much free"},
		{"not over two pools, though as many have room", func(n *node) {
			n.policy.Pools = []grant.Pool{{GPUs: []string{"0-1"}}, {GPUs: []string{"2-3"}}}
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Limit, 0, 16*grant.GiB, 1, 3)}
		}, asked(2*grant.GiB, gpus(2)), "no-capacity: cannot grant 1GiB on each of 2 GPUs in mode limit: " +
			"GPU 1 has 0MiB of 16GiB free; GPU 3 has 0MiB of 16GiB free; no pool has 2 GPUs with " +
			"that much free"},
		{"a sick GPU in no pool", func(n *node) {
			n.policy.Pools, n.inv.GPUs[0].Health = []grant.Pool{{GPUs: []string{"1-3"}}}, "xid 79"
		}, asked(grant.GiB, named("0")), "no-capacity: cannot grant 1GiB on a GPU in mode limit: GPU 0 is " +
			"unhealthy: xid 79"},
		{"the second pool, where the first is too small",
			pools(grant.Pool{GPUs: []string{"0"}}, grant.Pool{GPUs: []string{"1-3"}}),
			asked(3*grant.GiB, gpus(3)), "1:1GiB 2:1GiB 3:1GiB"},
		{"a pool's placement", func(n *node) {
			n.policy.Pools = []grant.Pool{{GPUs: []string{"0-3"}, Place: grant.Spread}}
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Limit, 0, grant.GiB, 0)}
		}, asked(grant.GiB, nil), "1:1GiB"},
		{"the caller's placement before the pool's", func(n *node) {
			n.policy.Pools = []grant.Pool{{GPUs: []string{"0-3"}, Place: grant.Spread}}
			n.view.Grants = []grant.Grant{held(g1, grant.Bearer, grant.Limit, 0, grant.GiB, 0)}
		}, asked(grant.GiB, func(a *Ask) { a.Place = grant.Binpack }), "0:1GiB"},
		{"a GPU in two pools", pools(grant.Pool{GPUs: []string{"0-1"}}, grant.Pool{GPUs: []string{"1-3"}}),
			asked(grant.GiB, nil), "config-invalid: GPU 1 is in two pools"},

		{"a grant grown in its place", func(n *node) {
			n.updated, n.view.Grants = g1, []grant.Grant{
				held(g1, grant.Bearer, grant.Limit, 50, 12*grant.GiB, 1)}
		},
			asked(16*grant.GiB, func(a *Ask) { a.Names, a.Compute = []string{"1"}, 100 }), "1:16GiB"},
		{"a grant grown beside another", func(n *node) {
			n.updated, n.view.Grants = g1, []grant.Grant{
				held(g1, grant.Bearer, grant.Limit, 0, 8*grant.GiB, 1),
				held(g2, grant.Bearer, grant.Limit, 0, 4*grant.GiB, 1)}
		}, asked(13*grant.GiB, named("1")), "no-capacity: cannot grant 13GiB on a GPU in mode limit: GPU 1 " +
			"has 12GiB of 16GiB free"},
		{"a grant grown to what its own containers use beyond it", func(n *node) {
			n.updated, n.view.Grants = g1, []grant.Grant{
				held(g1, grant.Bearer, grant.Limit, 0, 4*grant.GiB, 1)}
			n.view.Outside = map[string]grant.Bytes{"GPU-1": 7 * grant.GiB}
			n.view.Excess = []grant.Excess{{Grant: g1, GPU: "GPU-1", Bytes: 6 * grant.GiB}}
		}, asked(15*grant.GiB, named("1")), "1:15GiB"},
		{"a grant grown beside another's use beyond it", func(n *node) {
			n.updated, n.view.Grants = g1, []grant.Grant{
				held(g1, grant.Bearer, grant.Limit, 0, 4*grant.GiB, 1),
				held(g2, grant.Bearer, grant.Limit, 0, grant.GiB, 1)}
			n.view.Outside = map[string]grant.Bytes{"GPU-1": 7 * grant.GiB}
			n.view.Excess = []grant.Excess{{Grant: g2, GPU: "GPU-1", Bytes: 6 * grant.GiB},
				{Grant: g1, GPU: "GPU-0", Bytes: grant.GiB}}
		}, asked(9*grant.GiB, named("1")), "no-capacity: cannot grant 9GiB on a GPU in mode limit: GPU 1 " +
			"has 8GiB of 9GiB free"},
		{"an expired grant holds nothing", func(n *node) {
			g := held(g1, grant.Bearer, grant.Exclusive, 0, 16*grant.GiB, 0)
			g.Expires = now
			n.view.Grants = []grant.Grant{g}
		}, asked(16*grant.GiB, named("0")), "0:16GiB"},
		{"an expired grant in use holds all", func(n *node) {
			g := held(g1, grant.Bearer, grant.Limit, 0, 16*grant.GiB, 0)
			g.Expires, g.Bindings = now, []grant.Binding{{}}
			n.view.Grants = []grant.Grant{g}
		}, asked(grant.GiB, named("0")), "no-capacity: cannot grant 1GiB on a GPU in mode limit: GPU 0 has " +
			"0MiB of 16GiB free"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &node{inv: inventory(4), view: grant.View{Now: now}}
			if c.node != nil {
				c.node(n)
			}
			if got := placed(Place(c.ask, n.updated, n.view, n.inv, n.policy)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// No GPU is granted twice, in whatever order grants are made, changed and released.
// The hint says to release a grant only where that makes room.
func TestHintOfNoRoom(t *testing.T) {
	full := held("g-aaaaaaaaaaaa", grant.Bearer, grant.Limit, 0, 15*grant.GiB, 0)
	closed := inventory(2)
	closed.GPUs[1].Health = "lost"
	small := []grant.Pool{{GPUs: []string{"0"}}}
	named := asked(grant.GiB, func(a *Ask) { a.Names = []string{"1"} })
	const held = hintHeld + "release a grant, ask for less, or wait (`--wait 10m`)"
	for name, c := range map[string]struct {
		ask    Ask
		pools  []grant.Pool
		update grant.ID
		want   string
	}{
		"held by a grant": {asked(2*grant.GiB, nil), nil, "", held},
		"held, and an update": {asked(2*grant.GiB, nil), nil, "g-bbbbbbbbbbbb",
			hintHeld + "release a grant or ask for less"},
		"more than a GPU has": {asked(17*grant.GiB, nil), nil, "", hintNever},
		"more GPUs than fit":  {asked(3*grant.GiB, func(a *Ask) { a.GPUs = 3 }), nil, "", hintNever},
		"an unhealthy GPU":    {named, nil, "", hintNever},
		"a GPU in no pool":    {named, small, "", hintNever},
		"no MIG devices": {Ask{Mode: grant.MIG, Profile: "1g.5gb", Owner: grant.Bearer}, nil, "",
			hintNever},
		"more than a GPU has, in another mode": {
			asked(17*grant.GiB, func(a *Ask) { a.Mode = grant.MPS }), nil, "", hintNever},
	} {
		_, err := Place(c.ask, c.update, grant.View{Grants: []grant.Grant{full}}, closed,
			grant.Policy{Pools: c.pools})
		var refusal *grant.Refusal
		if !errors.As(err, &refusal) || refusal.Code != grant.NoCapacity || refusal.Hint != c.want {
			t.Errorf("%s: got %#v, want the hint %s", name, err, c.want)
		}
	}
}

func TestPlacementNeverExceedsCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := inventory(rapid.IntRange(1, 4).Draw(t, "GPUs"))
		reserve := rapid.SampledFrom([]grant.Bytes{0, grant.GiB}).Draw(t, "reserve")
		p := grant.Policy{Rules: grant.Rules{Reserve: grant.Size(reserve)}}
		v := grant.View{Now: now, Outside: map[string]grant.Bytes{
			"GPU-0": rapid.SampledFrom([]grant.Bytes{0, 2 * grant.GiB}).Draw(t, "outside")}}
		for i := range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(v.Grants) > 0 && rapid.IntRange(0, 4).Draw(t, "release") == 0 {
				at := rapid.IntRange(0, len(v.Grants)-1).Draw(t, "which")
				v.Grants = slices.Delete(slices.Clone(v.Grants), at, at+1)
				continue
			}
			ask := Ask{Mode: rapid.SampledFrom([]grant.Mode{
				grant.Limit, grant.Limit, grant.MPS, grant.Timeslice, grant.Exclusive}).Draw(t, "mode"),
				GPUs: rapid.IntRange(1, 4).Draw(t, "M"), Place: rapid.SampledFrom([]grant.Placement{
					"", grant.Binpack, grant.Spread}).Draw(t, "place"), Owner: grant.Bearer}
			if ask.Mode != grant.Exclusive {
				ask.Memory = grant.Bytes(ask.GPUs) * grant.MiB * grant.Bytes(
					rapid.IntRange(1, 16<<10).Draw(t, "MiB"))
				ask.Compute = rapid.SampledFrom([]int{0, 10, 50, 100}).Draw(t, "compute")
			}
			var old *grant.Grant
			if len(v.Grants) > 0 && rapid.IntRange(0, 3).Draw(t, "update") == 0 {
				old = &v.Grants[rapid.IntRange(0, len(v.Grants)-1).Draw(t, "whose")]
				ask.Mode, ask.Names, ask.GPUs = old.Mode, nil, 0
				for _, s := range old.GPUs {
					ask.Names = append(ask.Names, s.UUID)
				}
				if ask.Memory = grant.Bytes(len(ask.Names)) * grant.GiB; old.Mode == grant.Exclusive {
					ask.Memory, ask.Compute = 0, 0
				}
			}
			updated := grant.ID("")
			if old != nil {
				updated = old.ID
			}
			shares, err := Place(ask, updated, v, inv, p)
			if err != nil {
				if shares != nil {
					t.Fatalf("some are given beside an error: %v", err)
				}
				continue
			}
			if len(shares) != ask.count() {
				t.Fatalf("%d GPUs for %d", len(shares), ask.count())
			}
			if old != nil {
				old.GPUs, old.Compute = shares, ask.Compute
			} else {
				v.Grants = append(v.Grants, grant.Grant{ID: grant.ID(fmt.Sprintf("g-%d", i)),
					Owner: grant.Bearer, Mode: ask.Mode, GPUs: shares, Compute: ask.Compute})
			}
			sound(t, v, inv, reserve)
		}
	})
}

func sound(t *rapid.T, v grant.View, inv grant.Inventory, reserve grant.Bytes) {
	for _, gpu := range inv.GPUs {
		var memory grant.Bytes
		compute, modes, holders := 0, map[grant.Mode]bool{}, 0
		for _, g := range v.Grants {
			times := 0
			for _, s := range g.GPUs {
				if s.UUID == gpu.UUID {
					times++
					memory += s.Memory
					compute += g.Compute
					modes[g.Mode] = true
					holders++
				}
			}
			if times > 1 {
				t.Fatalf("%s has %s twice", g.ID, gpu.UUID)
			}
		}
		if most := gpu.Memory - reserve - v.Outside[gpu.UUID]; memory > most {
			t.Fatalf("%s: %s of %s", gpu.UUID, memory, most)
		}
		if compute > 100 || len(modes) > 1 || modes[grant.Exclusive] && holders > 1 {
			t.Fatalf("%s: compute %d, modes %v, %d holders", gpu.UUID, compute, modes, holders)
		}
	}
}

func TestFreeIsWhatPlaceCanGrant(t *testing.T) {
	v := grant.View{Now: now, Grants: []grant.Grant{
		held("g-aaaaaaaaaaaa", grant.Bearer, grant.Limit, 0, 3*grant.GiB, 0)}}
	free, err := Free(v, inventory(2), grant.Policy{Rules: grant.Rules{Reserve: grant.Size(grant.GiB)}})
	if err != nil || free["GPU-0"] != 12*grant.GiB || free["GPU-1"] != 15*grant.GiB || len(free) != 2 {
		t.Errorf("got %v, %v", free, err)
	}
}

// lostMIGDevice is a grant of a MIG device of GPU 0 that is in no inventory, with these containers.
func lostMIGDevice(id grant.ID, containers ...string) grant.Grant {
	g := held(id, grant.Bearer, grant.MIG, 0, grant.GiB, 0)
	g.GPUs[0].UUID = "MIG-gone"
	for _, c := range containers {
		g.Bindings = append(g.Bindings, grant.Binding{Grant: g.ID, Container: c})
	}
	return g
}
