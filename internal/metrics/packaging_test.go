package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const monitoring = "../../packaging/monitoring/"

// metric finds gpuledger's metric names in a query, or a whole name in documentation.
var metric = regexp.MustCompile(`gpuledger_[a-z_]+`)

// known checks that queries use only metrics that exist.
func known(t *testing.T, where, query string) {
	t.Helper()
	names := map[string]bool{}
	for _, d := range described {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())
		names[name[1]] = true
	}
	for _, name := range metric.FindAllString(query, -1) {
		if !names[strings.TrimSuffix(name, "_bucket")] {
			t.Errorf("%s queries %s, which does not exist", where, name)
		}
	}
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(query, pair[:1]) != strings.Count(query, pair[1:]) {
			t.Errorf("%s: %q is not balanced", where, query)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(monitoring + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAlertRules(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(string(read(t, "alerts.yaml"))))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil || len(file.Groups) != 1 || len(file.Groups[0].Rules) < 5 {
		t.Fatalf("%+v %v", file, err)
	}
	for _, r := range file.Groups[0].Rules {
		known(t, r.Alert, r.Expr)
		if r.Expr == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
			t.Errorf("%+v lacks an expression, a severity or a summary", r)
		}
	}
}

func TestDashboard(t *testing.T) {
	var board struct {
		Title, UID string
		Panels     []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "grafana.json"), &board); err != nil || board.Title != "gpuledger" ||
		len(board.Panels) < 5 {
		t.Fatalf("%+v %v", board, err)
	}
	seen := map[int]bool{}
	for _, p := range board.Panels {
		if seen[p.ID] || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H == 0 {
			t.Errorf("panel %+v", p)
		}
		seen[p.ID] = true
		for _, target := range p.Targets {
			known(t, p.Title, target.Expr)
		}
	}
}

// TestDocumentation compares docs/daemon.md with the metrics that exist, in both directions.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/daemon.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range described {
		full := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		if strings.Contains(string(text), "`"+full+"`") {
			continue
		}
		i := strings.LastIndex(full, "_") // `_bytes` after a full name stands for what begins as that does
		for ; i > 0 && !strings.Contains(string(text), "`"+full[i:]+
			"`"); i = strings.LastIndex(full[:i], "_") {
		}
		if i <= 0 || !strings.Contains(string(text), "`"+full[:i]+"_") {
			t.Errorf("docs/daemon.md does not name %s", full)
		}
	}
}
