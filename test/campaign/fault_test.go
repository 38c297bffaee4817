package campaign

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// fault is what goes wrong during a round, beside the kills of the workers' programs.
type fault struct {
	name    string
	refuses bool // grants and containers with a GPU may be refused meanwhile
	engine  bool // containerd may fail meanwhile
	still   bool // the workers stand still
	stuck   bool // bindings may stay, since none or not all can be removed meanwhile
	// strike begins it. The workers stand still, also for what it returns.
	strike func(*campaign, *rand.Rand) (heal func())
	during func(*campaign, *rand.Rand) // again and again
}

func nothing(*campaign, *rand.Rand) func() { return nil }

// faults are all of them.
var faults = []fault{
	{name: "kills only", strike: nothing},
	{name: "gpuledgerd dies", strike: nothing, during: killDaemon},
	{name: "MPS daemons die", strike: nothing, during: killMPS},
	{name: "clients die", strike: nothing, during: killClients},
	{name: "containerd dies", strike: nothing, during: killContainerd, engine: true},
	{name: "state directory full", refuses: true, strike: fill("state")},
	{name: "run directory full", refuses: true, strike: fill("run")},
	{name: "no inodes in state", refuses: true, strike: fillInodes("state")},
	{name: "no inodes in run", refuses: true, strike: fillInodes("run")},
	{name: "state read-only", refuses: true, strike: readOnly("state")},
	{name: "run read-only", refuses: true, stuck: true, strike: readOnly("run")},
	{name: "EIO in state", refuses: true, stuck: true, strike: faultyFiles("state")},
	{name: "clock jumps", refuses: true, strike: setClock, during: jump},
	{name: "boot id changes", still: true, strike: reboot},
	{name: "inventory changes", refuses: true, strike: loseGPUs},
	{name: "bits flip", still: true, strike: flipBits},
}

// chosenFaults are those of CAMPAIGN_FAULTS, names with commas between, or all.
func chosenFaults(t *testing.T) []fault {
	text := os.Getenv(faultsOf)
	if text == "" {
		return faults
	}
	names := strings.Split(text, ",")
	chosen := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return !slices.Contains(names, f.name)
	})
	if len(chosen) != len(names) {
		t.Fatalf("%s=%s names a fault that is not there", faultsOf, text)
	}
	return chosen
}

func (n *node) daemonRuns() bool { return n.daemon != nil && rig.Lives(n.daemon.Process.Pid) }

// daemonPoints are the marks that gpuledgerd passes while it tidies the ledger.
var daemonPoints = []string{"ledger/locked", "ledger/unbind-removed", "ledger/unbind-unlinked",
	"ledger/sweep-removed", "ledger/repaired"}

// killDaemon kills gpuledgerd at any time, or at a mark, and starts it again.
func killDaemon(c *campaign, r *rand.Rand) {
	time.Sleep(time.Duration(r.Int64N(int64(700 * time.Millisecond))))
	c.endDaemon()
	point := ""
	if r.IntN(2) == 0 {
		point = daemonPoints[r.IntN(len(daemonPoints))]
	}
	c.node.startDaemon(point)
}

// daemonAtMark is how a gpuledgerd is counted that has killed itself at its mark.
const daemonAtMark = "gpuledgerd, at a mark"

// endDaemon kills gpuledgerd, which must not have ended without being killed.
func (c *campaign) endDaemon() {
	ran, how := c.node.killDaemon()
	switch {
	case how != "signal: killed", !ran && c.node.mark == "":
		c.violation("gpuledgerd has ended by itself: %s", how)
	case ran:
		c.counts.kill("gpuledgerd")
	default:
		c.counts.kill(daemonAtMark)
	}
}

func killMPS(c *campaign, r *rand.Rand) {
	killOneOf(c, r, c.node.Dir+"/driver/usr/bin/nvidia-cuda-mps-control", func(name string) bool {
		return strings.HasPrefix(name, "nvidia-cuda-mps")
	})
	time.Sleep(time.Second)
}

func killClients(c *campaign, r *rand.Rand) {
	killOneOf(c, r, c.node.image+"/bin/gpu", func(string) bool { return true })
	killOneOf(c, r, c.node.image+"/bin/client", func(name string) bool { return name == "client" })
}

// killOneOf kills one process of a program that was called by such a name.
func killOneOf(c *campaign, r *rand.Rand, program string, by func(name string) bool) {
	pids := processesOf(program)
	r.Shuffle(len(pids), func(i, j int) { pids[i], pids[j] = pids[j], pids[i] })
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		first, _, _ := bytes.Cut(line, []byte{0})
		if name := filepath.Base(string(first)); by(name) && syscall.Kill(pid, syscall.SIGKILL) == nil {
			c.counts.kill("/bin/" + name)
			return
		}
	}
}

// killContainerd kills the daemon, and one of the processes between it and its containers.
func killContainerd(c *campaign, r *rand.Rand) {
	time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
	if shims := c.node.ctr.Shims(); len(shims) > 0 && r.IntN(2) == 0 {
		if syscall.Kill(shims[r.IntN(len(shims))], syscall.SIGKILL) == nil {
			c.counts.kill("containerd-shim")
		}
		return
	}
	if c.node.ctr.Kill() {
		c.counts.kill("containerd")
	}
	time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
	c.node.ctr.Start()
}

