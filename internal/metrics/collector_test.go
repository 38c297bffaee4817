package metrics

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/watch"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 500_000_000, time.UTC)

func share(uuid string, memory grant.Bytes) []grant.Share {
	return []grant.Share{{UUID: uuid, Memory: memory}}
}

// sample is one GPU with a pod's grant and a claim's, which two pods use.
func sample() Snapshot {
	pod := func(name string) grant.Identity {
		return grant.Identity{UID: "u", Namespace: "team", Pod: name, Container: "train"}
	}
	held := []grant.Grant{
		{ID: "g-aaaaaaaaaaaa", Owner: "pod:u/train", Secret: "5ec4e7", Mode: grant.Limit,
			Strength: grant.StrengthLibrary, GPUs: share("GPU-0", 4*grant.GiB), Compute: 25, Expires: noon,
			Bindings: []grant.Binding{{Container: "c1", Life: grant.Alive, Pod: pod("job-0")}}},
		{ID: "g-bbbbbbbbbbbb", Owner: "claim:u", Mode: grant.Limit, Strength: grant.StrengthNone,
			GPUs: share("GPU-0", 8*grant.GiB),
			Bindings: []grant.Binding{{Container: "c2", Life: grant.Alive, Pod: pod("job-1")},
				{Container: "c3", Pod: pod("job-2")}}},
	}
	s := Snapshot{Version: "v1", Audited: true, Ledger: LedgerStatus{Checked: noon, Problems: 2, Damaged: 1}}
	s.Node.Now, s.Node.Mode, s.Node.Grants, s.Node.Outside = noon, grant.Enforce, held,
		map[string]grant.Bytes{"GPU-0": grant.GiB}
	s.Node.Inventory.Taken = noon
	s.Node.Cards = []grants.Card{{GPU: grant.GPU{UUID: "GPU-0", Name: "V100", PCI: "0000:3b:00.0",
		Memory: 16 * grant.GiB, Health: grant.Healthy}, Mode: grant.Limit,
		Allocated: 12 * grant.GiB, Free: 3 * grant.GiB, Compute: 25, Grants: held}}
	s.Counts = auditlog.Counts{Admissions: 7, Passes: 1, Unreadable: 2, Gaps: 3,
		Refusals: map[auditlog.RefusalKind]uint64{{Code: "no-capacity", Mode: "enforced"}: 5,
			{Code: "gpu-env", Mode: "report"}: 1}}
	s.Counts.Latency = auditlog.Latency{Count: 3, Sum: 6 * time.Millisecond,
		Buckets: [12]uint64{0, 0, 2, 0, 1}}
	s.Watch = watched()
	s.Engines = []EngineStatus{{Name: "containerd", Ours: true}, {Name: "crio"}}
	s.Managers = []ManagerStatus{{Name: "reconcile", Last: noon, Took: 250 * time.Millisecond, Passes: 9,
		Errors: 4, Error: "no"}}
	return s
}

// watched is the sample's GPU with a grant that is exceeded and a container without a grant.
func watched() watch.Status {
	s := watch.Status{Samples: 9, Events: map[grant.FindingKind]uint64{
		grant.OverGrant: 2, grant.OutsideLedger: 1}, Stopped: map[grant.FindingKind]uint64{
		grant.OutsideLedger: 1},
		XIDs: map[watch.XID]uint64{{GPU: "GPU-0", Number: 79}: 1}, Changes: map[string]uint64{
			"grant": 5, "bind": 4}}
	s.Taken = noon
	s.GPUs = []watch.GPUUse{{UUID: "GPU-0", Used: 7 * grant.GiB, Unexplained: grant.MiB, Utilization: 50,
		Power: 71500, Temperature: 43, Processes: 3},
		{UUID: "GPU-1", Utilization: -1}}
	s.Grants = []watch.GrantUse{{ID: "g-aaaaaaaaaaaa", GPU: "GPU-0", Used: 5 * grant.GiB, Compute: 40},
		{ID: "g-bbbbbbbbbbbb", GPU: "GPU-0", Used: grant.GiB, Compute: -1}}
	s.Findings = []grant.Finding{{Kind: grant.OverGrant, GPU: "GPU-0", Bytes: grant.GiB},
		{Kind: grant.OutsideLedger, GPU: "GPU-0", Bytes: grant.GiB}}
	return s
}

