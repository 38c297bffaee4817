package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// lifeSteps are the calls of a container's life, with the arguments that containerd's shim gives
// them.
var lifeSteps = []string{"create", "start", "state", "exec", "kill", "delete"}

// life is a contestant that lives the whole life of a container. Each step is timed alone. Between
// kill and delete the container's process ends, which is not timed.
type life struct {
	name, runtime, bundle, root, pidFile, process, processPID string
	env                                                       []string

	// The pipes of what exec starts. Engines give pipes, and a file would be judged (ADR 84).
	stdout, stderr *os.File
}

func (r *rig) newLife(name, runtime, bundle string, env []string) (life, error) {
	dir := r.path("run/lives", name)
	l := life{name: name, runtime: runtime, bundle: bundle, env: env,
		root: r.path("run/roots", name), pidFile: filepath.Join(dir, "pid"),
		process: filepath.Join(dir, "process.json"), processPID: filepath.Join(dir, "exec.pid")}
	process, err := json.Marshal(specs.Process{Args: []string{"/bin/busybox", "true"}, Cwd: "/",
		Env: []string{"PATH=/bin"}})
	if err != nil {
		return l, err
	}
	for _, to := range []**os.File{&l.stdout, &l.stderr} {
		from, into, err := os.Pipe()
		if err != nil {
			return l, err
		}
		*to = into
		r.ends = append(r.ends, func() { _, _ = from.Close(), into.Close() })
	}
	return l, errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(l.process, process, 0o600))
}

// command is one step.
func (l life) command(r *rig, step string) *exec.Cmd {
	argv := []string{l.runtime, "--root", l.root, "--log", l.pidFile + ".log", "--log-format", "json", step}
	switch step {
	case "create":
		argv = append(argv, "--bundle", l.bundle, "--pid-file", l.pidFile, containerID)
	case "exec":
		argv = append(argv, "--process", l.process, "--detach", "--pid-file", l.processPID, containerID)
	case "kill":
		argv = append(argv, containerID, "KILL")
	default:
		argv = append(argv, containerID)
	}
	cmd := r.command(l.env, argv...)
	if step == "exec" {
		cmd.Stdout, cmd.Stderr = l.stdout, l.stderr
	}
	return cmd
}

// once returns the time of each step, and at the end of their sum.
func (l life) once(r *rig) ([]time.Duration, error) {
	var times []time.Duration
	var sum time.Duration
	r.live[l.root] = true
	for _, step := range lifeSteps {
		if step == "delete" {
			if err := l.ended(); err != nil {
				return nil, err
			}
		}
		took, err := r.timed(l.command(r, step))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		times, sum = append(times, took), sum+took
	}
	delete(r.live, l.root)
	return append(times, sum), nil
}

// ended waits until the container's processes are gone. They are the benchmark's children
// (adoptOrphans). The one that exec started comes first: the kernel ends a PID namespace's first
// process only when all others in it have been reaped.
func (l life) ended() error {
	for _, file := range []string{l.processPID, l.pidFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		deadline := time.Now().Add(10 * time.Second)
		for {
			reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
			if reaped == pid {
				break
			}
			if err != nil || time.Now().After(deadline) {
				return fmt.Errorf("%s: process %d does not end: %w", l.name, pid,
					cmp.Or(err, os.ErrDeadlineExceeded))
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// adoptOrphans makes this process the parent of what a runtime leaves behind, as containerd's shim
// and conmon are, or ends that. Otherwise the machine's process 1 would reap them, on some virtual
// machines only once in a second or two.
func adoptOrphans(adopt bool) error {
	var on uintptr
	if adopt {
		on = 1
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, on, 0, 0, 0)
}

// lives is the whole life over runc and over crun, bare and through each wrapper.
func lives(r *rig) ([]Row, error) {
	if err := adoptOrphans(true); err != nil {
		return nil, err
	}
	defer func() { _ = adoptOrphans(false) }()
	var rows []Row
	for _, base := range []string{r.runtime, r.crun} {
		if base == "" {
			continue // no crun on this machine; the report's machine says so
		}
		over, err := r.livesOver(base)
		if err != nil {
			return nil, err
		}
		rows = append(rows, over...)
	}
	return rows, nil
}

func (r *rig) livesOver(base string) ([]Row, error) {
	name := filepath.Base(base)
	wrappings, err := r.wrappings("life-"+name, base)
	if err != nil {
		return nil, err
	}
	bundle, err := r.bundle("life-"+name, r.spec())
	if err != nil {
		return nil, err
	}
	var contestants []life
	for _, w := range append([]wrapping{{name: "bare", path: base}}, wrappings...) {
		l, err := r.newLife("life-"+name+"-"+w.name, w.path, bundle, w.env)
		if err != nil {
			return nil, err
		}
		contestants = append(contestants, l)
	}
	if _, err := contestants[0].once(r); err != nil && strings.Contains(err.Error(), "hybrid") {
		fmt.Fprintf(os.Stderr, "bench: %s is not measured, as it wants one version of cgroups: "+
			"test/rig/cgroup1.sh bin/bench\n", name)
		delete(r.live, contestants[0].root)
		return nil, nil
	}
	times, err := inTurns(r, r.options.pairs, len(contestants), func(i int) ([]time.Duration, error) {
		return contestants[i].once(r)
	})
	if err != nil {
		return nil, err
	}
	var rows []Row
	for step := len(lifeSteps); step >= 0; step-- { // the whole first
		what := "the whole life over " + name
		if step < len(lifeSteps) {
			what = "of it, " + lifeSteps[step]
		}
		for i, w := range wrappings {
			rows = append(rows, comparison(what, w.name, ofStep(times[0], step), ofStep(times[i+1], step)))
			if i == 0 {
				rows[len(rows)-1].judgeLife(step)
			}
		}
	}
	return rows, nil
}

// judgeLife holds ours against the goal of a step, or of the whole.
func (row *Row) judgeLife(step int) {
	goal := 0.5
	switch {
	case step == len(lifeSteps):
		goal = 4
	case lifeSteps[step] == "create" || lifeSteps[step] == "delete":
		goal = 2
	}
	row.Goal = fmt.Sprintf("+%g ms", goal)
	row.within(row.Added.Median <= goal, true)
}

func ofStep(lives [][]time.Duration, step int) []time.Duration {
	times := make([]time.Duration, len(lives))
	for i, life := range lives {
		times[i] = life[step]
	}
	return times
}
