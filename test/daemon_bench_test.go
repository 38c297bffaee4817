package test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/test/rig"
)

// How long the daemon is watched, and how long it runs before that to reach a steady state.
const (
	benchWarmUp = 15 * time.Second
	benchTime   = 60 * time.Second
	benchScrape = 15 * time.Second // as Prometheus does by default
	benchFinds  = 10
	perBench    = 5 // processes of a container
)

// BenchmarkDaemon measures gpuledgerd and its process that samples NVML on a node of eight GPUs at
// the usual interval: real containers with a grant and a record for the shim each, real processes,
// use that changes each second, a scrape each 15 s. The driver's answers are simulated. `make
// bench-daemon` runs it. Each size takes minutes, and one round of it is enough.
func BenchmarkDaemon(b *testing.B) {
	for _, containers := range []int{200, 800} {
		b.Run(fmt.Sprintf("%d-processes-%d-containers", perBench*containers, containers), func(b *testing.B) {
			for range b.N {
				benchDaemon(b, containers)
			}
		})
	}
}

// benchAgainst names a directory with the programs of another version. Both then take turns on the
// same containers, the other version first and last.
const benchAgainst = "GPULEDGER_BENCH_AGAINST"

func benchDaemon(b *testing.B, containers int) {
	b.ReportMetric(0, "ns/op") // time is not what is measured
	n := rig.NewNode(b, rig.Setup{GPUs: 8, Memory: "81920MiB",
		Config: "[daemon]\nlisten = \"127.0.0.1:0\"\n"})
	c := crowdOf(b, n, containers)
	if other := os.Getenv(benchAgainst); other != "" {
		c.measure(n.Of(other), "-other")
		c.measure(n, "-again")
		defer c.measure(n.Of(other), "-other-again")
	}
	c.measure(n, "")
}

// measure runs the daemon of a version for a while. suffix ends the names of its figures.
func (c *crowd) measure(n *rig.Node, suffix string) {
	d := n.Daemon("--nri", "off")
	defer d.End(syscall.SIGTERM)
	began, address := len(d.Log()), ""
	rig.Eventually(c.b, "it serves", func() bool {
		_, rest, found := strings.Cut(d.Log()[began:], `status page" address="`)
		address, _, _ = strings.Cut(rest, `"`)
		return found
	})
	c.moves(benchWarmUp, "")
	before, start := c.spent(d.PID()), time.Now()
	slowest := c.moves(benchTime, address)
	after, took := c.spent(d.PID()), time.Since(start)
	share := func(i int) float64 { return 100 * float64(after[i].cpu-before[i].cpu) / float64(took) }
	report := func(value float64, what string) { c.b.ReportMetric(value, what+suffix) }
	report(share(0), "daemon-cpu-%")
	report(share(1), "child-cpu-%")
	report(share(0)+share(1), "all-cpu-%")
	report(float64(after[0].peak)/(1<<20), "daemon-MiB")
	report(float64(after[1].peak)/(1<<20), "child-MiB")
	report(slowest.Seconds()*1000, "slowest-pass-ms")
	report(c.findings().Seconds()*1000, "slowest-finding-ms")
	load, _ := os.ReadFile("/proc/loadavg")
	c.b.Logf("%d processes%s: %.2f %% and %.2f %% of a core, %d MiB, in %v; load average after: %s",
		len(c.use.Processes), suffix, share(0), share(1), after[0].peak>>20, took.Round(time.Second), load)
}

// crowd is a node full of containers.
type crowd struct {
	b   *testing.B
	n   *rig.Node
	use simulated.Use

	each simulated.Memory // roughly what a process uses
}

func crowdOf(b *testing.B, n *rig.Node, containers int) *crowd {
	b.Helper()
	c := &crowd{b: b, n: n, use: simulated.Use{Version: 1}}
	script := strings.Repeat("/bin/busybox sleep 10000 & ", perBench-1) + "exec /bin/busybox sleep 10000"
	var bundles []*rig.Bundle
	root := n.Bundle("root").Dir + "/rootfs" // one for all: only processes and cgroups are wanted
	memory := grant.Bytes(80) * grant.GiB * 8 / grant.Bytes(containers) / 2 / grant.MiB * grant.MiB
	for i := range containers {
		var g struct {
			Reference string
			ID        grant.ID
			GPUs      []grant.Share
		}
		must(b, json.Unmarshal([]byte(n.Must("grant", "--json", "--gpu", fmt.Sprint(i%8), "--memory",
			memory.String())), &g))
		c.record(g.ID, g.GPUs, memory/2)
		x := n.Bundle(fmt.Sprintf("%064x", i), rig.Light, rig.Env("GPULEDGER_GRANT="+g.Reference),
			rig.Shell(script), func(s *specs.Spec) { s.Root.Path = root })
		for _, r := range []rig.Result{x.Create(), x.Start()} {
			if r.Code != 0 {
				b.Fatalf("%s: %+v", x.ID, r)
			}
		}
		bundles = append(bundles, x)
	}
	c.each = simulated.Memory(memory / (perBench + 1))
	for i, x := range bundles {
		var pids []int
		rig.Eventually(b, "its processes are there", func() bool {
			pids = x.Processes()
			return len(pids) == perBench
		})
		for _, pid := range pids {
			c.use.Processes = append(c.use.Processes, simulated.ProcessReading{
				PID: pid, GPU: i % 8, Memory: c.each, Compute: 10})
		}
	}
	return c
}

