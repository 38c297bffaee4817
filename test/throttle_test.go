package test

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

const throttles = "[enforcement]\nshim = \"{shim}\"\ncompute = \"throttle\"\n"

// recorded are words of a grant's limits file, at the offsets that internal/limits checks against
// the shim's.
func (n *gpuNode) recorded(r grant.Reference) (share, open, period uint64) {
	n.T.Helper()
	file := filepath.Join(n.Dir, "run/limits", string(r.ID), grant.LimitsFile)
	text, err := os.ReadFile(file)
	if err != nil {
		n.T.Fatal(err)
	}
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(text[at:]) }
	return word(64 + 32), word(64+40) & 0xffffffff, word(64+40) >> 32
}

// beat counts the samples of the program that sets the gates.
func (n *gpuNode) beat(r grant.Reference) uint64 {
	n.T.Helper()
	return binary.NativeEndian.Uint64([]byte(read(n.T.(*testing.T),
		filepath.Join(n.Dir, "run/limits", string(r.ID), grant.LimitsFile)))[32:])
}

func (n *gpuNode) computeStrengthOf(r grant.Reference) string {
	n.T.Helper()
	var out struct {
		Grants []struct {
			ID              grant.ID
			ComputeStrength string `json:"compute_strength"`
		}
	}
	if err := json.Unmarshal([]byte(n.Must("grants", "--json")), &out); err != nil {
		n.T.Fatal(err)
	}
	for _, g := range out.Grants {
		if g.ID == r.ID {
			return g.ComputeStrength
		}
	}
	return ""
}

// TestAShareOfComputeIsThrottled: a container with a share launches through the shim, whatever kind
// of program it runs; one without launches through the driver itself. The share is shown with its
// strength wherever the grant is, and follows it while the container runs.
func TestAShareOfComputeIsThrottled(t *testing.T) {
	n := newGPUNode(t, rig.Setup{Config: throttles})
	without, share := n.Grant("--memory", "1GiB"), n.Grant("--memory", "1GiB", "--compute", "30")
	for name, client := range map[string]string{"dynamic": "/bin/gpu", "static": "/bin/gpu-static",
		"stripped": "exec /bin/busybox env -i /bin/gpu"} {
		if r := n.holding(name, without, client+" launch 1025").Run(); r.Stdout !=
			"launched by /run/gpuledger/driver/libcuda.so.1 (0)\n1025 MiB: 2\n" {
			t.Errorf("%s without a share: %+v", name, r)
		}
		b := n.holding(name+"-share", share, client+" launch 1025")
		if r := b.Explain(); !strings.Contains(r.Stdout,
			"launches are throttled to 30% of the compute, strength library, experimental") {
			t.Errorf("%s: %+v", name, r)
		}
		r := b.Run()
		if strings.Contains(r.Stdout, "launched by /run/gpuledger/") ||
			!strings.HasSuffix(r.Stdout, "libcuda.so.1 (0)\n1025 MiB: 2\n") {
			t.Errorf("%s with a share: %+v", name, r)
		}
		n.free(without)
		n.free(share)
	}
	if got, _, _ := n.recorded(without); got != 0 {
		t.Errorf("without a share it is %d", got)
	}
	b := n.holding("runs", share, "exec /bin/gpu launch hold")
	start(t, b)
	if got, open, period := n.recorded(share); got != 30 || open != 0 || period != 0 {
		t.Errorf("the records have a share of %d, %d of %d", got, open, period)
	}
	if got := n.computeStrengthOf(share); got != "library" || n.computeStrengthOf(without) != "" {
		t.Errorf("the share has strength %q, none has %q", got, n.computeStrengthOf(without))
	}
	if said := n.Must("grants") + n.Must("inspect", "--details"); strings.Count(said,
		"30% (library, experimental)") != 2 {
		t.Error(said)
	}
	if said := n.Must("grant", "--update", string(share.ID), "--compute", "50"); !strings.Contains(said,
		"50% compute, strength library; the compute has strength library, experimental") {
		t.Error(said)
	}
	if got, _, _ := n.recorded(share); got != 50 {
		t.Errorf("after the update it is %d", got)
	}

	// A container without the proxy that throttles has its share from its next create on.
	other := n.holding("other", without, "exec /bin/gpu hold")
	start(t, other)
	if said := n.Must("grant", "--update", string(without.ID), "--compute", "20"); !strings.Contains(said,
		"the compute is not enforced on a container that runs already: it is throttled when it is "+
			"created anew") {
		t.Error(said)
	}
	if got := n.computeStrengthOf(without); got != "" {
		t.Errorf("the share of a container that is not throttled has strength %q", got)
	}

	// If the policy only counts from now on, the gate stays open.
	n.Write("config.toml", strings.Replace(read(t, n.Config), `compute = "throttle"`, `compute = "count"`, 1))
	n.Must("check")
	if got, _, _ := n.recorded(share); got != 0 || n.computeStrengthOf(share) != "" {
		t.Errorf("counted, the share is %d and has strength %q", got, n.computeStrengthOf(share))
	}
}

