package watcher

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logs "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/daemon/schedule"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// fixedSampler is a sampler that returns the same sample again and again, with the present time.
type fixedSampler struct{ s grant.Sample }

func (s fixedSampler) Sample(context.Context, grant.Source, bool) (grant.Sample, error) {
	s.s.Taken = time.Now()
	return s.s, nil
}

func (fixedSampler) Renew(bool) {}
func (fixedSampler) Close()     {}

// fixedLedger is read once, as long as its files do not change.
type fixedLedger struct {
	overview grants.Overview
	stamp    ledgercache.Stamp
}

func (f fixedLedger) Read(n *node.Node, anew bool) (grants.Overview, bool, error) {
	if !anew && ledgercache.StampOf(n) == f.stamp {
		return f.overview, false, nil
	}
	o, err := grants.Read(n)
	return o, true, err
}

func (fixedLedger) Changes() map[string]uint64 { return nil }

// crowded is a watcher of eight GPUs, with this many containers of a grant and five processes each.
func crowded(t testing.TB, containers int) *Watcher {
	dir := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("proc/sys/kernel/random/boot_id", "boot\n")
	put("proc/self/ns/pid", "")
	h := host.Host{Proc: dir + "/proc", Sys: dir + "/sys", Dev: dir + "/dev", Now: time.Now}
	p := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run", Daemon: grant.Daemon{Grace: "10s"}}
	put("run/lock", "")
	put("state/grants/.keep", "")
	n := &node.Node{Host: h, Policy: p, Ledger: ledger.Open(ledger.Options{
		State: p.StateDir, Run: p.RunDir, Host: h})}
	var s grant.Sample
	var o grants.Overview
	for i := range 8 {
		uuid := fmt.Sprintf("GPU-%d", i)
		s.GPUs = append(s.GPUs, grant.Usage{UUID: uuid, Index: i, Health: grant.Healthy,
			Total: 80 * grant.GiB, Utilization: 50})
		o.Inventory.GPUs = append(o.Inventory.GPUs, grant.GPU{
			UUID: uuid, Index: i, Minor: i, Memory: 80 * grant.GiB, Health: grant.Healthy})
	}
	for c := range containers {
		id := fmt.Sprintf("%064x", c)
		cgroup := "/kubepods.slice/kubepods-burstable.slice/" +
			"kubepods-burstable-pod7a1c3c1e_0b5e_4a8e_9f0c_1d2e3f405162.slice/" +
			"cri-containerd-" + id + ".scope"
		g := &s.GPUs[c%8]
		o.Grants = append(o.Grants, grant.Grant{
			ID: grant.NewID([16]byte{byte(c % 26), byte(c / 26 % 26), byte(c / 676)}), Mode: grant.Limit,
			GPUs:     []grant.Share{{UUID: g.UUID, Index: g.Index, Memory: grant.GiB}},
			Bindings: []grant.Binding{{Container: id, Cgroups: []string{cgroup}}}})
		for k := range 5 {
			pid := 100 + 5*c + k
			put(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf(
				"%d (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, pid))
			put(fmt.Sprintf("proc/%d/comm", pid), "python\n")
			put(fmt.Sprintf("proc/%d/cgroup", pid), "0::"+cgroup+"\n")
			put(fmt.Sprintf("proc/%d/ns/pid", pid), "")
			g.Processes = append(g.Processes, grant.ProcessUse{PID: pid, Memory: 100 * grant.MiB})
			g.Used += 100 * grant.MiB
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	w := New(func() *node.Node { return n }, fixedLedger{o, ledgercache.StampOf(n)}, "", nil, log)
	w.sampler = fixedSampler{s}
	return w
}

// TestAPassWithManyProcesses: there are no findings while all keep to their grants, and the use is
// saved.
func TestAPassWithManyProcesses(t *testing.T) {
	w := crowded(t, 200)
	n := w.node()
	for range 3 {
		if err := w.pass(context.Background(), n); err != nil {
			t.Fatal(err)
		}
	}
	if s := w.Status(); s.Samples != 3 || len(s.Grants) != 200 || len(s.Findings) != 0 || s.Failure != "" {
		t.Errorf("%d samples, %d grants, findings %+v, %q", s.Samples, len(s.Grants), s.Findings, s.Failure)
	}
	if r, err := watch.Load(n.Policy.RunDir, "boot"); err != nil || len(r.GPUs) != 8 ||
		r.GPUs[0].Used != 125*100*grant.MiB {
		t.Errorf("%+v %v", r.GPUs, err)
	}
}

// BenchmarkPass measures what the daemon does with a sample of 1,000 processes in 200 containers,
// and of four times as many.
func BenchmarkPass(b *testing.B) {
	for _, containers := range []int{200, 800} {
		b.Run(fmt.Sprint(5*containers), func(b *testing.B) {
			w := crowded(b, containers)
			n := w.node()
			worked := schedule.CPUTime()
			for b.Loop() {
				if err := w.pass(context.Background(), n); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((schedule.CPUTime()-worked).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// TestUseIsWritten: at once when it has changed, and otherwise at intervals, so that its age
// can be seen.
func TestUseIsWritten(t *testing.T) {
	w := crowded(t, 8)
	n := w.node()
	s := w.sampler.(fixedSampler).s
	began := time.Now()
	written := func(after time.Duration) time.Duration {
		t.Helper()
		w.sampler = timedSampler{s, began.Add(after)}
		daemontest.Must(t, w.pass(context.Background(), n))
		r, err := watch.Load(n.Policy.RunDir, "boot")
		daemontest.Must(t, err)
		return r.Taken.Sub(began)
	}
	for _, c := range []struct {
		name        string
		after, want time.Duration
		change      func()
	}{
		{"the first", 0, 0, func() {}},
		{"the same", time.Second, 0, func() {}},
		{"little more", 2 * time.Second, 0, func() { s.GPUs[0].Used += 100 * grant.MiB }},
		{"some time later", 3 * time.Second, 3 * time.Second, func() {}},
		{"much more", 4 * time.Second, 4 * time.Second, func() { s.GPUs[0].Used += grant.GiB }},
		{"a process less", 5 * time.Second, 5 * time.Second, func() { s.GPUs[1].Processes = s.GPUs[1].Processes[1:] }},
		{"a finding", 6 * time.Second, 6 * time.Second, func() { s.GPUs[2].XIDs = []int{79} }},
		{"which stands no more", 7 * time.Second, 7 * time.Second, func() { s.GPUs[2].XIDs = nil }},
		{"the same, and the clock was set back", -time.Hour, -time.Hour, func() {}},
	} {
		c.change()
		if got := written(c.after); got.Round(time.Millisecond) != c.want {
			t.Errorf("%s: what was written is of %s, want %s", c.name, got, c.want)
		}
	}
}

// timedSampler is a sampler that returns the same sample, with a time of its own.
type timedSampler struct {
	s    grant.Sample
	when time.Time
}

func (a timedSampler) Sample(context.Context, grant.Source, bool) (grant.Sample, error) {
	a.s.Taken = a.when
	return a.s, nil
}

func (timedSampler) Renew(bool) {}
func (timedSampler) Close()     {}

// outsideLedger is a watcher of processes without grants. It runs them, and returns what is
// recorded after one more pass over its sample.
type outsideLedger struct {
	*Watcher
	t  *testing.T
	s  *grant.Sample
	at time.Time
}

func newOutsideLedger(t *testing.T) *outsideLedger {
	w := crowded(t, 0)
	n, s := w.node(), w.sampler.(fixedSampler).s
	w.cache = readLedger{w.cache.(fixedLedger).overview}
	n.Policy.Inventory.Source = grant.Simulated
	daemontest.Must(t, gpu.Write(gpu.Path(n.Policy.StateDir), grant.Inventory{BootID: "boot",
		Source: string(grant.Simulated), GPUs: w.cache.(readLedger).overview.Inventory.GPUs}))
	return &outsideLedger{w, t, &s, time.Now()}
}

// runs makes a process of a container, and returns it.
func (o *outsideLedger) runs(pid int) grant.Process {
	o.t.Helper()
	dir := fmt.Sprintf("%s/%d", o.node().Host.Proc, pid)
	daemontest.Must(o.t, os.MkdirAll(dir+"/ns", 0o700))
	for file, text := range map[string]string{"comm": "python\n", "ns/pid": "",
		"stat":   fmt.Sprintf("%d (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, pid),
		"cgroup": "0::/system.slice/cri-containerd-" + strings.Repeat("a", 64) + ".scope\n"} {
		daemontest.Must(o.t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	return grant.Process{PID: pid, Start: uint64(pid)}
}

func (o *outsideLedger) passes() string {
	o.t.Helper()
	o.at = o.at.Add(time.Second)
	o.sampler = timedSampler{*o.s, o.at}
	var f ledger.Found
	n := o.node()
	daemontest.Must(o.t, o.pass(o.t.Context(), n), n.Ledger.View(func(tx *ledger.Tx) (err error) {
		f, err = tx.Found()
		return err
	}))
	return fmt.Sprint(f.Outside, f.Excess, f.Held)
}

// TestTheRecordOfAnEarlierDaemon holds until the watch has had the samples that it needs, and has
// read the open files of all processes once. Processes that have ended are left out, and one of
// another boot does not count.
func TestTheRecordOfAnEarlierDaemon(t *testing.T) {
	const all = "map[GPU-0:5GiB] [{g-a GPU-0 1GiB}] map[GPU-0:[100/100]]"
	for name, c := range map[string]struct {
		boot  string
		looks bool
		want  []string // after each pass
	}{
		"of this boot":        {"boot", true, []string{all, all, "map[] [] map[]"}},
		"of another boot":     {"before", true, []string{"map[] [] map[]"}},
		"not all is read yet": {"boot", false, []string{all, all, "map[] [] map[GPU-0:[100/100]]"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutsideLedger(t)
			n := o.node()
			if !c.looks {
				o.nextLook = time.Now().Add(time.Hour)
			}
			bootID := n.Host.Proc + "/sys/kernel/random/boot_id"
			daemontest.Must(t, os.WriteFile(bootID, []byte(c.boot+"\n"), 0o600),
				ledger.Open(ledger.Options{State: n.Policy.StateDir, Run: n.Policy.RunDir,
					Host: host.Host{Proc: n.Host.Proc, Sys: n.Host.Sys, Dev: n.Host.Dev, Now: time.Now}}).
					SetFound(ledger.Found{Outside: map[string]grant.Bytes{"GPU-0": 5 * grant.GiB},
						Excess: []grant.Excess{{Grant: "g-aaaaaaaaaaaa", GPU: "GPU-0", Bytes: grant.GiB}},
						Held:   map[string][]grant.Process{"GPU-0": {o.runs(100), {PID: 999, Start: 1}}}}),
				os.WriteFile(bootID, []byte("boot\n"), 0o600))
			for i, want := range c.want {
				if got := strings.ReplaceAll(o.passes(), "g-aaaaaaaaaaaa", "g-a"); got != want {
					t.Errorf("after pass %d: %s, want %s", i+1, got, want)
				}
			}
		})
	}
}

// TestTheRecordOfASilentGPU stays as it is while the GPU does not answer, and until memory that no
// process explains could be seen again.
func TestTheRecordOfASilentGPU(t *testing.T) {
	o := newOutsideLedger(t)
	cache := o.cache.(readLedger)
	cache.overview.Inventory.GPUs[1].MIG = []grant.MIGDevice{{UUID: "MIG-1"}}
	g := &o.s.GPUs[1]
	p := o.runs(100)
	g.MIG, g.Used = []string{"MIG-1"}, 4*grant.GiB
	g.Processes = []grant.ProcessUse{{PID: p.PID, Device: "MIG-1", Memory: grant.GiB}}
	for range 3 {
		o.passes()
	}
	const all = "map[GPU-1:4GiB MIG-1:1GiB] [] map[GPU-1:[100/100] MIG-1:[100/100]]"
	is := func(what, want string) {
		t.Helper()
		if got := o.passes(); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	is("at first", all)
	there := *g
	*g = grant.Usage{UUID: g.UUID, Index: g.Index, Health: "lost"}
	is("it does not answer", all)
	cache.overview.Inventory.GPUs[1].MIG = nil // a scan has not found it
	is("and has no MIG devices in the inventory", all)
	*g = there
	is("it answers again", all)
	cache.overview.Inventory.GPUs[1].MIG = []grant.MIGDevice{{UUID: "MIG-1"}}
	is("it has answered twice", all)
	is("and three times", all)
	g.Used, g.Processes = 0, nil
	is("nothing uses it", "map[] [] map[]")
}

// TestTheRecordOfAProcessThatHasEnded: the driver has its memory still, and nothing explains that.
func TestTheRecordOfAProcessThatHasEnded(t *testing.T) {
	o := newOutsideLedger(t)
	g := &o.s.GPUs[1]
	g.Used = 4 * grant.GiB
	g.Processes = []grant.ProcessUse{{PID: o.runs(100).PID, Memory: 4 * grant.GiB}}
	for range 3 {
		o.passes()
	}
	g.Processes = nil
	for look := range 4 {
		if got := o.passes(); !strings.HasPrefix(got, "map[GPU-1:4GiB] []") {
			t.Errorf("in look %d: %s", look, got)
		}
	}
	g.Used = 0
	if got := o.passes(); !strings.HasPrefix(got, "map[] []") {
		t.Errorf("at last: %s", got)
	}
}

// TestTheRecordIsRenewed: also after the clock was set back.
func TestTheRecordIsRenewed(t *testing.T) {
	o := newOutsideLedger(t)
	o.s.GPUs[1].Used = 4 * grant.GiB
	o.s.GPUs[1].Processes = []grant.ProcessUse{{PID: o.runs(100).PID, Memory: 4 * grant.GiB}}
	for range 5 {
		o.passes()
	}
	for _, after := range []time.Duration{2 * recordEvery, -time.Hour} {
		o.at = o.at.Add(after)
		if o.passes(); !o.recordedAt.Equal(o.at) {
			t.Errorf("%s later the record is %s old", after, o.at.Sub(o.recordedAt))
		}
	}
}

// renewed is a sampler that records whether a GPU was lost.
type renewed struct {
	fixedSampler
	lost *bool
}

func (r renewed) Renew(lost bool) { *r.lost = lost }

// sameLedger is the same at each reading.
type sameLedger struct{ fixedLedger }

func (l sameLedger) Read(*node.Node, bool) (grants.Overview, bool, error) {
	return l.overview, true, nil
}

// TestANewNVMLForALostGPU: one that does not answer, or that the sample lacks, as it does if the
// GPU was away when the present NVML was loaded.
func TestANewNVMLForALostGPU(t *testing.T) {
	w := crowded(t, 0)
	w.cache = sameLedger{w.cache.(fixedLedger)} // a new finding has it read again
	s := w.sampler.(fixedSampler).s
	silent := slices.Clone(s.GPUs)
	silent[7].Health = "NVML gives no access to it"
	for name, c := range map[string]struct {
		gpus []grant.Usage
		lost bool
	}{
		"all answer":       {s.GPUs, false},
		"one is silent":    {silent, true},
		"one is not there": {s.GPUs[:7], true},
	} {
		var lost bool
		s.GPUs = c.gpus
		w.sampler = renewed{fixedSampler{s}, &lost}
		daemontest.Must(t, w.pass(t.Context(), w.node()))
		if lost != c.lost {
			t.Errorf("%s: a GPU is lost: %v", name, lost)
		}
	}
}

// TestAFullDiskPreventsNoReaction: what cannot be recorded is an error, and containers without
// grants are stopped all the same.
func TestAFullDiskPreventsNoReaction(t *testing.T) {
	w := crowded(t, 8)
	n := w.node()
	n.Policy.Rules.OnOutsideLedger, n.Policy.Daemon.Grace = grant.StopContainer, "0s"
	// a new process has the ledger read again, which knows no grant of it
	w.sampler.(fixedSampler).s.GPUs[0].XIDs = []int{79}
	daemontest.Must(t, os.MkdirAll(filepath.Join(n.Policy.RunDir, ".watch.json.new", "in the way"), 0o700))
	err := w.pass(context.Background(), n)
	// that /proc has no process 1, so a stop is only tried
	if err == nil || !strings.Contains(err.Error(), "watch.json") ||
		!strings.Contains(err.Error(), "cannot stop ") {
		t.Errorf("returned is: %v", err)
	}
}

// TestProcessUsersAreRenewed: when the ledger was read again and when a process has started or
// ended, and not otherwise.
func TestProcessUsersAreRenewed(t *testing.T) {
	w := &Watcher{processes: watch.ProcessTable{Host: host.Default()}}
	defer w.processes.Close()
	sleeper := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		daemontest.Must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	one, two := sleeper(), sleeper()
	sample := grant.Sample{GPUs: []grant.Usage{
		{Processes: []grant.ProcessUse{{PID: one.Process.Pid}, {PID: two.Process.Pid}}}}}
	grants := []grant.Grant{{ID: "g-aaaaaaaaaaaa"}}
	last, acl := (*watch.ProcessUsers)(nil), false
	is := func(what string, anew bool) {
		t.Helper()
		in := watch.Input{Grants: grants, Processes: w.readProcesses(sample, grants, acl), UserNodes: acl}
		if now := w.processUsers(in); (now != last) != anew {
			t.Errorf("%s: made anew: %v", what, now != last)
		} else {
			last = now
		}
	}
	is("the first", true)
	is("nothing has changed", false)
	grants = slices.Clone(grants)
	is("the ledger was read again", true)
	is("and has not changed since", false)
	_ = one.Process.Kill()
	_ = one.Wait()
	is("a process has ended", true)
	is("and no process has started or ended since", false)
	sample.GPUs[0].Processes[0].PID = sleeper().Process.Pid
	is("another one has come", true)
	acl = true
	is("grants open device nodes now", true)
}

// TestAnIdentityIsReadAgainBeforeAStop: the spec of an exempt container could not be read at first.
// It is read again before a stop. A container that is not exempt is stopped.
func TestAnIdentityIsReadAgainBeforeAStop(t *testing.T) {
	for name, exempt := range map[string]bool{"exempt": true, "not exempt": false} {
		t.Run(name, func(t *testing.T) {
			w := crowded(t, 0)
			n := w.node()
			put := func(path, text string) {
				t.Helper()
				daemontest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700),
					os.WriteFile(path, []byte(text), 0o600))
			}
			id, runtime := strings.Repeat("a", 64), t.TempDir()
			cgroup := "/system.slice/cri-containerd-" + id + ".scope"
			put(n.Host.Proc+"/devices", "Character devices:\n195 nvidia\n")
			process := n.Host.Proc + "/100"
			put(process+"/stat", "100 (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n")
			put(process+"/comm", "python\n")
			put(process+"/cgroup", "0::"+cgroup+"\n")
			put(process+"/ns/pid", "")
			put(runtime+"/bundle/config.json", `{"annotations":{"io.kubernetes.cri.container-type":"container","io.kubernetes.cri.sandbox-uid":"u","io.kubernetes.cri.sandbox-namespace":"system",
				"io.kubernetes.cri.sandbox-name":"p","io.kubernetes.cri.container-name":"c"},"process":{},"linux":{}}`)
			w.roots = []string{runtime}
			n.Policy.Rules = grant.Rules{Mode: grant.Enforce, OnOutsideLedger: grant.StopContainer}
			if exempt {
				n.Policy.Rules.Exempt = []grant.Exemption{{Namespace: "system"}}
			}
			n.Policy.Daemon.Interval = "10s"
			s := w.sampler.(fixedSampler).s
			s.GPUs[0].Used, s.GPUs[0].Processes = grant.GiB, []grant.ProcessUse{{PID: 100, Memory: grant.GiB}}
			began := time.Now()
			w.sampler = timedSampler{s, began}
			daemontest.Must(t, w.pass(context.Background(), n)) // its runtime's state cannot be read
			if f := w.Status().Findings; len(f) != 1 || f[0].Kind != grant.OutsideLedger || f[0].User.Exempt {
				t.Fatalf("%+v", f)
			}
			put(runtime+"/"+id+"/status", fmt.Sprintf(`{"pid":100,"process-start-time":100,`+
				`"cgroup-path":%q,"bundle":%q}`, cgroup, runtime+"/bundle"))
			w.sampler = timedSampler{s, began.Add(10 * time.Second)}
			err := w.pass(context.Background(), n)
			// that /proc has no process 1
			tried := err != nil && strings.Contains(err.Error(), "cannot stop ")
			if tried == exempt || !tried && err != nil {
				t.Errorf("returned is %v", err)
			}
			w.sampler = timedSampler{s, began.Add(20 * time.Second)}
			_ = w.pass(context.Background(), n)
			if f := w.Status().Findings; (len(f) > 0) == exempt {
				t.Errorf("afterwards there are %+v", f)
			}
		})
	}
}

// TestAContainerThatCannotBeStopped: it is due again after each grace, and that it could not be
// stopped is in the audit log once, until its processes have ended.
func TestAContainerThatCannotBeStopped(t *testing.T) {
	w := crowded(t, 0)
	n := w.node()
	n.Policy.Rules = grant.Rules{Mode: grant.Enforce, OnOutsideLedger: grant.StopContainer}
	n.Policy.Daemon.Grace, n.Policy.Audit.File = "0s", t.TempDir()+"/audit.jsonl"
	runs := func(start int) {
		t.Helper()
		dir := n.Host.Proc + "/100"
		daemontest.Must(t, os.MkdirAll(dir+"/ns", 0o700))
		for file, text := range map[string]string{"comm": "python\n", "ns/pid": "",
			"stat":   fmt.Sprintf("100 (python) D 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", start),
			"cgroup": "0::/system.slice/cri-containerd-" + strings.Repeat("a", 64) + ".scope\n"} {
			daemontest.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
	}
	s := w.sampler.(fixedSampler).s
	s.GPUs[0].Used, s.GPUs[0].Processes = grant.GiB, []grant.ProcessUse{{PID: 100, Memory: grant.GiB}}
	at := time.Now()
	tries := func(want int) {
		t.Helper()
		for range 3 {
			at = at.Add(time.Second)
			w.sampler = timedSampler{s, at}
			// that /proc has no process 1, so a stop is only tried
			if err := w.pass(t.Context(), n); err == nil || !strings.Contains(err.Error(), "cannot stop ") {
				t.Errorf("returned is %v", err)
			}
		}
		text, err := os.ReadFile(n.Policy.Audit.File)
		if got := strings.Count(string(text), `"not-stopped"`); err != nil || got != want {
			t.Errorf("the audit log says so %d times, want %d: %v\n%s", got, want, err, text)
		}
	}
	runs(100)
	tries(1)
	// it has ended, which the watch has seen, and the container was started again
	runs(200)
	w.processes, w.users = watch.ProcessTable{Host: n.Host}, nil
	tries(2)
}

// TestAContainerThatEndsLate: processes that were killed may take longer to end than a pass waits.
// Then they are recorded as stopped, too. That is not so of a container that ends by itself.
func TestAContainerThatEndsLate(t *testing.T) {
	w := crowded(t, 0)
	n := w.node()
	n.Policy.Audit.File = t.TempDir() + "/audit.jsonl"
	at := time.Now()
	for pid, killed := range map[int]int{100: 0, 101: 3} {
		start := uint64(pid)
		if killed > 0 {
			start-- // the pid is another process's now
		}
		f := grant.Finding{Kind: grant.OverGrant, Message: "too much", Since: at.Add(-time.Minute),
			User: grant.User{Container: fmt.Sprint(pid),
				Processes: []grant.Process{{PID: pid, Start: start}}}}
		if w.notStopped == nil {
			w.notStopped = map[string]lateStop{}
		}
		w.notStopped[f.User.Key()] = lateStop{f, killed}
		daemontest.Must(t, os.MkdirAll(fmt.Sprint(n.Host.Proc, "/", pid), 0o700),
			os.WriteFile(fmt.Sprint(n.Host.Proc, "/", pid, "/stat"), fmt.Appendf(nil,
				"%d (python) D 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, pid), 0o600))
	}
	looks := func(want string, left int) {
		t.Helper()
		w.endLateStops(n, at)
		text, _ := os.ReadFile(n.Policy.Audit.File)
		if strings.Count(string(text), `"stopped"`) != 1 || !strings.Contains(string(text), want) ||
			len(w.notStopped) != left || w.Status().Stopped[grant.OverGrant] != 1 {
			t.Errorf("%v are left, and the audit log has\n%s", w.notStopped, text)
		}
	}
	looks(`"message":"stopped, 3 processes, after 1m0s: too much"`, 1)
	daemontest.Must(t, os.RemoveAll(n.Host.Proc+"/100"))
	looks("", 0)
}

// TestProcessesThatCannotBeHeld: they are logged once, and once when they can be held again.
func TestProcessesThatCannotBeHeld(t *testing.T) {
	log, logged := logs.NewNullLogger()
	w := &Watcher{processes: watch.ProcessTable{Host: host.Default()}, exitsCondition: daemonlog.Condition{
		Log: log}}
	defer w.processes.Close()
	looks := func() {
		for range 30 {
			w.readProcesses(grant.Sample{}, nil, false)
		}
	}
	var room unix.Rlimit
	daemontest.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &room),
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: room.Max}))
	looks()
	daemontest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &room))
	if got := logged.AllEntries(); len(got) != 1 || got[0].Level != logrus.WarnLevel ||
		got[0].Message != "that a process has ended is noticed late" || got[0].Data[logrus.ErrorKey] == nil {
		t.Errorf("logged is %+v", got)
	}
	looks()
	if got := logged.AllEntries(); len(got) != 2 || got[1].Level != logrus.InfoLevel {
		t.Errorf("logged is %+v", got)
	}
}

// TestWhoseCgroup: what lies in the users' slice, or in a cgroup of a user with an engine's name,
// is a user's. A container's own cgroup may belong to its root, and those of LXC below it.
func TestWhoseCgroup(t *testing.T) {
	h := host.Host{Sys: t.TempDir()}
	root, box := h.Sys+"/fs/cgroup", "libpod-"+strings.Repeat("a", 64)+".scope"
	for path, uid := range map[string]int{"/machine.slice": 0, "/machine.slice/" + box: 1000,
		"/system.slice/runner.service": 1000, "/system.slice/runner.service/" + box: 1000,
		"/lxc.payload.c1": 100000, "/lxc.payload.c1/x.service": 100000} {
		daemontest.Must(t, os.MkdirAll(root+path, 0o755), os.Chown(root+path, uid, uid))
	}
	for cgroup, want := range map[string]bool{"/machine.slice/" + box: false, "/gone/" + box: false,
		"": false, "/system.slice/runner.service/" + box: true, "/lxc.payload.c1/x.service": false,
		"/user.slice/user-1000.slice/session-1.scope": true, "/user.slice/x/" + box: true} {
		if got := isOfUser(h, cgroup); got != want {
			t.Errorf("%q is a user's: %v, want %v", cgroup, got, want)
		}
		b := identityCache{}
		got := b.identify(&node.Node{Host: h, Ledger: ledger.Open(ledger.Options{Host: h})}, nil,
			grant.User{Container: "box", Cgroup: cgroup})
		if got.OfNodeUser != want || len(b.known) > 0 == want {
			t.Errorf("%q: of a user of the node: %v, want %v; looked up: %v", cgroup, got.OfNodeUser, want,
				b.known)
		}
	}
}

// TestAGrantIsRaisedDuringAPass: the pass has compared and waits for the ledger's lock. Another
// program holds the lock and raises the grant. The container is not stopped if its new grant is
// large enough.
func TestAGrantIsRaisedDuringAPass(t *testing.T) {
	for name, c := range map[string]struct {
		raised grant.Bytes
		stops  bool
	}{
		"not at all":        {4 * grant.GiB, true},
		"too little":        {5 * grant.GiB, true},
		"to all it uses":    {60 * grant.GiB, false},
		"but for a context": {60*grant.GiB - 100*grant.MiB, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := crowded(t, 1)
			n := w.node()
			n.Policy.Rules = grant.Rules{Mode: grant.Enforce, OnOverGrant: grant.StopContainer}
			n.Policy.Daemon.Grace = "0s"
			g := &w.cache.(fixedLedger).overview.Grants[0]
			g.GPUs[0].Memory, g.Owner = 4*grant.GiB, "pod:u/c"
			g.Created = time.Now().UTC().Truncate(time.Second)
			put := func(memory grant.Bytes) func(tx *ledger.Tx) error {
				entry := *g
				entry.Bindings, entry.GPUs = nil, slices.Clone(g.GPUs)
				entry.GPUs[0].Memory = memory
				return func(tx *ledger.Tx) error { return tx.Put(entry) }
			}
			daemontest.Must(t, n.Ledger.Update(put(4*grant.GiB)))
			w.cache = readLedger{w.cache.(fixedLedger).overview}
			gpu := &w.sampler.(fixedSampler).s.GPUs[0]
			gpu.Used, gpu.Processes[0].Memory = 60*grant.GiB, 60*grant.GiB-400*grant.MiB

			locked, done := make(chan struct{}), make(chan error)
			go func() {
				other := ledger.Open(ledger.Options{State: n.Policy.StateDir, Run: n.Policy.RunDir,
					Host: n.Host})
				done <- other.Update(func(tx *ledger.Tx) error {
					close(locked)
					for w.Status().Samples == 0 { // the pass has not compared yet
						time.Sleep(time.Millisecond)
					}
					return put(c.raised)(tx)
				})
			}()
			<-locked
			err := w.pass(t.Context(), n)
			daemontest.Must(t, <-done)
			// that /proc has no process 1, so a stop is only tried
			tried := err != nil && strings.Contains(err.Error(), "cannot stop ")
			if tried != c.stops || !tried && err != nil {
				t.Errorf("returned is %v", err)
			}
		})
	}
}

// readLedger is a ledger that was read just now.
type readLedger struct{ overview grants.Overview }

func (l readLedger) Read(*node.Node, bool) (grants.Overview, bool, error) {
	return l.overview, true, nil
}
func (readLedger) Changes() map[string]uint64 { return nil }

// TestAdmittedContainers are spared only while the watch does not know their binding.
func TestAdmittedContainers(t *testing.T) {
	n := daemontest.NewNode(t)
	id := n.Grant('a')
	n.Start(id, "c")
	known := []grant.Grant{{ID: id, Bindings: []grant.Binding{{RuntimeRoot: n.Root, Container: "c"}}}}
	for name, c := range map[string]struct {
		grants  []grant.Grant
		finding grant.Finding
		want    bool
	}{
		"its entry is damaged or missing": {nil, grant.Finding{User: grant.User{Container: "c"}}, true},
		"its binding is new":              {[]grant.Grant{{ID: id}}, grant.Finding{User: grant.User{Container: "c"}}, true},
		"its binding is known":            {known, grant.Finding{User: grant.User{Container: "c"}}, false},
		"beyond its grant":                {nil, grant.Finding{Grant: id, User: grant.User{Container: "c"}}, false},
		"another container":               {nil, grant.Finding{User: grant.User{Container: "d"}}, false},
	} {
		w := &Watcher{ledger: grants.Overview{View: grant.View{Grants: c.grants}}}
		if got := w.isBound(n.Node, c.finding); got != c.want {
			t.Errorf("%s: bound %v, want %v", name, got, c.want)
		}
	}
}
