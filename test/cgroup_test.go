package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/test/rig"
)

// inCgroupOf gives a container a cgroup by a path relative to another one's.
func inCgroupOf(id, rest string) rig.Edit {
	return func(s *specs.Spec) {
		s.Linux.CgroupsPath = filepath.Dir(s.Linux.CgroupsPath) + "/" + id + rest
	}
}

// opensItsGPU wants a running container's device rules to allow its GPU. There is no driver, so the
// open returns ENXIO.
func opensItsGPU(t *testing.T, n *rig.Node, b *rig.Bundle, when string) {
	t.Helper()
	r := rig.Run(n.Real("exec", b.ID, "/bin/busybox", "sh", "-c",
		"for f in /dev/nvidia[0-9]; do true <$f; done"))
	if !strings.Contains(r.Stderr, "No such device or address") {
		t.Errorf("%s: the container opens its GPU: %+v", when, r)
	}
}

// TestNoContainerEntersTheCgroupOfAGrant: neither a container that requests no GPU nor one with
// another grant, at, below and above the cgroup of one with a GPU.
func TestNoContainerEntersTheCgroupOfAGrant(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--mode", "exclusive", "--gpu", "0")
		holder := starts(t, n.Bundle("holder", with(g), rig.Light))
		opensItsGPU(t, n, holder, "alone")
		other := n.Grant("--memory", "1GiB", "--gpu", "1")
		for name, rest := range map[string]string{"at": "", "below": "/x", "far below": "/x/y/z",
			"by dots": "/x/..", "above": "/.."} {
			id := strings.ReplaceAll(name, " ", "-")
			wantRefused(t, n.Bundle(id, inCgroupOf("holder", rest), rig.Light).Create(),
				"injection-impossible")
			wantRefused(t, n.Bundle(id+"-granted", inCgroupOf("holder", rest), rig.Light,
				with(other)).Create(), "injection-impossible")
			opensItsGPU(t, n, holder, name)
		}
		for id, rest := range map[string]string{"beside": "2", "elsewhere": "-x/holder"} {
			starts(t, n.Bundle(id, inCgroupOf("holder", rest), rig.Light)).End()
		}
		opensItsGPU(t, n, holder, "at the end")
		wantState(t, n, other.ID, "refused", grant.Free)
		holder.End()
		becomesFree(t, n, g.ID)
		starts(t, n.Bundle("next", inCgroupOf("holder", ""), rig.Light)).End()
		n.CheckSound("at the end")
	})
}

// TestACreateUnderWayIsSeen: a container without a grant has passed, and its runtime has not
// created it yet. Meanwhile no container with a grant is put into the cgroup. Afterwards the first
// container exists, or can be created.
func TestACreateUnderWayIsSeen(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, rest := range []string{"", "/x"} {
			t.Run("at"+rest, func(t *testing.T) {
				n := rig.NewNode(t, rig.Setup{Runtime: runtime})
				g := n.Grant("--memory", "1GiB", "--gpu", "0")
				waits, goes := n.Dir+"/waits", n.Dir+"/goes"
				slow := n.Write("slow-"+runtime, fmt.Sprintf(
					"#!/bin/sh\n: >%q\nwhile [ ! -e %q ]; do sleep 0.01; done\nexec %s \"$@\"\n",
					waits, goes, runtime))
				must(t, os.Chmod(slow, 0o755))
				late := *n
				late.Config = n.Write("slow.toml", strings.Replace(read(t, n.Config),
					fmt.Sprintf("path = [%q]", runtime), fmt.Sprintf("path = [%q]", slow), 1))
				outsider := n.Bundle("outsider", inCgroupOf("holder", rest), rig.Light)
				created := make(chan rig.Result)
				go func() { created <- outsider.On(&late).Create() }()
				rig.Eventually(t, "the runtime is about to create the container without a grant",
					func() bool { return exists(waits) })
				b := n.Bundle("holder", with(g), rig.Light)
				wantRefused(t, b.Create(), "injection-impossible")
				wantState(t, n, g.ID, "while the other one is being created", grant.Free)
				must(t, os.WriteFile(goes, nil, 0o644))
				if r := <-created; r.Code != 0 {
					t.Fatalf("the container without a grant: %+v", r)
				}
				wantRefused(t, b.Create(), "injection-impossible")
				outsider.End()
				// One that has ended is in no cgroup.procs, and counts until its parent has waited.
				rig.Eventually(t, "the other one's processes have left the cgroup", func() bool {
					populated, _ := containers.Populated(host.Default(), b.CgroupPath())
					return len(b.Processes()) == 0 && !populated
				})
				if rest == "" { // else runc cannot enter a cgroup of version 2 that others have been below
					opensItsGPU(t, n, starts(t, b), "alone")
					b.End()
				}
			})
		}
	})
}

// TestTwoContainersInOneCgroup: at most one starts if one has a grant and the other has none. The
// other's id may be the last part of the cgroup's name.
func TestTwoContainersInOneCgroup(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--memory", "4GiB")
		for _, ids := range [][2]string{{"holder", "outsider"}, {"work-x", "x"}} {
			won := map[string]int{}
			for round := range max(24, torture(24)) {
				two := []*rig.Bundle{n.Bundle(ids[0], with(g), rig.Light),
					n.Bundle(ids[1], inCgroupOf(ids[0], ""), rig.Light)}
				results := atOnce(2, func(i int) rig.Result {
					if i == 0 {
						// the other create takes longer to reach its cgroup, so this one waits
						time.Sleep(time.Duration(round%8) * time.Millisecond)
					}
					return two[i].Create()
				})
				if results[0].Code == 0 && results[1].Code == 0 {
					t.Errorf("%v, round %d: both start", ids, round)
				}
				for i, r := range results {
					if r.Code == 0 {
						won[two[i].ID]++
					}
				}
				for _, b := range two {
					b.End()
				}
			}
			t.Logf("won %v", won)
		}
		n.CheckSound("at the end")
	})
}

