package test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// asks is the configuration with which containers of an engine may ask for up to 8 GiB.
func asks(engine, more string) string {
	return fmt.Sprintf("[ask]\nengines = [%q]\nmax_memory = \"8GiB\"\n%s", engine, more)
}

func askingNode(t *testing.T, more string) *rig.Node {
	return rig.NewNode(t, rig.Setup{Engine: "podman", Config: asks("podman", more)})
}

// wants is what a user writes for a container.
func wants(memory string) rig.Edit { return rig.Annotation("gpuledger.dev/memory", memory) }

// TestAsk: a container that asks has a grant as long as it exists.
func TestAsk(t *testing.T) {
	for name, ask := range map[string]rig.Edit{
		"by annotation": wants("4GiB"),
		"by variable":   rig.Env("GPULEDGER_MEMORY=4GiB"),
		"by annotation, over the image's variable": together(wants("4GiB"), rig.Env("GPULEDGER_MEMORY=1GiB")),
	} {
		t.Run(name, func(t *testing.T) {
			n := askingNode(t, "")
			b := n.Bundle("c", ask)
			if r := b.Explain(); r.Code != 0 || len(n.Grants()) != 0 {
				t.Fatalf("explain: %+v, %+v", r, n.Grants())
			}
			starts(t, b)
			held := n.Grants()
			if len(held) != 1 || held[0].Source != "asked" || held[0].Owner != grant.Bearer ||
				held[0].State != grant.Bound || held[0].Mode != grant.Limit || len(held[0].GPUs) != 1 ||
				held[0].GPUs[0].Memory != 4*grant.GiB || held[0].Bindings[0].Container != "c" {
				t.Fatalf("%+v", held)
			}
			if r := rig.Run(n.Wrapper("exec", "c", "/bin/busybox", "ls", "/dev")); strings.Count(r.Stdout,
				"nvidia0\n")+strings.Count(r.Stdout, "nvidia1\n") != 1 {
				t.Errorf("%+v", r)
			}
			n.CheckSound("while it runs")
			b.KillInit()
			holdsNothing(t, n)
			if r := b.Delete(); r.Code != 0 {
				t.Error(r)
			}
			files := n.Files()
			if slices.ContainsFunc(files, func(f string) bool { return strings.Contains(f, "g-") }) {
				t.Errorf("after the delete: %v", files)
			}
			starts(t, n.Bundle("c", ask)).End() // the same container, started again
			n.CheckSound("at the end")
		})
	}
}

