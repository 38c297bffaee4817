package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// explained is explain's output. It does not know the runtime's options.
func explained(t *testing.T, c *cell) outcome {
	t.Helper()
	node := *c.Node
	node.Config = filepath.Join(c.stage.Dir, "config."+c.engine()+".toml")
	r := c.On(&node).Explain("--json")
	var shown struct {
		Verdict grant.VerdictKind
		Code    grant.Code
		Mode    grant.RulesMode
		Grant   grant.ID
		Message string
	}
	if err := json.Unmarshal([]byte(r.Stdout), &shown); err != nil {
		t.Fatalf("explain: %v\n%+v", err, r)
	}
	if refused := shown.Verdict == grant.Refused; r.Code != 0 && r.Code != 3 || (r.Code == 3) != refused {
		t.Errorf("explain prints %q and exits with %d", shown.Verdict, r.Code)
	}
	return outcome{verdict: shown.Verdict, code: shown.Code, mode: shown.Mode, grant: shown.Grant,
		audit: shown.Message}
}

func (c *cell) engine() string {
	if c.Engine == "" {
		return "none"
	}
	return c.Engine
}

// recorded calls the wrapper with a subcommand that starts a container, and with a runtime behind
// it that does nothing.
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
	all = append(all, args[0])
	if handed := len(c.Handed); handed > 0 && !c.Listening {
		all = append(all, fmt.Sprintf("--preserve-fds=%d", handed))
	}
	cmd := n.Command(c.stage.link(c.engine()), append(all, args[1:]...)...)
	for _, path := range c.Handed {
		// there is no driver on this node, so NVML is not called
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		must(c.stage.T, err)
		f := os.NewFile(uintptr(fd), path)
		c.stage.T.Cleanup(func() { _ = f.Close() })
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if c.Listening {
		cmd.Env = append(cmd.Environ(), fmt.Sprintf("LISTEN_FDS=%d", len(c.Handed)))
	}
	return cmd
}

// outcome reads the wrapper's outcome from its status, from the audit log, and from config.json.
func (c *cell) outcome(t *testing.T, r rig.Result) outcome {
	t.Helper()
	o := c.recordedOutcome(t, r)
	o.config = c.Config()
	if o.verdict == grant.Refused && o.mode == "" {
		wantRefused(t, r, string(o.code))
	}
	return o
}

// recordedOutcome is what was added to the audit log since it was last read, in which a plain pass
// is missing. It is one line, and one more for an admitted container that cannot be given what it
// must get.
func (c *cell) recordedOutcome(t *testing.T, r rig.Result) outcome {
	t.Helper()
	log := c.stage.audit()
	news := log[c.stage.audits:]
	c.stage.audits = len(log)
	o := outcome{verdict: grant.Pass, audit: news + r.Stderr, acts: true, starts: r.Code == 0}
	lines := 0
	for text := range strings.Lines(news) {
		var line struct {
			Verdict grant.VerdictKind
			Code    grant.Code
			Mode    grant.RulesMode
			Grant   grant.ID
		}
		must(t, json.Unmarshal([]byte(text), &line))
		if lines++; lines > 1 && line.Code != grant.InjectionImpossible {
			t.Errorf("one create has more than one line in the audit log:\n%s", news)
		}
		o.verdict, o.code, o.mode, o.grant = line.Verdict, line.Code, line.Mode, line.Grant
	}
	return o
}

// created lets the real runtime create and start the container, and opens every node in it.
func created(t *testing.T, c *cell) outcome {
	t.Helper()
	if c.NotRun != "" {
		o := c.recorded(t, "create")
		if o.starts {
			c.wrapped = o.config
		}
		return o
	}
	create := c.create(t, c.wrapper(c.Node, "create", "--bundle", c.Dir, c.ID))
	o := c.outcome(t, create.Result)
	if !o.starts {
		return o
	}
	defer c.delete(t)
	c.wrapped, c.made = o.config, c.look(t)
	c.wantOpen(t, create.opened(t))
	return o
}

