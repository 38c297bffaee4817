//go:build cgo

package watcher

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	nvmlapi "github.com/gpuledger/gpuledger/internal/gpu/nvml"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// standInGPU is a GPU of the stand-in driver whose time passes only with samples, and programs that
// launch through the proxy.
type standInGPU struct {
	t       *testing.T
	dir     string // driver, proxy and program
	node    *node.Node
	sampler *nvmlapi.Sampler
	people  map[int]watch.ProcessInfo
	grants  []grant.Grant
	hold    gateSetter
	now     time.Time
}

const standInUUID = "GPU-00000000-fa4e-d41e-0000-000000000001"

// newStandInGPU builds the C parts: the stand-in, the proxy that throttles, a program. Each kernel
// runs for two milliseconds, and each sample is a second of its clock. The proxy's counter goes by
// that clock, too: the processor's own cannot be replaced in every virtual machine. A process can
// have one stand-in only, because a loaded NVML stays.
func newStandInGPU(t *testing.T) *standInGPU {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this needs root, for mounts of its own: that a throttled grant has its share of a GPU " +
			"is not shown")
	}
	for _, program := range []string{"gcc", "unshare", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("this needs %s: that a throttled grant has its share of a GPU is not shown", program)
		}
	}
	g := &standInGPU{t: t, dir: t.TempDir(), now: time.Unix(1e9, 0)}
	out, err := exec.Command("bash", "-euc", `cd ../../..
test/fakedriver/build.sh $0/driver
CFLAGS="-O2 -g -DOS_TICKS_BY_CLOCK" shim/build.sh $0/proxy
mv $0/proxy/libcuda-throttle.so.1 $0/proxy/libcuda.so.1
mkdir $0/real
cp -L $0/driver/usr/lib/*/lib{cuda,nvidia-ml}.so.1 $0/real
gcc -O1 -std=gnu11 -Wall -Wextra -rdynamic -o $0/launcher shim/test/launcher.c \
  -L$0/real -l:libcuda.so.1 -Wl,--allow-shlib-undefined -ldl`, g.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	record := filepath.Join(g.dir, "driver/run/fakedriver")
	daemontest.Must(t, os.WriteFile(filepath.Join(record, "devices"),
		fmt.Appendf(nil, "%s 16384 Stand-in\ncontext 1\nlaunch 2000\nlook 1000000\n", standInUUID), 0o644))
	t.Setenv("FAKEDRIVER_DIR", record)
	if g.sampler, err = nvmlapi.OpenSampler(filepath.Join(g.dir, "driver")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.sampler.Close)
	g.node = &node.Node{Policy: grant.Policy{RunDir: g.dir, Enforcement: grant.Enforcement{
		Compute: grant.ThrottleShare}}}
	daemontest.Must(t, os.Mkdir(g.node.Policy.LimitsRoot(), 0o700))
	return g
}

// run is a subtest, and its programs end with it.
func (g *standInGPU) run(name string, story func()) {
	all := g.t
	all.Run(name, func(t *testing.T) {
		g.t, g.people, g.grants, g.hold = t, map[int]watch.ProcessInfo{}, nil, gateSetter{}
		defer func() { g.t = all }()
		for _, dir := range limits.Kept(g.node.Policy.LimitsRoot()) {
			daemontest.Must(t, limits.Remove(filepath.Join(g.node.Policy.LimitsRoot(), dir)))
		}
		story()
	})
}

// grant enters a grant with its records, or changes its share.
func (g *standInGPU) grant(id grant.ID, share int) {
	g.t.Helper()
	shares := []grant.Share{{UUID: standInUUID, Memory: grant.GiB}}
	dir := g.node.Policy.LimitsDir(id)
	daemontest.Must(g.t, limits.Ensure(dir, shares, share, nil))
	for i := range g.grants {
		if g.grants[i].ID == id {
			g.grants[i].Compute = share
			return
		}
	}
	// The time at which its gate opens in the period is random. No test may fail by chance.
	for _, file := range []string{grant.LimitsFile, grant.RegionFile} {
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		daemontest.Must(g.t, err)
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(id[2])*7000<<32), 16)
		daemontest.Must(g.t, err, f.Close())
	}
	g.grants = append(g.grants, grant.Grant{ID: id, Mode: grant.Limit, Compute: share, GPUs: shares,
		Bindings: []grant.Binding{{Container: string(id), Cgroups: []string{"/" + string(id)}}}})
}

// launches starts a program in a mount namespace like that of a container of the grant. It has
// begun when this returns, and ends with the test.
func (g *standInGPU) launches(id grant.ID, kind string) {
	g.t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "bash", "-euc", `mount -t tmpfs -o mode=755 tmpfs /run; mkdir -p /run/gpuledger/driver
cp $0/real/* /run/gpuledger/driver; touch /run/gpuledger/{limits,region}; mount --bind $1/region /run/gpuledger/region
mount --bind $1/limits /run/gpuledger/limits; mount -o remount,bind,ro /run/gpuledger/limits
exec env LD_LIBRARY_PATH=$0/proxy $0/launcher $2`, g.dir, g.node.Policy.LimitsDir(id), kind)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	daemontest.Must(g.t, err)
	cmd.Stderr = os.Stderr
	daemontest.Must(g.t, cmd.Start())
	g.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if line != "launches\n" {
		g.t.Fatalf("the program prints %q (%v)", line, err)
	}
	g.people[cmd.Process.Pid] = watch.ProcessInfo{Process: grant.Process{PID: cmd.Process.Pid},
		Cgroup: "/" + string(id)}
}

