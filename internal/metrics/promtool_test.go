package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// ruleFiles are the rules in packaging/monitoring.
var ruleFiles = []string{"alerts.yaml", "alerts-kubernetes.yaml"}

// rule is an alert of one of them.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alertRules(t *testing.T) (rules []rule) {
	t.Helper()
	for _, name := range ruleFiles {
		var file struct{ Groups []struct{ Rules []rule } }
		if err := yaml.Unmarshal(read(t, name), &file); err != nil {
			t.Fatal(err)
		}
		for _, g := range file.Groups {
			rules = append(rules, g.Rules...)
		}
	}
	return rules
}

// occasion is when an alert fires: a series with a value each minute, the first minute at which the
// alert fires, and its text then. Before that minute, and with the series in normal, it does not
// fire. A series that the program does not report before an event is also absent here.
type occasion struct {
	alert  string
	series string
	// in promtool's notation; normal "": only the minutes before; values "": it never has other
	// values than normal
	values, normal string
	minute         int // the first at which it fires
	labels         map[string]string
	value          string // as the text has it
	beside         map[string]string
}

// over are two grants of 1 GiB, of which the second exceeds its limit by less than a context. crowd
// is a grant that exceeds its limit by far and, at first, is in no finding. A node is scraped all
// the time, or with a gap.
var (
	over = map[string]string{
		`gpuledger_grant_memory_bytes{instance="n1",gpu="GPU-0",grant="g-a"}`:      "1073741824x40",
		`gpuledger_grant_memory_bytes{instance="n1",gpu="GPU-0",grant="g-b"}`:      "1073741824x40",
		`gpuledger_grant_memory_used_bytes{instance="n1",gpu="GPU-0",grant="g-b"}`: "1373741824x40",
		`gpuledger_findings{instance="n1",gpu="GPU-0",kind="over-grant"}`:          "2x40",
	}
	crowd = map[string]string{
		`gpuledger_grant_memory_bytes{instance="n1",gpu="GPU-0",grant="g-a"}`:      "1073741824x40",
		`gpuledger_grant_memory_used_bytes{instance="n1",gpu="GPU-0",grant="g-a"}`: "8073741824x40",
	}
	scrapedAlways = map[string]string{`gpuledger_build_info{instance="n1"}`: "1x100"}
	gap           = map[string]string{`gpuledger_build_info{instance="n1"}`: "1x60 _x200 1x40"}
)

