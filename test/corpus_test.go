package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/test/rig"
)

// The corpus, testdata/corpus/*.toml, is every known way around the ledger, and cases that only
// look like one. Each row is one container under one policy, with one grant or none, started by one
// engine. It goes through every entry point, and all must agree. What is admitted is started by the
// real runc, and opens every device of a GPU.

// row is a container and its expected outcome: exactly one of Refuse, Admit and Pass is set.
type row struct {
	Name string
	From string // where the case is known from

	Policy string // a node of nodes.toml
	Engine string // containerd, cri-o, podman, docker; empty if it does not matter
	// its trusted identity, as "UID/CONTAINER" or "NAMESPACE/POD/UID/CONTAINER", in its engine's
	// form
	Pod   string
	Grant string // a grant of nodes.toml that it refers to by annotation
	Args  string // global options of the runtime

	Privileged  bool
	Env         []string
	Annotations map[string]string
	Caps        []string
	Devices     []string // "PATH TYPE MAJOR:MINOR"
	// all of them, as "deny a rwm", "allow c 195:* rw"; an engine's default if there are none
	Rules     []string
	Mounts    []string // "SOURCE DESTINATION [OPTIONS [TYPE]]"
	Hooks     []string // "STAGE PATH ARG..."
	Handed    []string // files that it is handed open, from descriptor 3 on
	Listening bool     // by $LISTEN_FDS, and not by --preserve-fds
	Patch     string   // merged into the spec (RFC 7396)
	Replace   []string // pairs, in the text of config.json

	Refuse string // the code
	Admit  string // the grant that it gets
	Pass   string // "untouched", or "edited"

	Harmless bool     // it only looks like a way to a GPU
	Gone     []string // no longer in the config.json that runs
	Kept     []string // still there
	Recorded string   // in the audit log
	Opens    []string // devices that it can open although the ledger gives it none
	NotRun   string   // why the real runtime does not start it

	Explained grant.VerdictKind // explain's text, if explain does not know all that the runtime gets
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

// check wants a row to be complete and consistent.
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
	acts    bool   // it starts the container, or does not
	starts  bool
	unknown bool   // it did not see all that is to be recorded
	unasked string // why the entry point does not see such a container, or says nothing of its own
}

// expectation is a verdict with the code of a refusal.
type expectation struct {
	verdict grant.VerdictKind
	code    grant.Code
}

// entryPoints are all ways to a verdict. Each leaves nothing behind. If an entry point cannot have
// the row's outcome, expects returns its own; nil is as the row.
var entryPoints = []struct {
	name    string
	judge   func(t *testing.T, c *cell) outcome
	expects func(c *cell) expectation
}{
	{"explain", explained, (*cell).withoutOptions},
	{"run", func(t *testing.T, c *cell) outcome { return c.recorded(t, "run") }, nil},
	{"restore", func(t *testing.T, c *cell) outcome { return c.recorded(t, "restore") }, nil},
	{"create", created, nil},
	{"hook", throughHook, (*cell).throughHook},
	{"precreate", foreseen, (*cell).withoutOptions},
	{"nri", throughNRI, (*cell).throughNRI},
}

// TestCorpus puts every row through every entry point.
func TestCorpus(t *testing.T) {
	all := corpus(t)
	majors := simulateMajors(t)
	rig.Mount(t, "tmpfs", "/var/lib", "tmpfs", 0, "mode=755") // for pods and volumes of the stages
	simulateUnit(t, "docker-busy.scope")
	must(t, os.Mkdir("/var/lib/toolkit", 0o755))
	copyTo(t, "/bin/true", "/var/lib/toolkit/nvidia-container-runtime-hook")
	for policy, rows := range all {
		for part := range slices.Chunk(rows, 150) { // a node each, so that they run beside each other
			t.Run(policy, func(t *testing.T) {
				t.Parallel()
				play(t, newStage(t, policy, majors), part)
			})
		}
	}
}

