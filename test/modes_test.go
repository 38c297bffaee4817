package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// neighbour is a mode on the node of TestModesSideBySide.
type neighbour struct {
	mode       grant.Mode
	gpu        string
	containers int
	strength   grant.Strength
	ask        []string
}

var neighbours = []neighbour{
	{grant.Exclusive, "0", 1, grant.StrengthNone, nil},
	{grant.Timeslice, "1", 6, grant.StrengthNone, []string{"--memory", "1GiB"}},
	{grant.Limit, "2", 5, "", []string{"--memory", "1GiB", "--compute", "10"}}, // of as much strength as the node has
	{grant.MPS, "3", 6, grant.StrengthServer, []string{"--memory", "1GiB", "--compute", "10"}},
	{grant.MIG, "4", 2, grant.StrengthHardware, []string{"--profile", "1g.10gb"}},
}

func (b neighbour) args(more ...string) []string {
	return append(append([]string{"--mode", string(b.mode)}, b.ask...), more...)
}

// TestModesSideBySide: one node with every mode on a different GPU at the same time, under running
// containers that have only that GPU's nodes. Every combination that is not allowed is refused with
// its code, and with the holder if a grant is in the way. In the end all GPUs are free.
func TestModesSideBySide(t *testing.T) {
	n := newMPSNode(t, rig.Setup{GPUs: len(neighbours), Memory: "80GiB", Config: shows("127.0.0.1:0")})
	n.partition(4, "1g.10gb", "1g.10gb")
	free := n.Must("gpus", "--json")
	d := n.Daemon("--nri", "off")
	granted := map[grant.ID]neighbour{}
	first := map[grant.Mode]grant.Reference{}
	var running []*rig.Bundle
	for _, b := range neighbours {
		for i := range b.containers {
			where := []string{"--gpu", b.gpu}
			if i > 0 || b.mode == grant.MIG {
				where = nil // placement finds the GPU that is in the mode already
			}
			g := n.Grant(b.args(where...)...)
			granted[g.ID] = b
			if i == 0 {
				first[b.mode] = g
			}
			if b.mode == grant.MPS {
				n.ready(1)
			}
			c := starts(t, n.Bundle(fmt.Sprintf("%s%d", b.mode, i), with(g), rig.Light))
			if nodes := nodesOf(t, c); fmt.Sprint(nodes) != "[nvidia"+b.gpu+"]" {
				t.Errorf("%s has the nodes %v of GPUs", c.ID, nodes)
			}
			running = append(running, c)
		}
	}
	if len(running) != 20 {
		t.Errorf("%d containers", len(running))
	}
	for _, g := range n.Grants() {
		b := granted[g.ID]
		if g.Mode != b.mode || fmt.Sprint(g.GPUs[0].Index) != b.gpu || len(g.GPUs) != 1 ||
			g.State != grant.Bound || b.strength != "" && g.Strength != b.strength {
			t.Errorf("%+v is none of %+v", g, b)
		}
	}
	n.wantWords(siteOf(t, d))
	for _, held := range neighbours {
		for _, other := range neighbours {
			n.wantApart(held, other)
		}
	}
	n.wantIllegal()
	n.wantOutside(first)
	for _, b := range running {
		if !rig.Lives(b.Init()) {
			t.Errorf("%s is disturbed", b.ID)
		}
		b.End()
	}
	for id := range granted {
		n.Must("release", string(id))
	}
	n.gone()
	if now := n.Must("gpus", "--json"); now != free {
		t.Errorf("after all is released the GPUs are\n%s\nand were\n%s", now, free)
	}
	for _, b := range neighbours {
		if b.mode == grant.MIG {
			n.Grant("--mode", "mig", "--gpu", "4:0", "--gpu", "4:1")
			continue
		}
		n.Grant("--mode", "exclusive", "--gpu", b.gpu)
	}
	n.CheckSound("after all modes")
}