// fill leaves a directory's file system not a byte.
func fill(name string) func(*campaign, *rand.Rand) func() {
	return func(c *campaign, _ *rand.Rand) func() {
		filler := filepath.Join(c.node.Dir, name, "filler")
		f, err := os.Create(filler)
		must(c.t, err)
		defer f.Close()
		for page := make([]byte, 4096); err == nil; {
			_, err = f.Write(page)
		}
		return func() { must(c.t, os.Remove(filler)) }
	}
}

// fillInodes leaves it no file.
func fillInodes(name string) func(*campaign, *rand.Rand) func() {
	return func(c *campaign, _ *rand.Rand) func() {
		filler := filepath.Join(c.node.Dir, name, "filler")
		must(c.t, os.Mkdir(filler, 0o700))
		for i := 0; os.WriteFile(fmt.Sprintf("%s/%d", filler, i), nil, 0o600) == nil; i++ {
		}
		return func() { must(c.t, os.RemoveAll(filler)) }
	}
}

// readOnly is what a kernel does with a file system that has an error.
func readOnly(name string) func(*campaign, *rand.Rand) func() {
	return func(c *campaign, _ *rand.Rand) func() {
		dir := filepath.Join(c.node.Dir, name)
		flags := uintptr(syscall.MS_REMOUNT | syscall.MS_BIND)
		must(c.t, syscall.Mount(dir, dir, "", syscall.MS_BIND, ""),
			syscall.Mount("", dir, "", flags|syscall.MS_RDONLY, ""))
		return func() { must(c.t, syscall.Unmount(dir, syscall.MNT_DETACH)) }
	}
}

func faultyFiles(name string) func(*campaign, *rand.Rand) func() {
	return func(c *campaign, r *rand.Rand) func() {
		return mountFaulty(c.t, filepath.Join(c.node.Dir, name), r.Uint64())
	}
}

// setClock lets grants with a time end at any time: those that there are, and those of this round.
func setClock(c *campaign, _ *rand.Rand) func() {
	c.jumps = true
	for _, w := range c.workers {
		for _, s := range w.slots {
			s.jumped = true
		}
	}
	return func() {
		c.jumps = false
		c.node.Write("clock", "0s")
	}
}

// jump sets the clock of gpuledger's programs forward or back.
func jump(c *campaign, r *rand.Rand) {
	by := []time.Duration{time.Second, time.Minute, 2 * time.Hour, 36 * time.Hour}[r.IntN(4)]
	if r.IntN(2) == 0 {
		by = -by
	}
	c.node.Write("clock", by.String())
	time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
}

// reboot ends all containers without gpuledger, as a power cut does, and gives the node another
// boot id. The run directory is empty then on most nodes. Grants are as before, and unbound.
func reboot(c *campaign, r *rand.Rand) func() {
	refs := map[grant.ID]bool{}
	for _, w := range c.workers {
		for _, s := range w.slots {
			if s.live && referenceOf(s) != "" {
				refs[s.reference.ID] = true
			}
		}
	}
	before, err := c.node.list()
	must(c.t, err)
	c.endDaemon()
	c.node.killMPS()
	c.calm(func(w *worker) {
		for _, s := range w.slots {
			if s.live && s.engine.asks && s.engine.name != "containerd" {
				s.bundle.End()
			} else if s.live {
				w.engine.clears(s)
			}
			s.live, s.reference = false, grant.Reference{}
		}
	})
	if r.IntN(2) == 0 {
		entries, _ := os.ReadDir(c.node.Dir + "/run")
		for _, e := range entries {
			entry := filepath.Join(c.node.Dir, "run", e.Name())
			for _, mount := range append(mounts(entry), entry) {
				_ = syscall.Unmount(mount, syscall.MNT_DETACH)
			}
			must(c.t, os.RemoveAll(filepath.Join(c.node.Dir, "run", e.Name())))
		}
	}
	must(c.t, os.WriteFile(c.node.bootID, fmt.Appendf(nil, "%08x-1111-4222-8333-%012x\n", r.Uint32(),
		r.Uint64N(1<<48)), 0o600))
	c.node.startDaemon("")
	c.node.usable("after the reboot")
	after, err := c.node.list()
	must(c.t, err)
	for _, g := range after {
		if g.State == grant.Bound || len(g.Bindings) > 0 {
			c.violation("grant %s of %s is bound across a reboot", g.ID, g.Label)
		}
	}
	for _, b := range before {
		has := slices.ContainsFunc(after, func(a listed) bool { return a.ID == b.ID })
		if refs[b.ID] && !has && b.State == grant.Bound {
			c.violation("grant %s of %s is lost by a reboot", b.ID, b.Label)
		}
		if has {
			_ = c.releaseGrant(b.ID)
		}
	}
	return nil
}

// usable waits until the inventory is of this boot and has all GPUs.
func (n *node) usable(when string) {
	n.T.Helper()
	rig.Within(n.T, time.Minute, when+" the inventory is usable", func() bool {
		r := n.CLI("gpus")
		return r.Code == 0 && r.Stderr == "" && strings.Count(r.Stdout, "GPU-") == gpus
	})
}

// loseGPUs takes the last ones away, and gives them back.
func loseGPUs(c *campaign, r *rand.Rand) func() {
	describe := func(n int) {
		c.node.Must("inventory", "simulate", "--gpus", fmt.Sprint(n), "--memory", memory.String(), "--out",
			c.node.Dir+"/node.json")
	}
	describe(1 + r.IntN(gpus-1))
	return func() {
		describe(gpus)
		c.node.Must("inventory", "refresh")
		c.node.usable("with all GPUs")
	}
}
