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

// TestModesSideBySide: one node, one moment, every mode on a GPU of its own, under containers that run; every combination that may
// not be is refused with its code and with who holds the GPU in which mode; and in the end all GPUs are free.
func TestModesSideBySide(t *testing.T) {
	n := newMPSNode(t, rig.Setup{GPUs: len(neighbours), Memory: "80GiB", Config: shows("127.0.0.1:0")})
	n.partition(4, "1g.10gb", "1g.10gb")
	d := n.Daemon("--nri", "off")
	granted := map[grant.ID]neighbour{}
	var running []*rig.Bundle
	for _, b := range neighbours {
		for i := range b.containers {
			where := []string{"--gpu", b.gpu}
			if i > 0 || b.mode == grant.MIG {
				where = nil // placement finds the GPU that is in the mode already
			}
			g := n.Grant(b.args(where...)...)
			granted[g.ID] = b
			if b.mode == grant.MPS {
				n.ready(1)
			}
			running = append(running, starts(t, n.Bundle(fmt.Sprintf("%s%d", b.mode, i), with(g), rig.Light)))
		}
	}
	for _, g := range n.Grants() {
		b := granted[g.ID]
		if g.Mode != b.mode || fmt.Sprint(g.GPUs[0].Index) != b.gpu || len(g.GPUs) != 1 || g.State != grant.Bound || b.strength != "" && g.Strength != b.strength {
			t.Errorf("%+v is none of %+v", g, b)
		}
	}
	n.wantWords(siteOf(t, d))
	for _, held := range neighbours {
		for _, other := range neighbours {
			n.wantApart(held, other)
		}
	}
	for _, b := range running {
		b.End()
	}
	for id := range granted {
		n.Must("release", string(id))
	}
	n.gone()
	for _, b := range neighbours {
		if b.mode == grant.MIG {
			n.Grant("--mode", "mig", "--gpu", "4:0", "--gpu", "4:1")
			continue
		}
		n.Grant("--mode", "exclusive", "--gpu", b.gpu)
	}
	n.CheckSound("after all modes")
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

// wantWords: the strength of a grant in mode mps is the same word wherever it is told.
func (n mpsNode) wantWords(s site) {
	n.t.Helper()
	said := map[string]string{"grants": n.Must("grants"), "inspect": n.Must("inspect", "--details"), "doctor": n.CLI("doctor").Stdout, "page": s.get("/"),
		"grants --json": n.Must("grants", "--json"), "inspect --json": n.Must("inspect", "--json"),
		"explain":        n.Bundle("told", with(n.Grant("--mode", "mps", "--memory", "1GiB", "--compute", "10"))).Explain().Stdout,
		"explain --json": n.Bundle("told", with(n.Grant("--mode", "mps", "--memory", "1GiB", "--compute", "10"))).Explain("--json").Stdout, "metrics": s.get("/metrics")}
	for where, text := range said {
		word := map[bool]string{true: `"strength": "server"`, false: "server"}[strings.HasSuffix(where, "--json")]
		if where == "metrics" {
			word = `mode="mps",owner="bearer",state="bound",strength="server"} 6`
		}
		if !strings.Contains(text, word) {
			n.t.Errorf("%s does not say %s:\n%s", where, word, text)
		}
	}
	for _, g := range n.Grants() {
		if g.State == grant.Free {
			n.Must("release", string(g.ID))
		}
	}
}

// wantApart asks for a GPU that is held in one mode in another, and whole.
func (n mpsNode) wantApart(held, other neighbour) {
	n.t.Helper()
	if held.mode == other.mode && held.mode != grant.Exclusive {
		return
	}
	r := n.CLI(append([]string{"grant"}, other.args("--gpu", held.gpu)...)...)
	why := fmt.Sprintf("GPU %s is in mode %s, held by g-", held.gpu, held.mode)
	switch grant.MIG {
	case held.mode:
		why = "GPU 4 is partitioned (mode mig)"
	case other.mode:
		why = "GPU " + held.gpu + " is not partitioned; mode mig grants MIG devices"
	}
	if r.Code != 5 || !strings.Contains(r.Stderr, why) {
		n.t.Errorf("%s on the GPU in mode %s: %+v", other.mode, held.mode, r)
	}
}

// TestEveryStrengthIsExplained holds docs/strength.md to the five words, strongest first, and to every mode.
func TestEveryStrengthIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/strength.md")
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		words = append(words, row[1])
	}
	want := slices.Clone(grant.Strengths)
	slices.Reverse(want)
	if fmt.Sprint(words) != fmt.Sprint(want) {
		t.Errorf("docs/strength.md has %v, the strengths are %v", words, want)
	}
	for _, mode := range grant.Modes {
		if !regexp.MustCompile("(?m)^### " + string(mode) + "\\b").Match(text) {
			t.Errorf("docs/strength.md does not say what a hostile tenant can do in mode %s", mode)
		}
	}
}
