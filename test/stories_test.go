package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestStories runs testdata/*.txt, each on a node of its own with two simulated GPUs of 16160MiB.
// Beside testscript's own commands a story has those below, and the variables STATE, RUN, AUDIT,
// CONFIG, NODE, CDI, BUNDLES and ROOT.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("there is no story", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
			s := story{n}
			testscript.Run(t, testscript.Params{
				Files: []string{file}, Setup: s.setup, RequireExplicitExec: true,
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits": s.exits, "keep": s.keep, "keys": s.keys, "value": s.value, "bundle": s.bundle,
					"configure": s.configure,
				},
			})
		})
	}
}

type story struct{ node *rig.Node }

func (s story) setup(env *testscript.Env) error {
	n := s.node
	cli := rig.Binary(n.T, "gpuledger")
	rig.Binary(n.T, "gpuledger-runtime")
	env.Setenv("PATH", filepath.Dir(cli)+":"+env.Getenv("PATH"))
	env.Setenv("GPULEDGER_CONFIG", n.Config)
	for name, path := range map[string]string{"STATE": "state", "RUN": "run", "AUDIT": "audit.jsonl",
		"CONFIG": "config.toml", "NODE": "node.json", "CDI": "cdi", "BUNDLES": "bundles"} {
		env.Setenv(name, filepath.Join(n.Dir, path))
	}
	env.Setenv("ROOT", n.Root)
	return nil
}

// exits: "exits STATUS PROGRAM ARG..." runs a program that must end with this status. A container
// that it creates may keep its output open.
func (s story) exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM ARG...")
	}
	cmd := s.node.Command(filepath.Join(filepath.Dir(rig.Binary(s.node.T, "gpuledger")), args[1]),
		args[2:]...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), append(cmd.Env, "GPULEDGER_CONFIG="+ts.Getenv("GPULEDGER_CONFIG"))
	r := rig.Run(cmd)
	fmt.Fprint(ts.Stdout(), r.Stdout)
	fmt.Fprint(ts.Stderr(), r.Stderr)
	if want := args[0]; strconv.Itoa(r.Code) != want {
		ts.Fatalf("%s exits with status %d, want %s\n%s%s", strings.Join(args[1:], " "), r.Code, want,
			r.Stdout, r.Stderr)
	}
}

// keep: "keep NAME" keeps the reference that was just printed as $NAME, and its id as $NAME_ID.
func (s story) keep(ts *testscript.TestScript, _ bool, args []string) {
	reference := strings.TrimSpace(ts.ReadFile("stdout"))
	if strings.HasPrefix(reference, "{") {
		reference = fmt.Sprint(find(ts, "reference"))
	}
	id, _, _ := strings.Cut(reference, ".")
	ts.Setenv(args[0], reference)
	ts.Setenv(args[0]+"_ID", id)
	ts.Setenv(args[0]+"_SECRET", strings.TrimPrefix(reference, id+"."))
}

// keys: "keys PATH KEY..." wants the JSON object at PATH ("." is the whole) on standard output to
// have exactly these.
func (s story) keys(ts *testscript.TestScript, _ bool, args []string) {
	object, ok := find(ts, args[0]).(map[string]any)
	got := slices.Sorted(maps.Keys(object))
	want := slices.Sorted(slices.Values(args[1:]))
	if !ok || !slices.Equal(got, want) {
		ts.Fatalf("%s has the keys %v, want %v", args[0], got, want)
	}
}

// value: "value PATH TEXT" wants this value on standard output's JSON, written as JSON but for the
// quotes of a string.
func (s story) value(ts *testscript.TestScript, neg bool, args []string) {
	v := find(ts, args[0])
	got, isText := v.(string)
	if !isText {
		data, err := json.Marshal(v)
		ts.Check(err)
		got = string(data)
	}
	if (got == args[1]) == neg {
		ts.Fatalf("%s is %s, want %s (negated: %v)", args[0], got, args[1], neg)
	}
}

// find walks standard output's JSON: grants.0.id
func find(ts *testscript.TestScript, path string) any {
	decoder := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	decoder.UseNumber()
	var v any
	ts.Check(decoder.Decode(&v))
	if decoder.More() {
		ts.Fatalf("standard output has more than one JSON document")
	}
	if path == "." {
		return v
	}
	for _, step := range strings.Split(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			i, err := strconv.Atoi(step)
			ts.Check(err)
			if i >= len(at) {
				ts.Fatalf("%s: there are %d elements", path, len(at))
			}
			v = at[i]
		default:
			ts.Fatalf("%s: nothing is below %q", path, step)
		}
	}
	return v
}

// bundle: "bundle NAME [env:NAME=VALUE | annotation:KEY=VALUE | privileged]..." makes
// $BUNDLES/NAME.
func (s story) bundle(ts *testscript.TestScript, _ bool, args []string) {
	var edits []rig.Edit
	for _, arg := range args[1:] {
		kind, rest, _ := strings.Cut(arg, ":")
		key, value, _ := strings.Cut(rest, "=")
		switch kind {
		case "env":
			edits = append(edits, rig.Env(rest))
		case "annotation":
			edits = append(edits, rig.Annotation(key, value))
		case "shell":
			edits = append(edits, rig.Shell(rest))
		case "privileged":
			edits = append(edits, rig.Privileged)
		default:
			ts.Fatalf("bundle: cannot understand %q", arg)
		}
	}
	s.node.Bundle(args[0], edits...)
}

// configure: "configure FILE" adds FILE to the node's configuration.
func (s story) configure(ts *testscript.TestScript, _ bool, args []string) {
	before, err := os.ReadFile(s.node.Config)
	ts.Check(err)
	s.node.Write("config.toml", string(before)+"\n"+ts.ReadFile(args[0]))
}