// simulateUnit shows the file that systemd has for a unit while it exists. No systemd answers:
// packaging/units.sh has a real one.
func simulateUnit(t *testing.T, name string) {
	t.Helper()
	must(t, os.MkdirAll("/run/systemd", 0o755))
	rig.Mount(t, "tmpfs", "/run/systemd", "tmpfs", 0, "mode=755")
	must(t, os.Mkdir("/run/systemd/transient", 0o755),
		os.WriteFile("/run/systemd/transient/"+name, nil, 0o644))
}

// play puts rows through every entry point on one node.
func play(t *testing.T, s *stage, rows []row) {
	for i, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			s.T = t
			c := s.cell(t, r, fmt.Sprintf("row%d", i))
			for _, entry := range entryPoints {
				if len(r.Handed) > 0 && !slices.Contains(oci.Creates, entry.name) {
					s.unasked[entry.name+": descriptors, which only the wrapper sees"]++
					continue
				}
				c.WriteConfig(c.config)
				expected := c.expected
				if entry.expects != nil {
					expected = func() expectation { return entry.expects(c) }
				}
				got := entry.judge(t, c)
				c.want(t, entry.name, expected(), got)
			}
		})
	}
	s.T = t
	for _, reason := range slices.Sorted(maps.Keys(s.unasked)) {
		t.Logf("%d rows are not for %s", s.unasked[reason], reason)
	}
}

// cell is a row on its node.
type cell struct {
	row
	*rig.Bundle
	stage   *stage
	config  []byte // as the engine wrote it
	wrapped []byte // as the wrapper made it; nil where it refused
	made    string // the state of the wrapper's container before its start
}

// expected is the row's expected outcome.
func (c *cell) expected() expectation {
	switch {
	case c.Refuse != "":
		return expectation{grant.Refused, grant.Code(c.Refuse)}
	case c.Admit != "":
		return expectation{verdict: grant.Admit}
	}
	return expectation{verdict: grant.Pass}
}

// withoutOptions is the expected outcome for an entry point that does not see the runtime's
// options.
func (c *cell) withoutOptions() expectation {
	if c.Explained != "" {
		return expectation{verdict: c.Explained}
	}
	return c.expected()
}

// want compares an entry point's outcome with the expected one.
func (c *cell) want(t *testing.T, entry string, want expectation, got outcome) {
	t.Helper()
	if got.unasked != "" {
		c.stage.unasked[entry+": "+got.unasked]++
		return
	}
	report := c.stage.policy.Report && want.verdict == grant.Refused
	reports := report || c.stage.policy.Report && entry == "explain" // for any verdict
	if got.verdict != want.verdict || got.code != want.code || (got.mode == grant.Report) != reports {
		t.Errorf("%s: %s (%s) %s, want %s (%s)\n%s", entry, got.verdict, got.code, got.mode, want.verdict,
			want.code, got.audit)
		return
	}
	if id := c.stage.grants[c.Admit].ID; want.verdict == grant.Admit && got.grant != id {
		t.Errorf("%s: admitted by grant %s, want %s", entry, got.grant, id)
	}
	if starts := want.verdict != grant.Refused || report; got.acts && got.starts != starts {
		t.Errorf("%s: started: %v, want %v", entry, got.starts, starts)
	}
	if got.acts && !got.unknown && want == c.expected() && !strings.Contains(got.audit, c.Recorded) {
		t.Errorf("%s: the audit log has no %q:\n%s", entry, c.Recorded, got.audit)
	}
	if got.config != nil {
		c.wantConfig(t, entry, got.config)
	}
}

// wantConfig compares the config.json that runs.
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
	visible := slices.DeleteFunc(spec.Process.Env, func(e string) bool {
		return !strings.HasPrefix(e, "NVIDIA_VISIBLE_DEVICES=")
	})
	if want := []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Join(c.stage.uuids(c.Admit),
		",")}; !slices.Equal(visible, want) {
		t.Errorf("%s: %q, want %q", entry, visible, want)
	}
}
