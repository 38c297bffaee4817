package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestComplete(t *testing.T) {
	var config string
	log := filepath.Join(t.TempDir(), "audit.jsonl")
	writeLog(t, log, logged("c1", "no-capacity"), logged("c2", "gpu-hook"),
		logged("$(reboot)", "no-capacity"), logged("c1", "gpu-socket"))
	look := func(named string) (o completionData) {
		config, o.audit = named, log
		o.Grants = []grant.Grant{{ID: "g-aaaaaaaaaaaa"}, {
			ID: "g-bbbbbbbbbbbb", Mode: grant.MPS, Label: "train"}}
		o.Inventory.GPUs = []grant.GPU{{UUID: "GPU-a", Index: 0, Name: "V100",
			MIG: []grant.MIGDevice{{UUID: "MIG-b", Profile: "1g.10gb"}, {UUID: "MIG-c", Profile: "1g.10gb"}}}}
		return o
	}
	for line, want := range map[string]string{
		"":                       "inventory gpus grant grants release",
		"gr":                     "inventory gpus grant grants release",
		"--":                     "--config --help --version",
		"-":                      "--config --help --version",
		"--config x ":            "inventory gpus",
		"inventory ":             "refresh measure simulate", // limits is gpuledgerd's
		"inventory simulate --":  "--gpus --memory --name --mig --out --config --help",
		"release --":             "--force --json --config --help",
		"release --force --":     "--json --config --help",
		"release ":               "g-aaaaaaaaaaaa g-bbbbbbbbbbbb",
		"release --force ":       "g-aaaaaaaaaaaa g-bbbbbbbbbbbb",
		"release g-a -- ":        "g-aaaaaaaaaaaa g-bbbbbbbbbbbb",
		"release g-a -- -":       "g-aaaaaaaaaaaa g-bbbbbbbbbbbb",
		"release --config ":      "",
		"grant ":                 "",
		"grant --m":              "--memory --gpus",
		"grant --memory ":        "",
		"grant --memory -":       "",
		"grant --mode ":          "exclusive timeslice limit mps mig",
		"grant --mode = ":        "exclusive timeslice limit mps mig",
		"grant --mode=l":         "--mode=exclusive --mode=timeslice --mode=limit",
		"grant --mode mps --p":   "--memory --gpus --compute --profile", // it is given
		"grant --gpu 0 --":       "--memory --gpus --compute --mode --profile --place --gpu",
		"grant --gpu ":           "0 GPU-a MIG-b MIG-c",
		"grant --profile ":       "1g.10gb",
		"grant --place ":         "binpack spread",
		"audit --":               "--since --until --code --container --grant --follow --json",
		"audit --code ":          "internal rules-not-enforced",
		"audit --container ":     "c1 c2", // a shell would run the other one
		"audit --grant ":         "g-aaaaaaaaaaaa g-bbbbbbbbbbbb",
		"audit --since ":         "",
		"grant --owner ":         "bearer pod: claim:",
		"grant --for ":           "pod: namespace:",
		"grant --update ":        "g-aaaaaaaaaaaa g-bbbbbbbbbbbb",
		"configure ":             "containerd crio podman docker",
		"configure crio --mode ": "enforce report",
		"completion ":            "bash zsh fish",
		"nonsense ":              "inventory gpus",
	} {
		words := strings.Split(line, " ")
		var got []string
		for _, c := range next(program(), words, look) {
			got = append(got, c.word)
		}
		if end := slices.Clone(got); !strings.HasPrefix(strings.Join(end, " ")+" ", want+" ") &&
			(want != "" || len(got) > 0) {
			t.Errorf("%q: %v, want %s", line, got, want)
		}
	}
	next(program(), []string{"--config", "mine", "release", ""}, look)
	if config != "mine" {
		t.Errorf("the ledger of configuration %q", config)
	}
	described := next(program(), []string{"release", ""}, look)[1]
	if !strings.Contains(described.is, "mps") || !strings.Contains(described.is, "train") {
		t.Errorf("of %s prints %q", described.word, described.is)
	}
}

// Every choice belongs to a flag that exists.
func TestChoicesAreOfFlags(t *testing.T) {
	for name := range choices {
		command, flag, _ := strings.Cut(name, " ")
		c := program().Command(command)
		if c != nil && len(c.Subcommands) > 0 {
			c = c.Subcommands[0]
		}
		if c == nil || flag != "" && !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool {
			return slices.Contains(f.Names(), flag)
		}) {
			t.Errorf("%q is no flag of a command", name)
		}
	}
}