// nodesOf are the GPUs' nodes in a running container's /dev.
func nodesOf(t *testing.T, b *rig.Bundle) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/dev", b.Init()))
	must(t, err)
	for _, e := range entries {
		if regexp.MustCompile(`^nvidia[0-9]+$`).MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// partition makes MIG devices of a GPU.
func (n mpsNode) partition(index int, profiles ...string) {
	n.t.Helper()
	file := filepath.Join(n.Dir, "node.json")
	var description map[string]any
	must(n.t, json.Unmarshal([]byte(read(n.t, file)), &description))
	description["gpus"].([]any)[index].(map[string]any)["mig"] = profiles
	data, err := json.Marshal(description)
	must(n.t, err)
	n.Write("node.json", string(data))
	n.Must("inventory", "refresh")
}

// wantWords: the strength of a grant in mode mps is the same word wherever it is shown.
func (n mpsNode) wantWords(s site) {
	n.t.Helper()
	said := map[string]string{"grants": n.Must("grants"), "inspect": n.Must("inspect", "--details"),
		"doctor": n.CLI("doctor").Stdout, "page": s.get("/"),
		"grants --json": n.Must("grants", "--json"), "inspect --json": n.Must("inspect", "--json"),
		"explain": n.Bundle("explained", with(n.Grant("--mode", "mps", "--memory", "1GiB", "--compute",
			"10"))).Explain().Stdout,
		"explain --json": n.Bundle("explained", with(n.Grant("--mode", "mps", "--memory", "1GiB", "--compute",
			"10"))).Explain("--json").Stdout, "metrics": s.get("/metrics")}
	for where, text := range said {
		word := map[bool]string{true: `"strength": "server"`,
			false: "server"}[strings.HasSuffix(where, "--json")]
		if where == "metrics" {
			word = `mode="mps",owner="bearer",state="bound",strength="server"} 6`
		}
		if !strings.Contains(text, word) {
			n.t.Errorf("%s does not show %s:\n%s", where, word, text)
		}
	}
	for _, g := range n.Grants() {
		if g.State == grant.Free {
			n.Must("release", string(g.ID))
		}
	}
}

// wantApart requests a GPU that is held in one mode in another, and whole.
func (n mpsNode) wantApart(held, other neighbour) {
	n.t.Helper()
	if held.mode == other.mode && held.mode != grant.Exclusive {
		return
	}
	why := fmt.Sprintf("GPU %s is in mode %s, held by g-", held.gpu, held.mode)
	if other.mode == grant.MIG {
		why = "GPU " + held.gpu + " is not partitioned; mode mig grants MIG devices"
	}
	n.refuses(grant.ModeConflict, why, other.args("--gpu", held.gpu)...)
}

// refuses wants a grant that is impossible now, with its code and reason; "" is one that is never
// possible.
func (n mpsNode) refuses(code grant.Code, why string, ask ...string) {
	n.t.Helper()
	status, begins := 5, "gpuledger: refused ("+string(code)+"): cannot grant "
	if code == "" {
		status, begins = 2, "gpuledger: cannot grant: "
	}
	if r := n.CLI(append([]string{"grant"}, ask...)...); r.Code != status ||
		!strings.HasPrefix(r.Stderr, begins) || !strings.Contains(r.Stderr, why) {
		n.t.Errorf("grant %v: %+v\nwant status %d, %s and %s", ask, r, status, begins, why)
	}
}

// wantIllegal requests what no node has: GPUs of two modes, more than is left beside the others,
// and what a mode does not support.
func (n mpsNode) wantIllegal() {
	n.t.Helper()
	n.refuses(grant.ModeConflict, "GPU 2 is in mode limit, held by g-", "--mode", "timeslice", "--memory",
		"2GiB", "--gpu", "1", "--gpu", "2")
	n.refuses(grant.ModeConflict, "GPU 1 is in mode timeslice, held by g-", "--mode", "limit", "--memory",
		"2GiB", "--gpus", "2")
	n.refuses(grant.ModeConflict, "GPU 0 is in mode exclusive, held by g-", "--mode", "mps", "--memory",
		"2GiB", "--gpu", "0", "--gpu", "3")
	n.refuses(grant.ModeConflict, "GPU 0 is in mode exclusive, held by g-", "--mode", "exclusive")
	n.refuses(grant.NoCapacity, "GPU 1 has 74GiB of 80GiB free", "--mode", "timeslice", "--memory",
		"75GiB", "--gpu", "1")
	n.refuses(grant.NoCapacity, "GPU 2 has 50% of its compute free", "--mode", "limit", "--memory", "1GiB",
		"--compute", "51", "--gpu", "2")
	n.refuses(grant.NoCapacity, "GPU 3 has 40% of its compute free", "--mode", "mps", "--memory", "1GiB",
		"--compute", "41", "--gpu", "3")
	n.refuses(grant.NoCapacity, "GPU 4:0 is held by g-", "--mode", "mig", "--profile", "1g.10gb")
	n.refuses(grant.NoCapacity, "GPU 4:1 is held by g-", "--mode", "mig", "--gpu", "4:1")
	n.refuses(grant.ModeConflict, "", "--mode", "mps", "--memory", "1GiB", "--gpu", "4:0")
	for why, ask := range map[string][]string{
		"leave the memory out":            {"--mode", "exclusive", "--memory", "1GiB"},
		"leave the compute out":           {"--mode", "exclusive", "--compute", "10"},
		"mode mps needs an amount":        {"--mode", "mps"},
		"a profile is a MIG device's":     {"--mode", "mps", "--memory", "1GiB", "--profile", "1g.10gb"},
		"a MIG device has compute of its": {"--mode", "mig", "--profile", "1g.10gb", "--compute", "10"},
		"mode mig needs a profile":        {"--mode", "mig"},
		"does not divide evenly in MiB":   {"--mode", "mps", "--memory", "1025MiB", "--gpus", "2"},
	} {
		n.refuses("", why, ask...)
	}
}

// wantOutside starts containers that reach from the mode of their grant into another's.
func (n mpsNode) wantOutside(first map[grant.Mode]grant.Reference) {
	n.t.Helper()
	shared := n.Grant("--mode", "timeslice", "--memory", "1GiB") // one that no container has yet
	defer n.Must("release", string(shared.ID))
	uuids := map[grant.Mode]string{}
	for _, g := range n.Grants() {
		uuids[g.Mode] = g.GPUs[0].UUID
	}
	pipe := filepath.Join(grant.MPSDir(n.Dir+"/run", grant.MPSName([]string{uuids[grant.MPS]})), "pipe")
	both := func(s *specs.Spec) { rig.Env(grant.ReferenceEnv + "=" + first[grant.MPS].String())(s) }
	for name, c := range map[string]struct {
		code  string
		edits []rig.Edit
	}{
		"the exclusive GPU by UUID": {"visible-devices-outside-grant",
			[]rig.Edit{with(shared), rig.Env("NVIDIA_VISIBLE_DEVICES=" + uuids[grant.Exclusive])}},
		"a MIG device by UUID": {"visible-devices-outside-grant",
			[]rig.Edit{with(shared), rig.Env("NVIDIA_VISIBLE_DEVICES=" + uuids[grant.MIG])}},
		"the mps GPU's node": {"gpu-device-node", []rig.Edit{
			with(shared), device("/dev/nvidia3", 195, 3)}},
		"the MPS daemon's socket": {"gpu-socket", []rig.Edit{with(shared), func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: grant.PipeInContainer, Type: "bind",
				Source: pipe, Options: []string{"bind"}})
		}}},
		"two grants of two modes": {"annotation-mismatch", []rig.Edit{with(shared), both}},
		"another mode than the grant's": {"annotation-mismatch",
			[]rig.Edit{with(shared), rig.Annotation("gpuledger.dev/mode", "mps"),
				rig.Annotation("gpuledger.dev/memory", "1GiB")}},
		"the exclusive grant once more": {"grant-in-use", []rig.Edit{with(first[grant.Exclusive])}},
		"a MIG device's once more":      {"grant-in-use", []rig.Edit{with(first[grant.MIG])}},
		"an MPS client's once more":     {"grant-in-use", []rig.Edit{with(first[grant.MPS])}},
	} {
		n.t.Run(name, func(t *testing.T) {
			wantRefused(t, n.Bundle("out"+fmt.Sprint(len(name)), append(c.edits, rig.Light)...).Create(),
				c.code)
		})
	}
}