func TestCollect(t *testing.T) {
	s := sample()
	want := `
gpuledger_admissions_total 7
gpuledger_audit_followed 1
gpuledger_audit_gaps_total 3
gpuledger_audit_unreadable_lines_total 2
gpuledger_binding_info{container="train",container_id="c1",grant="g-aaaaaaaaaaaa",life="alive",namespace="team",pod="job-0"} 1
gpuledger_binding_info{container="train",container_id="c2",grant="g-bbbbbbbbbbbb",life="alive",namespace="team",pod="job-1"} 1
gpuledger_binding_info{container="train",container_id="c3",grant="g-bbbbbbbbbbbb",life="unknown",namespace="team",pod="job-2"} 1
gpuledger_build_info{goversion="` + runtime.Version() + `",version="v1"} 1
gpuledger_containers_stopped_total{kind="outside-ledger"} 1
gpuledger_containers_stopped_total{kind="over-grant"} 0
gpuledger_decision_duration_seconds_bucket{le="0.00025"} 0
gpuledger_decision_duration_seconds_bucket{le="0.0005"} 0
gpuledger_decision_duration_seconds_bucket{le="0.001"} 2
gpuledger_decision_duration_seconds_bucket{le="0.0025"} 2
gpuledger_decision_duration_seconds_bucket{le="0.005"} 3
gpuledger_decision_duration_seconds_bucket{le="0.01"} 3
gpuledger_decision_duration_seconds_bucket{le="0.025"} 3
gpuledger_decision_duration_seconds_bucket{le="0.05"} 3
gpuledger_decision_duration_seconds_bucket{le="0.1"} 3
gpuledger_decision_duration_seconds_bucket{le="0.25"} 3
gpuledger_decision_duration_seconds_bucket{le="1"} 3
gpuledger_decision_duration_seconds_bucket{le="10"} 3
gpuledger_decision_duration_seconds_bucket{le="+Inf"} 3
gpuledger_decision_duration_seconds_sum 0.006
gpuledger_decision_duration_seconds_count 3
gpuledger_engine_default{engine="containerd"} 1
gpuledger_engine_default{engine="crio"} 0
gpuledger_finding_bytes{gpu="GPU-0",kind="outside-ledger"} 1.073741824e+09
gpuledger_finding_bytes{gpu="GPU-0",kind="over-grant"} 1.073741824e+09
gpuledger_findings{gpu="GPU-0",kind="outside-ledger"} 1
gpuledger_findings{gpu="GPU-0",kind="over-grant"} 1
gpuledger_findings_total{kind="gpu-error"} 0
gpuledger_findings_total{kind="gpu-lost"} 0
gpuledger_findings_total{kind="handler-changed"} 0
gpuledger_findings_total{kind="layout-changed"} 0
gpuledger_findings_total{kind="limit-changed"} 0
gpuledger_findings_total{kind="mode-changed"} 0
gpuledger_findings_total{kind="outside-ledger"} 1
gpuledger_findings_total{kind="over-grant"} 2
gpuledger_findings_total{kind="unexplained"} 0
gpuledger_gpu_compute_granted_ratio{gpu="GPU-0"} 0.25
gpuledger_gpu_errors_total{gpu="GPU-0",xid="79"} 1
gpuledger_gpu_grants{gpu="GPU-0"} 2
gpuledger_gpu_healthy{gpu="GPU-0"} 1
gpuledger_gpu_info{gpu="GPU-0",index="0",name="V100",pci="0000:3b:00.0"} 1
gpuledger_gpu_memory_bytes{gpu="GPU-0"} 1.7179869184e+10
gpuledger_gpu_memory_free_bytes{gpu="GPU-0"} 3.221225472e+09
gpuledger_gpu_memory_granted_bytes{gpu="GPU-0"} 1.2884901888e+10
gpuledger_gpu_memory_outside_bytes{gpu="GPU-0"} 1.073741824e+09
gpuledger_gpu_memory_unexplained_bytes{gpu="GPU-0"} 1.048576e+06
gpuledger_gpu_memory_unexplained_bytes{gpu="GPU-1"} 0
gpuledger_gpu_memory_used_bytes{gpu="GPU-0"} 7.516192768e+09
gpuledger_gpu_memory_used_bytes{gpu="GPU-1"} 0
gpuledger_gpu_mode{gpu="GPU-0",mode="limit"} 1
gpuledger_gpu_power_watts{gpu="GPU-0"} 71.5
gpuledger_gpu_processes{gpu="GPU-0"} 3
gpuledger_gpu_processes{gpu="GPU-1"} 0
gpuledger_gpu_temperature_celsius{gpu="GPU-0"} 43
gpuledger_gpu_utilization_ratio{gpu="GPU-0"} 0.5
gpuledger_grant_bindings{grant="g-aaaaaaaaaaaa"} 1
gpuledger_grant_bindings{grant="g-bbbbbbbbbbbb"} 2
gpuledger_grant_compute_ratio{container="train",gpu="GPU-0",grant="g-aaaaaaaaaaaa",namespace="team",pod="job-0"} 0.25
gpuledger_grant_expiry_timestamp_seconds{grant="g-aaaaaaaaaaaa"} 1.7952624005e+09
gpuledger_grant_memory_bytes{container="",gpu="GPU-0",grant="g-bbbbbbbbbbbb",namespace="",pod=""} 8.589934592e+09
gpuledger_grant_memory_bytes{container="train",gpu="GPU-0",grant="g-aaaaaaaaaaaa",namespace="team",pod="job-0"} 4.294967296e+09
gpuledger_grant_memory_used_bytes{container="",gpu="GPU-0",grant="g-bbbbbbbbbbbb",namespace="",pod=""} 1.073741824e+09
gpuledger_grant_memory_used_bytes{container="train",gpu="GPU-0",grant="g-aaaaaaaaaaaa",namespace="team",pod="job-0"} 5.36870912e+09
gpuledger_grant_utilization_ratio{container="train",gpu="GPU-0",grant="g-aaaaaaaaaaaa",namespace="team",pod="job-0"} 0.4
gpuledger_grants{mode="limit",owner="claim",state="unknown",strength="none"} 1
gpuledger_grants{mode="limit",owner="pod",state="draining",strength="library"} 1
gpuledger_inventory_taken_timestamp_seconds 1.7952624005e+09
gpuledger_inventory_usable 1
gpuledger_ledger_changes_total{operation="bind"} 4
gpuledger_ledger_changes_total{operation="grant"} 5
gpuledger_ledger_changes_total{operation="release"} 0
gpuledger_ledger_changes_total{operation="unbind"} 0
gpuledger_ledger_checked_timestamp_seconds 1.7952624005e+09
gpuledger_ledger_damaged_entries 1
gpuledger_ledger_problems 2
gpuledger_ledger_readable 1
gpuledger_ledger_sound 0
gpuledger_manager_errors_total{manager="reconcile"} 4
gpuledger_manager_failing{manager="reconcile"} 1
gpuledger_manager_last_pass_duration_seconds{manager="reconcile"} 0.25
gpuledger_manager_last_pass_timestamp_seconds{manager="reconcile"} 1.7952624005e+09
gpuledger_manager_passes_total{manager="reconcile"} 9
gpuledger_policy_mode{mode="disabled"} 0
gpuledger_policy_mode{mode="enforce"} 1
gpuledger_policy_mode{mode="report"} 0
gpuledger_recorded_passes_total 1
gpuledger_watch_sample_timestamp_seconds 1.7952624005e+09
gpuledger_watch_samples_total 9
gpuledger_watch_working 1
`
	var got []string
	for _, line := range strings.Split(scraped(t, s), "\n") {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "gpuledger_refusals_total") {
			got = append(got, line)
		}
	}
	if text := strings.Join(got, "\n"); text != strings.TrimPrefix(want, "\n") {
		t.Errorf("reported:\n%s\nwant:%s", text, want)
	}
}

