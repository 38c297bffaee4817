package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// The corpus, testdata/corpus/*.toml, is every way around the ledger that is known, and what only looks like one. Each
// row is one container under one policy, with one grant or none, started by one engine. It goes through every entry
// point, and all must say the same; what starts is started by the real runc, and opens every device of a GPU.

// row is a container and what must become of it: exactly one of Refuse, Admit and Pass is set.
type row struct {
	Name string
	From string // where the case is known from

	Policy string // a node of nodes.toml
	Engine string // containerd, cri-o, podman, docker; none of them where it does not matter
	Pod    string // its trusted identity, as "UID/CONTAINER" or "NAMESPACE/POD/UID/CONTAINER", in its engine's words
	Grant  string // a grant of nodes.toml that it refers to by annotation
	Args   string // global options of the runtime

	Privileged  bool
	Env         []string
	Annotations map[string]string
	Caps        []string
	Devices     []string // "PATH TYPE MAJOR:MINOR"
	Rules       []string // all of them, as "deny a rwm", "allow c 195:* rw"; an engine's default when there is none
	Mounts      []string // "SOURCE DESTINATION [OPTIONS [TYPE]]"
	Hooks       []string // "STAGE PATH ARG..."
	Patch       string   // merged into the spec (RFC 7396)
	Replace     []string // pairs, in the text of config.json

	Refuse string // the code
	Admit  string // the grant that it gets
	Pass   string // "untouched", or "edited"

	Harmless bool     // it only looks like a way to a GPU
	Gone     []string // no longer in the config.json that runs
	Kept     []string // still there
	Recorded string   // in the audit log
	Opens    []string // devices that it can open although the ledger gives it none
	NotRun   string   // why the real runtime is not asked to start it

	Explained grant.VerdictKind // what explain says, where it cannot know all that the runtime is told
}

// rows reads a file of the corpus.
func rows(t *testing.T, path string) []row {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	var file struct{ Row []row }
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return file.Row
}

// corpus is all rows, by policy.
func corpus(t *testing.T) map[string][]row {
	t.Helper()
	paths, err := filepath.Glob("testdata/corpus/*.toml")
	must(t, err)
	byPolicy, names := map[string][]row{}, map[string]bool{}
	total, harmless := 0, 0
	for _, path := range paths {
		if filepath.Base(path) == "nodes.toml" {
			continue
		}
		for _, r := range rows(t, path) {
			r.check(t)
			if names[r.Name] {
				t.Errorf("two rows are called %q", r.Name)
			}
			names[r.Name] = true
			if r.Policy == "" {
				r.Policy = "default"
			}
			byPolicy[r.Policy] = append(byPolicy[r.Policy], r)
			total++
			if r.Harmless {
				harmless++
			}
		}
	}
	if total < 250 || harmless < 60 {
		t.Errorf("the corpus has %d rows, %d of them harmless", total, harmless)
	}
	t.Logf("%d rows, %d of them harmless look-alikes", total, harmless)
	return byPolicy
}

// check wants a row to say what it must.
func (r row) check(t *testing.T) {
	t.Helper()
	verdicts := 0
	for _, v := range []string{r.Refuse, r.Admit, r.Pass} {
		if v != "" {
			verdicts++
		}
	}
	switch {
	case r.Name == "" || r.From == "":
		t.Errorf("a row without a name or an origin: %+v", r)
	case verdicts != 1:
		t.Errorf("%s: want one of refuse, admit and pass", r.Name)
	case r.Pass != "" && r.Pass != "untouched" && r.Pass != "edited", r.Harmless && r.Pass != "untouched":
		t.Errorf("%s: a container passes untouched or edited, a harmless one untouched", r.Name)
	case r.Refuse != "" && !slices.Contains(grant.Codes, grant.Code(r.Refuse)):
		t.Errorf("%s: %q is no code", r.Name, r.Refuse)
	}
}

// outcome is what an entry point did with a container.
type outcome struct {
	verdict grant.VerdictKind
	code    grant.Code
	mode    grant.RulesMode // where a refusal is only recorded
	grant   grant.ID
	audit   string
	config  []byte // the config.json that runs; nil where the entry point writes none
	starts  bool
}