// TestAskForGPUs: how many, which, in which mode.
func TestAskForGPUs(t *testing.T) {
	n := askingNode(t, "max_gpus = 2\nmodes = [\"limit\", \"timeslice\"]\n")
	for name, c := range map[string]struct {
		pairs []string
		want  string
	}{
		"how many":               {[]string{"gpus", "2", "memory", "4GiB"}, "limit 0:2GiB 1:2GiB"},
		"one, by number":         {[]string{"gpus", "1", "memory", "4GiB", "gpu", "1"}, "limit 1:4GiB"},
		"which, in another mode": {[]string{"gpu", "1", "memory", "1GiB", "mode", "timeslice"}, "timeslice 1:1GiB"},
	} {
		var edits []rig.Edit
		for pair := range slices.Chunk(c.pairs, 2) {
			edits = append(edits, rig.Annotation("gpuledger.dev/"+pair[0], pair[1]))
		}
		b := starts(t, n.Bundle("c", edits...))
		g := n.Grants()[0]
		got := string(g.Mode)
		for _, s := range g.GPUs {
			got += fmt.Sprintf(" %d:%s", s.Index, s.Memory)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		b.End()
	}
}

// TestAskIsRefused: with the limit, what is free, and who has the rest.
func TestAskIsRefused(t *testing.T) {
	n := askingNode(t, "total = 50\n")
	g := n.Grant("--memory", "6GiB", "--gpus", "2", "--label", "anna", "--ttl", "1h")
	for name, c := range map[string]struct {
		edit rig.Edit
		code grant.Code
		says string
	}{
		"too much": {wants("9GiB"), grant.AskNotAllowed,
			"9GiB by annotation gpuledger.dev/memory, and on this node a container may ask for 8GiB"},
		"too many": {together(wants("4GiB"), rig.Annotation("gpuledger.dev/gpus", "2")), grant.AskNotAllowed,
			"asks for 2 GPUs by annotation gpuledger.dev/gpus, and on this node a container may ask for 1"},
		"all, as a mode": {rig.Annotation("gpuledger.dev/mode", "exclusive"), grant.AskNotAllowed,
			"by annotation gpuledger.dev/mode, and on this node a container may ask for [limit]"},
		"no size": {rig.Annotation("gpuledger.dev/gpu", "0"), grant.AnnotationMalformed,
			"mode limit needs an amount of memory"},
		"no GPU": {together(wants("1GiB"), rig.Annotation("gpuledger.dev/gpus", "0")),
			grant.AnnotationMalformed, "1 GPU or more, not 0"},
		"a GPU that is not there": {together(wants("1GiB"), rig.Annotation("gpuledger.dev/gpu", "7")),
			grant.AnnotationMismatch, `asks by annotation gpuledger.dev/gpu for a GPU that is not there`},
		"not a size": {wants("much"), grant.AnnotationMalformed, "cannot read size"},
		"more than those that ask may ever have": {
			together(wants("1GiB"), rig.Annotation("gpuledger.dev/compute", "60")), grant.NoCapacity,
			"hint: no release makes room for that: ask for no more than this node has, and no more"},
	} {
		r := n.Bundle("c", c.edit).Create()
		isRefused(t, r, c.code)
		if !strings.Contains(r.Stderr, c.says) || !strings.Contains(r.Stderr, "hint: ") {
			t.Errorf("%s: %s\nwant %q", name, r.Stderr, c.says)
		}
	}
	for _, id := range []string{"first", "second"} { // half of 16160 MiB is for those that ask
		starts(t, n.Bundle(id, wants("7GiB")))
	}
	r := n.Bundle("third", wants("1GiB")).Create()
	isRefused(t, r, grant.NoCapacity)
	for _, says := range []string{
		"asks by annotation gpuledger.dev/memory for 1GiB on a GPU in mode limit: ",
		"912MiB left of the 50% for which containers may ask",
		"held: anna 0:3GiB, 1:3GiB until ", "first 0:7GiB"} {
		if !strings.Contains(r.Stderr, says) {
			t.Errorf("%s\nwant %q", r.Stderr, says)
		}
	}
	n.Must("release", string(g.ID))
	n.CheckSound("at the end")
}

// TestProgramsTakeNothingOfTheAsked part of a GPU: total is for containers.
func TestProgramsTakeNothingOfTheAsked(t *testing.T) {
	n := askingNode(t, "total = 50\n")
	cmd := n.Command(rig.Binary(t, "gpuledger"), "run", "--memory", "8GiB", "--gpu", "0", "--compute", "50",
		"--", "/bin/sleep", "1000")
	must(t, cmd.Start())
	ends := func() { _, _ = cmd.Process.Signal(syscall.SIGTERM), cmd.Wait() }
	t.Cleanup(ends)
	rig.Eventually(t, "it has a grant", func() bool { return len(n.Grants()) > 0 })
	if held := n.Grants(); held[0].Source != grant.Asked || held[0].State != grant.Bound {
		t.Errorf("%+v", held)
	}
	b := starts(t, n.Bundle("c", wants("7GiB"), rig.Annotation("gpuledger.dev/gpu", "0"),
		rig.Annotation("gpuledger.dev/compute", "50")))
	n.CheckSound("while both run")
	b.End()
	ends()
	holdsNothing(t, n)
}

// TestAskIsBounded also by the size of a MIG device, and in the compute of a GPU.
func TestAskIsBounded(t *testing.T) {
	n := askingNode(t, "modes = [\"limit\", \"mig\"]\n")
	partition(t, n) // 10, 10 and 40 GiB, and a container may ask for 8
	mig := rig.Annotation("gpuledger.dev/mode", "mig")
	isRefused(t, n.Bundle("named", mig, rig.Annotation("gpuledger.dev/gpu", "0:2")).Create(),
		grant.AskNotAllowed)
	isRefused(t, n.Bundle("sized", mig, wants("8GiB")).Create(), grant.AskNotAllowed)
	n = askingNode(t, "total = 50\n")
	half := together(rig.Annotation("gpuledger.dev/gpu", "0"), wants("1GiB"))
	compute := func(percent string) rig.Edit { return rig.Annotation("gpuledger.dev/compute", percent) }
	isRefused(t, n.Bundle("all", half, compute("100")).Create(), grant.NoCapacity)
	starts(t, n.Bundle("some", half, compute("30")))
	r := n.Bundle("more", half, compute("30")).Create()
	isRefused(t, r, grant.NoCapacity)
	const says = "has 20% left of the 50% of its compute for which containers may ask"
	if !strings.Contains(r.Stderr, says) {
		t.Errorf("%s\nwant %q", r.Stderr, says)
	}
	if len(n.Grants()) != 1 {
		t.Errorf("%+v", n.Grants())
	}
}

// TestAskIsOff by default, and the hint says how it is switched on.
func TestAskIsOff(t *testing.T) {
	off := rig.NewNode(t, rig.Setup{Engine: "podman"})
	r := off.Bundle("c", wants("1GiB")).Create()
	isRefused(t, r, grant.GrantNotFound)
	if !strings.Contains(r.Stderr, "asking.md") {
		t.Error(r.Stderr)
	}
	other := rig.NewNode(t, rig.Setup{Engine: "podman", Config: asks("docker", "")})
	isRefused(t, other.Bundle("c", rig.Env("GPULEDGER_MEMORY=1GiB")).Create(), grant.AskNotAllowed)
	n := askingNode(t, "")
	called := n.Bundle("called", wants("1GiB"))
	by := func(name string) rig.Result { // an engine calls by its link, whatever the configuration's is
		cmd := n.Wrapper("create", "--bundle", called.Dir, called.ID)
		cmd.Args[0] = "gpuledger-runtime." + name
		return rig.Run(cmd)
	}
	isRefused(t, by("docker"), grant.AskNotAllowed)
	succeeds(t, by("podman"))
	called.End()
	given := n.Grant("--memory", "2GiB")
	starts(t, n.Bundle("given", with(given), rig.Env("GPULEDGER_MEMORY=1GiB"))) // of its image
	if held := n.Grants(); len(held) != 1 || held[0].ID != given.ID {
		t.Errorf("%+v", held)
	}
	starts(t, n.Bundle("garbage", with(n.Grant("--memory", "2GiB")), rig.Env("GPULEDGER_MEMORY=much",
		"GPULEDGER_GPUS=,")))
	isRefused(t, n.Bundle("must-adopt", wants("1GiB"),
		rig.Annotation("gpuledger.dev/grant", "adopt")).Create(), grant.GrantNotFound)
	isRefused(t, n.Bundle("says-otherwise", with(n.Grant("--memory", "2GiB")), wants("1GiB")).Create(),
		grant.AnnotationMismatch)
}

// createsAtLast is a create among many, again if a busy machine did not let it have the ledger's
// lock in time.
func createsAtLast(b *rig.Bundle) (r rig.Result) {
	for range 10 {
		if r = b.Create(); !strings.Contains(r.Stderr, "cannot lock the ledger within") {
			break
		}
	}
	return r
}

// TestManyAskAtOnce: those that fit start, and the others are refused.
func TestManyAskAtOnce(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "podman", GPUs: 1, Config: asks("podman", "")})
	const many, fit = 64, 15 // of 1 GiB each, on 16160 MiB
	bundles := make([]*rig.Bundle, many)
	for i := range bundles {
		bundles[i] = n.Bundle(fmt.Sprintf("c%d", i), wants("1GiB"), rig.Light)
	}
	started := 0
	for i, r := range atOnce(many, func(i int) rig.Result { return createsAtLast(bundles[i]) }) {
		if r.Code == 0 {
			started++
			continue
		}
		isRefused(t, r, grant.NoCapacity)
		bundles[i].End()
	}
	if started != fit || len(n.Grants()) != fit {
		t.Errorf("%d started with %d grants, want %d", started, len(n.Grants()), fit)
	}
	n.CheckSound("while they run")
	for _, b := range bundles {
		b.End()
	}
	rig.Eventually(t, "the ledger counts nothing", func() bool { return len(n.Grants()) == 0 })
}