// scraped is the text that Prometheus gets.
func scraped(t *testing.T, s Snapshot) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(Collector{Snapshot: func() Snapshot { return s }})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	encoder := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

func TestTheFirstRefusalIsReported(t *testing.T) {
	text := scraped(t, sample())
	for _, code := range grant.Codes {
		n := map[bool]int{true: 5}[code == grant.NoCapacity]
		if want := fmt.Sprintf("gpuledger_refusals_total{code=%q,mode=\"enforced\"} %d\n", code,
			n); !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if !strings.Contains(text, `gpuledger_refusals_total{code="gpu-env",mode="report"} 1`) {
		t.Error("what was only recorded is missing")
	}
}

// TestHostileLabels: other programs' names neither break a scrape nor disclose secrets.
func TestHostileLabels(t *testing.T) {
	s := sample()
	hostile := "x\xff\"\n}{\u202e g-abcdefghijkl.00112233445566778899aabbccddeeff"
	s.Node.Cards[0].Name = hostile
	s.Node.Grants[0].Bindings[0].Pod = grant.Identity{Namespace: hostile, Pod: hostile, Container: hostile}
	s.Node.Grants[1].Bindings[0].Container, s.Node.Grants[1].Bindings[1].Container = "a\x01", "a\x02"
	text := scraped(t, s)
	for _, bad := range []string{"\xff", "\u202e", "00112233", "5ec4e7"} {
		if strings.Contains(text, bad) {
			t.Errorf("the scrape has %q", bad)
		}
	}
}

// TestLint asks Prometheus' own linter about names, units and help.
func TestLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(Collector{Snapshot: sample})
	if err != nil || len(problems) > 0 {
		t.Errorf("%+v %v", problems, err)
	}
}