// creation is a container that the real runtime has created.
type creation struct {
	rig.Result
	c     *cell
	shown string // where its processes write
}

func (c *cell) create(t *testing.T, cmd *exec.Cmd) creation {
	t.Helper()
	shown, err := os.CreateTemp(c.Dir, "said-")
	must(t, err)
	defer shown.Close()
	stderr, err := os.CreateTemp(c.Dir, "stderr-")
	must(t, err)
	defer stderr.Close()
	cmd.Stdout, cmd.Stderr = shown, stderr
	err = cmd.Run()
	r := rig.Result{Stderr: read(t, stderr.Name())}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.Code = exit.ExitCode()
	} else {
		must(t, err)
	}
	return creation{r, c, shown.Name()}
}

// opened starts the container, and returns the result of opening every node.
func (k creation) opened(t *testing.T) string {
	t.Helper()
	if r := rig.Run(k.c.Node.Real("start", k.c.ID)); r.Code != 0 {
		t.Errorf("start: %+v", r)
	}
	rig.Eventually(t, "every node is probed", func() bool {
		return strings.HasSuffix(read(t, k.shown), "end\n") || k.c.Init() == 0
	})
	return read(t, k.shown)
}

func (c *cell) delete(t *testing.T) {
	t.Helper()
	if r := rig.Run(c.Node.Real("delete", "--force", c.ID)); r.Code != 0 {
		t.Errorf("delete: %+v", r)
	}
}

// look is all that could have been changed in a created container: its mounts, its /dev, its device
// rules where they can be read, and its config.json.
func (c *cell) look(t *testing.T) string {
	t.Helper()
	var state struct {
		PID     int               `json:"init_process_pid"`
		Cgroups map[string]string `json:"cgroup_paths"`
	}
	must(t, json.Unmarshal([]byte(read(t, filepath.Join(c.Node.Root, c.ID, "state.json"))), &state))
	var all []string
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/mountinfo", state.PID))) {
		if strings.Contains(line, "/node-") && !strings.Contains(line, filepath.Base(c.Node.Dir)) {
			continue // of the node of a test that runs in parallel, whose mounts appear and disappear
		}
		mount, source, _ := strings.Cut(line, " - ")
		// without ids, numbers of file systems and peers
		all = append(all, strings.Join(strings.Fields(mount)[3:6], " ")+" "+source)
	}
	root := fmt.Sprintf("/proc/%d/root/dev", state.PID)
	entries, _ := os.ReadDir(root)
	for _, entry := range entries {
		var st syscall.Stat_t
		must(t, syscall.Lstat(filepath.Join(root, entry.Name()), &st))
		all = append(all, fmt.Sprintf("%s %o %x %d:%d\n", entry.Name(), st.Mode, st.Rdev, st.Uid, st.Gid))
	}
	rules, _ := os.ReadFile(filepath.Join(state.Cgroups["devices"], "devices.list"))
	return strings.Join(all, "") + string(rules) + string(c.Config())
}

// wantOpen reads what probeAll found: nodes that may be opened return ENXIO without a driver,
// others EPERM.
func (c *cell) wantOpen(t *testing.T, shown string) {
	t.Helper()
	var open, want []string
	for name := range c.stage.probed {
		tries, denied := 0, 0
		for line := range strings.Lines(shown) {
			if !strings.Contains(line, "/probe/"+name+":") {
				continue
			}
			if tries++; strings.Contains(line, "Operation not permitted") {
				denied++
			}
		}
		if tries != 2 {
			t.Errorf("%s was not opened for reading and writing:\n%s", name, shown)
		}
		if denied < 2 {
			open = append(open, name)
		}
	}
	want = append(c.stage.devices(c.Admit), c.Opens...)
	slices.Sort(open)
	slices.Sort(want)
	if !slices.Equal(open, want) {
		t.Errorf("it opens %v, want %v\n%s", open, want, shown)
	}
}