// entryPoints are all ways to a verdict. Each leaves nothing behind.
var entryPoints = []struct {
	name  string
	judge func(t *testing.T, c *cell) outcome
}{
	{"explain", explained},
	{"run", func(t *testing.T, c *cell) outcome { return c.recorded(t, "run") }},
	{"restore", func(t *testing.T, c *cell) outcome { return c.recorded(t, "restore") }},
	{"create", created},
}

// TestCorpus puts every row through every entry point.
func TestCorpus(t *testing.T) {
	all := corpus(t)
	majors := simulateMajors(t)
	for policy, rows := range all {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, policy, majors)
			for i, r := range rows {
				t.Run(r.Name, func(t *testing.T) {
					s.T = t
					c := s.cell(t, r, fmt.Sprintf("row%d", i))
					for _, entry := range entryPoints {
						c.WriteConfig(c.config)
						c.want(t, entry.name, entry.judge(t, c))
					}
				})
			}
			s.T = t
		})
	}
}

// cell is a row on its node.
type cell struct {
	row
	*rig.Bundle
	stage  *stage
	config []byte // as the engine wrote it
}

// want compares what an entry point did with what the row says.
func (c *cell) want(t *testing.T, entry string, got outcome) {
	t.Helper()
	verdict := grant.Pass
	switch {
	case c.Refuse != "":
		verdict = grant.Refused
	case c.Admit != "":
		verdict = grant.Admit
	}
	if c.Explained != "" && entry == "explain" {
		if got.verdict != c.Explained {
			t.Errorf("explain: %s, want %s", got.verdict, c.Explained)
		}
		return
	}
	report := c.stage.policy.Report && verdict == grant.Refused
	said := report || c.stage.policy.Report && entry == "explain" // which says it whatever the verdict
	if got.verdict != verdict || got.code != grant.Code(c.Refuse) || (got.mode == grant.Report) != said {
		t.Errorf("%s: %s (%s) %s, want %s (%s)\n%s", entry, got.verdict, got.code, got.mode, verdict, c.Refuse, got.audit)
		return
	}
	if want := c.stage.grants[c.Admit].ID; c.Admit != "" && got.grant != want {
		t.Errorf("%s: admitted by grant %s, want %s", entry, got.grant, want)
	}
	if want := verdict != grant.Refused || report; got.config != nil && got.starts != want {
		t.Errorf("%s: started: %v, want %v", entry, got.starts, want)
	}
	if !strings.Contains(got.audit, c.Recorded) && got.config != nil {
		t.Errorf("%s: the audit log has no %q:\n%s", entry, c.Recorded, got.audit)
	}
	if got.config != nil {
		c.wantConfig(t, entry, got.config)
	}
}

// wantConfig looks at the config.json that runs.
func (c *cell) wantConfig(t *testing.T, entry string, config []byte) {
	t.Helper()
	if same := bytes.Equal(config, c.config); same != (c.Admit == "" && c.Pass != "edited") {
		t.Errorf("%s: config.json is as it was: %v\n%s", entry, same, config)
	}
	for _, text := range c.Gone {
		if bytes.Contains(config, []byte(text)) {
			t.Errorf("%s: %q is still in\n%s", entry, text, config)
		}
	}
	for _, text := range c.Kept {
		if !bytes.Contains(config, []byte(text)) {
			t.Errorf("%s: %q is no longer in\n%s", entry, text, config)
		}
	}
	if c.Admit == "" {
		return
	}
	var spec struct{ Process struct{ Env []string } }
	must(t, json.Unmarshal(config, &spec))
	visible := slices.DeleteFunc(spec.Process.Env, func(e string) bool { return !strings.HasPrefix(e, "NVIDIA_VISIBLE_DEVICES=") })
	if want := []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Join(c.stage.uuids(c.Admit), ",")}; !slices.Equal(visible, want) {
		t.Errorf("%s: %q, want %q", entry, visible, want)
	}
}
