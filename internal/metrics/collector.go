package metrics

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
)

// Collector is a prometheus.Collector of the node. A collection costs one Snapshot, and work in
// proportion to the number of grants.
type Collector struct{ Snapshot func() Snapshot }

// described lists every metric that a Collector reports.
var described []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("gpuledger_"+name, help, labels, nil)
	described = append(described, d)
	return d
}

var (
	buildInfo = desc("build_info", "1, labelled with the version that runs.", "version", "goversion")
	rulesMode = desc("policy_mode", "1 for what happens to refusals now: enforce, report or disabled.",
		"mode")
	disabledTo = desc("disabled_until_timestamp_seconds",
		"When `gpuledger disable` ends; absent while it is not in force or has no end.")

	gpuInfo = desc("gpu_info", "1, labelled with what a GPU is.", "gpu", "index", "name", "pci")
	gpuMode = desc("gpu_mode",
		"1 for the mode in which a GPU is shared now; absent while no grant is on it.", "gpu", "mode")
	gpuHealthy = desc("gpu_healthy", "1 if the GPU may be granted.", "gpu")
	gpuMemory  = desc("gpu_memory_bytes", "Memory of a GPU that can be granted, the reserve included.", "gpu")
	gpuGranted = desc("gpu_memory_granted_bytes", "Memory of a GPU that grants hold.", "gpu")
	gpuFree    = desc("gpu_memory_free_bytes", "Memory of a GPU that could still be granted.", "gpu")
	gpuOutside = desc("gpu_memory_outside_bytes",
		"Memory of a GPU that was found in use outside the ledger; it counts as taken.", "gpu")
	gpuCompute = desc("gpu_compute_granted_ratio", "Share of a GPU's compute that grants hold, 0 to 1.",
		"gpu")
	gpuGrants = desc("gpu_grants", "Grants on a GPU.", "gpu")

	grantsTotal  = desc("grants", "Grants that count.", "state", "mode", "strength", "owner")
	grantMemory  = desc("grant_memory_bytes", "Memory of a GPU that a grant holds.", grantLabels...)
	grantCompute = desc("grant_compute_ratio",
		"Share of a GPU's compute that a grant holds, 0 to 1; absent if it is not limited.", grantLabels...)
	grantExpiry = desc("grant_expiry_timestamp_seconds",
		"When a grant expires; absent if it does not.", "grant")
	grantBindings = desc("grant_bindings", "Containers that use a grant.", "grant")
	bindingInfo   = desc("binding_info",
		"1 for each container that uses a grant, with its id at the runtime. life is alive or unknown.",
		"grant", "container_id", "namespace", "pod", "container", "life")

	refusals = desc("refusals_total",
		"Containers that were refused (mode enforced) or would have been, by the audit log since the "+
			"daemon started.",
		"code", "mode")
	admissions = desc("admissions_total",
		"Containers that were admitted with a grant, by the audit log since the daemon started.")
	recorded = desc("recorded_passes_total",
		"Containers that passed and were recorded: exempted, stripped, hidden, or root on the node.")
	unreadable = desc("audit_unreadable_lines_total", "Lines of the audit log that are no entries.")
	gaps       = desc("audit_gaps_total",
		"Rotations of the audit log that removed a file before it was read: counts are too low.")
	latency = desc("decision_duration_seconds",
		"How long recorded decisions took, from the call to the verdict, by the audit log since the "+
			"daemon started.")
	audited = desc("audit_followed", "1 if there is an audit log to count from; without one the "+
		"counts stay at 0.")

	readable = desc("ledger_readable",
		"1 if the ledger could be read for this scrape; without it grants are missing here.")
	sound    = desc("ledger_sound", "1 if the last check of the whole ledger found no problem.")
	problems = desc("ledger_problems", "Problems that the last check found; `gpuledger check` names them.")
	damaged  = desc("ledger_damaged_entries", "Entries that cannot be read; their GPUs take no new grants.")
	checked  = desc("ledger_checked_timestamp_seconds", "When the daemon last checked the whole ledger.")

	inventoryUsable = desc("inventory_usable",
		"1 if the inventory is of this boot and this driver; without it no GPU is given.")
	inventoryTaken = desc("inventory_taken_timestamp_seconds", "When the inventory was taken.")

	engineDefault = desc("engine_default",
		"1 if an engine's default handler is gpuledger, by its files; for engines configured with "+
			"--as-default.",
		"engine")

	managerLast = desc("manager_last_pass_timestamp_seconds",
		"When the last finished pass of a manager began. It does not change while a manager hangs.",
		"manager")
	managerTook = desc("manager_last_pass_duration_seconds",
		"How long the last finished pass of a manager took.", "manager")
	managerFails = desc("manager_failing",
		"1 if the last pass of a manager ended with an error, which the log has.", "manager")
	managerPasses = desc("manager_passes_total", "Finished passes of a manager.", "manager")
	managerErrors = desc("manager_errors_total", "Passes of a manager that ended with an error.", "manager")
)