// TestAThrottleFollowsTheGPU: gpuledgerd narrows the gate of a container that has more than its
// share, and opens it to the share again when the container is idle, which takes the longer the
// narrower the gate has become. A share that is the whole GPU is never narrowed.
func TestAThrottleFollowsTheGPU(t *testing.T) {
	n := newGPUNode(t, rig.Setup{Config: throttles + watches})
	n.Daemon("--nri", "off")
	share := n.Grant("--memory", "1GiB", "--compute", "30")
	b := n.holding("runs", share, "exec /bin/gpu hold")
	start(t, b)
	g := gpusOf(t, n.Node)
	g.runs(b.Init(), 0, grant.GiB/2)
	g.use.Processes[0].Compute = 100
	g.writeUse()
	eventually(t, "the gate is narrower than the share", func() bool {
		_, open, period := n.recorded(share)
		return period > 0 && open*100/period < 10
	})
	g.use.Processes = nil
	g.writeUse()
	eventually(t, "the gate is the share's", func() bool {
		_, open, period := n.recorded(share)
		return open == 6000 && period == 20000
	})
}

// TestAThrottleFollowsNVML: a container launches as fast as it can, the driver's NVML reports to
// gpuledgerd what its process has of the GPU, and that moves the gate before the next launch.
// internal/daemon/watcher tests how near the share that is, on a simulated clock. This test runs
// all of the parts together, in a real container, also after gpuledgerd is killed. It waits long: a
// gate that is very narrow opens once in five seconds.
func TestAThrottleFollowsNVML(t *testing.T) {
	rig.Mount(t, "tmpfs", "/sys/bus/pci/devices", "tmpfs", 0, "mode=755") // the stand-in's GPUs are on no bus
	must(t, os.Mkdir("/sys/bus/pci/devices/0000:01:00.0", 0o755),
		os.Mkdir("/sys/bus/pci/devices/0000:02:00.0", 0o755))
	n := nodeOfDriver(t, "580.65.06", rig.Setup{Config: throttles})
	must(t, os.WriteFile(n.Dir+"/book/devices", []byte(read(t, n.Dir+"/book/devices")+"launch 5000\n"),
		0o644))
	d := n.Daemon("--nri", "off")
	share := n.Grant("--memory", "1GiB", "--compute", "30", "--gpu", "0")
	b := n.holding("runs", share, "exec /bin/gpu launches")
	start(t, b)
	launched := func() int {
		text, _ := os.ReadFile(filepath.Join(b.Dir, "rootfs/tmp/launched"))
		count, _ := strconv.Atoi(string(text))
		return count
	}
	goesOn := func(when string) {
		t.Helper()
		before := launched()
		eventually(t, "it goes on launching "+when, func() bool { return launched() > before+3 })
	}
	narrow := func() bool {
		_, open, period := n.recorded(share)
		return period > 0 && open*100/period < 20
	}
	eventually(t, "the gate is narrower than the share for a program that launches far ahead", narrow)
	goesOn("at a narrow gate")
	if said := n.Must("grant", "--update", string(share.ID), "--compute",
		"90"); !strings.Contains(said, "90% compute") {
		t.Error(said)
	}
	eventually(t, "the gate is set anew for a larger share", func() bool {
		percent, open, period := n.recorded(share)
		return percent == 90 && open > 0 && period > 0
	})
	goesOn("with it")
	n.Must("grant", "--update", string(share.ID), "--compute", "30")
	eventually(t, "and a smaller one", narrow)

	d.End(syscall.SIGKILL)
	if percent, open, _ := n.recorded(share); percent != 30 || open == 0 {
		t.Errorf("without gpuledgerd the share is %d and the gate is open for %d", percent, open)
	}
	goesOn("without gpuledgerd")
	beat := n.beat(share)
	n.Daemon("--nri", "off")
	eventually(t, "the next gpuledgerd moves the gate", func() bool {
		return n.beat(share) != beat && narrow()
	})
	goesOn("with the next")
}

// TestASharesRefusalWithoutAThrottle: the share is refused with the reason, when it is requested
// and when a container is created.
func TestASharesRefusalWithoutAThrottle(t *testing.T) {
	for name, c := range map[string]struct{ config, why string }{
		"no shim":                  {"shim = \"/nowhere\"", "launches cannot be throttled: the shim is not installed"},
		"the driver is configured": {"shim = \"{shim}\"\nlimit = \"driver\"", "launches cannot be throttled: enforcement.limit is \"driver\""},
		"more is wanted":           {"shim = \"{shim}\"\n[policy]\nminimum_strength = \"server\"", "a throttle of launches has strength library, and policy.minimum_strength is \"server\""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newGPUNode(t, rig.Setup{Config: "[enforcement]\ncompute = \"throttle\"\n" + c.config + "\n"})
			r := n.CLI("grant", "--memory", "1GiB", "--compute", "30")
			if r.Code != 3 || !strings.Contains(r.Stderr, "limit-unenforceable") ||
				!strings.Contains(r.Stderr, c.why) {
				t.Errorf("%+v", r)
			}
			if r := n.CLI("doctor"); !strings.Contains(strings.Join(strings.Fields(r.Stdout), " "),
				"a share of compute in mode limit is refused (limit-unenforceable): "+c.why) {
				t.Errorf("%+v", r)
			}
		})
	}
	n := newGPUNode(t, rig.Setup{Config: throttles})
	share := n.Grant("--memory", "1GiB", "--compute", "30")
	b := n.holding("utility", share, "true", rig.Env("NVIDIA_DRIVER_CAPABILITIES=utility"))
	wantRefused(t, b.Create(), "limit-unenforceable")
}
