package verdict_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/test/verdict"
)

// block is how many cases share a policy.
const block = 128

// TestVerdicts compares the product with the documents on random cases. VERDICT_CASES is how
// many, from number TEST_SEED on; a case depends on its number alone.
func TestVerdicts(t *testing.T) {
	cases, first := number(t, "VERDICT_CASES", 4000), number(t, "TEST_SEED", 0)
	l := newLedgers(t)
	c := comparison{t: t, kinds: map[string]int{}, unclear: map[string]int{}, known: map[string]int{},
		seen: map[string]int{}}
	start := time.Now()
	for n := first; n < first+cases; n++ {
		c.one(l, n)
	}
	c.report(cases, time.Since(start))
}

func number(t *testing.T, name string, usual uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("cannot read %s: %v", name, err)
	}
	return n
}

// mostShown is how many disagreements are printed, one of each kind.
const mostShown = 120

// comparison counts what was compared.
type comparison struct {
	t                    *testing.T
	guard                *node.Node
	in                   verdict.Input
	ledger               *ledger
	at                   uint64 // the block that these are of
	kinds, unclear       map[string]int
	known, seen          map[string]int
	disagreements, shown int
}

// one compares the case of a number.
func (c *comparison) one(l *ledgers, n uint64) {
	if c.guard == nil || c.at != n/block {
		c.at = n / block
		c.ledger = l.of(c.t, c.at)
		r := rand.New(rand.NewPCG(1, c.at))
		c.in = c.ledger.input(r.IntN(24) == 0)
		c.in.Policy = c.ledger.policy + verdict.GeneratePolicy(r, c.in.Node)
		c.guard = c.ledger.open(c.t, c.in)
	}
	made := verdict.Generate(rand.New(rand.NewPCG(2, n)), c.in)
	in := c.in
	in.Config, in.Engine, in.CgroupsOff = made.Config, made.Engine, made.CgroupsOff
	want := verdict.Judge(in)
	d := c.ledger.explain(c.guard, in)
	got := asVerdict(d)
	if left := leaves(in, d); left != "" {
		c.disagreements++
		c.t.Errorf("case %d (TEST_SEED=%[1]d VERDICT_CASES=1): %s", n, left)
	}
	difference := differ(want, got)
	switch {
	case want.Unclear != "":
		c.unclear[want.Unclear]++
	default:
		c.kinds[string(want.Kind)+" "+string(want.Code)]++
	}
	if difference == "" {
		return
	}
	if why := knownAs(in, want, got); why != "" {
		c.known[why]++
		return
	}
	c.disagree(n, in, difference)
}

// disagree prints a case of each kind of disagreement, as small as it gets.
func (c *comparison) disagree(n uint64, in verdict.Input, difference string) {
	c.disagreements++
	if c.seen[difference]++; c.seen[difference] > 1 || c.shown >= mostShown {
		return
	}
	c.shown++
	same := func(in verdict.Input, guard *node.Node) bool {
		want := verdict.Judge(in)
		return differ(want, c.ledger.judge(guard, in)) == difference
	}
	in.Config = verdict.Shrink(in.Config, func(config []byte) bool {
		smaller := in
		smaller.Config = config
		return same(smaller, c.guard)
	})
	in.Policy = c.ledger.policy + verdict.ShrinkLines(strings.TrimPrefix(in.Policy, c.ledger.policy),
		func(text string) bool {
			smaller := in
			smaller.Policy = c.ledger.policy + text
			guard, err := c.ledger.tryOpen(smaller)
			return err == nil && same(smaller, guard)
		})
	guard := c.ledger.open(c.t, in)
	d := c.ledger.explain(guard, in)
	var grants strings.Builder
	for _, g := range in.Grants {
		owner, name, _ := strings.Cut(strings.TrimPrefix(g.Owner, "pod:"), "/")
		if strings.Contains(string(in.Config), g.ID) || name != "" && strings.Contains(string(in.Config),
			owner) &&
			strings.Contains(string(in.Config), name) {
			fmt.Fprintf(&grants, "  %+v\n", g)
		}
	}
	c.t.Errorf("case %d (TEST_SEED=%[1]d VERDICT_CASES=1): %s\nproduct: %s %v\n"+
		"engine %s, cgroups off %v, rootless %v, inventory %q\nconfig.json: %s\npolicy:\n%s\ngrants:\n%s",
		n, difference, d.Message, d.Details, in.Engine, in.CgroupsOff, in.Node.Rootless, in.Node.Inventory,
		in.Config,
		strings.TrimPrefix(in.Policy, c.ledger.policy), grants.String())
}

