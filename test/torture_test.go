package test

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// victim is a program that can be killed at any line, with what it needs to pass all of them.
type victim struct {
	// scene prepares the node. The returned command is the victim; the reference is of the grant
	// that it uses, if any.
	scene func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference)
	// points are the lines that it always passes.
	points []string
}

var (
	putPoints = []string{"ledger/locked", "ledger/put-owner-linked", "ledger/put-linked",
		"ledger/put-written", "ledger/put-kept-old", "ledger/put-renamed", "ledger/put-synced",
		"ledger/put-forgot-old", "ledger/put-unlinked"}
	deletePoints = []string{"ledger/locked", "ledger/delete-renamed", "ledger/delete-synced",
		"ledger/delete-removed", "ledger/delete-unbound", "ledger/delete-owner-unlinked",
		"ledger/delete-unlinked"}
	bindPoints = []string{"ledger/locked", "ledger/bind-linked", "ledger/bind-written",
		"ledger/bind-unlinked", "node/bound", "runtime/admitted", "runtime/edited"}
	hookPoints = []string{"ledger/locked", "ledger/bind-linked", "ledger/bind-written",
		"ledger/bind-unlinked", "node/bound", "hook/admitted", "inject/removed",
		"inject/ruled", "inject/nodes"}
	unbindPoints = []string{"ledger/unbind-removed", "ledger/unbind-unlinked"}
)

// owned is an owner with a link in the ledger.
const owned = "claim:7a1c0000-0000-4000-8000-000000000003"

var victims = map[string]victim{
	"grant": {func(_ *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		return command(n, "grant", "--memory", "4GiB", "--gpus", "2", "--owner", owned), grant.Reference{}
	}, putPoints},
	"grant that sweeps": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		over := n.Grant("--memory", "1GiB")
		b := starts(s.t, s.container(over))
		n.Must("release", string(over.ID))
		b.KillInit()
		return command(n, "grant", "--memory", "4GiB", "--gpus", "2"), grant.Reference{}
	}, slices.Concat(unbindPoints, []string{"ledger/sweep-removed", "ledger/repaired"})},
	"grant --update": {func(_ *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB", "--gpus", "2", "--owner", owned)
		return command(n, "grant", "--update", string(g.ID), "--memory", "6GiB", "--ttl", "1h"), g
	}, putPoints},
	"release": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB", "--owner", owned)
		starts(s.t, s.container(g)).KillInit()
		return command(n, "release", string(g.ID)), g
	}, slices.Concat(deletePoints, unbindPoints)},
	"release of a grant in use": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB")
		starts(s.t, s.container(g))
		return command(n, "release", string(g.ID)), grant.Reference{}
	}, putPoints},
	"release --force": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB")
		starts(s.t, s.container(g))
		return command(n, "release", "--force", string(g.ID)), grant.Reference{}
	}, slices.Concat(deletePoints, unbindPoints)},
	"check": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB")
		starts(s.t, s.container(g)).KillInit()
		return command(n, "check"), g
	}, slices.Concat(unbindPoints, []string{"ledger/locked", "ledger/repaired"})},
	// It never ends by itself: a point that it does not pass makes the test hang until it is
	// killed.
	"gpuledgerd": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		over, g := n.Grant("--memory", "1GiB"), n.Grant("--memory", "4GiB")
		b, other := starts(s.t, s.container(over)), starts(s.t, s.container(g))
		n.Must("release", string(over.ID))
		b.KillInit()
		other.KillInit()
		return n.Command(rig.Binary(n.T, "gpuledgerd", n.Tags...), "--nri", "off"), g
	}, slices.Concat(unbindPoints, []string{"ledger/locked", "ledger/sweep-removed", "ledger/repaired"})},
	"create": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB", "--gpus", "2")
		b := s.container(g)
		return n.Wrapper("create", "--bundle", b.Dir, b.ID), g
	}, bindPoints},
	"run": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB", "--owner", owned)
		b := s.container(g)
		return n.Wrapper("run", "--detach", "--bundle", b.Dir, b.ID), g
	}, bindPoints},
	"gpuledger run": {func(_ *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		return command(n, "run", "--memory", "4GiB", "--", "/bin/true"), grant.Reference{}
	}, []string{"grants/tree", "ledger/put-renamed", "ledger/bind-written"}},
	"create that adopts": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		b := n.Bundle("adopts", inPod("train"), allocated("train", "0,1", "4GiB"), rig.Light)
		s.containers = append(s.containers, b)
		return n.Wrapper("create", "--bundle", b.Dir, b.ID), grant.Reference{}
	}, slices.Concat(putPoints, []string{"node/adopted"}, bindPoints)},
	// An earlier container adopted, and ended without a delete.
	"create that adopts again": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		edits := []rig.Edit{inPod("train"), allocated("train", "0,1", "4GiB"), rig.Light}
		first, b := n.Bundle("adopted", edits...), n.Bundle("adopts", edits...)
		s.containers = append(s.containers, first, b)
		starts(s.t, first).KillInit()
		return n.Wrapper("create", "--bundle", b.Dir, b.ID), grant.Reference{}
	}, slices.Concat(unbindPoints, []string{"ledger/sweep-removed", "ledger/repaired", "node/adopted"})},
	// The container before it under the same id had another grant and died: its binding is
	// replaced.
	"create in place of another": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		before, g := n.Grant("--memory", "1GiB"), n.Grant("--memory", "4GiB")
		b := s.container(before)
		starts(s.t, b).End()
		b = n.Bundle(b.ID, with(g), rig.Light)
		return n.Wrapper("create", "--bundle", b.Dir, b.ID), g
	}, bindPoints},
	// The real runtime, whose hook dies: hooks without an environment get the runtime's.
	"create with a hook": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB", "--gpus", "2")
		b := s.container(g, hooked(n, "createRuntime"), func(spec *specs.Spec) {
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{
				Path: "/dev/nvidia-modeset", Type: "c", Major: 195, Minor: 254})
		})
		return n.Real("create", "--bundle", b.Dir, b.ID), g
	}, hookPoints},
	"delete with a hook": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB")
		b := starts(s.t, s.container(g, hooked(n, "poststop")))
		b.KillInit()
		return n.Real("delete", b.ID), g
	}, slices.Concat(unbindPoints, []string{"ledger/locked"})},
	"delete": {func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		g := n.Grant("--memory", "4GiB")
		b := starts(s.t, s.container(g))
		b.KillInit()
		return n.Wrapper("delete", b.ID), g
	}, slices.Concat(unbindPoints, []string{"ledger/locked"})},
}