// TestTheFiveWords: every listing shows each strength by its word, as the ledger has it, and the
// doctor uses no other.
func TestTheFiveWords(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: shows("127.0.0.1:0")})
	s := siteOf(t, n.Daemon("--nri", "off"))
	for i, word := range grant.Strengths {
		g := n.Grant("--mode", "timeslice", "--memory", fmt.Sprintf("%dGiB", i+1), "--label",
			"word-"+string(word))
		file := filepath.Join(n.Dir, "state/grants", string(g.ID)+".json")
		text := read(t, file)
		was := `"strength": "none"`
		if !strings.Contains(text, was) {
			t.Fatalf("%s has no %s:\n%s", file, was, text)
		}
		text = regexp.MustCompile(`"sum": "\w+",`).ReplaceAllString(text, "") // it is changed by hand
		must(t, os.WriteFile(file+".new", []byte(strings.Replace(text, was,
			fmt.Sprintf(`"strength": %q`, word), 1)), 0o600))
		must(t, os.Rename(file+".new", file))
		b := n.Bundle(string(word), with(g), rig.Light)
		// a label may be on a separate line
		row := regexp.MustCompile(`(?s)` + string(g.ID) + `.*?\bword-` + string(word) + `\b`)
		for where, said := range map[string]string{"grants": row.FindString(n.Must("grants")),
			"inspect --details": row.FindString(n.Must("inspect", "--details"))} {
			if !slices.Contains(strings.Fields(said), string(word)) {
				t.Errorf("%s does not show %s for its grant: %q", where, word, said)
			}
		}
		if said := b.Explain().Stdout; !strings.Contains(said, "strength "+string(word)+"\n") {
			t.Errorf("explain does not show %s: %s", word, said)
		}
		var explained struct{ Strength grant.Strength }
		must(t, json.Unmarshal([]byte(b.Explain("--json").Stdout), &explained))
		if explained.Strength != word {
			t.Errorf("explain --json has %s for a grant with %s", explained.Strength, word)
		}
		i := slices.IndexFunc(n.Grants(), func(l rig.Listed) bool { return l.ID == g.ID })
		if l := n.Grants()[i]; l.Strength != word {
			t.Errorf("grants --json has %s for a grant with %s", l.Strength, word)
		}
		if !strings.Contains(n.Must("inspect", "--details", "--json"), fmt.Sprintf(`"strength": %q`, word)) {
			t.Errorf("inspect --json does not have %s", word)
		}
		rig.Eventually(t, "the metrics have "+string(word), func() bool {
			return strings.Contains(s.get("/metrics"),
				fmt.Sprintf(`gpuledger_grants{mode="timeslice",owner="bearer",state="free",strength=%q} 1`,
					word))
		})
		rig.Eventually(t, "the page shows "+string(word), func() bool {
			row := regexp.MustCompile(`>timeslice</td><td title="[^"]+">` + string(word) + `</td>`)
			return row.MatchString(s.get("/"))
		})
		starts(t, b)
		if log := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(log, fmt.Sprintf(`"strength":%q`, word)) {
			t.Errorf("the audit log does not have %s: %s", word, log)
		}
	}
	for _, said := range regexp.MustCompile(`strength "?([a-z]+)`).FindAllStringSubmatch(
		n.CLI("doctor").Stdout, -1) {
		if !slices.Contains(grant.Strengths, grant.Strength(said[1])) {
			t.Errorf("the doctor prints strength %q", said[1])
		}
	}
}

// TestEveryStrengthIsExplained compares docs/strength.md with the five words, strongest first, and
// with every mode.
func TestEveryStrengthIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/strength.md")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(string(text),
		-1) {
		words = append(words, row[1])
	}
	want := slices.Clone(grant.Strengths)
	slices.Reverse(want)
	if fmt.Sprint(words) != fmt.Sprint(want) {
		t.Errorf("docs/strength.md has %v, the strengths are %v", words, want)
	}
	for _, mode := range grant.Modes {
		if !regexp.MustCompile("(?m)^### " + string(mode) + "\\b").Match(text) {
			t.Errorf("docs/strength.md does not list what a hostile tenant can do in mode %s", mode)
		}
	}
}
