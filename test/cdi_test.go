package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// injected is an edit of a bundle by an engine's CDI support.
func injected(t *testing.T, n *rig.Node, names ...string) rig.Edit {
	t.Helper()
	cache, err := cdiapi.NewCache(cdiapi.WithAutoRefresh(false), cdiapi.WithSpecDirs(n.Dir+"/cdi"))
	must(t, err)
	must(t, cache.Refresh())
	return func(s *specs.Spec) {
		if _, err := cache.InjectDevices(s, names...); err != nil {
			t.Fatal(err)
		}
	}
}

// realHook installs the hook at the path that the node's CDI files name.
func realHook(t *testing.T, n *rig.Node) {
	t.Helper()
	must(t, os.Symlink(rig.Binary(t, "gpuledger-hook"), n.Dir+"/hook"))
}

// hookThat installs another program there.
func hookThat(t *testing.T, n *rig.Node, script string) {
	t.Helper()
	must(t, os.Chmod(n.Write("hook", "#!/bin/sh\n"+script+"\n"), 0o755))
}

// TestCDI on cgroup v1 and v2, with runc and crun, behind the wrapper and without it.
func TestCDI(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					t.Run("behind the wrapper", func(t *testing.T) { cdiBehindTheWrapper(t, runtime) })
					t.Run("without it", func(t *testing.T) { cdiWithoutTheWrapper(t, runtime) })
				})
			}
		})
	}
}

// cdiBehindTheWrapper: the engine injects the edits of the name, the wrapper finds nothing that the
// grant does not cover, and the hook finds the wrapper's binding.
func cdiBehindTheWrapper(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	realHook(t, n)
	reference := n.Grant("--memory", "4GiB", "--gpu", "1", "--cdi")
	n.Must("cdi", "generate")
	grantName := grant.CDIKindGrant + "=" + reference.String()

	got := n.Bundle("c", injected(t, n, grantName), rig.Shell(probe+"\necho $NVIDIA_VISIBLE_DEVICES")).Run()
	want := exactlyOne + n.Grants()[0].GPUs[0].UUID + "\n"
	if got.Stdout != want || got.Code != 0 {
		t.Errorf("opening GPU 0, GPU 1, nvidiactl and a node of its own made for another GPU: %+v\nwant:\n%s",
			got, want)
	}
	bound := n.Bundle("d", injected(t, n, grantName))
	if r := bound.Create(); r.Code != 0 || n.State(reference.ID) != grant.Bound {
		t.Fatalf("%+v, the grant is %s", r, n.State(reference.ID))
	}
	wantRefused(t, n.Bundle("e", injected(t, n, grantName)).Create(), "grant-in-use")
	bound.End()
	wantRefused(t, n.Bundle("f", injected(t, n, grantName, "gpuledger.dev/gpu=0")).Create(),
		"gpu-device-node")
	inside := n.Bundle("g", injected(t, n, "gpuledger.dev/gpu=1"),
		rig.Env("GPULEDGER_GRANT="+reference.String()), rig.Shell(probe)).Run()
	if inside.Code != 0 || !strings.HasPrefix(inside.Stdout,
		"No such file or directory\nNo such device or address\n") {
		t.Errorf("the GPU's own name beside the reference: %+v", inside)
	}
}

// cdiWithoutTheWrapper: the engine calls the real runtime, and the hook in the files admits, binds
// and refuses.
func cdiWithoutTheWrapper(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	realHook(t, n)
	reference := n.Grant("--memory", "4GiB", "--gpu", "1", "--cdi")
	n.Must("cdi", "generate")
	byGrant := injected(t, n, grant.CDIKindGrant+"="+reference.String())
	if got := n.Bundle("c", byGrant, rig.Shell(probe)).RealRun(); got.Stdout != exactlyOne || got.Code != 0 {
		t.Errorf("opening GPU 0, GPU 1, nvidiactl and a node of its own made for another GPU: %+v\nwant:\n%s",
			got, exactlyOne)
	}
	bound := n.Bundle("d", byGrant)
	if r := bound.RealCreate(); r.Code != 0 || n.State(reference.ID) != grant.Bound {
		t.Fatalf("%+v, the grant is %s", r, n.State(reference.ID))
	}
	isRefusedByHook(t, n.Bundle("e", byGrant).RealCreate(), grant.GrantInUse)
	bound.End()
	isRefusedByHook(t, n.Bundle("f", injected(t, n, "gpuledger.dev/gpu=0")).RealCreate(), grant.GPUDeviceNode)
	isRefusedByHook(t, n.Bundle("g", injected(t, n, "gpuledger.dev/gpu=0", grant.CDIKindGrant+
		"="+reference.String())).RealCreate(), grant.GPUDeviceNode)
	n.Must("release", string(reference.ID))
	isRefusedByHook(t, n.Bundle("h", byGrant).RealCreate(), grant.GrantNotFound)
}