// sampled takes samples as gpuledgerd does each second: it samples NVML, compares, and with
// attended moves the gates. It returns the mean percentage of the GPU's time that each grant had.
func (g *standInGPU) sampled(n int, attended bool) map[grant.ID]float64 {
	g.t.Helper()
	mean := map[grant.ID]float64{}
	for range n {
		g.now = g.now.Add(time.Second)
		sample, err := g.sampler.Sample(g.now, true)
		daemontest.Must(g.t, err)
		r := watch.Compare(watch.Input{Sample: sample, Processes: g.people, Grants: g.grants})
		for _, use := range r.Grants {
			mean[use.ID] += float64(use.Compute) / float64(n)
		}
		if attended {
			g.hold.update(g.node, g.grants, r)
		}
	}
	return mean
}

// has compares what a grant had with its share, within the five points by which a share may be off.
func (g *standInGPU) has(what string, got float64, share int) {
	g.t.Helper()
	if math.Abs(got-float64(share)) > 5 {
		g.t.Errorf("%s: the grant has %.1f%% of the time, its share is %d%%", what, got, share)
	}
}

const settled = 40 // samples until a gate knows what a launch costs

// TestAThrottledGrantHasItsShare: programs launch through the proxy on the stand-in's GPU, NVML
// reports what they had of it, and the gate moves until that is the share. All of it goes by the
// stand-in's clock, so the figures do not depend on the machine. Earlier throttles had no effect on
// large GPUs (core #274 #314 #317) or gave shares of other sizes (core #104 #37 #76, hami #2863).
func TestAThrottledGrantHasItsShare(t *testing.T) {
	const one, two = grant.ID("g-aaaaaaaaaaaa"), grant.ID("g-bbbbbbbbbbbb")
	g := newStandInGPU(t)
	for _, kind := range []string{"kernel", "graph", "cooperative"} {
		g.run(kind, func() {
			g.grant(one, 30)
			g.launches(one, kind)
			g.sampled(settled, true)
			g.has("one process", g.sampled(30, true)[one], 30)
		})
	}
	g.run("the processes of a grant share it", func() {
		g.grant(one, 30)
		for _, kind := range []string{"kernel", "graph", "cooperative", "waits"} {
			g.launches(one, kind)
		}
		g.sampled(settled, true)
		g.has("four processes", g.sampled(30, true)[one], 30)
	})
	// Each fills the GPU beside the other, so that neither is seen to have far more than its share
	// while both gates are too wide.
	for _, shares := range [][2]int{{20, 60}, {30, 50}, {10, 30}} {
		g.run(fmt.Sprintf("two grants of %d and %d", shares[0], shares[1]), func() {
			g.grant(one, shares[0])
			g.grant(two, shares[1])
			g.launches(one, "kernel")
			g.launches(two, "kernel")
			g.sampled(settled+30, true)
			mean := g.sampled(30, true)
			g.has("the smaller", mean[one], shares[0])
			g.has("the larger", mean[two], shares[1])
		})
	}
	g.run("a live one changes", func() {
		g.grant(one, 20)
		g.launches(one, "kernel")
		g.sampled(settled, true)
		g.has("before", g.sampled(20, true)[one], 20)
		g.grant(one, 70)
		g.sampled(settled, true)
		g.has("after", g.sampled(20, true)[one], 70)
	})
	g.run("without a share", func() {
		g.grant(one, 0)
		g.launches(one, "kernel")
		g.sampled(1, true) // gets no sample
		if got := g.sampled(5, true)[one]; got < 95 {
			t.Errorf("what nothing throttles has %.1f%% of the time", got)
		}
	})
	// gpuledgerd has ended, and left a gate that is almost closed. After ten seconds the gate is
	// open for the share of the time: launches go on, and are limited as far as the gate alone can
	// do that.
	g.run("gpuledgerd does not run", func() {
		g.grant(one, 30)
		g.launches(one, "waits")
		g.sampled(settled, true)
		l, err := limits.Open(g.node.Policy.LimitsDir(one))
		daemontest.Must(g.t, err)
		defer l.Close()
		daemontest.Must(g.t, l.SetGate(standInUUID, 0, 5*time.Second))
		l.Beat()
		if got := g.sampled(5, false)[one]; got > 1 {
			g.t.Errorf("at the gate that was left it has %.1f%% of the time", got)
		}
		g.sampled(11, false)
		g.has("ten seconds later", g.sampled(20, false)[one], 30)
		g.sampled(settled, true)
		g.has("attended again", g.sampled(20, true)[one], 30)
	})
}