// differ says how two verdicts differ; "" if they agree.
func differ(want, got verdict.Verdict) string {
	switch {
	case want.Unclear != "" && want.Kind == verdict.Refuse && got.Kind != verdict.Refuse:
		return fmt.Sprintf("documents: some refusal; product: %s", got.Kind)
	case want.Unclear != "":
	case want.Kind != got.Kind || want.Code != got.Code:
		return fmt.Sprintf("documents: %s %s; product: %s %s", want.Kind, want.Code, got.Kind, got.Code)
	case want.Kind == verdict.Admit && want.Grant != "" && want.Grant != got.Grant:
		return "another grant"
	case want.Kind == verdict.Admit && want.GPUs != nil && !slices.Equal(want.GPUs, got.GPUs):
		return "documents give other GPUs than the product"
	case want.Kind == verdict.Refuse && !want.Partial && !slices.Equal(want.Codes, got.Codes):
		return fmt.Sprintf("documents: details %v; product: %v", want.Codes, got.Codes)
	}
	return ""
}

func (c *comparison) report(cases uint64, took time.Duration) {
	c.t.Logf("%d cases in %s", cases, took.Round(time.Millisecond))
	for _, counts := range []struct {
		of   string
		list map[string]int
	}{{"verdicts", c.kinds}, {"not compared, because the documents leave it open", c.unclear},
		{"known disagreements", c.known}, {"disagreements", c.seen}} {
		var lines strings.Builder
		names := slices.SortedFunc(maps.Keys(counts.list), func(a,
			b string) int {
			return counts.list[b] - counts.list[a]
		})
		for _, name := range names {
			fmt.Fprintf(&lines, "\n%9d  %s", counts.list[name], name)
		}
		c.t.Logf("%s:%s", counts.of, lines.String())
	}
	if c.disagreements > 0 {
		c.t.Errorf("%d disagreements", c.disagreements)
	}
}

// judge is the product's verdict.
func (l *ledger) judge(guard *node.Node, in verdict.Input) verdict.Verdict {
	return asVerdict(l.explain(guard, in))
}

// leaves says what a container that starts reaches beyond its grant; "" if nothing. Nothing is
// taken away in report mode, and from an exempt container.
func leaves(in verdict.Input, d node.Decision) string {
	if d.Kind == grant.Refused || d.Kind == grant.Pass && d.Config == nil ||
		in.CgroupsOff || in.Node.Rootless {
		return ""
	}
	config := in.Config
	if d.Config != nil {
		config = d.Config
	}
	var g *verdict.Grant
	if d.Grant != nil {
		g = &verdict.Grant{Mode: string(d.Grant.Mode)}
		for _, uuid := range d.Grant.UUIDs() {
			g.Shares = append(g.Shares, verdict.Share{UUID: uuid})
		}
	}
	left, err := verdict.Left(in, config, g)
	if err != nil || len(left) > 0 {
		return fmt.Sprintf("%s, and it starts with %v %v\nconfig.json: %s\nedited: %s", d.Kind, left, err,
			in.Config, config)
	}
	return ""
}

// asVerdict is a decision of the product as a verdict.
func asVerdict(d node.Decision) verdict.Verdict {
	v := verdict.Verdict{Kind: verdict.Kind(d.Kind), Code: verdict.Code(d.Code)}
	if d.Kind == grant.Refused {
		for _, detail := range d.Details {
			v.Codes = append(v.Codes, verdict.Code(detail.Code))
		}
		slices.SortFunc(v.Codes, func(a, b verdict.Code) int {
			return slices.Index(verdict.Order, a) - slices.Index(verdict.Order, b)
		})
		v.Codes = slices.Compact(v.Codes)
	}
	if d.Kind == grant.Admit && d.Grant != nil {
		v.Grant = string(d.Grant.ID)
		v.GPUs = d.Grant.UUIDs()
		slices.Sort(v.GPUs)
	}
	return v
}

func (l *ledger) explain(guard *node.Node, in verdict.Input) node.Decision {
	c := grant.Container{Engine: grant.Engine(in.Engine), RuntimeRoot: l.dir + "/runtime", ID: "c1",
		Bundle: l.dir + "/bundle"}
	return guard.Explain(node.Create{Caller: request.Caller{Container: c, CgroupsOff: in.CgroupsOff},
		Config: in.Config})
}
