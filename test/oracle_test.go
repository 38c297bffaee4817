package test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/oracle"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestTheOracleIsRight: the oracle's result for a list of device rules is that of real runtimes: a
// container with the list is started without gpuledger, and opens a node that its image carries.
func TestTheOracleIsRight(t *testing.T) {
	for version, layout := range map[int]rig.Layout{1: rig.V1, 2: rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					n := rig.NewNode(t, rig.Setup{Runtime: runtime})
					random, started := rand.New(rand.NewPCG(1, uint64(version))), 0
					for i := range torture(30) {
						if tried(t, n, runtime, version, ruleList(random), fmt.Sprintf("list%d", i)) {
							started++
						}
					}
					if started == 0 {
						t.Error("no container was started")
					}
				})
			}
		})
	}
}

// openAll opens a node for reading, for writing and for both.
const openAll = `{ true </gpu && echo open; true >/gpu && echo open; true <>/gpu && echo open; } 2>&1`

// tried compares one list, and reports whether its container started. Runtimes add rules of their
// own, none about GPUs.
func tried(t *testing.T, n *rig.Node, runtime string, version int, rules []specs.LinuxDeviceCgroup,
	id string) (started bool) {
	t.Helper()
	b := n.Bundle(id, rig.Light, rig.Shell(openAll), func(s *specs.Spec) {
		s.Linux.Resources.Devices = rules
	})
	mknod(t, filepath.Join(b.Dir, "rootfs/gpu"), 195, 0)
	r := rig.Run(n.Real("run", "--bundle", b.Dir, id))
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	started = len(lines) == 3
	for i, access := range []string{"r", "w", "rw"} {
		opens := started && !strings.Contains(lines[i], "Operation not permitted")
		if want := oracle.Opens(runtime, version, rules, oracle.Device{Major: 195}, access); opens != want {
			t.Errorf("opens it with %q: %v, the oracle has %v, by %s\n%s%s", access, opens, want,
				describeRules(rules), r.Stdout, r.Stderr)
		}
	}
	b.End()
	return started
}

// ruleList draws rules that are about 195:0, nearly all of them.
func ruleList(random *rand.Rand) []specs.LinuxDeviceCgroup {
	pick := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	number := func(choices ...int64) *int64 {
		if i := random.IntN(len(choices) + 1); i < len(choices) {
			return &choices[i]
		}
		return nil
	}
	var rules []specs.LinuxDeviceCgroup
	if random.IntN(4) > 0 {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: random.IntN(3) == 0, Access: "rwm"})
	}
	for range random.IntN(4) {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: random.IntN(3) > 0,
			Type:  pick("c", "c", "c", "c", "b", "a", "", "u"),
			Major: number(195, 195, 1, 1<<32+195), Minor: number(0, 0, 1),
			Access: pick("rwm", "rw", "r", "w", "m")})
	}
	return rules
}

func describeRules(rules []specs.LinuxDeviceCgroup) string {
	var text []string
	number := func(n *int64) string {
		if n == nil {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	for _, r := range rules {
		text = append(text, fmt.Sprintf("%v %q %s:%s %s", r.Allow, r.Type, number(r.Major),
			number(r.Minor), r.Access))
	}
	return strings.Join(text, "; ")
}
