package node_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// errorText is an error in a few words: its kind and its message.
func errorText(err error) string {
	var refusal *grant.Refusal
	var missing *grant.NotFoundError
	var usage *grant.UsageError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refusal):
		return string(refusal.Code) + ": " + refusal.Message
	case errors.As(err, &missing):
		return "not found: " + missing.Message
	case errors.As(err, &usage):
		return "usage: " + usage.Message
	}
	return "error: " + err.Error()
}

func wants(t *testing.T, name string, err error, want string) {
	t.Helper()
	if got := errorText(err); got != want && !(want != "" && strings.HasSuffix(want, "...") &&
		strings.HasPrefix(got, strings.TrimSuffix(want, "..."))) {
		t.Errorf("%s: %q, want %q", name, got, want)
	}
}

// drain releases a grant that a container still uses. lapse lets a grant expire that no container
// uses.
func (m *model) drain(id grant.ID, reference grant.Reference) {
	m.t.Helper()
	if d := m.node.Admit(m.referring("user-of-"+string(id), reference)); !d.Bound {
		m.t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	g, err := grants.Release(m.node, id, false)
	if m.must(err); !g.Draining {
		m.t.Fatalf("a grant in use is not draining: %+v", g)
	}
}

func (m *model) lapse(id grant.ID) {
	ttl := time.Nanosecond
	_, err := grants.Update(m.node, id, grants.Change{TTL: &ttl})
	m.must(err)
}

func TestVerbsOnEndedGrants(t *testing.T) {
	m := newModel(t)
	drained, its := m.entered(admission.Ask{Owner: grant.Bearer})
	m.drain(drained.ID, its)
	lapsed, late := m.entered(admission.Ask{Owner: grant.Bearer})
	m.lapse(lapsed.ID)
	ttl := time.Hour
	for _, c := range []struct {
		id                     grant.ID
		change, renew, release string
	}{
		{drained.ID, "not found: cannot change grant " + string(drained.ID) + ": its time is over", "not found: cannot renew grant " + string(drained.ID) + ": its time is over", ""},
		{lapsed.ID, "not found: cannot change grant " + string(lapsed.ID) + ": its time is over", "not found: cannot renew grant " + string(lapsed.ID) + ": its time is over", ""},
		{"g-nonenonenone", "not found: the ledger has no grant g-nonenonenone", "not found: the ledger has no grant g-nonenonenone", "not found: the ledger has no grant g-nonenonenone"},
	} {
		_, err := grants.Renew(m.node, c.id)
		wants(t, "renew "+string(c.id), err, c.renew)
		if c.id == lapsed.ID {
			_, err = grants.Offer(m.node, late)
			wants(t, "offer of one that has lapsed", err, "grant-expired: ...")
		}
		_, err = grants.Update(m.node, c.id, grants.Change{TTL: &ttl})
		wants(t, "change "+string(c.id), err, c.change)
		_, err = grants.Release(m.node, c.id, true)
		wants(t, "release "+string(c.id), err, c.release)
		_, err = grants.Release(m.node, c.id, false)
		wants(t, "release again "+string(c.id), err, "not found: the ledger has no grant "+string(c.id))
	}
}

func TestRenewAndOffer(t *testing.T) {
	m := newModel(t)
	g, first := m.entered(admission.Ask{Owner: grant.Bearer})
	offer := func(name string, r grant.Reference, want string) {
		t.Helper()
		v, err := grants.Offer(m.node, r)
		if wants(t, name, err, want); want == "" && (v.Kind != grant.Admit || v.Grant.ID != g.ID) {
			t.Errorf("%s: %+v", name, v)
		}
	}
	offer("the reference", first, "")
	second, err := grants.Renew(m.node, g.ID)
	m.must(err)
	offer("the new one", second, "")
	offer("the one before", first, "not found: the secret is not that of grant "+string(g.ID))
	offer("no such grant", grant.Reference{ID: "g-nonenonenone"},
		"not found: the ledger has no grant g-nonenonenone")
	if d := m.node.Explain(m.referring("c", first)); d.Code != grant.GrantNotFound {
		t.Errorf("the one before admits: %s (%s)", d.Kind, d.Code)
	}
	if d := m.node.Explain(m.referring("c", second)); d.Kind != grant.Admit {
		t.Errorf("the new one does not: %s (%s)", d.Kind, d.Code)
	}
	owned, _ := m.entered(admission.Ask{Owner: "pod:u/a"})
	_, err = grants.Renew(m.node, owned.ID)
	wants(t, "a pod's", err, "error: cannot renew grant "+string(owned.ID)+
		": pod:u/a proves it without a secret")
	m.boot()
	offer("before the inventory is taken again", second, "inventory-stale: ...")
}

// TestAnOwnerOfADamagedGrantHasNoSecond: while it cannot be read, it may be a live one.
func TestAnOwnerOfADamagedGrantHasNoSecond(t *testing.T) {
	m := newModel(t)
	first, _ := m.entered(admission.Ask{Owner: "pod:u/a"})
	path := m.dir + "/state/grants/" + string(first.ID) + ".json"
	whole, err := os.ReadFile(path)
	m.must(errors.Join(err, os.WriteFile(path, []byte("damaged"), 0o600)))
	ask := admission.Ask{Owner: "pod:u/a", Mode: grant.Limit, GPUs: 1, Memory: grant.GiB, Source: "cli"}
	_, _, err = grants.Enter(m.node, ask)
	wants(t, "a second one", err, "ledger-unreadable: cannot grant: pod:u/a has grant "+string(first.ID)+
		", which cannot be read: ...")
	for _, e := range grants.EnterAll(m.node, []admission.Ask{ask}, nil) {
		wants(t, "a second one of several", e.Err, "ledger-unreadable: ...")
	}
	m.must(os.WriteFile(path, whole, 0o600))
	_, _, err = grants.Enter(m.node, ask)
	wants(t, "a second one when it can be read", err, "grant-in-use: ...")
}

// TestAGrantsTimeBeginsWhenItIsPlaced: one whose time had passed while it waited for the ledger
// would not count for the next, and both would count when the clock is set back.
func TestAGrantsTimeBeginsWhenItIsPlaced(t *testing.T) {
	m := newModel(t)
	now := time.Now()
	m.node.Host.Now = func() time.Time { now = now.Add(40 * time.Minute); return now }
	m.node.Ledger.Host.Now = m.node.Host.Now
	ask := admission.Ask{Owner: grant.Bearer, Mode: grant.Limit, GPUs: cards, Memory: cards * card / 4 * 3,
		TTL: time.Hour, Source: "cli"}
	all := grants.EnterAll(m.node, []admission.Ask{ask, ask}, nil)
	wants(t, "the first", all[0].Err, "")
	wants(t, "the second", all[1].Err, "no-capacity: ...")
}

// TestANodeWithABrokenConfiguration grants and admits nothing; a container that reaches no GPU
// starts.
func TestANodeWithABrokenConfiguration(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	m.node.Broken = errors.New("it is broken")
	_, _, err := grants.Enter(m.node, admission.Ask{Mode: grant.Timeslice, Owner: grant.Bearer, GPUs: 1,
		Memory: grant.GiB})
	wants(t, "grant", err, "error: it is broken")
	_, err = grants.Update(m.node, g.ID, grants.Change{})
	wants(t, "change", err, "error: it is broken")
	_, err = grants.Offer(m.node, reference)
	wants(t, "offer", err, "error: it is broken")
	if d := m.node.Admit(m.referring("c", reference)); d.Kind != grant.Refused ||
		d.Code != grant.ConfigInvalid || d.Message != "it is broken" {
		t.Errorf("with a grant: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	if d := m.node.Admit(node.Create{Caller: m.caller("c"),
		Config: []byte(`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)}); d.Kind !=
		grant.Pass {
		t.Errorf("without a GPU: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	m.node.Policy.Rules.Mode = grant.Report
	if mode := m.node.Mode(); mode != grant.Enforce {
		t.Errorf("its mode is %s, of what could not be read", mode)
	}
}

// TestReportOnlyRecords: nothing is refused, hidden or stripped; admissions go on.
func TestReportOnlyRecords(t *testing.T) {
	m := newModel(t)
	_, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	all := node.Create{Caller: m.caller("all"),
		Config: []byte(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},` +
			`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)}
	none := node.Create{Caller: m.caller("none"),
		Config: []byte(`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)}
	m.must(os.MkdirAll(m.dir+"/none", 0o755))
	for _, c := range []struct {
		name             string
		mode             grant.RulesMode
		hide             grant.Ungranted
		create           node.Create
		kind             grant.VerdictKind
		recorded         grant.RulesMode
		edited, unjudged bool
	}{
		{"refused", grant.Enforce, grant.RefuseUngranted, all, grant.Refused, "", false, false},
		{"hidden", grant.Enforce, grant.Hide, all, grant.Pass, "", true, false},
		{"nothing", grant.Enforce, grant.Hide, none, grant.Pass, "", false, false},
		{"reported", grant.Report, grant.RefuseUngranted, all, grant.Refused, grant.Report, false, true},
		{"reported that it would be hidden", grant.Report, grant.Hide, all, grant.Pass, grant.Report, false, true},
		{"nothing, in report", grant.Report, grant.Hide, none, grant.Pass, "", false, true},
		{"admitted, in report", grant.Report, grant.Hide, m.referring("c", reference), grant.Admit, "", true, false},
	} {
		m.node.Policy.Rules.Mode, m.node.Policy.Rules.Ungranted = c.mode, c.hide
		for way, d := range map[string]node.Decision{"JudgeBeforeCreate": m.node.JudgeBeforeCreate(c.create),
			"Admit": m.node.Admit(c.create)} {
			if d.Kind != c.kind || d.NotEnforced != c.recorded || (d.Config != nil) != c.edited ||
				m.node.Unjudged(d) != c.unjudged || d.Bound != (way == "Admit" && c.kind == grant.Admit) {
				t.Errorf("%s, by %s: %s, mode %q, edited %v, unjudged %v, bound %v", c.name, way, d.Kind,
					d.NotEnforced, d.Config != nil, m.node.Unjudged(d), d.Bound)
			}
		}
	}
	m.node.Policy.Rules.Mode = grant.Enforce
	if d := m.node.Admit(m.referring("c", reference)); d.Kind != grant.Refused ||
		d.Code != grant.GrantInUse || d.Message != `another container of the id "c" is being created` {
		t.Errorf("the same id once more: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
}

// TestJudgeCreatedOfAContainerWithoutEdits: its spec can no longer be edited.
func TestJudgeCreatedOfAContainerWithoutEdits(t *testing.T) {
	m := newModel(t)
	self, err := m.node.Host.Self()
	m.must(err)
	_, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := m.referring("c", reference)
	create.Config = []byte(strings.Replace(string(create.Config), `["GPULEDGER`,
		`["NVIDIA_VISIBLE_DEVICES=all","GPULEDGER`, 1))
	all := node.Create{Caller: m.caller("all"),
		Config: []byte(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},` +
			`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)}
	asks := node.Create{Caller: create.Caller, Reported: create.Config,
		Config: []byte(`{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`)}
	for _, c := range []struct {
		name    string
		create  node.Create
		mode    grant.RulesMode
		running bool
		want    grant.Code
		records grant.RulesMode
	}{
		{"without a grant", all, grant.Enforce, false, grant.VisibleDevicesAll, ""},
		{"without a grant, and it runs", all, grant.Enforce, true, grant.VisibleDevicesAll, grant.Observed},
		{"without a grant, in report", all, grant.Report, true, grant.VisibleDevicesAll, grant.Report},
		{"with a grant, unedited", create, grant.Enforce, false, grant.InjectionImpossible, ""},
		{"with a grant that only the engine reports", asks, grant.Enforce, false, grant.InjectionImpossible, ""},
		{"unreadable", node.Create{Caller: m.caller("c"), Unread: errors.New("gone")}, grant.Enforce, false, grant.SpecInvalid, ""},
	} {
		m.node.Policy.Rules.Mode = c.mode
		c.create.Running = c.running
		if d := m.node.JudgeCreated(c.create, self); d.Kind != grant.Refused || d.Code != c.want ||
			d.NotEnforced != c.records || d.Bound {
			t.Errorf("%s: %s (%s) %s, mode %q", c.name, d.Kind, d.Code, d.Message, d.NotEnforced)
		}
	}
	m.node.Policy.Rules.Ungranted = grant.Hide
	for _, mode := range []grant.RulesMode{grant.Enforce, grant.Report} {
		m.node.Policy.Rules.Mode = mode
		if d := m.node.JudgeCreated(all, self); (d.Kind == grant.Refused) != (mode == grant.Enforce) {
			t.Errorf("what should have been hidden, in %s: %s (%s) %s", mode, d.Kind, d.Code, d.Message)
		}
	}
	m.node.Policy.Rules.Mode = grant.Enforce
	edited := m.node.JudgeBeforeCreate(create)
	create.Config, create.Reported = edited.Config, create.Config
	if d := m.node.JudgeCreated(create, self); d.Kind != grant.Admit || !d.Bound {
		t.Errorf("edited: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	if d := m.node.JudgeCreated(create, self); d.Kind != grant.Admit || d.Bound {
		t.Errorf("edited, and bound: %s (%s) %s, bound %v", d.Kind, d.Code, d.Message, d.Bound)
	}
}

func TestUpdatesWithAndWithoutAGrant(t *testing.T) {
	m := newModel(t)
	_, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	if d := m.node.Admit(m.referring("bound", reference)); !d.Bound {
		t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	const moves = ", which is no resource: such a key can stop processes, or move them out of the cgroup " +
		"whose device rules and limit hold them"
	for _, c := range []struct{ container, resources, want, err string }{
		{"c", `{"memory":{"limit":1}}`, `{"memory":{"limit":1}}`, ""},
		{"c", `{`, "", "spec-invalid: cannot read the resources of the update: ..."},
		{"c", `{"unified":{"dmem.max":"1","cgroup.kill":"1"}}`, "", "limit-unenforceable: the update sets dmem.max, which belongs to the ledger"},
		{"c", `{"unified":{"cgroup.kill":"1"}}`, "", "gpu-device-rule: the update sets cgroup.kill" + moves},
		{"c", `{"unified":{"gpu.max":"1"}}`, `{"unified":{"gpu.max":"1"}}`, ""},
		{"bound", `{"unified":{"gpu.max":"1"}}`, "", "limit-unenforceable: the update sets gpu.max, and it is not known what that does to the container's grant"},
		{"c", `{"devices":[],"x":1}`, `{"x":1}`, ""},
		{"c", `{"devices":[{"allow":true,"type":"c","major":10,"minor":229,"access":"rw"}],"x":1}`, `{"x":1}`, ""},
		{"c", `{"devices":[{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}]}`, "", "gpu-device-rule: the update would open GPU devices by the device rule c 195:0 rw"},
	} {
		got, err := m.node.Update(m.caller(c.container).Container, []byte(c.resources))
		if wants(t, c.resources, err, c.err); string(got) != c.want {
			t.Errorf("%s: got %s, want %s", c.resources, got, c.want)
		}
	}
	m.node.Policy.Rules.Privileged = grant.Strip
	if got, err := m.node.Update(m.caller("c").Container,
		[]byte(`{"devices":[{"allow":true,"access":"rwm"}]}`)); err != nil || string(got) != `{}` {
		t.Errorf("what an engine sends along where privileges are stripped: %s (%v)", got, err)
	}
}

// TestAPipeInPlaceOfABundlesFile: an open that waits for its writer would never return.
func TestAPipeInPlaceOfABundlesFile(t *testing.T) {
	m := newModel(t)
	root := t.TempDir()
	self, err := m.node.Host.Self()
	m.must(err)
	m.must(errors.Join(os.Mkdir(root+"/c", 0o700), unix.Mkfifo(root+"/config.json", 0o600),
		os.WriteFile(root+"/c/status", fmt.Appendf(nil, `{"pid":%d,"process-start-time":%d,"bundle":"%s"}`,
			self.PID, self.Start, root), 0o600)))
	if _, exempt, at, init := m.node.Ungranted([]string{root}, grant.CRIO, "c"); exempt || at != root ||
		init != self {
		t.Errorf("exempt %v, below %q, %v", exempt, at, init)
	}
	_, err = m.node.Update(grant.Container{RuntimeRoot: root, ID: "c"},
		[]byte(`{"devices":[{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}]}`))
	wants(t, "an update", err,
		"gpu-device-rule: the update would open GPU devices by the device rule c 195:0 rw")
}

// TestAnIdentityIsToldByAnnotationsAlone: to look at what else a spec names can take for ever, as
// with a volume on a dead server. Here it is the node's list of majors, which a device rule needs.
func TestAnIdentityIsToldByAnnotationsAlone(t *testing.T) {
	m := newModel(t)
	root, proc := t.TempDir(), t.TempDir()
	self, err := m.node.Host.Self()
	m.must(err)
	m.must(errors.Join(os.Mkdir(root+"/c", 0o700), unix.Mkfifo(proc+"/devices", 0o600),
		os.WriteFile(root+"/c/status", fmt.Appendf(nil, `{"pid":%d,"process-start-time":%d,"bundle":"%s"}`,
			self.PID, self.Start, root), 0o600),
		os.WriteFile(root+"/config.json", []byte(`{"annotations":{"io.kubernetes.pod.name":"train"},`+
			`"linux":{"resources":{"devices":[{"allow":true,"type":"c","major":300,"access":"rw"}]}}}`),
			0o600)))
	n := *m.node
	n.Host.Proc = proc
	told := make(chan grant.Identity, 1)
	go func() {
		pod, _, _, _ := n.Ungranted([]string{root}, grant.CRIO, "c")
		told <- pod
	}()
	select {
	case pod := <-told:
		if pod.Pod != "train" {
			t.Errorf("it is told as %+v", pod)
		}
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
}

func TestDescriptorsOfAnUnboundContainer(t *testing.T) {
	m := newModel(t)
	for name, c := range map[string]struct {
		d    host.Descriptor
		want string
	}{
		"a terminal": {host.Descriptor{Number: 3, ResolvedFile: host.ResolvedFile{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(136, 0)}}, ""},
		"a GPU":      {host.Descriptor{Number: 3, ResolvedFile: host.ResolvedFile{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(195, 1)}}, `gpu-device-node: the process would inherit descriptor 3 (c 195:1), through which a GPU can be reached that container "c" was not created with`},
		"the ledger": {host.Descriptor{Number: 3, ResolvedFile: host.ResolvedFile{Mode: unix.S_IFREG, Path: m.node.Policy.StateDir + "/x"}}, `gpu-socket: the process would inherit descriptor 3 (a file or socket that governs GPUs), through which a GPU can be reached that container "c" was not created with`},
	} {
		caller := m.caller("c")
		caller.Descriptors = []host.Descriptor{c.d}
		var err error
		if refusal := m.node.JudgeDescriptors(caller); refusal != nil {
			err = refusal
		}
		wants(t, name, err, c.want)
	}
}

// TestAnExecWithAFileNeedsNothingOfTheMounts: what became of them since the create, or that the
// driver's numbers cannot be read, is no reason to refuse it.
func TestAnExecWithAFileNeedsNothingOfTheMounts(t *testing.T) {
	m := newModel(t)
	bundle, source := m.dir+"/bundle", m.dir+"/node"
	m.must(errors.Join(os.MkdirAll(m.dir+"/none/c", 0o700), os.Mkdir(bundle, 0o700),
		os.WriteFile(m.dir+"/none/c/status", fmt.Appendf(nil, `{"bundle":%q}`, bundle), 0o600),
		os.WriteFile(bundle+"/config.json", fmt.Appendf(nil, `{"mounts":[{"destination":"/x","type":"bind",`+
			`"source":%q,"options":["rbind"]}],`+
			`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, source), 0o600),
		unix.Mknod(source, unix.S_IFCHR|0o600, int(unix.Mkdev(240, 0))),
		os.Remove(m.dir+"/proc/devices"), os.Mkdir(m.dir+"/proc/devices", 0o700)))
	caller := m.caller("c")
	caller.Descriptors = []host.Descriptor{{ResolvedFile: host.ResolvedFile{Mode: unix.S_IFREG,
		Path: m.dir + "/stdin"}}}
	if refusal := m.node.JudgeDescriptors(caller); refusal != nil {
		t.Error(refusal)
	}
}

// TestAnExecRecordsWhatWasNotSearched: a descriptor of a directory may bring an MPS daemon.
func TestAnExecRecordsWhatWasNotSearched(t *testing.T) {
	m := newModel(t)
	m.node.Policy.Audit.File = m.dir + "/audit.log"
	m.must(errors.Join(os.MkdirAll(m.dir+"/proc/net/unix", 0o700), os.Mkdir(m.dir+"/data", 0o700)))
	at, err := host.Resolve(m.dir + "/data")
	m.must(err)
	caller := m.caller("c")
	caller.Container.Bundle = m.dir + "/bundle"
	caller.Descriptors = []host.Descriptor{{Number: 3, ResolvedFile: at}}
	if refusal := m.node.JudgeDescriptors(caller); refusal != nil {
		t.Error(refusal)
	}
	if log, _ := os.ReadFile(m.dir + "/audit.log"); !strings.Contains(string(log),
		"exec: not all places were searched for MPS daemons") {
		t.Errorf("recorded %s", log)
	}
}

// TestALiveContainerIsBoundOnce: its hook finds the wrapper's binding by the runtime's process.
func TestALiveContainerIsBoundOnce(t *testing.T) {
	self, err := host.Default().Self()
	if err != nil {
		t.Fatal(err)
	}
	other := grant.Process{PID: self.PID, Start: self.Start + 1}
	for name, c := range map[string]struct {
		before       bool // the wrapper has bound it
		live         node.Live
		code         grant.Code
		known, bound bool
	}{
		"by its hook":           {false, node.Live{Creators: []grant.Process{self}}, "", false, true},
		"before by the wrapper": {true, node.Live{Creators: []grant.Process{self}}, "", true, false},
		"before by its parent":  {true, node.Live{Creators: []grant.Process{other, self}}, "", true, false},
		"another of the id":     {true, node.Live{Creators: []grant.Process{other}}, grant.GrantInUse, false, false},
		"with unknown creators": {false, node.Live{Unknown: errors.New("not known")}, grant.LedgerUnreadable, false, false},
	} {
		m := newModel(t)
		_, reference := m.entered(admission.Ask{Owner: "claim:cc"})
		create := m.referring("c", reference)
		if c.before {
			m.created(create)
		}
		create.Live = &c.live
		d := m.node.Admit(create)
		if d.Code != c.code || d.Known != c.known || d.Bound != c.bound {
			t.Errorf("%s: %s (%s) %s, known %v, bound %v", name, d.Kind, d.Code, d.Message, d.Known, d.Bound)
		}
	}
}

// TestVerifyInspectsTheContainer: nodes and rules of a live container, next to its edited spec.
func TestVerifyInspectsTheContainer(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := m.referring("c", reference)
	d := m.node.JudgeBeforeCreate(create)
	gpu := func(minor int64) specs.LinuxDevice {
		return specs.LinuxDevice{Path: "/dev/x", Type: "c", Major: 195, Minor: minor}
	}
	its, others := int64(g.GPUs[0].Index), int64(g.GPUs[0].Index+1)
	rule := func(minor int64) []request.CgroupRule {
		major := int64(195)
		return []request.CgroupRule{{Access: "rwm"}, {Allow: true, Type: "c", Major: &major,
			Minor: &minor, Access: "rw"}}
	}
	for name, c := range map[string]struct {
		nodes []specs.LinuxDevice
		rules []request.CgroupRule
		sound bool
	}{
		"as it was edited":    {nil, nil, true},
		"with its GPU":        {[]specs.LinuxDevice{gpu(its)}, rule(its), true},
		"with another's":      {[]specs.LinuxDevice{gpu(others)}, nil, false},
		"with another's rule": {nil, rule(others), false},
		"with open rules":     {nil, []request.CgroupRule{{Allow: true, Access: "rwm"}}, false},
	} {
		if err := m.node.Verify(create, d, c.nodes, c.rules); (err == nil) != c.sound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestChangesOfAGrant: the returned grant is the one in the ledger.
func TestChangesOfAGrant(t *testing.T) {
	m := newModel(t)
	g, _, err := grants.Enter(m.node, admission.Ask{Mode: grant.Timeslice, Owner: grant.Bearer, GPUs: 2,
		Memory: 4 * grant.GiB, Source: "test"})
	m.must(err)
	whole, _, err := grants.Enter(m.node, admission.Ask{
		Mode: grant.Exclusive, Owner: grant.Bearer, GPUs: 1, Source: "test"})
	m.must(err)
	memory := func(b grant.Bytes) *grant.Bytes { return &b }
	percent := func(n int) *int { return &n }
	last := func(d time.Duration) *time.Duration { return &d }
	for _, c := range []struct {
		name    string
		id      grant.ID
		change  grants.Change
		memory  grant.Bytes
		compute int
		lasts   time.Duration
		err     string
	}{
		{"nothing", g.ID, grants.Change{}, 4 * grant.GiB, 0, 0, ""},
		{"more memory, for an hour", g.ID, grants.Change{Memory: memory(6 * grant.GiB), TTL: last(time.Hour)},
			6 * grant.GiB, 0, time.Hour, ""},
		{"less memory", g.ID, grants.Change{Memory: memory(2 * grant.GiB)}, 2 * grant.GiB, 0, time.Hour, ""},
		{"for ever, with compute", g.ID, grants.Change{Compute: percent(50), TTL: last(0)}, 2 * grant.GiB,
			50, 0, ""},
		{"less compute", g.ID, grants.Change{Compute: percent(10)}, 2 * grant.GiB, 10, 0, ""},
		{"memory that does not divide", g.ID, grants.Change{Memory: memory(grant.MiB)}, 0, 0, 0,
			"usage: cannot grant: 1MiB over 2 GPUs does not divide evenly in MiB; 2MiB would"},
		{"more than there is", g.ID, grants.Change{Memory: memory(20 * grant.GiB)}, 0, 0, 0,
			"no-capacity: ..."},
		{"more of all than there is", whole.ID, grants.Change{Memory: memory(grant.GiB)}, 0, 0, 0,
			"usage: cannot change the memory of an exclusive grant: it has all of its GPUs"},
		{"an exclusive one's time", whole.ID, grants.Change{TTL: last(time.Hour)}, 8 * grant.GiB, 0,
			time.Hour, ""},
		{"no such grant", "g-nonenonenone", grants.Change{Memory: memory(grant.GiB)}, 0, 0, 0,
			"not found: the ledger has no grant g-nonenonenone"},
	} {
		got, err := grants.Update(m.node, c.id, c.change)
		if wants(t, c.name, err, c.err); err != nil {
			continue
		}
		o, err := grants.Read(m.node)
		m.must(err)
		stored := o.Grants[slices.IndexFunc(o.Grants, func(g grant.Grant) bool { return g.ID == c.id })]
		for _, g := range []grant.Grant{got, stored} {
			lasts := time.Duration(0)
			if !g.Expires.IsZero() {
				lasts = time.Until(g.Expires).Round(time.Hour)
			}
			if g.ID != c.id || g.Memory() != c.memory || g.Compute != c.compute || lasts != c.lasts ||
				g.Strength != grant.StrengthNone || len(g.GPUs) == 2 && g.GPUs[0].Memory != g.GPUs[1].Memory {
				t.Errorf("%s: %+v", c.name, g)
			}
		}
	}
}

// TestADamagedGrant ends only by force, and containers that rely on it are refused.
func TestADamagedGrant(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	m.must(os.WriteFile(m.dir+"/state/grants/"+string(g.ID)+".json", []byte("{"), 0o600))
	if d := m.node.Explain(m.referring("c", reference)); d.Kind != grant.Refused ||
		d.Code != grant.LedgerUnreadable || d.Message != `container "c" relies on grant `+string(g.ID)+
		", whose entry in the ledger is damaged" {
		t.Errorf("its container: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	if d := m.node.Explain(node.Create{Caller: m.caller("c"),
		Config: []byte(`{}`)}); d.Code == grant.LedgerUnreadable {
		t.Errorf("another container: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	for _, force := range []bool{false, true, true} {
		_, err := grants.Release(m.node, g.ID, force)
		var damaged *ledger.DamagedError
		switch _, left := os.Stat(m.dir + "/state/grants/" + string(g.ID) + ".json"); {
		case !force && (!errors.As(err, &damaged) || left != nil):
			t.Errorf("without force: %v, the file: %v", err, left)
		case force && left == nil:
			t.Errorf("by force: %v, and the file is there", err)
		}
	}
	other, _ := m.entered(admission.Ask{Owner: grant.Bearer})
	for _, engine := range []grant.Engine{grant.Podman, grant.Containerd} {
		m.node.Policy.Engine = engine
		if _, err := grants.Tie(m.node, other.ID, nil); err != nil {
			t.Errorf("no ties, by %s: %v", engine, err)
		}
	}
}