// TestEveryMetricIsReported finds a metric that is described and never reported.
func TestEveryMetricIsReported(t *testing.T) {
	s := sample()
	s.Node.Mode, s.Node.Pause.Until = grant.Disabled, noon
	out := make(chan prometheus.Metric, 1000)
	Collector{Snapshot: func() Snapshot { return s }}.Collect(out)
	close(out)
	reported := map[*prometheus.Desc]bool{}
	for m := range out {
		reported[m.Desc()] = true
	}
	for _, d := range described {
		if !reported[d] {
			t.Errorf("nothing reports %s", d)
		}
	}
	if len(reported) != len(described) {
		t.Errorf("%d are reported and %d described", len(reported), len(described))
	}
}

// TestCostIsLinear: each further grant adds the same number of series, however many there are.
func TestCostIsLinear(t *testing.T) {
	series := func(n int) int {
		s := sample()
		s.Node.Grants = nil
		for i := range n {
			g := sample().Node.Grants[0]
			g.ID = grant.NewID([16]byte{byte(i % 26), byte(i / 26 % 26), byte(i / 676)})
			s.Node.Grants = append(s.Node.Grants, g)
		}
		return strings.Count(scraped(t, s), "\ngpuledger_")
	}
	if few, some, many := series(10), series(110), series(1110); many-some != 10*(some-few) {
		t.Errorf("%d, %d and %d series of 10, 110 and 1110 grants", few, some, many)
	}
}

// TestWithoutAnything: a node that could not be read is reported as such.
func TestWithoutAnything(t *testing.T) {
	s := Snapshot{Err: fmt.Errorf("no")}
	s.Node.Problem = &grant.Problem{}
	text := scraped(t, s)
	for _, want := range []string{"gpuledger_ledger_readable 0", "gpuledger_inventory_usable 0",
		"gpuledger_audit_followed 0"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.Contains(text, "ledger_sound") {
		t.Error("a ledger that was not read is judged")
	}
}