var occasions = []occasion{
	{"GPULedgerDaemonDown", `up{job="gpuledger",instance="n1"}`, "0x20", "1x20", 5, nil, "", nil},
	{"GPULedgerUnsound", `gpuledger_ledger_sound{instance="n1"}`, "0x20", "1x20", 5, nil, "", nil},
	{"GPULedgerUnreadable", `gpuledger_ledger_readable{instance="n1"}`, "0x20", "1x20", 2, nil, "", nil},
	{"GPULedgerInventoryUnusable", `gpuledger_inventory_usable{instance="n1"}`, "0x20", "1x20", 5, nil, "", nil},
	{"GPULedgerNotEnforcing", `gpuledger_policy_mode{instance="n1",mode="disabled"}`, "1x90", "0x90", 60, map[string]string{"mode": "disabled"}, "", nil},
	{"GPULedgerReportsOnly", `gpuledger_policy_mode{instance="n1",mode="report"}`, "1x20200", "0x20200", 20160, map[string]string{"mode": "report"}, "", nil},
	{"GPULedgerSetupFailed", `kube_daemonset_status_number_unavailable{instance="n1",daemonset="gpuledger-setup-h100"}`, "2x30", "0x30", 15, map[string]string{"daemonset": "gpuledger-setup-h100"}, "2", nil},
	{"GPULedgerAgentAbsent", `kube_daemonset_status_number_unavailable{instance="n1",daemonset="gpuledger-dra"}`, "1x30", "0x30", 10, map[string]string{"daemonset": "gpuledger-dra"}, "1", nil},
	{"GPULedgerFragmented", `gpuledger_agent_refusals_total{instance="n1",node="a",code="no-capacity"}`, "0x5 1+0x20", "1x26", 6, map[string]string{"node": "a"}, "1", nil},
	{"GPULedgerAgentFailing", `gpuledger_agent_loop_failing{instance="n1",node="a",loop="slices"}`, "1x30", "0x30", 10, map[string]string{"node": "a", "loop": "slices"}, "", nil},
	{"GPULedgerRefusing", `gpuledger_refusals_total{instance="n1",code="gpu-env",mode="enforced"}`, "0x20 11+0x10", "0x20 10+0x10", 21, map[string]string{"code": "gpu-env"}, "11", nil},
	{"GPULedgerOutsideUse", `gpuledger_findings{instance="n1",gpu="GPU-0",kind="outside-ledger"}`, "2x20", "0x20", 5, map[string]string{"gpu": "GPU-0", "kind": "outside-ledger"}, "", nil},
	{"GPULedgerOverGrant", `gpuledger_grant_memory_used_bytes{instance="n1",gpu="GPU-0",grant="g-a"}`, "1702887425x20", "1702887424x20", 5, map[string]string{"gpu": "GPU-0", "grant": "g-a"}, "", over},
	{"GPULedgerOverGrant", `gpuledger_findings{instance="n1",gpu="GPU-0",kind="over-grant"}`, "_x10 1x20", "_x30", 15, map[string]string{"gpu": "GPU-0", "grant": "g-a"}, "", crowd},
	{"GPULedgerUnexplainedUse", `gpuledger_findings{instance="n1",gpu="GPU-0",kind="unexplained"}`, "1x30", "0x30", 15, map[string]string{"gpu": "GPU-0", "kind": "unexplained"}, "", nil},
	{"GPULedgerChangedBehind", `gpuledger_findings{instance="n1",gpu="GPU-0",kind="layout-changed"}`, "1x20", "0x20", 5, map[string]string{"gpu": "GPU-0", "kind": "layout-changed"}, "", nil},
	{"GPULedgerChangedBehind", `gpuledger_findings{instance="n1",gpu="GPU-0",kind="mode-changed"}`, "1x20", "", 5, map[string]string{"gpu": "GPU-0", "kind": "mode-changed"}, "", nil},
	{"GPULedgerChangedBehind", `gpuledger_findings{instance="n1",gpu="GPU-0",kind="gpu-lost"}`, "1x20", "", 5, map[string]string{"gpu": "GPU-0", "kind": "gpu-lost"}, "", nil},
	{"GPULedgerGPUErrors", `gpuledger_gpu_errors_total{instance="n1",gpu="GPU-0",xid="79"}`, "_x20 1x20", "1x50", 20, map[string]string{"gpu": "GPU-0", "xid": "79"}, "", nil},
	{"GPULedgerGPUErrors", `gpuledger_gpu_errors_total{instance="n1",gpu="GPU-0",xid="79"}`, "1x20 2x20", "", 21, map[string]string{"gpu": "GPU-0", "xid": "79"}, "", nil},
	{"GPULedgerGPUErrors", `gpuledger_gpu_errors_total{instance="n1",gpu="GPU-0",xid="79"}`, "1x20 _x60 1x20", "1x100", 81, map[string]string{"gpu": "GPU-0", "xid": "79"}, "", scrapedAlways}, // the same after a restart
	{"GPULedgerGPUErrors", `gpuledger_gpu_errors_total{instance="n1",gpu="GPU-0",xid="79"}`, "", "1x60 _x200 1x40", 264, map[string]string{"gpu": "GPU-0", "xid": "79"}, "", gap},              // not scraped for three hours
	{"GPULedgerLimitChanged", `gpuledger_findings_total{instance="n1",kind="limit-changed"}`, "0x5 1x20", "1x26", 6, map[string]string{"kind": "limit-changed"}, "", nil},
	{"GPULedgerHandlerChanged", `gpuledger_engine_default{instance="n1",engine="containerd"}`, "0x20", "1x20", 1, map[string]string{"engine": "containerd"}, "", nil},
	{"GPULedgerBlind", `gpuledger_watch_working{instance="n1"}`, "0x20", "1x20", 5, nil, "", nil},
	{"GPULedgerUnhealthyGPU", `gpuledger_gpu_healthy{instance="n1",gpu="GPU-0"}`, "0x20", "1x20", 5, map[string]string{"gpu": "GPU-0"}, "", nil},
	{"GPULedgerManagerFailing", `gpuledger_manager_failing{instance="n1",manager="watch"}`, "1x20", "0x20", 10, map[string]string{"manager": "watch"}, "", nil},
	{"GPULedgerManagerFailing", `gpuledger_manager_last_pass_timestamp_seconds{instance="n1",manager="watch"}`, "0x30", "0+60x30", 16, map[string]string{"manager": "watch"}, "", nil},
	{"GPULedgerAuditGaps", `gpuledger_audit_gaps_total{instance="n1"}`, "0x5 1+0x20", "1x26", 6, nil, "", nil},
	{"GPULedgerAuditGaps", `gpuledger_audit_unreadable_lines_total{instance="n1"}`, "0x5 1+0x20", "1x26", 6, nil, "", nil},
}

