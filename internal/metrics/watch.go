package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/watch"
)

var (
	gpuUsed = desc("gpu_memory_used_bytes", "Memory of a GPU that any process or the driver uses.",
		"gpu")
	gpuUnexplained = desc("gpu_memory_unexplained_bytes",
		"Memory of a GPU that is in use and belongs to no process.", "gpu")
	gpuUtilization = desc("gpu_utilization_ratio",
		"Share of the last moment in which something ran on a GPU, 0 to 1; absent if the driver does "+
			"not report it.", "gpu")
	gpuPower = desc("gpu_power_watts",
		"Power that a GPU draws; absent if the driver does not report it.", "gpu")
	gpuTemperature = desc("gpu_temperature_celsius",
		"Temperature of a GPU; absent if the driver does not report it.", "gpu")
	gpuProcesses = desc("gpu_processes", "Processes that use a GPU.", "gpu")
	grantUsed    = desc("grant_memory_used_bytes",
		"Memory of a GPU that the containers of a grant use.", grantLabels...)
	grantUtilization = desc("grant_utilization_ratio",
		"Share of a GPU's compute that the containers of a grant had, 0 to 1; absent if the driver does "+
			"not report it.",
		grantLabels...)

	findings = desc("findings", "Present differences between the GPUs and the ledger, by kind.", "kind",
		"gpu")
	findingBytes = desc("finding_bytes",
		"Memory that findings are about: beyond the grant for over-grant, in use for others.", "kind", "gpu")
	findingEvents = desc("findings_total", "Findings since the daemon started.", "kind")
	stopped       = desc("containers_stopped_total",
		"Containers that were stopped because the policy says so.", "kind")
	xids = desc("gpu_errors_total", "Errors that the driver reported (XID).", "gpu", "xid")

	watching = desc("watch_working",
		"1 if the last sample of the GPUs' use could be taken; without it the use is not known.")
	watchSample = desc("watch_sample_timestamp_seconds", "When the last sample of the GPUs' use was taken.")
	samples     = desc("watch_samples_total", "Samples of the GPUs' use.")
	changes     = desc("ledger_changes_total",
		"Grants and bindings that came and went, as the daemon saw it: grant, release, bind, unbind.",
		"operation")
)

// watch reports what is used, and the findings.
func (t sender) watch(s watch.Status, held []grant.Grant) {
	t.gauge(watching, zeroOrOne(s.Failure == "" && s.Samples > 0))
	t.timestamp(watchSample, s.Taken)
	t.count(samples, s.Samples)
	for _, operation := range []string{"grant", "release", "bind", "unbind"} {
		t.count(changes, s.Changes[operation], operation)
	}
	t.found(s)
	if s.Failure != "" { // old usage must not be reported as current
		return
	}
	for _, g := range s.GPUs {
		t.gauge(gpuUsed, float64(g.Used), g.UUID)
		t.gauge(gpuUnexplained, float64(g.Unexplained), g.UUID)
		t.gauge(gpuProcesses, float64(g.Processes), g.UUID)
		t.ratio(gpuUtilization, g.Utilization, g.UUID)
		if g.Power > 0 {
			t.gauge(gpuPower, float64(g.Power)/1000, g.UUID)
		}
		if g.Temperature > 0 {
			t.gauge(gpuTemperature, float64(g.Temperature), g.UUID)
		}
	}
	users := map[grant.ID]grant.Identity{}
	for _, g := range held {
		users[g.ID] = user(g)
	}
	for _, g := range s.Grants {
		u := users[g.ID]
		t.gauge(grantUsed, float64(g.Used), g.GPU, string(g.ID), u.Namespace, u.Pod, u.Container)
		t.ratio(grantUtilization, g.Compute, g.GPU, string(g.ID), u.Namespace, u.Pod, u.Container)
	}
}

// ratio reports a percentage as a ratio, unless it is unknown.
func (t sender) ratio(d *prometheus.Desc, percent int, labels ...string) {
	if percent >= 0 {
		t.gauge(d, float64(percent)/100, labels...)
	}
}

// found reports findings of every kind, also at 0.
func (t sender) found(s watch.Status) {
	type place struct {
		kind grant.FindingKind
		gpu  string
	}
	number, bytes := map[place]int{}, map[place]grant.Bytes{}
	for _, f := range s.Findings {
		number[place{f.Kind, f.GPU}]++
		bytes[place{f.Kind, f.GPU}] += f.Bytes
	}
	for at, n := range number {
		t.gauge(findings, float64(n), string(at.kind), at.gpu)
		t.gauge(findingBytes, float64(bytes[at]), string(at.kind), at.gpu)
	}
	for _, kind := range grant.FindingKinds {
		t.count(findingEvents, s.Events[kind], string(kind))
	}
	for _, kind := range []grant.FindingKind{grant.OverGrant, grant.OutsideLedger} {
		t.count(stopped, s.Stopped[kind], string(kind))
	}
	for x, n := range s.XIDs {
		t.count(xids, n, x.GPU, strconv.Itoa(x.Number))
	}
}

// histogram reports how long decisions took.
func (t sender) histogram(d *prometheus.Desc, l auditlog.Latency) {
	buckets := map[float64]uint64{}
	sum := uint64(0)
	for i, bound := range auditlog.LatencyBounds {
		sum += l.Buckets[i]
		buckets[bound.Seconds()] = sum
	}
	t.out <- prometheus.MustNewConstHistogram(d, l.Count, l.Sum.Seconds(), buckets)
}
