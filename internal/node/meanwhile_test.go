package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// users are the containers that a grant is bound to.
func (m *model) users(id grant.ID) (names []string) {
	m.t.Helper()
	m.must(m.node.Ledger.View(func(tx *ledger.Tx) error {
		g, err := tx.Get(id)
		for _, b := range g.Bindings {
			names = append(names, b.Container)
		}
		if errors.Is(err, ledger.ErrNotFound) {
			return nil
		}
		return err
	}))
	return names
}

// TestAGrantThatEndsMeanwhileIsNotBound: what was decided without the lock is decided again with
// it. The grant ends, or gets another owner, after the ledger was read.
func TestAGrantThatEndsMeanwhileIsNotBound(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(m *model, g grant.Grant, reference grant.Reference)
		code      grant.Code
		users     []string
	}{
		"nothing happens": {func(*model, grant.Grant, grant.Reference) {}, "", []string{"c"}},
		"its time is over": {func(m *model, g grant.Grant, _ grant.Reference) {
			m.lapse(g.ID)
		}, grant.GrantExpired, nil},
		"it is released": {func(m *model, g grant.Grant, _ grant.Reference) {
			_, err := grants.Release(m.node, g.ID, false)
			m.must(err)
		}, grant.GrantNotFound, nil},
		"it has another reference": {func(m *model, g grant.Grant, _ grant.Reference) {
			_, err := grants.Renew(m.node, g.ID)
			m.must(err)
		}, grant.GrantNotFound, nil},
		"another container has it": {func(m *model, g grant.Grant, reference grant.Reference) {
			if d := m.node.Admit(m.referring("other", reference)); !d.Bound {
				m.t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
			}
		}, grant.GrantInUse, []string{"other"}},
	} {
		for way, decide := range map[string]func(m *model, create node.Create,
			self grant.Process) node.Decision{
			"Admit": func(m *model, create node.Create, _ grant.Process) node.Decision {
				return m.node.Admit(create)
			},
			"Admit, live": func(m *model, create node.Create, self grant.Process) node.Decision {
				create.Live = &node.Live{Creators: []grant.Process{self}}
				return m.node.Admit(create)
			},
			"JudgeCreated": func(m *model, create node.Create, self grant.Process) node.Decision {
				return m.node.JudgeCreated(create, self)
			},
			"JudgeCreated, running": func(m *model, create node.Create, self grant.Process) node.Decision {
				create.Running = true
				return m.node.JudgeCreated(create, self)
			},
			"JudgeCreated, reserving": func(m *model, create node.Create, self grant.Process) node.Decision {
				create.Reserve = true
				return m.node.JudgeCreated(create, self)
			},
		} {
			m := newModel(t)
			self, err := m.node.Host.Self()
			m.must(err)
			g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
			create := m.referring("c", reference)
			if edited := m.node.JudgeBeforeCreate(create); strings.HasPrefix(way, "JudgeCreated") {
				create.Config = edited.Config
			}
			asked := 0
			create.OnReading(m.node, func() {
				if asked++; asked == 1 {
					c.meanwhile(m, g, reference)
				}
			})
			d := decide(m, create, self)
			if users := m.users(g.ID); asked != 1 || d.Code != c.code || d.Bound != (c.code == "") ||
				(d.Kind == grant.Admit) != d.Bound || !slices.Equal(users, c.users) {
				t.Errorf("%s, by %s: %s (%s) %s, bound: %v, read %d times; it is used by %q, want %q (%s)",
					name, way, d.Kind, d.Code, d.Message, d.Bound, asked, users, c.users, c.code)
			}
		}
	}
}

