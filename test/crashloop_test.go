package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/watch"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestACrashLoopHarmsNoContainer: gpuledgerd is started and killed again and again, at any time of
// its life, while containers start, run and end, and the policy stops containers. What ran with a
// grant goes on, every container that may start does, one that may not is refused, what was found
// outside the ledger stays taken, and the daemon's files can be read at each moment.
func TestACrashLoopHarmsNoContainer(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: strings.Replace(watches, "127.0.0.1:0", "", 1) + stops})
	g := gpusOf(t, n)
	var running []*rig.Bundle
	for i := range 3 {
		b := starts(t, n.Bundle(fmt.Sprintf("runs%d", i),
			with(n.Grant("--memory", "1GiB", "--gpu", "0")), rig.Light))
		g.runs(b.Init(), 0, 900*grant.MiB)
		running = append(running, b)
	}
	g.use.GPUs = []simulated.GPUReading{{GPU: 1, Utilization: 50}}
	g.runs(nodeProcess(t), 1, 6*grant.GiB)
	g.writeUse()
	first := n.Daemon("--nri", "off")
	rig.Eventually(t, "what is outside the ledger counts", func() bool {
		return free(t, n)[1] == 16160*grant.MiB-6*grant.GiB
	})
	first.End(syscall.SIGKILL)
	boot := strings.TrimSpace(read(t, "/proc/sys/kernel/random/boot_id"))

	done := make(chan struct{})
	var storm sync.WaitGroup
	kills := 0
	random := rig.Random(t, "kills")
	storm.Go(func() {
		for ; ; kills++ {
			select {
			case <-done:
				return
			default:
			}
			crash(n, random)
			if _, err := watch.Load(n.Dir+"/run", boot); err != nil {
				t.Errorf("after kill %d: %v", kills, err)
			}
		}
	})
	for round := range torture(8) {
		id := fmt.Sprintf("starts%d", round)
		r := n.Grant("--memory", "1GiB")
		b := starts(t, n.Bundle(id, with(r), rig.Light))
		if got := n.State(r.ID); got != grant.Bound {
			t.Errorf("%s runs and its grant is %s", id, got)
		}
		isRefused(t, n.Bundle("refused", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Light).Create(),
			grant.VisibleDevicesAll)
		if r := n.Bundle(id+"-none", rig.Light, rig.Shell("echo harmless")).Run(); r.Code != 0 ||
			r.Stdout != "harmless\n" {
			t.Errorf("a container without a GPU: %+v", r)
		}
		if got := free(t, n)[1]; got > 16160*grant.MiB-6*grant.GiB {
			t.Errorf("what is in use outside the ledger is free: %s", got)
		}
		if b.Init() == 0 {
			t.Errorf("%s does not run any more", id)
		}
		b.KillInit()
		n.Must("release", string(r.ID))
	}
	close(done)
	storm.Wait()
	t.Logf("%d kills", kills)
	for _, b := range running {
		if b.Init() == 0 {
			t.Errorf("%s does not run any more", b.ID)
		}
	}
	if held := slices.DeleteFunc(n.Grants(), func(l rig.Listed) bool {
		return l.State != grant.Bound
	}); len(held) != len(running) {
		t.Errorf("bound are %+v", held)
	}
	rig.Eventually(t, "the last one that was killed has no lock any more", n.LockIsFree)
	last := n.Daemon("--nri", "off")
	rig.Eventually(t, "the next one tidies", func() bool {
		return strings.Count(last.Log(), "gpuledgerd dev started") == 2 && len(entries(n)) == 2*len(running)
	})
	if code := last.End(syscall.SIGTERM); code != 0 {
		t.Errorf("it ends with status %d", code)
	}
	n.CheckSound("after the storm")
}