// TestDotsInCgroupPaths: runc counts a relative path from the caller's cgroup, and lets no dots
// lead out of that one. crun counts from the root, and fails if dots lead out of it.
func TestDotsInCgroupPaths(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--memory", "1GiB", "--gpu", "0")
		top := "/gpuledger-" + filepath.Base(n.Dir)
		caller, at := top+"/o/p", top+"/o/p/holder" // v1: below the caller's
		if exists("/sys/fs/cgroup/cgroup.procs") {
			at = top + "/o/holder" // v2: beside it
		}
		holder := starts(t, n.Bundle("holder", with(g), rig.Light, cgroupsPath(at)))
		for id, path := range map[string]string{"one": "../holder", "many": "../../../../holder",
			"within": "x/../holder"} {
			b := n.Bundle(id, rig.Light, cgroupsPath(path))
			wantRefused(t, rig.Run(from(caller, n.Wrapper("create", "--bundle", b.Dir, b.ID))),
				"injection-impossible")
			opensItsGPU(t, n, holder, id)
		}
		holder.End()
		b := n.Bundle("granted", with(g), rig.Light, cgroupsPath("../../holder")) // and the other way round
		r := rig.Run(from(caller, n.Wrapper("create", "--bundle", b.Dir, b.ID)))
		if runtime == "crun" && r.Code != 0 {
			return
		}
		succeeds(t, r)
		wantRefused(t, n.Bundle("outsider", rig.Light, cgroupsPath(at)).Create(), "injection-impossible")
	})
}

func cgroupsPath(path string) rig.Edit { return func(s *specs.Spec) { s.Linux.CgroupsPath = path } }

// from runs a command from a cgroup, in the hierarchies that hold devices.
func from(cgroup string, cmd *exec.Cmd) *exec.Cmd {
	const script = `for d in /sys/fs/cgroup/devices /sys/fs/cgroup; do [ ! -e $d/cgroup.procs ] || { mkdir ` +
		`-p $d$0 && echo $$ >$d$0/cgroup.procs; }; done; exec "$@"`
	moved := exec.Command("sh", append([]string{"-c", script, cgroup}, cmd.Args...)...)
	moved.Env = cmd.Env
	return moved
}

// TestNoGrantClosesAParent: engines make the cgroups of other containers below it.
func TestNoGrantClosesAParent(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--memory", "1GiB", "--gpu", "0")
		for id, path := range map[string]string{"docker": "/docker", "pods": "/kubepods/burstable",
			"slice": "/system.slice", "root": "/"} {
			wantRefused(t, n.Bundle(id, with(g), rig.Light, cgroupsPath(path)).Create(),
				"injection-impossible")
		}
		parent := "/gpuledger-" + filepath.Base(n.Dir) + "/parent"
		dir := "/sys/fs/cgroup/devices" + parent
		if exists("/sys/fs/cgroup/cgroup.procs") {
			dir = "/sys/fs/cgroup" + parent
		}
		must(t, os.MkdirAll(dir+"/child", 0o755))
		wantRefused(t, n.Bundle("work", with(g), rig.Light, cgroupsPath(parent)).Create(),
			"injection-impossible")
		must(t, os.Remove(dir+"/child"))
		// the kernel takes a moment until a removed child is none to device rules (cgroup v1)
		work := n.Bundle("work", with(g), rig.Light, cgroupsPath(parent))
		rig.Eventually(t, "the parent has no child any more", func() bool {
			r := work.Create()
			if r.Code != 0 && !strings.Contains(r.Stderr, "Invalid argument") {
				t.Fatalf("%+v", r)
			}
			return r.Code == 0
		})
		work.End()
		n.CheckSound("at the end")
	})
}

// TestNoContainerLeavesItsUnit: the unit exists, as shown by systemd's file of it.
// packaging/units.sh shows what runtimes do then, with a real systemd.
func TestNoContainerLeavesItsUnit(t *testing.T) {
	simulateUnit(t, "docker-first.scope")
	n := rig.NewNode(t, rig.Setup{})
	g := n.Grant("--memory", "1GiB", "--gpu", "0")
	other := *n
	other.Root = n.Dir + "/other"
	for i, path := range []string{"system.slice:docker:first", "nine.slice:docker:first", ":docker:first",
		"x.slice:docker-first"} {
		for j, edits := range [][]rig.Edit{{rig.Light, cgroupsPath(path)},
			{rig.Light, cgroupsPath(path), with(g)}} {
			b := n.Bundle(fmt.Sprintf("second%d%d", i, j), edits...)
			wantRefused(t, b.Create(), "rules-not-enforced")
			// under its own id, elsewhere
			wantRefused(t, n.Bundle("first", edits...).On(&other).Create(), "rules-not-enforced")
		}
	}
	wantState(t, n, g.ID, "refused", grant.Free)
	none := rig.NewNode(t, rig.Setup{Config: "[policy]\nmode = \"report\"\n"})
	// as a path, without systemd
	starts(t, none.Bundle("second", rig.Light, cgroupsPath("nine.slice:docker:first"))).End()
	n.CheckSound("at the end")
}
