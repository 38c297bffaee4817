package test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// sixRules are what everything else follows, each with the tests that hold it.
var sixRules = []struct {
	rule  string
	tests []string
}{
	{"The ledger is the authority: annotations, environment and CDI names are requests, and only a grant makes them true",
		[]string{"TestCorpus", "TestAnAdmittedSpecReachesNothingUngranted", "TestContainerReachesExactlyItsGrant", "TestIdentity", "TestPodGrantByReference", "TestEveryFormOfACreateIsJudged"}},
	{"Fail closed for GPUs, never harm the rest",
		[]string{"TestHarmNobody", "TestWhatReachesNothingPassesUntouched", "TestLockHeldForEver", "TestUnreadableLedgerAndIdentity", "TestBrokenSpec", "TestReboot", "TestNoAuditHarmsNobody"}},
	{"Decide with values: one pure function decides, entry points only translate",
		[]string{"TestArrowsPointDown", "TestDecide", "TestCorpus", "TestAuditSaysWhatExplainSays"}},
	{"No leak can exist: whether a binding is alive is told by the kernel",
		[]string{"TestABindingLivesExactlyAsLongAsItsContainer", "TestLifeOfRealContainers", "TestGrantIsFreeAgainWhenItsContainerIsGone", "TestDelete", "TestRefusalLeavesTheGrantFree",
			"TestKilledAtEachFailpoint", "TestKilledAtAnyTime", "FuzzBinding"}},
	{"Say the strength, and never call a weaker one isolation", []string{"TestEachGrantSaysItsStrength", "TestDecide"}},
	{"An administrator can adopt it in steps and leave in one", []string{"TestInStepsAndOutInOne", "TestReportMode", "TestUpdateInReportMode", "TestHide", "TestStrip", "TestExempt"}},
}

// TestEveryRuleHasItsTests: the table above names tests that are there.
func TestEveryRuleHasItsTests(t *testing.T) {
	there := map[string]bool{}
	must(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				there[f.Name.Name] = true
			}
		}
		return nil
	}))
	for _, r := range sixRules {
		for _, name := range r.tests {
			if !there[name] {
				t.Errorf("there is no %s, which is to hold the rule %q", name, r.rule)
			}
		}
	}
}

// TestEachGrantSaysItsStrength: where a grant is listed, where it is explained and where it is used, the strength is told;
// a privileged container's is none, and a node that wants more refuses it.
func TestEachGrantSaysItsStrength(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB")
	var listed struct{ Grants []struct{ Strength string } }
	must(t, json.Unmarshal([]byte(n.Must("grants", "--json")), &listed))
	if len(listed.Grants) != 1 || listed.Grants[0].Strength == "" {
		t.Errorf("the list: %+v", listed)
	}
	b := n.Bundle("c", rig.Privileged, with(reference))
	var said struct{ Verdict, Strength string }
	must(t, json.Unmarshal([]byte(b.Explain("--json").Stdout), &said))
	if said.Verdict != "admit" || said.Strength != "none" {
		t.Errorf("a privileged container with a grant: %+v, want it admitted with strength none", said)
	}
	if r := b.Create(); r.Code != 0 || !strings.Contains(read(t, n.Dir+"/audit.jsonl"), `"strength":"none"`) {
		t.Errorf("%+v: the audit log says %s", r, read(t, n.Dir+"/audit.jsonl"))
	}
	b.End()
	n.Write("config.toml", read(t, n.Config)+"[policy]\nminimum_strength = \"server\"\n")
	wantRefused(t, b.Create(), "limit-unenforceable")
}

// TestInStepsAndOutInOne: report, enforce, break-glass and back, with one and the same container. Where it starts it is
// as its engine wrote it, to the byte.
func TestInStepsAndOutInOne(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	enforcing := read(t, n.Config)
	b := n.Bundle("c", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("echo $NVIDIA_VISIBLE_DEVICES"))
	before := b.Config()
	starts := func(step string) {
		t.Helper()
		if r := b.Run(); r.Code != 0 || r.Stdout != "all\n" || !bytes.Equal(b.Config(), before) {
			t.Errorf("%s: %+v", step, r)
		}
		b.Delete()
	}
	n.Write("config.toml", enforcing+"[policy]\nmode = \"report\"\n")
	starts("report")
	n.Write("config.toml", enforcing)
	wantRefused(t, b.Run(), "visible-devices-all")
	n.Must("disable")
	starts("disabled")
	n.Must("enable")
	wantRefused(t, b.Run(), "visible-devices-all")
	if !bytes.Equal(b.Config(), before) {
		t.Error("config.json was changed")
	}
}