// crash starts a daemon and kills it after up to a third of a second: while it starts, in its first
// passes, or later.
func crash(n *rig.Node, random *rand.Rand) {
	cmd := n.Command(rig.Binary(n.T, "gpuledgerd"), "--nri", "off", "--runtime-root", n.Root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		n.T.Error(err)
		return
	}
	time.Sleep(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestTheNVMLProcessEndsWithTheDaemon, however the daemon ends: a loop of crashes must not leave a
// process behind each time.
func TestTheNVMLProcessEndsWithTheDaemon(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: watches})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		d := n.Daemon("--nri", "off")
		child := 0
		rig.Eventually(t, "NVML is sampled", func() bool { child = childOf(d.PID()); return child != 0 })
		d.End(signal)
		rig.Eventually(t, "the process has ended", func() bool { return !rig.Lives(child) })
	}
}

// childOf is the process that samples NVML for a daemon, 0 if there is none.
func childOf(daemon int) int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", daemon))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for pid := range strings.FieldsSeq(string(text)) {
			line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if number, err := strconv.Atoi(pid); err == nil &&
				strings.Contains(string(line), "\x00measure\x00") {
				return number
			}
		}
	}
	return 0
}

// TestNVMLHangs: the process that samples NVML is stopped, as by a GPU that falls off the bus. The
// daemon reports it, serves and tidies meanwhile, and samples again with another process. Then the
// number of GPUs changes, twice.
func TestNVMLHangs(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: watches})
	d := n.Daemon("--nri", "off")
	s := siteOf(t, d)
	s.eventually("/metrics", "gpuledger_watch_working 1")
	child := 0
	// one that did not answer in time is replaced
	rig.Eventually(t, "a process that samples NVML is stopped", func() bool {
		child = childOf(d.PID())
		return child != 0 && syscall.Kill(child, syscall.SIGSTOP) == nil
	})
	r := n.Grant("--memory", "1GiB", "--gpu", "0")
	b := starts(t, n.Bundle("meanwhile", with(r), rig.Light))
	b.KillInit()
	rig.Eventually(t, "the ledger is tidied", func() bool { return len(entries(n)) == 1 })
	var hung []int
	// whichever process samples: otherwise the awaited state is over in a second
	hangs := func(path string, wanted ...string) {
		rig.Eventually(t, fmt.Sprintf("%s shows %q", path, wanted), func() bool {
			if c := childOf(d.PID()); c != 0 && syscall.Kill(c, syscall.SIGSTOP) == nil {
				hung = append(hung, c)
			}
			text := s.values(path)
			return !slices.ContainsFunc(wanted, func(want string) bool {
				return !strings.Contains(text, want)
			})
		})
	}
	hangs("/metrics", "gpuledger_watch_working 0", `gpuledger_manager_failing{manager="watch"} 1`,
		`gpuledger_manager_failing{manager="reconcile"} 0`)
	hangs("/", "NVML has not answered for 5s")
	for _, c := range hung {
		_ = syscall.Kill(c, syscall.SIGCONT)
	}
	rig.Eventually(t, "it sees again", func() bool {
		return strings.Contains(s.values("/metrics"), "gpuledger_watch_working 1")
	})
	if rig.Lives(child) {
		t.Error("the process that hangs is left")
	}
	for _, c := range []struct {
		gpus  int
		wants []string
	}{{3, []string{`index="2"`}}, {1, []string{`gpuledger_findings_total{kind="gpu-lost"} `}}} {
		n.Must("inventory", "simulate", "--gpus", fmt.Sprint(c.gpus), "--memory", "16160MiB", "--out",
			n.Dir+"/node.json")
		s.eventually("/metrics", c.wants...)
		rig.Eventually(t, "the inventory has as many", func() bool {
			return strings.Count(s.values("/metrics"), "\ngpuledger_gpu_info{") == c.gpus &&
				strings.Contains(s.values("/metrics"), "gpuledger_watch_working 1")
		})
	}
	if !strings.Contains(d.Log(), "is gone") {
		t.Error("that GPUs are missing is not reported")
	}
	if _, err := os.Stat(n.Dir + "/run/watch.json"); err != nil {
		t.Error(err)
	}
	n.CheckSound("after all that")
}