// TestAskByTheHook: with the hook alone, and behind the wrapper, which has asked already.
func TestAskByTheHook(t *testing.T) {
	n := askingNode(t, "")
	b := n.Bundle("hooked", wants("4GiB"), n.Hooked)
	if r := b.RealCreate(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if held := n.Grants(); len(held) != 1 || held[0].Source != "asked" {
		t.Errorf("%+v", held)
	}
	b.End()
	starts(t, n.Bundle("both", wants("4GiB"), n.Hooked))
	if held := n.Grants(); len(held) != 1 || held[0].Source != "asked" || len(held[0].Bindings) != 1 {
		t.Errorf("%+v", held)
	}
	n.CheckSound("at the end")
}

// gpusOfDocker is what Docker adds to a spec for `--gpus`, where the host has NVIDIA's hook.
func gpusOfDocker(devices string) rig.Edit {
	return func(s *specs.Spec) {
		s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=all", // of the image
			"NVIDIA_VISIBLE_DEVICES="+devices, "NVIDIA_DRIVER_CAPABILITIES=utility")
		//lint:ignore SA1019 Prestart is deprecated and what Docker writes.
		s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{
			Path: "/usr/bin/nvidia-container-runtime-hook",
			Args: []string{"nvidia-container-runtime-hook", "prestart"}}}}
	}
}