// promtool runs Prometheus' own tool, which `make test-monitoring` installs.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func needPromtool(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("this machine has no promtool (`make test-monitoring` installs it): that Prometheus " +
			"understands rules, queries and metrics is not shown")
	}
}

// TestEveryAlertHasAnOccasion compares the table with the rules, in both directions.
func TestEveryAlertHasAnOccasion(t *testing.T) {
	var have, want []string
	for _, o := range occasions {
		have = append(have, o.alert)
	}
	for _, r := range alertRules(t) {
		want = append(want, r.Alert)
	}
	slices.Sort(want)
	slices.Sort(have)
	if have = slices.Compact(have); !slices.Equal(have, want) {
		t.Errorf("the rules are %q, those with an occasion %q", want, have)
	}
}

// TestAlertsFire at the right minute and not before, with the right text.
func TestAlertsFire(t *testing.T) {
	needPromtool(t)
	var rules []string
	for _, name := range ruleFiles {
		path, err := filepath.Abs(monitoring + name)
		if err != nil {
			t.Fatal(err)
		}
		promtool(t, "check", "rules", path)
		rules = append(rules, path)
	}
	type object map[string]any
	var tests []object
	for _, o := range occasions {
		at := func(minute int, alerts ...object) object {
			return object{"eval_time": fmt.Sprintf("%dm", minute), "alertname": o.alert,
				"exp_alerts": append([]object{}, alerts...)}
		}
		series := func(values string) []object {
			all := []object{{"series": o.series, "values": values}}
			for series, values := range o.beside {
				all = append(all, object{"series": series, "values": values})
			}
			return all
		}
		if o.values != "" {
			tests = append(tests, object{"interval": "1m", "input_series": series(o.values),
				"alert_rule_test": []object{at(o.minute - 1), at(o.minute, o.fires(t))}})
		}
		if o.normal != "" {
			tests = append(tests, object{"interval": "1m", "input_series": series(o.normal),
				"alert_rule_test": []object{at(o.minute), at(o.minute + 5)}})
		}
	}
	text, err := json.Marshal(object{"rule_files": rules,
		"evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "alerts_test.yaml") // JSON is YAML
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", path)
}

// fires is the alert, with its text filled in.
func (o occasion) fires(t *testing.T) map[string]any {
	t.Helper()
	all := alertRules(t)
	r := all[slices.IndexFunc(all, func(r rule) bool { return r.Alert == o.alert })]
	labels := map[string]string{"instance": "n1"}
	maps.Copy(labels, o.labels)
	texts := map[string]string{}
	for name, text := range r.Annotations {
		for label, value := range labels {
			text = strings.ReplaceAll(text, "{{ $labels."+label+" }}", value)
		}
		texts[name] = strings.ReplaceAll(text, `{{ $value | printf "%.0f" }}`, o.value)
		if strings.Contains(texts[name], "{{") {
			t.Errorf("%s has the text %q", o.alert, texts[name])
		}
	}
	if strings.HasPrefix(o.series, "up{") {
		labels["job"] = "gpuledger"
	}
	maps.Copy(labels, r.Labels)
	return map[string]any{"exp_labels": labels, "exp_annotations": texts}
}

// TestPrometheusUnderstandsTheDashboard: each of its queries is checked as a rule.
func TestPrometheusUnderstandsTheDashboard(t *testing.T) {
	needPromtool(t)
	var board struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "grafana.json"), &board); err != nil {
		t.Fatal(err)
	}
	var rules []map[string]string
	filled := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			rules = append(rules, map[string]string{"record": fmt.Sprintf("query_%d", len(rules)),
				"expr": filled.Replace(target.Expr)})
		}
	}
	text, err := json.Marshal(map[string]any{"groups": []any{
		map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil || len(rules) < 10 {
		t.Fatalf("%d queries, %v", len(rules), err)
	}
	path := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", path)
}

// TestPrometheusUnderstandsTheMetrics: promtool's linter checks a whole scrape.
func TestPrometheusUnderstandsTheMetrics(t *testing.T) {
	needPromtool(t)
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(scraped(t, sample()))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// othersLabels are the labels of metrics that come from other programs than gpuledgerd.
var othersLabels = map[string][]string{
	"kube_daemonset_status_number_unavailable": {"daemonset"}, // kube-state-metrics
	"gpuledger_agent_loop_failing":             {"loop", "node"},
	"gpuledger_agent_refusals_total":           {"code", "node"},
}

// TestQueriesNameKnownLabels: every label that a query of an alert or dashboard selects or groups
// by, or that a text or legend shows, is one that a metric of the query has.
func TestQueriesNameKnownLabels(t *testing.T) {
	labels := map[string][]string{}
	for _, d := range described {
		parts := regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`).FindStringSubmatch(
			d.String())
		labels[parts[1]] = strings.Split(parts[2], ",")
	}
	type query struct{ where, expr, shown string }
	var queries []query
	for _, r := range alertRules(t) {
		queries = append(queries, query{r.Alert, r.Expr, r.Annotations["summary"] +
			r.Annotations["description"]})
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(read(t, "grafana.json"), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			queries = append(queries, query{p.Title, target.Expr, target.LegendFormat})
		}
	}
	selected := regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	grouped := regexp.MustCompile(`by \(([^)]*)\)`)
	shown := regexp.MustCompile(`\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}`)
	for _, q := range queries {
		has := []string{"instance", "job", "le"}
		for _, name := range metric.FindAllString(q.expr, -1) {
			has = append(has, labels[strings.TrimSuffix(name, "_bucket")]...)
		}
		for name, of := range othersLabels {
			if strings.Contains(q.expr, name) {
				has = append(has, of...)
			}
		}
		var asked []string
		for _, m := range selected.FindAllStringSubmatch(q.expr, -1) {
			asked = append(asked, m[1])
		}
		for _, m := range grouped.FindAllStringSubmatch(q.expr, -1) {
			asked = append(asked, strings.Split(strings.ReplaceAll(m[1], " ", ""), ",")...)
		}
		for _, m := range shown.FindAllStringSubmatch(q.shown, -1) {
			asked = append(asked, m[1])
		}
		for _, label := range asked {
			if !slices.Contains(has, label) {
				t.Errorf("%s: %q has no label %s", q.where, q.expr, label)
			}
		}
	}
}
