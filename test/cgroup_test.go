package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// inCgroupOf gives a container a cgroup by a path that counts from another one's.
func inCgroupOf(id, rest string) rig.Edit {
	return func(s *specs.Spec) {
		s.Linux.CgroupsPath = filepath.Dir(s.Linux.CgroupsPath) + "/" + id + rest
	}
}

// opensItsGPU wants a container that runs to be let through to its GPU by its device rules. There is no driver, so it says ENXIO.
func opensItsGPU(t *testing.T, n *rig.Node, b *rig.Bundle, when string) {
	t.Helper()
	r := rig.Run(n.Real("exec", b.ID, "/bin/busybox", "sh", "-c", "for f in /dev/nvidia[0-9]; do true <$f; done"))
	if !strings.Contains(r.Stderr, "No such device or address") {
		t.Errorf("%s: the container opens its GPU: %+v", when, r)
	}
}

// TestNobodyEntersTheCgroupOfAGrant: a container that asks for no GPU, and one with a grant of its own, at, below and above the cgroup of one with
// a GPU.
func TestNobodyEntersTheCgroupOfAGrant(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--mode", "exclusive", "--gpu", "0")
		holder := starts(t, n.Bundle("holder", with(g), rig.Light))
		opensItsGPU(t, n, holder, "alone")
		other := n.Grant("--memory", "1GiB", "--gpu", "1")
		for name, rest := range map[string]string{"at": "", "below": "/x", "far below": "/x/y/z", "by dots": "/x/..", "above": "/.."} {
			id := strings.ReplaceAll(name, " ", "-")
			wantRefused(t, n.Bundle(id, inCgroupOf("holder", rest), rig.Light).Create(), "injection-impossible")
			wantRefused(t, n.Bundle(id+"-granted", inCgroupOf("holder", rest), rig.Light, with(other)).Create(), "injection-impossible")
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

// TestACreateUnderWayIsSeen: a container without a grant has passed, and its runtime has not made it yet. One with a grant is not put into
// the cgroup meanwhile; and afterwards it is there, or can come.
func TestACreateUnderWayIsSeen(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		for _, rest := range []string{"", "/x"} {
			t.Run("at"+rest, func(t *testing.T) {
				n := rig.NewNode(t, rig.Setup{Runtime: runtime})
				g := n.Grant("--memory", "1GiB", "--gpu", "0")
				waits, goes := n.Dir+"/waits", n.Dir+"/goes"
				slow := n.Write("slow-"+runtime, fmt.Sprintf("#!/bin/sh\n: >%q\nwhile [ ! -e %q ]; do sleep 0.01; done\nexec %s \"$@\"\n", waits, goes, runtime))
				must(t, os.Chmod(slow, 0o755))
				late := *n
				late.Config = n.Write("slow.toml", strings.Replace(read(t, n.Config), fmt.Sprintf("path = [%q]", runtime), fmt.Sprintf("path = [%q]", slow), 1))
				stranger := n.Bundle("stranger", inCgroupOf("holder", rest), rig.Light)
				created := make(chan rig.Result)
				go func() { created <- stranger.On(&late).Create() }()
				rig.Eventually(t, "the runtime is about to make the stranger", func() bool { return exists(waits) })
				b := n.Bundle("holder", with(g), rig.Light)
				wantRefused(t, b.Create(), "injection-impossible")
				wantState(t, n, g.ID, "while the other one is being created", grant.Free)
				must(t, os.WriteFile(goes, nil, 0o644))
				if r := <-created; r.Code != 0 {
					t.Fatalf("the stranger: %+v", r)
				}
				wantRefused(t, b.Create(), "injection-impossible")
				stranger.End()
				if rest == "" { // else runc cannot enter a cgroup of version 2 that others have been below
					opensItsGPU(t, n, starts(t, b), "alone")
					b.End()
				}
			})
		}
	})
}

// TestOfTwoContainersInOneCgroupAtMostOneStarts: one has a grant and the other none.
func TestOfTwoContainersInOneCgroupAtMostOneStarts(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--memory", "4GiB")
		won := map[string]int{}
		for round := range max(24, torture(24)) {
			two := []*rig.Bundle{n.Bundle("holder", with(g), rig.Light), n.Bundle("stranger", inCgroupOf("holder", ""), rig.Light)}
			results := atOnce(2, func(i int) rig.Result {
				if i == 0 {
					time.Sleep(time.Duration(round%8) * time.Millisecond) // the longer way is the stranger's runtime's
				}
				return two[i].Create()
			})
			if results[0].Code == 0 && results[1].Code == 0 {
				t.Errorf("round %d: both start", round)
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
		n.CheckSound("at the end")
		t.Logf("won %v", won)
	})
}
