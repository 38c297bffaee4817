package watch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestCgroupLines of /proc/PID/cgroup, on v1, v2 and both.
func TestCgroupLines(t *testing.T) {
	hybrid := "12:pids:/p\n7:cpu,cpuacct:/c\n5:devices:/docker/x:y\n1:name=systemd:/s\n0::/two\n"
	for name, c := range map[string]struct {
		lines string
		v1    bool
		want  string
	}{
		"v1 beside v2":                   {hybrid, true, "/docker/x:y"},
		"v2 beside v1":                   {hybrid, false, "/two"},
		"v2":                             {"0::/user.slice\n", false, "/user.slice"},
		"controllers together":           {"3:net_cls,devices:/a\n", true, "/a"},
		"a cgroup that is removed":       {"0::/gone (deleted)\n", false, "/gone"},
		"beside what we see":             {"0::/../../other\n", false, ""},
		"no such hierarchy":              {"0::/two\n", true, ""},
		"nothing":                        {"", false, ""},
		"no end of line":                 {"0::/two", false, "/two"},
		"a line that is too short":       {"0:\n0::/two\n", false, "/two"},
		"another hierarchy without name": {"4::/four\n", false, ""},
	} {
		if got := cgroupIn([]byte(c.lines), c.v1); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestALaterProcessWithAListedPid: the driver lists the pid of a process that has ended, for memory
// that its child keeps. A process that gets the pid later is not taken for it, unless it has a GPU
// open. The pid is free again when the driver lists it no more.
func TestALaterProcessWithAListedPid(t *testing.T) {
	dir := t.TempDir()
	put := func(pid int, start int) {
		for name, text := range map[string]string{"comm": "x\n", "cgroup": "0::/a\n",
			"stat": fmt.Sprintf("%d (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, start)} {
			path := filepath.Join(dir, fmt.Sprint(pid), name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
				os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	opened := map[int]bool{}
	c := ProcessTable{Host: host.Host{Proc: dir, Sys: dir},
		HasGPUOpen: func(pid int) bool { return opened[pid] }}
	pids := []int{10, 11, 11}
	looks := func(want ...int) {
		t.Helper()
		var all map[int]ProcessInfo
		for range 2 * refreshPasses {
			all = c.Lookup(pids)
		}
		var starts []int
		for _, p := range all {
			starts = append(starts, int(p.Start))
		}
		slices.Sort(starts)
		if !slices.Equal(starts, want) {
			t.Errorf("found are the processes that started at %v, want %v", starts, want)
		}
	}
	put(10, 100) // its file is closed soon
	looks(100)
	put(10, 200)
	put(11, 110)
	looks()
	opened[11] = true
	looks(110)
	opened[10] = true
	looks(110, 200)
	put(10, 300)
	opened[10] = false
	looks(110)
	pids = []int{11}
	looks(110)
	pids = []int{10, 11}
	looks(110, 300)
}

// TestProcessTable: running processes are found, ended ones are not, and a new process with an old
// pid is a new one.
func TestProcessTable(t *testing.T) {
	dir := t.TempDir()
	put := func(pid int, start int, cgroup string) {
		for name, text := range map[string]string{
			"stat": fmt.Sprintf("%d (a ) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, start),
			"comm": "a ) b\n", "cgroup": "0::" + cgroup + "\n"} {
			path := filepath.Join(dir, "proc", fmt.Sprint(pid), name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := ProcessTable{Host: host.Host{Proc: dir + "/proc", Sys: dir + "/sys"}}
	put(10, 100, "/a")
	put(11, 101, "/b")
	users := c.Lookup([]int{10, 11, 12})
	if len(users) != 2 || users[10] != (ProcessInfo{Process: grant.Process{PID: 10, Start: 100},
		Command: "a ) b", Cgroup: "/a"}) {
		t.Errorf("%+v", users)
	}
	put(10, 200, "/c")
	if err := os.RemoveAll(dir + "/proc/11"); err != nil {
		t.Fatal(err)
	}
	for range refreshPasses {
		users = c.Lookup([]int{10, 11})
	}
	if len(users) != 1 || users[10].Start != 200 || users[10].Cgroup != "/c" {
		t.Errorf("after %d passes: %+v", refreshPasses, users)
	}
}

// TestAnEndingProcessKeepsItsCgroup: while the driver frees the memory of a process, the kernel has
// the process in the root of each v1 hierarchy. It is still its container's.
func TestAnEndingProcessKeepsItsCgroup(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	is := func(flags int, cgroup string) {
		t.Helper()
		write("proc/10/stat", fmt.Sprintf("10 (x) S 1 1 1 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n", flags))
		write("proc/10/comm", "x\n")
		write("proc/10/cgroup", "5:devices:"+cgroup+"\n0::/\n")
	}
	write("sys/fs/cgroup/devices/cgroup.procs", "")
	c := ProcessTable{Host: host.Host{Proc: dir + "/proc", Sys: dir + "/sys"}}
	for _, step := range []struct {
		name, cgroup, want string
		flags              int
	}{
		{"it runs", "/a", "/a", 0x400000},
		{"it is moved", "/b", "/b", 0x400000},
		{"it is moved to the root", "/", "/", 0x400000},
		{"and back", "/a", "/a", 0x400000},
		{"it is ending", "/", "/a", 0x400004},
	} {
		is(step.flags, step.cgroup)
		for range 2 * refreshPasses {
			c.Lookup([]int{10})
		}
		if got := c.processes[10].Cgroup; got != step.want {
			t.Errorf("%s: its cgroup is %q, want %q", step.name, got, step.want)
		}
	}
}

// TestStopRefuses cgroups that are not a container's own, and any that may hold this program.
func TestStopRefuses(t *testing.T) {
	h := host.Default()
	self, err := readProcess(h, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for name, u := range map[string]grant.User{
		"a process of the node": {Cgroup: "/x"}, "no cgroup": {Container: "c"},
		"the root": {Container: "c", Cgroup: "/"}, "relative": {Container: "c", Cgroup: "x"},
		"not clean": {Container: "c", Cgroup: "/x/../"}, "our own": {
			Container: "c", Cgroup: max(self.Cgroup, "/")},
	} {
		u.Processes = []grant.Process{self.Process}
		s := Stop(h, []grant.User{u}, func(grant.User) bool { return false })[0]
		if s.Processes != 0 || s.Err == nil ||
			!strings.HasPrefix(s.Err.Error(), "cannot stop ") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestStopSparesMovedProcesses: a process outside of the container's cgroup is not stopped, and
// neither is a new one with its pid.
func TestStopSparesMovedProcesses(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	h := host.Default()
	p, _, err := h.Process(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range []grant.Process{p, {PID: p.PID, Start: p.Start + 1}} {
		s := Stop(h, []grant.User{{Container: "c", Cgroup: "/no/such/container",
			Processes: []grant.Process{process}}}, func(grant.User) bool { return false })
		if s[0] != (Stopped{}) {
			t.Errorf("%+v", s)
		}
	}
	if killProcess(h, p.PID, "/no/such/container") {
		t.Error("a process was killed for a cgroup that it is not in")
	}
	if runs, err := h.Runs(p); !runs || err != nil {
		t.Errorf("it runs: %v (%v)", runs, err)
	}
}

// TestFile: what is written can be read in the same boot.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	s := scene()
	s.runs(10, 0, "/pods/c1", 6*grant.GiB)
	want := Compare(s)
	for range 2 {
		if err := Save(dir, "boot", want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(dir, "boot")
	if err != nil || len(got.Findings) != 1 || got.Findings[0].Message != want.Findings[0].Message ||
		got.GPUs[0].Used != 6*grant.GiB || !got.Taken.Equal(noon) {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := Load(dir, "another"); err == nil {
		t.Error("a report of another boot is read")
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("left are %v", files)
	}
}

// TestHistory covers a minute, however often samples are taken.
func TestHistory(t *testing.T) {
	var s Status
	for i := range 10 * 60 * 10 {
		r := Comparison{Taken: noon.Add(time.Duration(i) * 100 * time.Millisecond),
			GPUs: []GPUUse{{UUID: gpu0, Used: grant.Bytes(i)}}}
		s.AddHistory(r, scene().Grants)
	}
	last := s.History[len(s.History)-1]
	if n := len(s.History); n < 60 || n > maxHistory || last.Taken.Sub(s.History[0].Taken) > historyTime ||
		last.GPUs[gpu0].Granted != 4*grant.GiB {
		t.Errorf("%d moments, from %s to %s: %+v", n, s.History[0].Taken, last.Taken, last)
	}
}

// TestHistoryAfterTheClockWasSetBack: samples of a time that is still to come are removed, and the
// others stay.
func TestHistoryAfterTheClockWasSetBack(t *testing.T) {
	inOrder := func(a, b HistorySample) int { return a.Taken.Compare(b.Taken) }
	for _, back := range []time.Duration{time.Hour, 20 * time.Second, 100 * time.Millisecond} {
		var s Status
		at := noon
		for i := range 200 {
			if i == 100 {
				at = at.Add(-back)
			}
			s.AddHistory(Comparison{Taken: at}, nil)
			last := s.History[len(s.History)-1].Taken
			if age := at.Sub(last); age < 0 || age >= historyTime/maxHistory ||
				!slices.IsSortedFunc(s.History, inOrder) {
				t.Fatalf("set back by %s: after sample %d the newest one is %s old", back, i, age)
			}
			if kept := len(s.History); i == 100 && (kept > 30) != (back < historyTime/2) {
				t.Errorf("set back by %s: %d samples are kept", back, kept)
			}
			at = at.Add(time.Second)
		}
	}
}

// crowd is a node of eight GPUs with this many containers of five processes each.
func crowd(containers int) Input {
	s := Input{Processes: map[int]ProcessInfo{}}
	for i := range 8 {
		uuid := fmt.Sprintf("GPU-%d", i)
		s.Inventory.GPUs = append(s.Inventory.GPUs, grant.GPU{
			UUID: uuid, Index: i, Memory: 80 * grant.GiB, Health: grant.Healthy})
		s.Sample.GPUs = append(s.Sample.GPUs, grant.Usage{
			UUID: uuid, Index: i, Health: grant.Healthy, Total: 80 * grant.GiB})
	}
	for i := range containers {
		id := fmt.Sprintf("%064x", i)
		cgroup := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" +
			strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope"
		g := grant.Grant{ID: grant.NewID([16]byte{byte(i % 26), byte(i / 26 % 26), byte(i / 676)}),
			Mode: grant.Limit, GPUs: []grant.Share{{UUID: fmt.Sprintf("GPU-%d", i%8), Index: i % 8,
				Memory: grant.GiB}},
			Bindings: []grant.Binding{{Container: id, Cgroups: []string{cgroup}}}}
		s.Grants = append(s.Grants, g)
		for p := range 5 {
			s.runs(100+5*i+p, i%8, cgroup, 100*grant.MiB)
		}
	}
	return s
}

// TestCostIsLinear: each further container adds the same number of allocations, however many there
// are.
func TestCostIsLinear(t *testing.T) {
	cost := func(containers int) float64 {
		s := crowd(containers)
		return testing.AllocsPerRun(3, func() {
			if r := Compare(s); len(r.Grants) != containers || len(r.Findings) != 0 {
				t.Fatalf("%d grants, %d findings", len(r.Grants), len(r.Findings))
			}
		})
	}
	if few, many := cost(100), cost(800); many > 9*few {
		t.Errorf("%.0f allocations for 100 containers and %.0f for 800", few, many)
	}
}

// BenchmarkCompare is a pass without the kernel's part: 1,000 processes in 200 containers on 8
// GPUs, and eight times that.
func BenchmarkCompare(b *testing.B) {
	for _, containers := range []int{200, 1600} {
		b.Run(fmt.Sprint(containers), func(b *testing.B) {
			s := crowd(containers)
			for b.Loop() {
				Compare(s)
			}
		})
	}
}
