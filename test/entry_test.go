package test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// explained is what gpuledger explain says. It knows nothing of the runtime's options.
func explained(t *testing.T, c *cell) outcome {
	t.Helper()
	node := *c.Node
	node.Config = filepath.Join(c.stage.Dir, "config."+c.engine()+".toml")
	r := c.On(&node).Explain("--json")
	var said struct {
		Verdict grant.VerdictKind
		Code    grant.Code
		Mode    grant.RulesMode
		Grant   grant.ID
		Message string
	}
	if err := json.Unmarshal([]byte(r.Stdout), &said); err != nil {
		t.Fatalf("explain: %v\n%+v", err, r)
	}
	if refused := said.Verdict == grant.Refused; r.Code != 0 && r.Code != 3 || (r.Code == 3) != refused {
		t.Errorf("explain says %q and exits with %d", said.Verdict, r.Code)
	}
	return outcome{verdict: said.Verdict, code: said.Code, mode: said.Mode, grant: said.Grant, audit: said.Message}
}

func (c *cell) engine() string {
	if c.Engine == "" {
		return "none"
	}
	return c.Engine
}

// recorded calls the wrapper with a subcommand that starts a container, and a runtime behind it that does nothing.
func (c *cell) recorded(t *testing.T, subcommand string) outcome {
	t.Helper()
	node := *c.Node
	node.Config = filepath.Join(c.stage.Dir, "config.recorded.toml")
	r := rig.Run(c.wrapper(&node, subcommand, "--bundle", c.Dir, c.ID))
	return c.outcome(t, r)
}

// wrapper calls gpuledger-runtime as the row's engine does.
func (c *cell) wrapper(n *rig.Node, args ...string) *exec.Cmd {
	all := append([]string{"--root", c.Node.Root}, strings.Fields(c.Args)...)
	return n.Command(c.stage.link(c.engine()), append(all, args...)...)
}

// outcome reads what the wrapper did from its status, from the audit log, and from config.json. A plain pass is not in
// the log.
func (c *cell) outcome(t *testing.T, r rig.Result) outcome {
	t.Helper()
	log := c.stage.audit()
	o := outcome{verdict: grant.Pass, audit: log[c.stage.audits:] + r.Stderr, config: c.Config(), starts: r.Code == 0}
	lines := strings.Split(strings.TrimSuffix(log[c.stage.audits:], "\n"), "\n")
	c.stage.audits = len(log)
	if lines[0] != "" {
		var line struct {
			Verdict grant.VerdictKind
			Code    grant.Code
			Mode    grant.RulesMode
			Grant   grant.ID
		}
		must(t, json.Unmarshal([]byte(lines[0]), &line))
		o.verdict, o.code, o.mode, o.grant = line.Verdict, line.Code, line.Mode, line.Grant
	}
	if len(lines) > 1 {
		t.Errorf("one create has %d lines in the audit log:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	if o.verdict == grant.Refused && o.mode == "" {
		wantRefused(t, r, string(o.code))
	}
	return o
}

// created lets the real runtime create and start the container, and opens every node in it.
func created(t *testing.T, c *cell) outcome {
	t.Helper()
	if c.NotRun != "" {
		return c.recorded(t, "create")
	}
	said, err := os.CreateTemp(c.Dir, "said-")
	must(t, err)
	defer said.Close()
	stderr, err := os.CreateTemp(c.Dir, "stderr-")
	must(t, err)
	defer stderr.Close()
	cmd := c.wrapper(c.Node, "create", "--bundle", c.Dir, c.ID)
	cmd.Stdout, cmd.Stderr = said, stderr
	err = cmd.Run()
	r := rig.Result{Stderr: read(t, stderr.Name())}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.Code = exit.ExitCode()
	} else {
		must(t, err)
	}
	o := c.outcome(t, r)
	if r.Code != 0 {
		return o
	}
	defer func() {
		if r := rig.Run(c.Node.Real("delete", "--force", c.ID)); r.Code != 0 {
			t.Errorf("delete: %+v", r)
		}
	}()
	if r := rig.Run(c.Node.Real("start", c.ID)); r.Code != 0 {
		t.Errorf("start: %+v", r)
		return o
	}
	rig.Eventually(t, "every node is probed", func() bool { return strings.HasSuffix(read(t, said.Name()), "end\n") || c.Init() == 0 })
	c.wantOpen(t, read(t, said.Name()))
	return o
}

// wantOpen reads what probeAll found: nodes that may be opened answer ENXIO where no driver is, others EPERM.
func (c *cell) wantOpen(t *testing.T, said string) {
	t.Helper()
	var open, want []string
	for name := range c.stage.probed {
		tries, denied := 0, 0
		for line := range strings.Lines(said) {
			if !strings.Contains(line, "/probe/"+name+":") {
				continue
			}
			if tries++; strings.Contains(line, "Operation not permitted") {
				denied++
			}
		}
		if tries != 2 {
			t.Errorf("%s was not opened for reading and writing:\n%s", name, said)
		}
		if denied < 2 {
			open = append(open, name)
		}
	}
	want = append(c.stage.devices(c.Admit), c.Opens...)
	slices.Sort(open)
	slices.Sort(want)
	if !slices.Equal(open, want) {
		t.Errorf("it opens %v, want %v\n%s", open, want, said)
	}
}