// grantLabels name a grant on one GPU. The labels of its user are empty if the engine proves
// none, if no container uses the grant, or if several do; binding_info lists those.
var grantLabels = []string{"gpu", "grant", "namespace", "pod", "container"}

// Describe implements prometheus.Collector.
func (c Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range described {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	s := c.Snapshot()
	t := sender{out}
	t.gauge(buildInfo, 1, s.Version, runtime.Version())
	t.gauge(readable, zeroOrOne(s.Err == nil))
	t.policy(s.Node)
	t.inventory(s.Node)
	for _, card := range s.Node.Cards {
		t.gpu(card, s.Node.Outside)
	}
	t.grants(s.Node.Grants, s.Node.Now)
	t.auditLog(s)
	t.ledger(s.Ledger)
	for _, m := range s.Managers {
		t.manager(m)
	}
	t.watch(s.Watch, s.Node.Grants)
	for _, e := range s.Engines {
		t.gauge(engineDefault, zeroOrOne(e.Ours), e.Name)
	}
}

type sender struct{ out chan<- prometheus.Metric }

func (t sender) gauge(d *prometheus.Desc, value float64, labels ...string) {
	t.send(d, prometheus.GaugeValue, value, labels)
}

func (t sender) count(d *prometheus.Desc, value uint64, labels ...string) {
	t.send(d, prometheus.CounterValue, float64(value), labels)
}

// send cleans labels first: one label that is not UTF-8 makes a whole scrape fail.
func (t sender) send(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels []string) {
	for i := range labels {
		labels[i] = auditlog.Clean(labels[i])
	}
	t.out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
}

// timestamp reports a time, if it is set.
func (t sender) timestamp(d *prometheus.Desc, at time.Time, labels ...string) {
	if !at.IsZero() {
		t.gauge(d, float64(at.UnixMilli())/1000, labels...)
	}
}

func zeroOrOne(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (t sender) policy(p grants.NodeStatus) {
	for _, mode := range []grant.RulesMode{grant.Enforce, grant.Report, grant.Disabled} {
		t.gauge(rulesMode, zeroOrOne(p.Mode == mode), string(mode))
	}
	if p.Mode == grant.Disabled {
		t.timestamp(disabledTo, p.Pause.Until)
	}
}

func (t sender) inventory(p grants.NodeStatus) {
	t.gauge(inventoryUsable, zeroOrOne(p.Problem == nil))
	t.timestamp(inventoryTaken, p.Inventory.Taken)
}

func (t sender) gpu(c grants.Card, outside map[string]grant.Bytes) {
	t.gauge(gpuInfo, 1, c.UUID, strconv.Itoa(c.Index), c.Name, c.PCI)
	t.gauge(gpuHealthy, zeroOrOne(c.Health == grant.Healthy), c.UUID)
	t.gauge(gpuMemory, float64(c.Memory), c.UUID)
	t.gauge(gpuGranted, float64(c.Allocated), c.UUID)
	t.gauge(gpuFree, float64(c.Free), c.UUID)
	t.gauge(gpuCompute, float64(c.Compute)/100, c.UUID)
	t.gauge(gpuGrants, float64(len(c.Grants)), c.UUID)
	if c.Mode != "" {
		t.gauge(gpuMode, 1, c.UUID, string(c.Mode))
	}
	if bytes, found := outside[c.UUID]; found {
		t.gauge(gpuOutside, float64(bytes), c.UUID)
	}
}

// class is what grants are counted by.
type class struct {
	state    grant.State
	mode     grant.Mode
	strength grant.Strength
	owner    string
}

func (t sender) grants(all []grant.Grant, now time.Time) {
	classes := map[class]int{}
	for _, g := range all {
		classes[class{g.State(now), g.Mode, g.Strength, ownerKind(g.Owner)}]++
		t.grant(g)
	}
	for c, n := range classes {
		t.gauge(grantsTotal, float64(n), string(c.state), string(c.mode), string(c.strength), c.owner)
	}
}

func ownerKind(o grant.Owner) string {
	kind, _, _ := strings.Cut(string(o), ":")
	return kind
}

func (t sender) grant(g grant.Grant) {
	container := user(g)
	for _, s := range g.GPUs {
		labels := []string{s.UUID, string(g.ID), container.Namespace, container.Pod, container.Container}
		t.gauge(grantMemory, float64(s.Memory), labels...)
		if g.Compute > 0 {
			t.gauge(grantCompute, float64(g.Compute)/100, labels...)
		}
	}
	t.timestamp(grantExpiry, g.Expires, string(g.ID))
	t.gauge(grantBindings, float64(len(g.Bindings)), string(g.ID))
	sent := map[string]bool{}
	for _, b := range g.Bindings {
		life := map[bool]string{true: "alive", false: "unknown"}[b.Life == grant.Alive]
		if id := auditlog.Clean(b.Container); !sent[id] { // ids of two engines could be the same
			sent[id] = true
			t.gauge(bindingInfo, 1, string(g.ID), id, b.Pod.Namespace, b.Pod.Pod, b.Pod.Container, life)
		}
	}
}

// user is the container that uses a grant, if there is exactly one.
func user(g grant.Grant) grant.Identity {
	if len(g.Bindings) == 0 {
		return grant.Identity{}
	}
	first := g.Bindings[0].Pod
	if slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return b.Pod != first }) {
		return grant.Identity{}
	}
	return first
}

