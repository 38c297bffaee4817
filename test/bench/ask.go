package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// createAsked compares a create that asks for its grant, one with a grant that root made before,
// and one that adopts a scheduler's allocation, which is the base. All of them want 8 GiB of one
// GPU. The real runtime is true(1), and what is started is deleted again in each round.
func createAsked(r *rig) ([]Row, error) {
	nothing, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	var contestants []contestant
	for _, c := range []struct{ name, engine, config, memory, gpus string }{
		{"adopts", "containerd", "[annotations]\ntrust = \"adopt\"\n", "memory.train", "gpus.train"},
		{"asks", "podman", "[ask]\nengines = [\"podman\"]\n", "memory", ""},
		{"grant", "podman", "", "", ""},
	} {
		node, err := r.newNode("ask-"+c.name, nothing)
		if err != nil {
			return nil, err
		}
		annotations := map[string]string{}
		if c.memory != "" {
			annotations["gpuledger.dev/"+c.memory] = "8GiB"
		} else if annotations["gpuledger.dev/grant"], err = node.grant("--memory", "8GiB"); err != nil {
			return nil, err
		}
		if c.gpus != "" {
			annotations["gpuledger.dev/"+c.gpus] = "0"
		}
		ours, bundle, err := r.admitted("ask-"+c.name, node, annotated(annotations))
		if err == nil {
			err = node.configure(c.engine, c.config)
		}
		if err == nil {
			err = r.reaches(ours, bundle, "/dev/nvidia0")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		contestants = append(contestants, ours)
	}
	wall, cpu, err := r.compareCPU(r.options.pairs, contestants...)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, m := range []struct {
		what  string
		times [][]time.Duration
	}{{"real runtime true(1)", wall}, {"CPU time", cpu}} {
		over := func(what string, i int) Row {
			return comparison(what+", over one that adopts, "+m.what, wrapperName, m.times[0], m.times[i])
		}
		asks := over("a create that asks", 1)
		asks.Budget = "+0"
		asks.within(asks.Added.Low <= 0, true)
		rows = append(rows, asks, over("a create with a grant", 2))
	}
	return rows, nil
}

// annotated adds annotations to a spec.
func annotated(annotations map[string]string) func(*specs.Spec) error {
	return func(s *specs.Spec) error {
		for key, value := range annotations {
			s.Annotations[key] = value
		}
		return nil
	}
}

// configure gives a node's configuration an engine and more tables.
func (n *node) configure(engine, more string) error {
	file := strings.TrimPrefix(n.env[0], "GPULEDGER_CONFIG=")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	with := bytes.Replace(text, []byte(`engine = "none"`), fmt.Appendf(nil, "engine = %q", engine), 1)
	return os.WriteFile(file, append(with, more...), 0o644)
}

// reaches creates a container once, which is not measured, and wants a text in what the real
// runtime got.
func (r *rig) reaches(c contestant, bundle, text string) error {
	if _, err := r.once(c); err != nil {
		return err
	}
	final, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err == nil && !bytes.Contains(final, []byte(text)) {
		err = errors.New("the container has started without " + text)
	}
	return err
}

// compareCPU is compare, with the processor time of each process too.
func (r *rig) compareCPU(rounds int, contestants ...contestant) (wall, cpu [][]time.Duration, err error) {
	both, err := inTurns(r, rounds, len(contestants), func(i int) ([2]time.Duration, error) {
		c := contestants[i]
		var timed *exec.Cmd
		c.command = func() *exec.Cmd {
			timed = contestants[i].command()
			return timed
		}
		took, err := r.once(c)
		if err != nil {
			return [2]time.Duration{}, fmt.Errorf("%s: %w", c.name, err)
		}
		return [2]time.Duration{took, timed.ProcessState.UserTime() + timed.ProcessState.SystemTime()}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	wall, cpu = make([][]time.Duration, len(both)), make([][]time.Duration, len(both))
	for i := range both {
		for _, m := range both[i] {
			wall[i], cpu[i] = append(wall[i], m[0]), append(cpu[i], m[1])
		}
	}
	return wall, cpu, nil
}