// TestCDIFilesFollowTheNode: a refresh of the inventory rewrites the existing files. The daemon
// repairs them and removes those of grants that have expired.
func TestCDIFilesFollowTheNode(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: busy})
	gpus := filepath.Join(n.Dir, "cdi/gpuledger.dev-gpu.json")
	inv := partition(t, n)
	if _, err := os.Stat(gpus); err == nil {
		t.Fatal("a refresh writes CDI files of GPUs that were not offered")
	}
	n.Must("cdi", "generate")
	before := read(t, gpus)
	second := inv.GPUs[0].MIG[1].UUID
	n.Must("inventory", "simulate", "--gpus", "2", "--memory", "80GiB", "--mig", "1g.10gb", "--out",
		n.Dir+"/node.json")
	n.Must("inventory", "refresh")
	if after := read(t, gpus); !strings.Contains(before, second) || strings.Contains(after, second) ||
		!strings.Contains(after, inv.GPUs[0].MIG[0].UUID) {
		t.Errorf("after a MIG device was destroyed the file has\n%s", after)
	}
	whole := read(t, gpus)
	must(t, os.WriteFile(gpus, []byte("{}"), 0o644))
	reference := n.Grant("--profile", "1g.10gb", "--cdi")
	file := filepath.Join(n.Dir, "cdi/gpuledger.dev-grant_"+string(reference.ID)+".json")
	content := read(t, file)
	n.Must("release", string(reference.ID))
	must(t, os.WriteFile(file, []byte(content), 0o600)) // as after a crash between the two
	d := n.Daemon("--nri", "off")
	rig.Eventually(t, "the file of the GPUs is whole again", func() bool { return read(t, gpus) == whole })
	rig.Eventually(t, "a file whose name only looks like a grant's was removed", func() bool {
		_, err := os.Stat(file)
		return err != nil
	})
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("it ends with status %d", code)
	}
}

func TestACDINameIsNoGrant(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	realHook(t, n)
	reference := n.Grant("--memory", "4GiB", "--gpu", "1", "--cdi")
	n.Must("cdi", "generate")
	uuid := n.Grants()[0].GPUs[0].UUID
	for _, name := range []string{"gpuledger.dev/gpu=0", "gpuledger.dev/gpu=1", "gpuledger.dev/gpu=" + uuid} {
		wantRefused(t, n.Bundle("c", injected(t, n, name)).Create(), "gpu-device-node")
	}
	old := injected(t, n, grant.CDIKindGrant+"="+reference.String())
	n.Must("release", string(reference.ID))
	wantRefused(t, n.Bundle("d", old).Create(), "grant-not-found")
	if left, err := filepath.Glob(n.Dir + "/cdi/*grant*"); err != nil || len(left) > 0 {
		t.Errorf("%v: a released grant is still offered: %v", err, left)
	}
}

// TestTheHookChecksWithoutTheWrapper: an engine that calls the real runtime itself still has the
// container checked. The hook gets the environment in its entry, and not the container's; its
// status decides.
func TestTheHookChecksWithoutTheWrapper(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.Grant("--memory", "4GiB", "--cdi")
	n.Must("cdi", "generate")
	hookThat(t, n, `{ echo "$0 $*"; /usr/bin/env; /bin/cat; } >`+n.Dir+"/called; echo no grant >&2; exit 1")
	n.Write("evil.so", "")
	b := n.Bundle("c", injected(t, n, "gpuledger.dev/gpu=0"),
		rig.Env("LD_PRELOAD="+n.Dir+"/evil.so", "GPULEDGER_CONFIG=/evil"))
	r := rig.Run(n.Real("create", "--bundle", b.Dir, b.ID))
	if r.Code == 0 || !strings.Contains(r.Stderr, "no grant") {
		t.Errorf("runc: %+v", r)
	}
	called := read(t, n.Dir+"/called")
	call, rest, _ := strings.Cut(called, "\n")
	env, state, _ := strings.Cut(rest, "{")
	if call != n.Dir+"/hook createRuntime" || !strings.Contains(env, "GPULEDGER_CONFIG="+n.Config+"\n") ||
		strings.Contains(env, "evil") {
		t.Errorf("called as %q with\n%s", call, env)
	}
	var s specs.State
	must(t, json.Unmarshal([]byte("{"+state), &s))
	if s.ID != "c" || s.Bundle != b.Dir {
		t.Errorf("state %+v", s)
	}
}

// TestTwoCDINamesOfGrantsAreRefused: a container uses one grant, and the environment has the
// reference of the last name alone. So a container that names a claim with several requests would
// start with the last one's, if these are shares of one GPU.
func TestTwoCDINamesOfGrantsAreRefused(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	realHook(t, n)
	name := func(gpu string, args ...string) string {
		return grant.CDIKindGrant + "=" + n.Grant(append([]string{"--memory", "2GiB", "--gpu", gpu, "--cdi"},
			args...)...).String()
	}
	a, b, c := name("0", "--owner", "claim:c-1.a"), name("0", "--owner", "claim:c-1.b"),
		name("1", "--owner", "claim:c-1.c")
	for i, names := range [][]string{{a, b}, {b, a}, {a, c}, {a, b, c}, {name("0"), name("0")}} {
		edits := injected(t, n, names...)
		id := func(part string) string { return fmt.Sprintf("%s-%d", part, i) }
		wantRefused(t, n.Bundle(id("c"), edits).Create(), "annotation-mismatch")
		isRefusedByHook(t, n.Bundle(id("h"), edits).RealCreate(), grant.AnnotationMismatch)
	}
	r := n.Bundle("text", injected(t, n, a, b)).Create()
	if !strings.Contains(r.Stderr, "and a container uses one grant") ||
		!strings.Contains(r.Stderr, "name one request of the claim") {
		t.Errorf("got %+v", r)
	}
	if r := n.Bundle("one", injected(t, n, a), rig.Shell("true")).Run(); r.Code != 0 {
		t.Errorf("one name: %+v", r)
	}
}