// TestALedgerThatCannotBeWritten: nothing changes, and the caller gets an error. A container gets
// no grant from it.
func TestALedgerThatCannotBeWritten(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	self, err := m.node.Host.Self()
	m.must(err)
	create := m.referring("c", reference)
	edited := create
	edited.Config = m.node.JudgeBeforeCreate(create).Config
	lock := m.dir + "/run/lock"
	m.must(errors.Join(os.Rename(lock, lock+".away"), os.Mkdir(lock, 0o700)))
	memory := grant.GiB
	for name, do := range map[string]func() error{
		"Grant": func() error {
			_, _, err := grants.Enter(m.node, admission.Ask{
				Mode: grant.Timeslice, Owner: grant.Bearer, GPUs: 1, Memory: grant.GiB})
			return err
		},
		"Change": func() error {
			_, err := grants.Update(m.node, g.ID, grants.Change{Memory: &memory})
			return err
		},
		"Renew":   func() error { _, err := grants.Renew(m.node, g.ID); return err },
		"Release": func() error { _, err := grants.Release(m.node, g.ID, true); return err },
		"Tie":     func() error { _, err := grants.Tie(m.node, g.ID, nil); return err },
		"Unbind":  func() error { return m.node.Unbind(create.Container) },
		"Abandon": func() error { return m.node.Abandon("c") },
		"Prepare": func() error { return grants.Prepare(m.node, g.ID) },
		"Check":   func() error { _, err := grants.Check(m.node); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "cannot lock the ledger") {
			t.Errorf("%s: %v", name, err)
		}
	}
	live := create
	live.Live = &node.Live{Creators: []grant.Process{self}}
	for way, d := range map[string]node.Decision{"Admit": m.node.Admit(create),
		"Admit, live": m.node.Admit(live), "JudgeCreated": m.node.JudgeCreated(edited, self)} {
		if d.Kind != grant.Refused || d.Code != grant.LedgerUnreadable || d.Bound ||
			!strings.HasPrefix(d.Message, `cannot bind the grant of container "c": cannot lock`) {
			t.Errorf("%s: %s (%s) %s, bound: %v", way, d.Kind, d.Code, d.Message, d.Bound)
		}
	}
	if d := m.node.Explain(create); d.Kind != grant.Admit {
		t.Errorf("Explain needs no lock: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	m.must(errors.Join(os.Remove(lock), os.Rename(lock+".away", lock)))
	if users := m.users(g.ID); len(users) > 0 {
		t.Errorf("the grant is used by %q", users)
	}
}

// TestAnnouncementsThatCannotBeRead: others may be created in the cgroup, so a container with a GPU
// is refused and its binding is undone. One without a GPU starts.
func TestAnnouncementsThatCannotBeRead(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	creates := m.dir + "/run/creates"
	m.must(errors.Join(os.RemoveAll(creates), os.WriteFile(creates, nil, 0o600)))
	d := m.node.Admit(m.referring("c", reference))
	if d.Kind != grant.Refused || d.Code != grant.LedgerUnreadable || d.Bound ||
		!strings.HasPrefix(d.Message, "cannot see whether others are created in its cgroup: open ") {
		t.Errorf("with a GPU: %s (%s) %s, bound: %v", d.Kind, d.Code, d.Message, d.Bound)
	}
	if users := m.users(g.ID); len(users) > 0 {
		t.Errorf("the grant is used by %q", users)
	}
	without := m.referring("without", reference)
	without.Config = []byte(`{"linux":{"cgroupsPath":"/pods/other",` +
		`"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)
	if d := m.node.Admit(without); d.Kind != grant.Pass {
		t.Errorf("without a GPU: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
}

// TestAGrantThatCannotBeRemovedStays, with its files.
func TestAGrantThatCannotBeRemovedStays(t *testing.T) {
	m := newModel(t)
	g, _ := m.entered(admission.Ask{Owner: grant.Bearer})
	kept := m.node.Policy.LimitsDir(g.ID) + "/" + grant.LimitsFile
	file := m.dir + "/state/grants/" + string(g.ID) + ".json"
	m.must(errors.Join(os.MkdirAll(m.node.Policy.LimitsDir(g.ID), 0o700), os.WriteFile(kept, nil, 0o600)))
	m.must(errors.Join(os.Rename(file, file+".away"), os.MkdirAll(file+"/inside", 0o700)))
	if _, err := grants.Release(m.node, g.ID, true); err == nil ||
		!strings.Contains(err.Error(), "cannot delete grant "+string(g.ID)) {
		t.Errorf("release by force of what cannot be removed: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("its limits: %v", err)
	}
	m.must(errors.Join(os.RemoveAll(file), os.Rename(file+".away", file)))
	if _, err := grants.Release(m.node, g.ID, true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err == nil {
		t.Error("the limits of a grant that is over are kept")
	}
}

// TestABindingThatCannotBeRemovedStays, and the caller gets an error.
func TestABindingThatCannotBeRemovedStays(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := m.referring("c", reference)
	if d := m.node.Admit(create); !d.Bound {
		t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	files, err := filepath.Glob(m.dir + "/run/bindings/*.json")
	if m.must(err); len(files) != 1 {
		t.Fatal(files)
	}
	m.must(errors.Join(os.Remove(files[0]), os.MkdirAll(files[0]+"/inside", 0o700)))
	if err := m.node.Unbind(create.Container); err == nil ||
		!strings.Contains(err.Error(), `cannot unbind container "c"`) {
		t.Errorf("Unbind: %v", err)
	}
	if users := m.users(g.ID); len(users) != 1 {
		t.Errorf("the grant is used by %q", users)
	}
}

// TestAGrantThatCannotBeReplacedStays as it was.
func TestAGrantThatCannotBeReplacedStays(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	if d := m.node.Admit(m.referring("c", reference)); !d.Bound {
		t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	// the path of the new text
	m.must(os.MkdirAll(m.dir+"/state/grants/."+string(g.ID)+".json.tmp/inside", 0o700))
	for name, do := range map[string]func() error{
		"Renew":   func() error { _, err := grants.Renew(m.node, g.ID); return err },
		"Tie":     func() error { _, err := grants.Tie(m.node, g.ID, []grant.Tie{"pod:u"}); return err },
		"Release": func() error { _, err := grants.Release(m.node, g.ID, false); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "cannot write grant "+string(g.ID)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.must(m.node.Ledger.View(func(tx *ledger.Tx) error {
		now, err := tx.Get(g.ID)
		if now.Draining || now.For != nil || now.Secret != g.Secret {
			t.Errorf("it is %+v, and was %+v", now, g)
		}
		return err
	}))
}

// TestVerifyOfAStrippedContainer: what was removed is really absent.
func TestVerifyOfAStrippedContainer(t *testing.T) {
	m := newModel(t)
	m.must(os.Mkdir(m.dir+"/none", 0o755))
	m.node.Policy.Rules.Privileged = grant.Strip
	create := node.Create{Caller: m.caller("c"),
		Config: []byte(`{"process":{"capabilities":{"bounding":["CAP_SYS_ADMIN"],` +
			`"effective":["CAP_SYS_ADMIN"],"permitted":["CAP_SYS_ADMIN"]}},` +
			`"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}],` +
			`"resources":{"devices":[{"allow":true,"access":"rwm"}]}}}`)}
	d := m.node.JudgeBeforeCreate(create)
	if d.Kind != grant.Pass || !d.Touches() {
		t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	live := create
	live.Live = &node.Live{}
	if l := m.node.JudgeBeforeCreate(live); len(l.Close) == 0 || len(l.Others) == 0 ||
		d.Close != nil || d.Others != nil {
		t.Errorf("what is closed, and stands in place of its rules: %d and %d rules; where it is not live: "+
			"%d and %d", len(l.Close), len(l.Others), len(d.Close), len(d.Others))
	}
	major, minor := int64(195), int64(0)
	node0 := []specs.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: major, Minor: minor}}
	for name, c := range map[string]struct {
		nodes []specs.LinuxDevice
		rules []request.CgroupRule
		sound bool
	}{
		"as it was edited": {nil, nil, true},
		"the node is left": {node0, nil, false},
		"the rule is left": {nil, []request.CgroupRule{{Access: "rwm"}, {Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"}}, false},
		"all is open":      {nil, []request.CgroupRule{{Allow: true, Access: "rwm"}}, false},
	} {
		if err := m.node.Verify(create, d, c.nodes, c.rules); (err == nil) != c.sound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestChecksReportIsWhole: the ledger's findings come first, then the problems of the limits.
func TestChecksReportIsWhole(t *testing.T) {
	m := newModel(t)
	m.entered(admission.Ask{Owner: grant.Bearer})
	m.must(os.WriteFile(m.dir+"/state/grants/notes", nil, 0o600))
	gone := m.node.Policy.LimitsDir("g-aaaaaaaaaaaa")
	m.must(errors.Join(os.MkdirAll(gone, 0o700), os.WriteFile(gone+"/"+grant.LimitsFile, nil, 0o600)))
	report, err := grants.Check(m.node)
	m.must(err)
	var got []string
	for _, f := range report.Findings {
		got = append(got, strings.TrimPrefix(f.Subject, m.dir)+": "+f.Problem)
	}
	want := []string{"/state/grants/notes: it is no entry of the ledger", strings.TrimPrefix(gone, m.dir) +
		": the limits of a grant that is over"}
	if !slices.Equal(got, want) || report.Grants != 1 {
		t.Errorf("%d grants, found %q, want %q", report.Grants, got, want)
	}
	m.boot() // an inventory of an earlier boot shows nothing of the present GPUs
	if report, err := grants.Check(m.node); err != nil || report.Grants != 1 || len(report.Findings) != 1 {
		t.Errorf("with a stale inventory: %+v (%v)", report, err)
	}
}

// TestCheckComparesGrantsWithTheInventory less what the policy reserves.
func TestCheckComparesGrantsWithTheInventory(t *testing.T) {
	m := newModel(t)
	g, _ := m.entered(admission.Ask{Owner: grant.Bearer})
	for reserve, want := range map[grant.Bytes]string{7 * grant.GiB: "", 7*grant.GiB + 1: g.GPUs[0].UUID +
		": 1GiB are granted of 1073741823B"} {
		m.node.Policy.Rules.Reserve = grant.Size(reserve)
		report, err := grants.Check(m.node)
		got := ""
		for _, f := range report.Findings {
			got += f.Subject + ": " + f.Problem
		}
		if err != nil || got != want {
			t.Errorf("with %s kept back: %q (%v), want %q", reserve, got, err, want)
		}
	}
}

// TestCheckReadsTheInventoryLast: grants of GPUs that came with a refresh, while the check waited
// for the lock, are right.
func TestCheckReadsTheInventoryLast(t *testing.T) {
	m := newModel(t)
	m.entered(admission.Ask{Owner: grant.Bearer})
	inv, problem := m.node.Inventory()
	if problem != nil {
		t.Fatal(problem)
	}
	inv.GPUs = slices.Clone(inv.GPUs)
	for i := range inv.GPUs {
		inv.GPUs[i].Memory = grant.MiB
	}
	m.must(gpu.Write(gpu.Path(m.node.Policy.StateDir), inv))
	at := &atStep{do: m.scan}
	host.Simulated = at
	report, err := grants.Check(m.node)
	host.Simulated = nil
	if err != nil || !at.done || !report.Sound() {
		t.Errorf("%+v (%v)", report, err)
	}
}

// TestLinesOfTheAuditLog: exactly one line for each decision that is recorded.
func TestLinesOfTheAuditLog(t *testing.T) {
	m := newModel(t)
	m.node.Policy.Audit.File = m.dir + "/audit.log"
	self, err := m.node.Host.Self()
	m.must(err)
	_, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	const open, rules = `"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}`,
		`"linux":{"namespaces":[{"type":"mount"},{"type":"pid"}],"resources":{"devices":[{"allow":false,` +
			`"access":"rwm"}]}}`
	none := node.Create{Caller: m.caller("none"), Config: []byte(`{` + rules + `}`)}
	noted := node.Create{Caller: m.caller("noted"), Config: []byte(`{` + open + `}`)}
	all := node.Create{Caller: m.caller("all"),
		Config: []byte(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},` + rules + `}`)}
	its := m.referring("its", reference)
	known := its
	known.Live = &node.Live{Creators: []grant.Process{self}}
	known.Config = m.node.JudgeBeforeCreate(its).Config
	observed := all
	observed.Running = true
	read := func() string {
		text, _ := os.ReadFile(m.node.Policy.Audit.File)
		m.must(os.WriteFile(m.node.Policy.Audit.File, nil, 0o600))
		var lines []string
		for line := range strings.Lines(string(text)) {
			var entry struct{ Container, Verdict, Code, Mode, Strength string }
			m.must(json.Unmarshal([]byte(line), &entry))
			lines = append(lines, strings.Join(strings.Fields(
				strings.Join([]string{entry.Container, entry.Verdict, entry.Code, entry.Mode, entry.Strength},
					" ")), " "))
		}
		return strings.Join(lines, ", ")
	}
	for _, c := range []struct {
		name string
		do   func()
		want string
	}{
		{"a pass", func() { m.node.Admit(none) }, ""},
		{"a pass of what has a way to be root", func() { m.node.Admit(noted) }, "noted pass"},
		{"a refusal", func() { m.node.Admit(all) }, "all refuse visible-devices-all"},
		{"a question", func() { m.node.Explain(all) }, ""},
		{"a step before the create that passes", func() { m.node.JudgeBeforeCreate(none) }, ""},
		{"a step before the create that admits", func() { m.node.JudgeBeforeCreate(its) }, ""},
		{"a step before the create that refuses", func() { m.node.JudgeBeforeCreate(all) },
			"all refuse visible-devices-all"},
		{"an admission", func() { m.node.Admit(its) }, "its admit none"},
		{"the same by its hook", func() { m.node.Admit(known) }, ""},
		{"one that does not start after all", func() {
			m.node.Fails(its, node.Decision{}, &grant.Refusal{Code: grant.LimitUnenforceable, Message: "why"})
		}, "its refuse limit-unenforceable"},
		{"what is found created", func() { m.node.JudgeCreated(all, self) },
			"all refuse visible-devices-all"},
		{"what is found running", func() { m.node.JudgeCreated(observed, self) },
			"all refuse visible-devices-all observed"},
		{"what is found created and needs nothing", func() { m.node.JudgeCreated(none, self) }, ""},
		{"a refusal in report", func() { m.node.Policy.Rules.Mode = grant.Report; m.node.Admit(all) },
			"all refuse visible-devices-all report"},
		{"what fails in report", func() {
			m.node.Fails(its, node.Decision{}, &grant.Refusal{Code: grant.LimitUnenforceable, Message: "why"})
		}, "its refuse limit-unenforceable report"},
		{"what is found in report", func() { m.node.JudgeCreated(observed, self) },
			"all refuse visible-devices-all report"},
		{"what is hidden, in report", func() {
			m.node.Policy.Rules.Ungranted = grant.Hide
			m.node.Admit(all)
		}, "all pass report"},
		{"what is hidden", func() {
			m.node.Policy.Rules.Mode = grant.Enforce
			m.node.Admit(all)
		}, "all pass"},
	} {
		read()
		c.do()
		if got := read(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestASpecThatCannotBeReadIsRefused: it could contain anything. The same holds for one that an
// edit made unreadable.
func TestASpecThatCannotBeReadIsRefused(t *testing.T) {
	m := newModel(t)
	_, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	self, err := m.node.Host.Self()
	m.must(err)
	good := m.referring("c", reference)
	bad, unread, spoilt := good, good, good
	bad.Config = []byte(`{"process":{"env":[7]}}`)
	unread.Unread = errors.New("it is gone")
	spoilt.Edit = func([]byte, grant.Verdict) ([]byte, error) { return []byte("{"), nil }
	for name, c := range map[string]struct {
		create node.Create
		code   grant.Code
		says   string
	}{
		"no spec":             {bad, grant.SpecInvalid, `cannot read config.json of container "c": `},
		"not read":            {unread, grant.SpecInvalid, `cannot read config.json of container "c": it is gone`},
		"spoilt by its edits": {spoilt, grant.Internal, `internal error: cannot read config.json of container "c": `},
	} {
		decisions := map[string]node.Decision{"Admit": m.node.Admit(c.create),
			"JudgeBeforeCreate": m.node.JudgeBeforeCreate(c.create), "Explain": m.node.Explain(c.create)}
		if c.create.Edit == nil {
			decisions["JudgeCreated"] = m.node.JudgeCreated(c.create, self)
		}
		for way, d := range decisions {
			if d.Kind != grant.Refused || d.Code != c.code || !strings.HasPrefix(d.Message, c.says) ||
				d.Bound || d.Config != nil {
				t.Errorf("%s, by %s: %s (%s) %s", name, way, d.Kind, d.Code, d.Message)
			}
		}
	}
	if err := m.node.Verify(good, node.Decision{Config: []byte("{")}, nil, nil); err == nil {
		t.Error("a live container is sound by a spec that cannot be read")
	}
}

// TestTheIDOfAnExistingContainerIsRefused: the binding would live with that container. One whose
// state cannot be read may exist.
func TestTheIDOfAnExistingContainerIsRefused(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	self, err := m.node.Host.Self()
	m.must(err)
	create := m.referring("c", reference)
	m.must(os.Mkdir(m.dir+"/none/c", 0o700))
	for state, refused := range map[string]bool{
		fmt.Sprintf(`{"pid":%d,"process-start-time":%d,"cgroup-path":"/none"}`, self.PID, self.Start): true,
		"{": true,
	} {
		m.must(os.WriteFile(m.dir+"/none/c/status", []byte(state), 0o600))
		d := m.node.Admit(create)
		if (d.Code == grant.GrantInUse && d.Message == `container with given ID already exists: "c"` &&
			!d.Bound) != refused || len(m.users(g.ID)) > 0 {
			t.Errorf("with %q as its state: %s (%s) %s, bound: %v", state, d.Kind, d.Code, d.Message, d.Bound)
		}
	}
	m.must(os.RemoveAll(m.dir + "/none/c"))
	if d := m.node.Admit(create); !d.Bound {
		t.Errorf("when it was deleted: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
}

// TestACgroupThatIsEnteredMeanwhileIsRefused: another create announced that it will use the cgroup,
// and found no binding yet.
func TestACgroupThatIsEnteredMeanwhileIsRefused(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := m.referring("c", reference)
	create.Config = []byte(strings.Replace(string(create.Config), `"linux":{`,
		`"linux":{"cgroupsPath":"/gpuledger-test/a",`, 1))
	creates := m.dir + "/run/creates"
	m.must(os.MkdirAll(creates, 0o700))
	for _, c := range []struct {
		announced string
		bound     bool
	}{{"/gpuledger-test/a", false}, {"/gpuledger-test/a/below", false}, {"/gpuledger-test/b", true}} {
		// of another pid namespace: whether it has ended is unknown
		m.must(os.WriteFile(creates+"/1-2-3", []byte(c.announced), 0o600))
		d := m.node.Admit(create)
		if users := m.users(g.ID); d.Bound != c.bound || (d.Code == grant.InjectionImpossible) == c.bound ||
			(len(users) > 0) != c.bound {
			t.Errorf("another on its way to %s: %s (%s) %s, bound: %v, it is used by %q", c.announced, d.Kind,
				d.Code, d.Message, d.Bound, users)
		}
	}
}

// TestDriveNeedsTheBindingOfItsCreate: a container is not started without the driver's limit if it
// is unknown whether it needs one.
func TestDriveNeedsTheBindingOfItsCreate(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: "claim:cc"})
	bound, unbound := m.referring("bound", reference), m.referring("unbound", reference)
	if d := m.node.Admit(bound); !d.Bound {
		t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	driven := m.caller("driven").Container
	m.must(m.node.Ledger.Update(func(tx *ledger.Tx) error {
		self, err := m.node.Host.Self()
		return errors.Join(err, tx.Bind(grant.Binding{Grant: g.ID, RuntimeRoot: driven.RuntimeRoot,
			Container: driven.ID, Bundle: driven.Bundle, Creator: self, Driven: true}))
	}))
	pass := node.Create{Caller: m.caller("pass"),
		Config: []byte(`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)}
	drive := func(c node.Create, live node.Live) string {
		c.Live = &live
		if refusal := m.node.SetDriverLimit(c, 7); refusal != nil {
			return string(refusal.Code) + ": " + refusal.Message
		}
		return ""
	}
	const not = "limit-unenforceable: the driver's memory limit cannot be set: "
	for name, c := range map[string]struct {
		create node.Create
		live   node.Live
		want   string
	}{
		"one that is held by something else": {bound, node.Live{}, ""},
		"an unknown one":                     {unbound, node.Live{}, not + `the ledger has no create of container "unbound", whose runtime keeps its state in ` + m.dir + "/none"},
		"an unknown one that passes":         {pass, node.Live{}, ""},
		"one with unknown creators":          {unbound, node.Live{Unknown: errors.New("why")}, not + "why"},
		"a bound one with unknown creators":  {bound, node.Live{Unknown: errors.New("why")}, not + "why"},
	} {
		if got := drive(c.create, c.live); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := drive(m.referring("driven", reference), node.Live{}); !strings.HasPrefix(got, not) {
		t.Errorf("one that the driver is to hold, without gpuledgerd: %q", got)
	}
	m.node.Broken = errors.New("it is broken")
	if got := drive(bound, node.Live{}); got != not+"it is broken" {
		t.Errorf("with a broken configuration: %q", got)
	}
}

// TestAnUpdateThatOpensNothingNew: what is open is in the spec with which the container was
// created. If the spec is missing, nothing was opened.
func TestAnUpdateThatOpensNothingNew(t *testing.T) {
	m := newModel(t)
	rule := func(minor int) string {
		return fmt.Sprintf(`{"allow":true,"type":"c","major":195,"minor":%d,"access":"rw"}`, minor)
	}
	bundle := m.dir + "/bundle"
	m.must(errors.Join(os.MkdirAll(m.dir+"/none/c", 0o700), os.Mkdir(bundle, 0o700),
		os.WriteFile(m.dir+"/none/c/status", fmt.Appendf(nil, `{"bundle":%q}`, bundle), 0o600)))
	whole := `{"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}],` +
		`"resources":{"devices":[{"allow":false,"access":"rwm"},` + rule(0) + `]}}}`
	for name, c := range map[string]struct {
		config string
		fails  [2]bool // of GPU 0, of GPU 1
	}{
		"its own":       {whole, [2]bool{false, true}},
		"ours":          {`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"b","access":"rwm"}]}}}`, [2]bool{false, false}},
		"unreadable":    {"{", [2]bool{true, true}},
		"without rules": {`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, [2]bool{true, true}},
		"gone":          {"", [2]bool{true, true}},
	} {
		if m.must(os.WriteFile(bundle+"/config.json", []byte(c.config), 0o600)); c.config == "" {
			m.must(os.Remove(bundle + "/config.json"))
		}
		for minor, fails := range c.fails {
			handed := m.caller("c")
			handed.Descriptors = []host.Descriptor{
				{Number: 3, ResolvedFile: host.ResolvedFile{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(195,
					uint32(minor))}}}
			refusal := m.node.JudgeDescriptors(handed)
			if (refusal != nil) != (name != "its own" || minor != 0) {
				t.Errorf("%s: a process that is handed GPU %d: %v", name, minor, refusal)
			}
			if _, err := m.node.Update(m.caller("c").Container,
				[]byte(`{"devices":[`+rule(minor)+`]}`)); (err != nil) != fails {
				t.Errorf("%s: an update that opens GPU %d: %v", name, minor, err)
			}
		}
	}
}

// TestAGrowingGrantIsPlacedAgain: memory or compute alone, next to the other grants of the GPU.
func TestAGrowingGrantIsPlacedAgain(t *testing.T) {
	m := newModel(t)
	of := func(memory grant.Bytes, compute int) grant.Grant {
		g, _, err := grants.Enter(m.node, admission.Ask{Mode: grant.Timeslice, Owner: grant.Bearer,
			Names: []string{uuid(0)}, Memory: memory, Compute: compute, Source: "test"})
		m.must(err)
		return g
	}
	g := of(2*grant.GiB, 20)
	of(5*grant.GiB, 60)
	for _, c := range []struct {
		memory  grant.Bytes
		compute int
		err     string
	}{
		{2 * grant.GiB, 41, "no-capacity: ..."}, {4 * grant.GiB, 20, "no-capacity: ..."},
		{1 * grant.GiB, 41, "no-capacity: ..."}, {4 * grant.GiB, 10, "no-capacity: ..."},
		{2 * grant.GiB, 40, ""}, {3 * grant.GiB, 40, ""}, {3 * grant.GiB, 41, "no-capacity: ..."},
		{1 * grant.GiB, 10, ""},
	} {
		now, err := grants.Update(m.node, g.ID, grants.Change{Memory: &c.memory, Compute: &c.compute})
		if wants(t, fmt.Sprintf("%s and %d %%", c.memory, c.compute), err, c.err); err == nil &&
			(now.Memory() != c.memory || now.Compute != c.compute) {
			t.Errorf("it has %s and %d %%, want %s and %d %%", now.Memory(), now.Compute, c.memory, c.compute)
		}
	}
}

// TestAGrantGrowsToWhatItUses: what its own containers use beyond it does not count against it;
// what others use does.
func TestAGrantGrowsToWhatItUses(t *testing.T) {
	m := newModel(t)
	enter := func() grant.Grant {
		g, _, err := grants.Enter(m.node, admission.Ask{Mode: grant.Timeslice, Owner: grant.Bearer,
			Names: []string{uuid(0)}, Memory: 2 * grant.GiB, Source: "test"})
		m.must(err)
		return g
	}
	g, other := enter(), enter()
	m.must(m.node.Ledger.SetFound(ledger.Found{
		Outside: map[string]grant.Bytes{uuid(0): 4 * grant.GiB},
		Excess:  []grant.Excess{{Grant: g.ID, GPU: uuid(0), Bytes: 4 * grant.GiB}}}))
	all := 6 * grant.GiB
	for _, c := range []struct {
		id  grant.ID
		err string
	}{{other.ID, "no-capacity: ..."}, {g.ID, ""}} {
		_, err := grants.Update(m.node, c.id, grants.Change{Memory: &all})
		wants(t, string(c.id), err, c.err)
	}
}

// TestADeleteRemovesTheDriversMountPoints and no others, and nothing while the container lives.
func TestADeleteRemovesTheDriversMountPoints(t *testing.T) {
	m := newModel(t)
	g, _ := m.entered(admission.Ask{Owner: "claim:cc"})
	limit := m.node.Policy.RecordMounts(g.ID)[0]
	bundle := m.dir + "/bundle"
	var mounts []specs.Mount
	places := map[string]bool{}
	for _, c := range []struct {
		source, place string
		options       []string
		ours          bool
	}{
		{"/usr/bin/" + grant.MPSControl, "/usr/bin/ours", nil, true},
		{"/usr/bin/" + grant.MPSControl + "2", "/usr/bin/theirs", nil, false},
		{"/etc/hostname", "/etc/hostname", nil, false},
		{"/opt/libcuda.so.1", "/usr/lib/libcuda.so.1", nil, true},
		{"/opt/libcuda.so", "/usr/lib/libcuda.so", nil, false},
		{"/opt/" + grant.ThrottleLibrary, "/usr/lib2/libcuda.so.1", nil, true},
		{"/opt/x.so", "/usr/lib3/libcuda.so.1", nil, false},
		{"/opt/libcuda.so.1", "/data/x", nil, false},
		{limit.HostPath, limit.ContainerPath, limit.Options, true},
		{limit.HostPath, "/data/limits", limit.Options, false},
	} {
		mounts = append(mounts, specs.Mount{Source: c.source, Destination: c.place, Type: "bind",
			Options: c.options})
		places[c.place] = c.ours
	}
	config, err := json.Marshal(specs.Spec{Root: &specs.Root{Path: "rootfs"}, Mounts: mounts})
	m.must(err)
	m.must(errors.Join(os.MkdirAll(bundle+"/rootfs/etc", 0o755),
		os.WriteFile(bundle+"/config.json", config, 0o600)))
	for place := range places {
		m.must(errors.Join(os.MkdirAll(filepath.Dir(bundle+"/rootfs"+place), 0o755),
			os.WriteFile(bundle+"/rootfs"+place, nil, 0o644)))
	}
	self, err := m.node.Host.Self()
	m.must(err)
	b := grant.Binding{Grant: g.ID, RuntimeRoot: m.dir + "/none", Container: "c",
		Bundle: bundle, Creator: self}
	m.must(errors.Join(os.MkdirAll(b.RuntimeRoot, 0o755), os.MkdirAll(m.dir+"/proc/1", 0o755),
		os.WriteFile(m.dir+"/proc/1/cgroup", []byte("0::/init.scope\n"), 0o644)))
	for _, alive := range []bool{true, false} {
		if b.Creator.Start = self.Start; !alive {
			b.Creator.Start++
		}
		m.must(m.node.Ledger.Update(func(tx *ledger.Tx) error { return tx.Bind(b) }))
		m.node.Delete(b.RuntimeRoot, "c")
		for place, ours := range places {
			if _, err := os.Lstat(bundle + "/rootfs" + place); (err == nil) != (alive || !ours) {
				t.Errorf("the container lives: %v; %s: %v", alive, place, err)
			}
		}
		if users := m.users(g.ID); (len(users) > 0) != alive {
			t.Errorf("the container lives: %v; the grant is used by %q", alive, users)
		}
	}
}

// TestDevicesThatMayBeGPUsAreRefused, by every path to a verdict, while the majors cannot be read.
func TestDevicesThatMayBeGPUsAreRefused(t *testing.T) {
	m := newModel(t)
	self, err := m.node.Host.Self()
	m.must(err)
	m.must(os.Mkdir(m.dir+"/none", 0o755))
	c := node.Create{Caller: m.caller("c"), Config: []byte(
		`{"linux":{"devices":[{"path":"/dev/x","type":"c","major":240,"minor":0}],` +
			`"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":240,` +
			`"minor":0,"access":"rw"}]}}}`)}
	ways := map[string]func() node.Decision{
		"Admit": func() node.Decision {
			return m.node.Admit(c)
		}, "Explain": func() node.Decision { return m.node.Explain(c) },
		"JudgeCreated": func() node.Decision { return m.node.JudgeCreated(c, self) },
	}
	for way, decide := range ways {
		if d := decide(); d.Code == grant.Internal {
			t.Errorf("%s, with readable majors: %s (%s) %s", way, d.Kind, d.Code, d.Message)
		}
	}
	m.must(errors.Join(os.Remove(m.dir+"/proc/devices"), os.Mkdir(m.dir+"/proc/devices", 0o755)))
	for way, decide := range ways {
		if d := decide(); d.Kind != grant.Refused || d.Code != grant.Internal {
			t.Errorf("%s: %s (%s) %s", way, d.Kind, d.Code, d.Message)
		}
	}
}
