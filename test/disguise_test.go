package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// withCrun runs a test of what only crun does, under each layout of cgroups.
func withCrun(t *testing.T, test func(*testing.T)) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			rig.NeedRuntime(t, "crun")
			test(t)
		})
	}
}

// TestAnIDMappedTmpfsIsABindMount: crun clones the source of a mount that has id mappings, and does
// not read its type.
func TestAnIDMappedTmpfsIsABindMount(t *testing.T) { withCrun(t, mountsWithIds) }

func mountsWithIds(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Runtime: "crun"})
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 0, Size: 1000}}
	disguised := func(source string) rig.Edit {
		return mount(specs.Mount{Destination: "/x", Type: "tmpfs", Source: source,
			UIDMappings: ids, GIDMappings: ids})
	}
	must(t, os.Mkdir(filepath.Join(n.Dir, "data"), 0o755),
		os.WriteFile(filepath.Join(n.Dir, "data/file"), nil, 0o644))
	n.Grant("--memory", "1GiB")
	alone := n.Bundle("alone", rig.Shell("echo /x/*"), disguised(n.Dir+"/run"))
	if r := alone.RealRun(); r.Code != 0 {
		t.Skipf("mounts with ids of their own cannot be made here (%+v): that crun takes a tmpfs for a "+
			"bind mount is not shown", r)
	} else if !strings.Contains(r.Stdout, "/x/lock") {
		t.Fatalf("the runtime alone shows %q of the run directory, or this test shows nothing", r.Stdout)
	}
	alone.RealDelete()
	wantRefused(t, n.Bundle("tenant", rig.Shell("echo /x/*"), disguised(n.Dir+"/run")).Run(),
		string(grant.GPUSocket))
	if r := n.Bundle("harmless", rig.Shell("echo /x/*"), disguised(n.Dir+"/data")).Run(); r.Code != 0 ||
		r.Stdout != "/x/file\n" {
		t.Errorf("an unrelated directory: %+v", r)
	}
}

// TestAnotherNameOfTheSpec: crun reads a relative --config from its working directory, and only the
// usual name from the bundle.
func TestAnotherNameOfTheSpec(t *testing.T) { withCrun(t, anotherName) }

func anotherName(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Runtime: "crun"})
	greedy := n.Bundle("greedy", rig.Shell("echo started"), rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	harmless := n.Bundle("harmless", rig.Shell("echo started"))
	must(t, os.WriteFile(filepath.Join(harmless.Dir, "other.json"), harmless.Config(), 0o644))
	must(t, os.WriteFile(filepath.Join(greedy.Dir, "other.json"), greedy.Config(), 0o644))
	run := func(dir, config, bundle string) rig.Result {
		cmd := n.Wrapper("run", "--config", config, "--bundle", bundle, "c")
		cmd.Dir = dir
		return rig.Run(cmd)
	}
	for _, config := range []string{"other.json", "./other.json", "../greedy/other.json", "./config.json"} {
		wantRefused(t, run(greedy.Dir, config, harmless.Dir), string(grant.VisibleDevicesAll))
	}
	wantRefused(t, run(harmless.Dir, "config.json", greedy.Dir), string(grant.VisibleDevicesAll))
	if r := run(harmless.Dir, "other.json", harmless.Dir); r.Code != 0 || r.Stdout != "started\n" {
		t.Errorf("%+v", r)
	}
}

// TestAnEngineThatReadsNoOutput: where refusals are only recorded a container starts, though no
// program reads the output.
func TestAnEngineThatReadsNoOutput(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: "[policy]\nmode = \"report\"\n"})
	b := n.Bundle("c", rig.Shell("echo started >/tmp/started"), rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	read, write, err := os.Pipe()
	must(t, err, read.Close())
	defer write.Close()
	cmd := n.Wrapper("run", "--bundle", b.Dir, b.ID)
	cmd.Stderr = write
	if err := cmd.Run(); err != nil {
		t.Errorf("a container that would be refused does not start: %v", err)
	}
	if _, err := os.Stat(filepath.Join(b.Dir, "rootfs/tmp/started")); err != nil {
		t.Error(err)
	}
}