func init() {
	victims["configure"] = victim{func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		return command(n, "configure", "containerd", "--root", image(s.t, n, "image"+strconv.Itoa(s.kills))),
			grant.Reference{}
	}, []string{"configure/recorded", "configure/changed"}}
	victims["configure --undo"] = victim{func(s *scaffold, n *rig.Node) (*exec.Cmd, grant.Reference) {
		root := image(s.t, n, "image"+strconv.Itoa(s.kills))
		n.Must("configure", "containerd", "--root", root, "--as-default")
		n.Must("configure", "podman", "--root", root)
		return command(n, "configure", "containerd", "--root", root, "--undo"), grant.Reference{}
	}, []string{"configure/inherited", "configure/restored", "configure/forgotten"}}
}

// hooked has the runtime call a hook that gets the runtime's environment, and so the point to die
// at.
func hooked(n *rig.Node, stage string) rig.Edit {
	return func(s *specs.Spec) {
		n.HookedAt(stage)(s)
		for _, hooks := range [][]specs.Hook{s.Hooks.CreateRuntime, s.Hooks.Poststop} {
			for i := range hooks {
				hooks[i].Env = nil
			}
		}
	}
}

func command(n *rig.Node, args ...string) *exec.Cmd {
	return n.Command(rig.Binary(n.T, "gpuledger", n.Tags...), args...)
}

// scaffold is one node on which one program after another is killed.
type scaffold struct {
	t          *testing.T
	n          *rig.Node
	containers []*rig.Bundle
	kills      int
}