// Offsets at which a region has what its processes use (shim/record.h, which package limits checks
// against the compiler's).
const (
	benchHigh, benchSlots, benchSlot = 64, 4096, 192
)

// record is what the shim of a container's processes would have written.
func (c *crowd) record(id grant.ID, shares []grant.Share, used grant.Bytes) {
	c.b.Helper()
	dir := filepath.Join(c.n.Dir, "run/limits", string(id))
	must(c.b, os.MkdirAll(filepath.Dir(dir), 0o700), limits.Ensure(dir, shares, 0, nil))
	region, err := os.OpenFile(filepath.Join(dir, grant.RegionFile), os.O_RDWR, 0)
	must(c.b, err)
	c.b.Cleanup(func() { _ = region.Close() })
	put := func(at int64, value uint64) {
		_, err := region.WriteAt(binary.NativeEndian.AppendUint64(nil, value), at)
		must(c.b, err)
	}
	put(benchHigh, perBench)
	for i := range int64(perBench) {
		put(benchSlots+i*benchSlot, uint64(used)/perBench)
	}
	must(c.b, unix.FcntlFlock(region.Fd(), unix.F_OFD_SETLK,
		&unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: perBench}))
}

func (c *crowd) writeUse() {
	text, err := json.Marshal(c.use)
	must(c.b, err)
	path := c.n.Dir + "/node.json" + simulated.UseSuffix
	must(c.b, os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path))
}

// moves changes the use for a time, and returns the slowest pass of the watch.
func (c *crowd) moves(during time.Duration, address string) (slowest time.Duration) {
	pass := regexp.MustCompile(`gpuledger_manager_last_pass_duration_seconds{manager="watch"} (\S+)`)
	scraped := time.Now()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(time.Second) {
		for i := range c.use.Processes {
			// around one value: no container exceeds its grant
			c.use.Processes[i].Memory = c.each + simulated.Memory(rand.IntN(9)-4)*simulated.Memory(grant.MiB)
		}
		c.writeUse()
		if address == "" || time.Since(scraped) < benchScrape {
			continue
		}
		scraped = time.Now()
		s := site{t: c.b, base: "http://" + address}
		if m := pass.FindStringSubmatch(s.get("/metrics")); m != nil {
			seconds, _ := strconv.ParseFloat(m[1], 64)
			slowest = max(slowest, time.Duration(seconds*float64(time.Second)))
		}
	}
	return slowest
}

// findings makes a process use a GPU outside the ledger, again and again, and returns the longest
// time until the audit log has it.
func (c *crowd) findings() (slowest time.Duration) {
	was := len(c.use.Processes)
	found := func() int {
		text, _ := os.ReadFile(c.n.Dir + "/audit.jsonl")
		count := 0
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `"action":"found"`) &&
				strings.Contains(line, `"finding":"outside-ledger"`) {
				count++
			}
		}
		return count
	}
	for i := range benchFinds {
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
		c.use.Processes = append(slices.Clip(c.use.Processes[:was]),
			simulated.ProcessReading{PID: os.Getpid(), GPU: i % 8, Memory: simulated.Memory(grant.GiB)})
		before, began := found(), time.Now()
		c.writeUse()
		rig.Eventually(c.b, "it is found", func() bool { return found() > before })
		slowest = max(slowest, time.Since(began))
	}
	c.use.Processes = c.use.Processes[:was]
	return slowest
}

// cost is what a process has used.
type cost struct {
	cpu  time.Duration // in user space and in the kernel
	peak int           // bytes of memory
}

// spent is what the daemon has used, and its process that samples NVML.
func (c *crowd) spent(daemon int) [2]cost {
	child := childOf(daemon)
	if child == 0 {
		c.b.Fatal("no process samples NVML for the daemon")
	}
	return [2]cost{c.costOf(daemon), c.costOf(child)}
}

// cpuClockOfProcess is CPUCLOCK_SCHED of linux/posix-timers.h: with a pid, the clock counts what
// all threads of a process have used.
const cpuClockOfProcess = 2

func (c *crowd) costOf(pid int) (took cost) {
	var used unix.Timespec
	must(c.b, unix.ClockGettime(int32(^pid<<3|cpuClockOfProcess), &used))
	took.cpu = time.Duration(used.Nano())
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(c.b, err)
	_, high, _ := strings.Cut(string(status), "VmHWM:")
	kib := 0
	_, err = fmt.Sscan(high, &kib)
	must(c.b, err)
	took.peak = kib << 10
	return took
}
