package test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// sixRules are the rules from which all else follows, each with the tests that enforce it.
var sixRules = []struct {
	rule  string
	tests []string
}{
	{"The ledger is the authority: annotations, environment and CDI names are requests, and only a grant " +
		"makes them true",
		[]string{"TestCorpus", "TestAnAdmittedSpecReachesNothingUngranted",
			"TestContainerReachesExactlyItsGrant", "TestIdentity", "TestPodGrantByReference",
			"TestEveryFormOfACreateIsJudged"}},
	{"Fail closed for GPUs, never harm the rest",
		[]string{"TestHarmNoContainerWithoutAGPU", "TestSpecsThatReachNoGPUPassUntouched",
			"TestLockHeldForEver", "TestUnreadableLedgerAndIdentity",
			"TestBrokenSpec", "TestReboot",
			"TestContainersStartWithoutAnAuditLog"}},
	{"Decide with values: one pure function decides, entry points only translate",
		[]string{"TestImportsPointDown", "TestDecide", "TestCorpus", "TestAuditAndExplainAgree"}},
	{"No leak can exist: the kernel shows whether a binding is alive",
		[]string{"TestABindingLivesAsLongAsItsContainer", "TestLifeOfRealContainers",
			"TestAGrantIsFreeAfterItsContainer", "TestDelete", "TestRefusalLeavesTheGrantFree",
			"TestKilledAtEachFailpoint", "TestKilledAtAnyTime", "FuzzBinding"}},
	{"State the strength, and never call a weaker one isolation",
		[]string{"TestEachGrantHasAStrength", "TestDecide"}},
	{"An administrator can adopt it in steps and leave in one",
		[]string{"TestAdoptInStepsAndLeaveInOne", "TestReportMode", "TestUpdateInReportMode", "TestHide",
			"TestStrip", "TestExempt"}},
}

// TestEveryRuleHasItsTests: the tests that the table names exist.
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

// TestEachGrantHasAStrength: it is shown where a grant is listed, explained and used. A privileged
// container's is none, and a node that requires more refuses it.
func TestEachGrantHasAStrength(t *testing.T) {
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
		t.Errorf("%+v: the audit log has %s", r, read(t, n.Dir+"/audit.jsonl"))
	}
	b.End()
	n.Write("config.toml", read(t, n.Config)+"[policy]\nminimum_strength = \"server\"\n")
	wantRefused(t, b.Create(), "limit-unenforceable")
}

// TestAdoptInStepsAndLeaveInOne: report, enforce, disabled and back, with the same container. If it
// starts, it is as its engine wrote it, to the byte.
func TestAdoptInStepsAndLeaveInOne(t *testing.T) {
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

// TestNothingIsRemovedUnlessEnforced: what the policy hides and strips is only recorded in report
// mode and while the node is disabled, at every entry point.
func TestNothingIsRemovedUnlessEnforced(t *testing.T) {
	const takes = "[policy]\nprivileged = \"strip\"\nungranted = \"hide\"\n"
	for mode, begin := range map[string]func() *rig.Node{
		"report": func() *rig.Node {
			return rig.NewNode(t, rig.Setup{Config: takes + "mode = \"report\"\n"})
		},
		"disabled": func() *rig.Node {
			n := rig.NewNode(t, rig.Setup{Config: takes})
			n.Must("disable")
			return n
		},
	} {
		n := begin()
		for _, c := range []struct {
			name    string
			edits   []rig.Edit
			out     string
			removed string
		}{
			{"env", []rig.Edit{rig.Env("NVIDIA_VISIBLE_DEVICES=all"),
				rig.Shell("echo $NVIDIA_VISIBLE_DEVICES")}, "all\n", "env:NVIDIA_VISIBLE_DEVICES"},
			{"privileged", []rig.Edit{allDevices, rig.Shell(privilegedProbe)},
				"/dev/fuse\n/dev/nvidia0\n/dev/nvidia1\n/dev/nvidiactl\n" +
					strings.Repeat("No such device or address\n", 4) + "end\n", "device:/dev/nvidia0"},
		} {
			b := carriesNodes(t, n.Bundle(c.name, c.edits...))
			before := b.Config()
			if r := b.Run(); r.Code != 0 || r.Stdout != c.out || !bytes.Equal(b.Config(), before) ||
				!strings.HasPrefix(r.Stderr, "gpuledger: would start without GPUs; it starts as it "+
					"is because ") {
				t.Errorf("%s, %s: %+v", mode, c.name, r)
			}
			hooked := carriesNodes(t, n.Bundle("hooked-"+c.name, append(c.edits, n.Hooked)...))
			if r := hooked.RealRun(); r.Code != 0 || r.Stdout != c.out {
				t.Errorf("%s, %s with the hook: %+v", mode, c.name, r)
			}
			ask := n.Command(rig.Binary(t, "gpuledger-hook"), "precreate")
			ask.Stdin = bytes.NewReader(before)
			if r := rig.RunHook(ask); r.Code != 0 || r.Stdout != string(before) {
				t.Errorf("%s, %s before the create: %+v", mode, c.name, r)
			}
			for _, line := range lines(t, n)[len(lines(t, n))-2:] {
				if line.Verdict != "pass" || line.Mode != mode || !slices.Contains(line.Removed, c.removed) {
					t.Errorf("%s, %s: recorded is %+v", mode, c.name, line)
				}
			}
			var said audited
			must(t, json.Unmarshal([]byte(b.Explain("--json").Stdout), &said))
			if said.Verdict != "pass" || said.Mode != mode || !slices.Contains(said.Removed, c.removed) {
				t.Errorf("%s, %s: explain prints %+v", mode, c.name, said)
			}
		}
	}
}

// TestAGrantThatCannotBeWritten stops a container only if the policy is enforced.
func TestAGrantThatCannotBeWritten(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	reference := n.Grant("--memory", "1GiB")
	b := n.Bundle("c", with(reference), rig.Shell("echo ran; ls /dev"))
	rig.ReadOnly(t, b.Dir)
	wantRefused(t, b.Run(), "injection-impossible")
	n.Write("config.toml", read(t, n.Config)+"[policy]\nmode = \"report\"\n")
	r := b.Run()
	if r.Code != 0 || !strings.HasPrefix(r.Stdout, "ran\n") || strings.Contains(r.Stdout, "nvidia") ||
		!strings.HasPrefix(r.Stderr, "gpuledger: would be refused (injection-impossible): ") {
		t.Errorf("%+v", r)
	}
	log := lines(t, n)
	if last := log[len(log)-1]; last.Verdict != "refuse" || last.Mode != "report" ||
		last.Code != "injection-impossible" {
		t.Errorf("recorded is %+v", last)
	}
	wantState(t, n, reference.ID, "at the end", grant.Free)
}