func newScaffold(t *testing.T) *scaffold {
	return &scaffold{t: t, n: rig.NewNode(t, rig.Setup{
		Tags: []string{"failpoint"}, Engine: "containerd", Config: adopts})}
}

// container is the bundle of the next one.
func (s *scaffold) container(g grant.Reference, edits ...rig.Edit) *rig.Bundle {
	b := s.n.Bundle(fmt.Sprintf("c%d", len(s.containers)),
		append([]rig.Edit{with(g), rig.Light}, edits...)...)
	s.containers = append(s.containers, b)
	return b
}

// afterwards wants a sound ledger, a grant that can still be used, and all that is free to be
// grantable. It leaves the node as it was before.
func (s *scaffold) afterwards(what string, g grant.Reference) {
	s.t.Helper()
	s.kills++
	s.n.CheckSound(what)
	for _, b := range s.containers {
		b.End()
	}
	if s.n.State(g.ID) == grant.Free {
		b := s.container(g)
		if r := b.Create(); r.Code != 0 {
			s.t.Errorf("%s: a container with the grant that stands: %+v", what, r)
		}
		b.End()
	}
	removeTrees(s.t)
	for _, listed := range s.n.Grants() {
		wantState(s.t, s.n, listed.ID, what+", and no container is there", grant.Free)
		s.n.Must("release", string(listed.ID))
	}
	whole := s.n.Grant("--mode", "exclusive", "--gpus", "2", "--owner", owned)
	s.n.Must("release", string(whole.ID))
	s.containers = nil
	if s.t.Failed() {
		s.t.Fatalf("%s: the ledger's files: %q", what, s.n.Files())
	}
}

// TestKilledAtEachFailpoint kills every program of gpuledger at every dangerous line that it
// passes.
func TestKilledAtEachFailpoint(t *testing.T) {
	passing := map[string][]string{} // victims by point
	for name, v := range victims {
		for _, point := range v.points {
			passing[point] = append(passing[point], name)
		}
	}
	s, began := newScaffold(t), time.Now()
	for _, point := range failpoint.Names {
		if slices.Contains(limitPoints, point) || slices.Contains(drivenPoints, point) {
			continue
		}
		names := passing[point]
		slices.Sort(names)
		if len(names) == 0 {
			t.Errorf("no program of this test passes %s", point)
			continue
		}
		for round := range torture(len(names)) {
			s.kill(names[round%len(names)], point)
		}
	}
	t.Logf("%d kills at %d points in %v", s.kills, len(failpoint.Names), time.Since(began).Round(time.Second))
}

func (s *scaffold) kill(name, point string) {
	s.t.Helper()
	what := name + ", killed at " + point
	cmd, g := victims[name].scene(s, s.n)
	cmd.Env = append(cmd.Env, failpoint.Variable+"="+point)
	// the second is runc while its hook runs
	if r := rig.Run(cmd); !r.Killed() && !strings.Contains(r.Stderr, "signal: killed") {
		s.t.Errorf("%s: it was not killed: %+v", what, r)
	}
	s.afterwards(what, g)
}

// TestKilledAtAnyTime kills every program at any time: lines that were not marked may be dangerous
// too. The wrapper may have become the real runtime by then.
func TestKilledAtAnyTime(t *testing.T) {
	rig.More(t)
	s, began := newScaffold(t), time.Now()
	names := []string{}
	for name := range victims {
		names = append(names, name)
	}
	slices.Sort(names)
	early, random := 0, rig.Random(t, "kills")
	for round := range torture(3) * len(names) {
		name := names[round%len(names)]
		cmd, g := victims[name].scene(s, s.n)
		length := 10 * time.Millisecond
		if strings.HasPrefix(name, "create") || name == "run" {
			length = 60 * time.Millisecond
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(random.Int64N(int64(length)))
		time.Sleep(after)
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			early++
		}
		s.afterwards(fmt.Sprintf("%s, killed after %v", name, after), g)
	}
	t.Logf("%d kills in %v, %d of them before the program's end", s.kills,
		time.Since(began).Round(time.Second), early)
}