// auditLog reports every code, also at 0: a rate needs a first value.
func (t sender) auditLog(s Snapshot) {
	t.gauge(audited, zeroOrOne(s.Audited))
	sent := map[auditlog.RefusalKind]bool{}
	for _, code := range grant.Codes {
		kind := auditlog.RefusalKind{Code: string(code), Mode: auditlog.Enforced}
		t.count(refusals, s.Counts.Refusals[kind], kind.Code, kind.Mode)
		sent[kind] = true
	}
	for kind, n := range s.Counts.Refusals {
		if !sent[kind] {
			t.count(refusals, n, kind.Code, kind.Mode)
		}
	}
	t.count(admissions, s.Counts.Admissions)
	t.count(recorded, s.Counts.Passes)
	t.count(unreadable, s.Counts.Unreadable)
	t.count(gaps, s.Counts.Gaps)
	t.histogram(latency, s.Counts.Latency)
}

func (t sender) ledger(l LedgerStatus) {
	if l.Checked.IsZero() {
		return
	}
	t.gauge(sound, zeroOrOne(l.Problems == 0))
	t.gauge(problems, float64(l.Problems))
	t.gauge(damaged, float64(l.Damaged))
	t.timestamp(checked, l.Checked)
}

func (t sender) manager(m ManagerStatus) {
	t.timestamp(managerLast, m.Last, m.Name)
	t.gauge(managerTook, m.Took.Seconds(), m.Name)
	t.gauge(managerFails, zeroOrOne(m.Error != ""), m.Name)
	t.count(managerPasses, m.Passes, m.Name)
	t.count(managerErrors, m.Errors, m.Name)
}