// TestAskByNamingGPUs: --gpus of Docker and the nodes that CDI names bring ask for whole GPUs, and
// with a size for a share of them.
func TestAskByNamingGPUs(t *testing.T) {
	const whole = "max_gpus = 2\nmodes = [\"limit\", \"exclusive\"]\n"
	size, one := rig.Env("GPULEDGER_MEMORY=4GiB"), rig.Env("GPULEDGER_GPUS=1")
	second := rig.Env("GPULEDGER_GPU=1")
	ofImage := rig.Env("NVIDIA_VISIBLE_DEVICES=all")
	for name, c := range map[string]struct {
		engine, config string
		edit           rig.Edit
		want           string // the grant, or the code of the refusal
		says           string
	}{
		"--gpus all":      {"docker", whole, gpusOfDocker("all"), "exclusive 0 1", ""},
		"--gpus 1":        {"docker", whole, gpusOfDocker("0"), "exclusive 0", ""},
		"--gpus device=1": {"docker", whole, gpusOfDocker("1"), "exclusive 1", ""},
		"--gpus all, with a size": {"docker", whole, together(gpusOfDocker("all"), size, second),
			"limit 1", ""},
		"--gpus all, any one":       {"docker", whole, together(gpusOfDocker("all"), one), "exclusive 0", ""},
		"--gpus device=1, a share":  {"docker", whole, together(gpusOfDocker("1"), size), "limit 1", ""},
		"--gpus 2, a share of each": {"docker", whole, together(gpusOfDocker("0,1"), size), "limit 0 1", ""},
		"more than it may": {"docker", "modes = [\"exclusive\"]\nmode = \"exclusive\"\n", gpusOfDocker("all"),
			"ask-not-allowed", "asks for 2 GPUs by --gpus, and on this node a container may ask for 1"},
		"no whole ones": {"docker", "", gpusOfDocker("0"), "ask-not-allowed",
			"asks for whole GPUs by --gpus, and on this node a container may ask for [limit]"},
		"no GPU of that name": {"docker", whole, gpusOfDocker("7"), "annotation-mismatch",
			`has no GPU "7"`},
		"of the image":                    {"docker", whole, ofImage, "visible-devices-all", ""},
		"a hook of Podman's directory":    {"podman", whole, gpusOfDocker("all"), "visible-devices-all", ""},
		"under an engine that may not":    {"podman", "", gpusOfDocker("all"), "visible-devices-all", ""},
		"a GPU's node":                    {"podman", whole, namedNode(1), "exclusive 1", ""},
		"a GPU's node, and a size":        {"podman", whole, together(namedNode(1), size), "limit 1", ""},
		"a GPU's node, and no whole ones": {"podman", "", namedNode(1), "gpu-device-node", ""},
		"privileged": {"docker", whole, together(namedNode(1), rig.Privileged), "privileged-gpu",
			""},
	} {
		t.Run(name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Engine: c.engine,
				Config: fmt.Sprintf("[ask]\nengines = [%q]\n%s", c.engine, c.config)})
			b := n.Bundle("c", c.edit)
			if strings.Contains(c.want, "-") {
				r := b.Create()
				isRefused(t, r, grant.Code(c.want))
				if !strings.Contains(r.Stderr, c.says) {
					t.Errorf("%s\nwant %q", r.Stderr, c.says)
				}
				return
			}
			starts(t, b)
			g := n.Grants()[0]
			got := string(g.Mode)
			for _, s := range g.GPUs {
				got += fmt.Sprintf(" %d", s.Index)
			}
			if got != c.want || len(n.Grants()) != 1 {
				t.Errorf("%s, want %s", got, c.want)
			}
			n.CheckSound("while it runs")
			b.End()
		})
	}
}

// gpuNode is what an engine makes of `--device nvidia.com/gpu=N`: the GPU's node, and a rule.
func namedNode(minor int64) rig.Edit {
	return func(s *specs.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
			Path: fmt.Sprintf("/dev/nvidia%d", minor), Type: "c", Major: 195, Minor: minor})
		major := int64(195)
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
			Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"})
	}
}

// TestAKilledAskLeavesNothing that holds a GPU.
func TestAKilledAskLeavesNothing(t *testing.T) {
	for name, ask := range map[string]rig.Edit{
		"a share": together(wants("16160MiB"), rig.Annotation("gpuledger.dev/gpu", "0")),
		"--gpus":  gpusOfDocker("0"),
	} {
		t.Run(name, func(t *testing.T) {
			n := rig.NewNode(t, rig.Setup{Tags: []string{"failpoint"}, Engine: "docker",
				Config: "[ask]\nengines = [\"docker\"]\nmodes = [\"limit\", \"exclusive\"]\n"})
			leavesNothing(t, n, n.Bundle("c", ask))
		})
	}
}
