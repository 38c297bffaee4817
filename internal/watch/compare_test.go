package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

const (
	gpu0 = "GPU-0"
	gpu1 = "GPU-1"
	one  = grant.ID("g-aaaaaaaaaaaa")
	two  = grant.ID("g-bbbbbbbbbbbb")
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// scene is a node of two GPUs of 16 GiB; grant one has 4 GiB of the first for container c1 of a
// pod, grant two is a claim's with 8 GiB of the second for c2 and c3.
func scene() Input {
	binding := func(id grant.ID, container, pod string) grant.Binding {
		return grant.Binding{Grant: id, Container: container, Life: grant.Alive,
			Cgroups: []string{"/pods/" + container},
			Pod:     grant.Identity{UID: "u", Namespace: "team", Pod: pod, Container: "train"}}
	}
	s := Input{Sample: grant.Sample{Taken: noon}, Processes: map[int]ProcessInfo{}}
	s.Grants = []grant.Grant{
		{ID: one, Owner: "pod:u/train", Mode: grant.Limit, GPUs: []grant.Share{
			{UUID: gpu0, Memory: 4 * grant.GiB}}, Bindings: []grant.Binding{binding(one, "c1", "job-0")}},
		{ID: two, Owner: "claim:v", Mode: grant.Limit, GPUs: []grant.Share{
			{UUID: gpu1, Index: 1, Memory: 8 * grant.GiB}},
			Bindings: []grant.Binding{binding(two, "c2", "job-1"), binding(two, "c3", "job-2")}},
	}
	for i, uuid := range []string{gpu0, gpu1} {
		s.Inventory.GPUs = append(s.Inventory.GPUs, grant.GPU{
			UUID: uuid, Index: i, Memory: 16 * grant.GiB, Health: grant.Healthy})
		s.Sample.GPUs = append(s.Sample.GPUs, grant.Usage{
			UUID: uuid, Index: i, Health: grant.Healthy, Total: 16 * grant.GiB, Utilization: -1,
			ComputeMode: grant.ComputeDefault})
	}
	return s
}

// runs adds a process to the scene that uses a GPU.
func (s *Input) runs(pid, gpu int, cgroup string, memory grant.Bytes) *grant.ProcessUse {
	s.Processes[pid] = ProcessInfo{Process: grant.Process{PID: pid, Start: uint64(pid)},
		Command: "python", Cgroup: cgroup}
	g := &s.Sample.GPUs[gpu]
	g.Used += memory
	g.Processes = append(g.Processes, grant.ProcessUse{PID: pid, Memory: memory, Compute: -1})
	return &g.Processes[len(g.Processes)-1]
}

func TestFindings(t *testing.T) {
	docker := "/docker/" + id0
	for name, c := range map[string]struct {
		do   func(*Input)
		want []string // KIND GPU BYTES: message
		out  grant.Bytes
	}{
		"nothing runs":     {func(*Input) {}, nil, 0},
		"within its grant": {func(s *Input) { s.runs(10, 0, "/pods/c1", 4*grant.GiB) }, nil, 0},
		"in a cgroup below": {func(s *Input) {
			s.runs(10, 0, "/pods/c1/system.slice/x.service", 4*grant.GiB)
		}, nil, 0},
		"two processes within it": {func(s *Input) {
			s.runs(10, 0, "/pods/c1", 2*grant.GiB)
			s.runs(11, 0, "/pods/c1", 2*grant.GiB)
		}, nil, 0},
		"two processes above it": {func(s *Input) {
			s.runs(10, 0, "/pods/c1", 3*grant.GiB)
			s.runs(11, 0, "/pods/c1", 2*grant.GiB)
		},
			[]string{`over-grant 0 1GiB: container "train" of pod team/job-0 uses 5GiB of GPU 0, 1GiB more ` +
				`than the 4GiB of its grant g-aaaaaaaaaaaa`}, grant.GiB},
		"a claim's containers count together": {func(s *Input) {
			s.runs(10, 1, "/pods/c2", 5*grant.GiB)
			s.runs(11, 1, "/pods/c3", 4*grant.GiB)
		},
			[]string{`over-grant 1 1GiB: container "train" of pod team/job-1 uses 5GiB of GPU 1, and all ` +
				`that use its grant g-bbbbbbbbbbbb use 9GiB together, 1GiB more than its 8GiB`}, grant.GiB},
		"a claim's containers within it": {func(s *Input) {
			s.runs(10, 1, "/pods/c2", 4*grant.GiB)
			s.runs(11, 1, "/pods/c3", 4*grant.GiB)
		}, nil, 0},
		"another GPU than its grant's": {func(s *Input) { s.runs(10, 1, "/pods/c1", grant.GiB) },
			[]string{`outside-ledger 1 1GiB: container "train" of pod team/job-0 uses 1GiB of GPU 1, which ` +
				`its grant g-aaaaaaaaaaaa does not cover`}, grant.GiB},
		"a process of the node": {func(s *Input) { s.runs(10, 0, "/user.slice/session-1.scope", grant.GiB) },
			[]string{`outside-ledger 0 1GiB: process 10 (python) of the node uses 1GiB of GPU 0 ` +
				`without a grant`}, grant.GiB},
		"two processes of the node": {func(s *Input) {
			s.runs(10, 0, "/", grant.GiB)
			s.runs(11, 0, "/", grant.GiB)
		},
			[]string{`outside-ledger 0 1GiB: process 10 (python) of the node uses 1GiB of GPU 0 ` +
				`without a grant`,
				`outside-ledger 0 1GiB: process 11 (python) of the node uses 1GiB of GPU 0 without a grant`},
			2 * grant.GiB},
		"a container of Docker's": {func(s *Input) {
			s.runs(10, 0, docker, grant.GiB)
			s.runs(11, 0, docker+"/x", grant.GiB)
		},
			[]string{`outside-ledger 0 2GiB: container 0123456789ab of docker uses 2GiB of GPU 0 ` +
				`without a grant`}, 2 * grant.GiB},
		"a pod without a grant": {func(s *Input) { s.runs(10, 0, "/kubepods/pod"+uid+"/"+id0, grant.GiB) },
			[]string{`outside-ledger 0 1GiB: container 0123456789ab of pod ` + uid +
				` uses 1GiB of GPU 0 without a grant`}, grant.GiB},
		"some other runtime's": {func(s *Input) {
			s.runs(10, 0, "/lxc/box", grant.GiB)
			p := s.Processes[10]
			p.Foreign = true
			s.Processes[10] = p
		}, []string{`outside-ledger 0 1GiB: container box uses 1GiB of GPU 0 without a grant`}, grant.GiB},
		"a name that is only longer": {func(s *Input) { s.runs(10, 0, "/pods/c10", grant.GiB) },
			[]string{`outside-ledger 0 1GiB: process 10 (python) of the node uses 1GiB of GPU 0 ` +
				`without a grant`}, grant.GiB},
		"memory without a process": {func(s *Input) { s.Sample.GPUs[0].Used = 2 * grant.GiB },
			[]string{`unexplained 0 2GiB: 2GiB of GPU 0 are in use and no process accounts for them`}, 0},
		"what the driver keeps": {func(s *Input) {
			s.Sample.GPUs[0].Used = 500 * grant.MiB
		}, nil, 0},
		"a process that has ended": {func(s *Input) {
			s.runs(10, 0, "/pods/c1", grant.GiB)
			delete(s.Processes, 10)
		}, []string{`unexplained 0 1GiB: 1GiB of GPU 0 are in use and no process accounts for them`}, 0},
		"an exclusive grant has the whole GPU": {func(s *Input) {
			s.Grants[0].Mode = grant.Exclusive
			s.runs(10, 0, "/pods/c1", 16*grant.GiB)
		}, nil, 0},
		"a share of a GPU by time": {func(s *Input) {
			s.Grants[0].Mode = grant.Timeslice
			s.runs(10, 0, "/pods/c1", 3*grant.GiB)
		}, nil, 0},
		"an MPS server": {func(s *Input) {
			s.runs(10, 0, "/system.slice/gpuledgerd.service", 300*grant.MiB)
			s.Serves = func(uuid string, p grant.Process) bool {
				return uuid == gpu0 && p == grant.Process{PID: 10, Start: 10}
			}
		},
			nil, 0},
		"an MPS server of another GPU's": {func(s *Input) {
			s.runs(10, 1, "/x", 300*grant.MiB)
			s.Serves = func(uuid string, p grant.Process) bool { return uuid == gpu0 }
		},
			[]string{`outside-ledger 1 300MiB: process 10 (python) of the node uses 300MiB of GPU 1 ` +
				`without a grant`}, 300 * grant.MiB},
		"a process that took the name of an MPS server": {func(s *Input) {
			s.Grants[0].Mode = grant.MPS
			s.runs(10, 0, "/x", 300*grant.MiB)
			s.named(10, "nvidia-cuda-mps")
			s.Serves = func(_ string, p grant.Process) bool { return p.PID == 11 }
		},
			[]string{`outside-ledger 0 300MiB: process 10 (nvidia-cuda-mps) of the node uses 300MiB of GPU ` +
				`0 without a grant`}, 300 * grant.MiB},
		"an unknown MPS server": {func(s *Input) {
			s.runs(10, 0, "/x", 300*grant.MiB)
			s.named(10, "nvidia-cuda-mps")
		},
			[]string{`outside-ledger 0 300MiB: process 10 (nvidia-cuda-mps) of the node uses 300MiB of GPU ` +
				`0 without a grant`}, 300 * grant.MiB},
		"a container's own MPS server": {func(s *Input) {
			s.runs(10, 0, docker, grant.GiB)
			s.Serves = func(string, grant.Process) bool { return true }
		},
			[]string{`outside-ledger 0 1GiB: container 0123456789ab of docker uses 1GiB of GPU 0 ` +
				`without a grant`}, grant.GiB},
		"an unknown amount": {func(s *Input) {
			s.runs(10, 0, "/", 0).Unmeasured = true
			s.Sample.GPUs[0].Used = grant.GiB
		},
			[]string{`outside-ledger 0 0MiB: process 10 (python) of the node uses an amount that the ` +
				`driver does not report of GPU 0 without a grant`}, grant.GiB},
		"an unknown amount of a grant": {func(s *Input) {
			s.runs(10, 0, "/pods/c1", 0).Unmeasured = true
			s.Sample.GPUs[0].Used = grant.GiB
		}, nil, 0},
		"compute mode": {func(s *Input) { s.Sample.GPUs[0].ComputeMode = grant.ComputeExclusive },
			[]string{"mode-changed 0 0MiB: GPU 0 is in compute mode exclusive-process, in which its grants " +
				"of mode limit cannot be used (`nvidia-smi -i 0 -c DEFAULT` undoes it)"}, 0},
		"compute mode of MPS": {func(s *Input) {
			s.Grants[0].Mode = grant.MPS
			s.Sample.GPUs[0].ComputeMode = grant.ComputeExclusive
		}, nil, 0},
		"compute mode of a GPU that is free": {func(s *Input) {
			s.Grants = nil
			s.Sample.GPUs[0].ComputeMode = grant.ComputeProhibited
		}, nil, 0},
		"an error": {func(s *Input) { s.Sample.GPUs[1].XIDs = []int{79, 31, 79} },
			[]string{`gpu-error 1 0MiB: the driver reported XID 79, 31 on GPU 1`}, 0},
		"a lost GPU": {func(s *Input) {
			s.Sample.GPUs[1] = grant.Usage{UUID: gpu1, Index: 1,
				Health: "NVML gives no access to it: ERROR_GPU_IS_LOST"}
		},
			[]string{`gpu-lost 1 0MiB: GPU 1 does not answer: NVML gives no access to it: ERROR_GPU_IS_LOST`},
			0},
		"a GPU that was removed": {func(s *Input) { s.Sample.GPUs = s.Sample.GPUs[:1] },
			[]string{`gpu-lost 1 0MiB: GPU 1 (GPU-1) is gone`}, 0},
		"MIG switched on": {func(s *Input) { s.Sample.GPUs[0].MIG = []string{"MIG-1"} },
			[]string{`layout-changed 0 0MiB: the MIG devices of GPU 0 have changed behind the inventory`}, 0},
	} {
		s := scene()
		c.do(&s)
		r := Compare(s)
		var got []string
		for _, f := range r.Findings {
			got = append(got, fmt.Sprintf("%s %d %s: %s", f.Kind, f.Index, f.Bytes, f.Message))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, "\n     "),
				strings.Join(c.want, "\n     "))
		}
		var out grant.Bytes
		for _, bytes := range r.Outside() {
			out += bytes
		}
		if out != c.out {
			t.Errorf("%s: %s are outside the ledger, want %s", name, out, c.out)
		}
	}
}

func (s *Input) named(pid int, command string) {
	p := s.Processes[pid]
	p.Command = command
	s.Processes[pid] = p
}

func TestUse(t *testing.T) {
	s := scene()
	s.runs(10, 0, "/pods/c1", grant.GiB).Compute = 20
	s.runs(11, 0, "/pods/c1", grant.GiB).Compute = 30
	s.runs(12, 1, "/pods/c2", 2*grant.GiB)
	s.runs(13, 1, "/", grant.GiB)
	s.Sample.GPUs[0].Utilization, s.Sample.GPUs[0].Power, s.Sample.GPUs[0].Temperature = 60, 71_500, 43
	r := Compare(s)
	want := []GrantUse{{ID: one, GPU: gpu0, Granted: 4 * grant.GiB, Used: 2 * grant.GiB,
		Compute: 50, Processes: 2},
		{ID: two, GPU: gpu1, Granted: 8 * grant.GiB, Used: 2 * grant.GiB, Compute: -1, Processes: 1}}
	if !slices.Equal(r.Grants, want) {
		t.Errorf("grants: %+v", r.Grants)
	}
	if g := r.GPUs[1]; g.Used != 3*grant.GiB || g.Outside != grant.GiB || g.Unexplained != 0 ||
		g.Processes != 2 || r.GPUs[0].Utilization != 60 ||
		r.GPUs[0].Power != 71_500 || r.GPUs[0].Temperature != 43 {
		t.Errorf("GPUs: %+v", r.GPUs)
	}
}

// TestUnlisted: what contexts take beside what the driver lists (bytes as seen on an H100) counts
// against the grants of their processes, up to a bound, and is no finding.
func TestUnlisted(t *testing.T) {
	s := scene()
	s.runs(10, 0, "/pods/c1", 4*grant.GiB)
	s.runs(11, 0, "/", grant.GiB)
	s.runs(12, 1, "/pods/c2", grant.GiB)
	s.Sample.GPUs[0].Used += 15_073_280
	r := Compare(s)
	for _, g := range r.Grants {
		if want := map[grant.ID]grant.Bytes{one: 15_073_280 / 2}[g.ID]; g.Unlisted != want {
			t.Errorf("%s: %d bytes are unlisted, want %d", g.ID, g.Unlisted, want)
		}
		if g.ID == one && g.Used != 4*grant.GiB {
			t.Errorf("%s uses %s", g.ID, g.Used)
		}
	}
	if len(r.Findings) != 1 || r.Findings[0].Kind != grant.OutsideLedger {
		t.Errorf("%+v", r.Findings)
	}
	s.Sample.GPUs[1].Used += maxUnlisted + 1
	if r = Compare(s); r.Grants[1].Unlisted != 0 {
		t.Errorf("more than contexts take: %+v", r.Grants)
	}
	s.Sample.GPUs[1].Used--
	if r = Compare(s); r.Grants[1].Unlisted != maxUnlisted {
		t.Errorf("as much as contexts may take: %+v", r.Grants)
	}
	s.runs(77, 1, "/", 20*grant.GiB) // it has ended, and the driver still lists it
	delete(s.Processes, 77)
	if r = Compare(s); r.Grants[1].Unlisted != maxUnlisted/2 {
		t.Errorf("beside a process that has ended: %+v", r.Grants)
	}
}

// TestMIG: a process is compared with the MIG device that it runs on, and a grant of a removed
// device is found.
func TestMIG(t *testing.T) {
	s := scene()
	s.Inventory.GPUs[0].MIG = []grant.MIGDevice{{UUID: "MIG-1"}, {UUID: "MIG-2"}}
	s.Sample.GPUs[0].MIG = []string{"MIG-2", "MIG-1"}
	s.Grants[0].Mode, s.Grants[0].GPUs = grant.MIG, []grant.Share{{UUID: "MIG-1", Memory: 4 * grant.GiB}}
	s.runs(10, 0, "/pods/c1", 4*grant.GiB).Device = "MIG-1"
	if r := Compare(s); len(r.Findings) > 0 || len(r.Grants) != 1 || r.Grants[0].GPU != "MIG-1" {
		t.Errorf("%+v", r)
	}
	s.runs(11, 0, "/pods/c1", grant.GiB).Device = "MIG-2"
	if r := Compare(s); len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Message,
		"uses 1GiB of MIG device MIG-2 on GPU 0, which its grant") {
		t.Errorf("%+v", r.Findings)
	}
	r := Compare(s)
	if outside, held := r.Outside(), r.Held(); len(outside) != 2 || outside["MIG-2"] != grant.GiB ||
		len(held) != 2 || len(held["MIG-2"]) != 1 || len(held[gpu0]) != 1 {
		t.Errorf("%v, %v", outside, held)
	}
	s.runs(12, 0, "/pods/other", 2*grant.GiB).Device = "MIG-1"
	s.runs(13, 0, "/user.slice", grant.GiB).Device = "MIG-1"
	r = Compare(s)
	if outside := r.Outside(); outside["MIG-1"] != 3*grant.GiB || outside[gpu0] != 4*grant.GiB ||
		r.Excess() != nil {
		t.Errorf("%v, %v", outside, r.Excess())
	}
	s.Sample.GPUs[0].MIG, s.Sample.GPUs[0].Processes = []string{"MIG-2"}, nil
	r = Compare(s)
	if len(r.Findings) < 2 || r.Findings[0].Message !=
		"grant g-aaaaaaaaaaaa is of MIG device MIG-1, which is gone" ||
		r.Stale != "the MIG devices of GPU 0 have changed" {
		t.Errorf("%+v", r)
	}
}

// TestAGPUThatAnswersAgain: the inventory has it as unhealthy, and perhaps without its MIG devices.
// The inventory is taken again, and that is no finding.
func TestAGPUThatAnswersAgain(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(*Input)
		stale string
	}{
		"as it was": {func(*Input) {}, "GPU 1 answers again"},
		"with MIG devices": {func(s *Input) {
			s.Sample.GPUs[1].MIG = []string{"MIG-1"}
		}, "GPU 1 answers again"},
		"not yet": {func(s *Input) { s.Sample.GPUs[1].Health = "lost" }, ""},
		"in MIG mode without a device": {func(s *Input) {
			s.Inventory.GPUs[1].Health = grant.Unpartitioned
		}, ""},
		"beside one that does not answer": {func(s *Input) {
			s.Sample.GPUs[0].Health = "lost"
		}, "GPU 0 does not answer any more; GPU 1 answers again"},
	} {
		s := scene()
		s.Inventory.GPUs[1].Health = "NVML gives no access to it: ERROR_GPU_IS_LOST"
		c.do(&s)
		r := Compare(s)
		for _, f := range r.Findings {
			if f.Kind != grant.GPULost {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if r.Stale != c.stale {
			t.Errorf("%s: %q, want %q", name, r.Stale, c.stale)
		}
	}
}

// TestMIGDevicesThatAreUsed: each row is a process, and what of GPU 0's MIG devices it takes from
// placements. Memory of a process that cannot be found counts once it is believed to be
// unexplained.
func TestMIGDevicesThatAreUsed(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(s *Input)
		want string
	}{
		"with a grant": {func(s *Input) { s.runs(10, 0, "/pods/c1", grant.GiB).Device = "MIG-1" }, "map[]"},
		"without one": {func(s *Input) {
			s.runs(10, 0, "/pods/x", grant.GiB).Device = "MIG-1"
		}, "map[MIG-1:1GiB]"},
		"with a grant of another device": {func(s *Input) {
			s.runs(10, 0, "/pods/c1", grant.GiB).Device = "MIG-2"
		}, "map[MIG-2:1GiB]"},
		"that the driver does not measure": {func(s *Input) {
			p := s.runs(10, 0, "/user.slice", 0)
			p.Device, p.Unmeasured = "MIG-2", true
		}, "map[MIG-2:3GiB]"},
		"that the driver does not measure, with a grant": {func(s *Input) {
			p := s.runs(10, 0, "/pods/c1", 0)
			p.Device, p.Unmeasured = "MIG-1", true
		}, "map[]"},
		"of another pid namespace": {func(s *Input) {
			s.runs(10, 0, "/user.slice", 3*grant.GiB).Device = "MIG-2"
			delete(s.Processes, 10)
		}, "map[MIG-2:3GiB]"},
		"on the GPU itself": {func(s *Input) { s.runs(10, 0, "/user.slice", grant.GiB) }, "map[]"},
	} {
		s := scene()
		s.Inventory.GPUs[0].MIG = []grant.MIGDevice{{UUID: "MIG-1"}, {UUID: "MIG-2"}}
		s.Sample.GPUs[0].MIG = []string{"MIG-1", "MIG-2"}
		s.Grants[0].Mode, s.Grants[0].GPUs = grant.MIG, []grant.Share{{UUID: "MIG-1", Memory: 4 * grant.GiB}}
		c.do(&s)
		s.Sample.GPUs[0].Used = 3 * grant.GiB
		tracker, r := Tracker{}, Comparison{}
		for range sightingsNeeded {
			r = Compare(s)
			tracker.Update(&r)
		}
		if got := fmt.Sprint(r.GPUs[0].MIGOutside); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestWhoGoesFromDeviceToDeviceIsStopped: use of one MIG device and then another of the GPU is one
// finding, whose grace goes on.
func TestWhoGoesFromDeviceToDeviceIsStopped(t *testing.T) {
	tracker := Tracker{Grace: 30 * time.Second, Interval: time.Second}
	stops, at := 0, noon
	for second := range 100 {
		s := scene()
		s.Sample.GPUs[0].MIG = []string{"MIG-1", "MIG-2"}
		s.runs(10, 0, "/system.slice/docker-"+strings.Repeat("ab", 32)+".scope",
			grant.GiB).Device = s.Sample.GPUs[0].MIG[second/20%2]
		at = at.Add(time.Second)
		s.Sample.Taken = at
		r := Compare(s)
		tracker.Update(&r)
		for _, f := range tracker.Due(r, grant.Rules{OnOutsideLedger: grant.StopContainer}) {
			if f.Kind == grant.OutsideLedger {
				stops++
			}
		}
	}
	if stops != 3 {
		t.Errorf("stopped %d times in 100 s, with 30 s of grace", stops)
	}
}

// TestExcess: what a grant's containers use beyond it is of this grant, and nothing else is.
func TestExcess(t *testing.T) {
	s := scene()
	s.runs(10, 0, "/pods/c1", 5*grant.GiB)
	s.runs(11, 0, "/pods/x", grant.GiB)
	r := Compare(s)
	want := []grant.Excess{{Grant: s.Grants[0].ID, GPU: gpu0, Bytes: grant.GiB}}
	if got := r.Excess(); !slices.Equal(got, want) || r.Outside()[gpu0] != 2*grant.GiB {
		t.Errorf("%v of %v, want %v", got, r.Outside(), want)
	}
}

// TestASpecWithoutACgroup: a container whose spec names no cgroup is found by its first process,
// if that is in one made for it.
func TestASpecWithoutACgroup(t *testing.T) {
	s := scene()
	b := &s.Grants[0].Bindings[0]
	b.Cgroups, b.PID = nil, 10
	s.runs(11, 0, "/machine/c1/below", grant.GiB)
	s.Processes[10] = ProcessInfo{Process: grant.Process{PID: 10, Start: 1}, Cgroup: "/machine/c1"}
	if r := Compare(s); len(r.Findings) > 0 || len(r.Grants) != 1 {
		t.Errorf("%+v", r)
	}
	// another container's
	s.Processes[10] = ProcessInfo{Process: grant.Process{PID: 10, Start: 1}, Cgroup: "/machine"}
	if r := Compare(s); len(r.Findings) != 1 || r.Findings[0].Kind != grant.OutsideLedger {
		t.Errorf("%+v", r.Findings)
	}
	if got := InitPIDs(s.Grants); !slices.Equal(got, []int{10}) {
		t.Errorf("first processes %v", got)
	}
}

func TestExempt(t *testing.T) {
	s := scene()
	s.runs(10, 0, "/docker/"+id0, grant.GiB)
	s.Identify = func(u grant.User) grant.User {
		u.Exempt, u.Pod = true, grant.Identity{Namespace: "gpu-operator", Pod: "dcgm"}
		return u
	}
	r := Compare(s)
	if len(r.Findings) > 0 || r.GPUs[0].Outside != grant.GiB {
		t.Errorf("%+v", r)
	}
}

// TestTracker: a new finding is reported once, it ends after a while, and unexplained memory is not
// reported at once.
func TestTracker(t *testing.T) {
	var tr Tracker
	begun, ended := 0, 0
	pass := func(second int, do func(*Input)) Comparison {
		s := scene()
		s.Sample.Taken = noon.Add(time.Duration(second) * time.Second)
		do(&s)
		r := Compare(s)
		news := tr.Update(&r)
		begun, ended = begun+len(news.Begun), ended+len(news.Ended)
		return r
	}
	over := func(s *Input) { s.runs(10, 0, "/pods/c1", 6*grant.GiB) }
	pass(0, over)
	r := pass(3, over)
	if begun != 1 || tr.Events[grant.OverGrant] != 1 || !r.Findings[0].Since.Equal(noon) {
		t.Errorf("%d begun, %+v", begun, r.Findings)
	}
	nothing := func(*Input) {}
	pass(4, nothing)
	pass(5, over)
	for i := range missesAllowed {
		if ended != 0 {
			t.Errorf("over after %d passes", i)
		}
		pass(6+i, nothing)
	}
	if begun != 1 || ended != 1 {
		t.Errorf("%d begun, %d ended", begun, ended)
	}
	hidden := func(s *Input) { s.Sample.GPUs[0].Used = 2 * grant.GiB }
	for i := range sightingsNeeded {
		if len(r.Findings) > 0 && i > 0 || r.GPUs[0].Outside > 2*grant.GiB {
			t.Errorf("believed after %d passes: %+v", i, r)
		}
		r = pass(20+i, hidden)
	}
	if len(r.Findings) != 1 || r.GPUs[0].Outside != 2*grant.GiB || r.Outside()[gpu0] != 2*grant.GiB {
		t.Errorf("not believed: %+v", r)
	}
	pass(30, func(s *Input) { s.Sample.GPUs[1].XIDs = []int{79} })
	pass(31, func(s *Input) { s.Sample.GPUs[1].XIDs = []int{79} })
	if tr.XIDs[XID{gpu1, 79}] != 2 {
		t.Errorf("XIDs: %v", tr.XIDs)
	}
}

// TestReactions: only containers are stopped, only if the policy says so, and none for the contexts
// of its processes.
func TestReactions(t *testing.T) {
	container := grant.User{Container: "c1", Cgroup: "/pods/c1",
		Processes: []grant.Process{{PID: 10, Start: 1}}}
	node := grant.User{Processes: container.Processes}
	exempt := container
	exempt.Exempt = true
	stop := grant.Rules{OnOverGrant: grant.StopContainer, OnOutsideLedger: grant.StopContainer}
	for name, c := range map[string]struct {
		f     grant.Finding
		rules grant.Rules
		want  grant.Reaction
	}{
		"over its grant":             {grant.Finding{Kind: grant.OverGrant, Bytes: grant.GiB, Contexts: 600 * grant.MiB, User: container}, stop, grant.StopContainer},
		"over by a context":          {grant.Finding{Kind: grant.OverGrant, Bytes: 500 * grant.MiB, Contexts: 500 * grant.MiB, User: container}, stop, grant.ReportFinding},
		"outside":                    {grant.Finding{Kind: grant.OutsideLedger, Bytes: grant.MiB, User: container}, stop, grant.StopContainer},
		"outside, policy reports":    {grant.Finding{Kind: grant.OutsideLedger, User: container}, grant.Rules{OnOverGrant: grant.StopContainer, OnOutsideLedger: grant.ReportFinding}, grant.ReportFinding},
		"over, policy reports":       {grant.Finding{Kind: grant.OverGrant, Bytes: grant.GiB, User: container}, grant.Rules{OnOverGrant: grant.ReportFinding, OnOutsideLedger: grant.StopContainer}, grant.ReportFinding},
		"a process of the node":      {grant.Finding{Kind: grant.OutsideLedger, User: node}, stop, grant.ReportFinding},
		"exempt":                     {grant.Finding{Kind: grant.OutsideLedger, User: exempt}, stop, grant.ReportFinding},
		"memory without a process":   {grant.Finding{Kind: grant.Unexplained, Bytes: grant.GiB}, stop, grant.ReportFinding},
		"a container without cgroup": {grant.Finding{Kind: grant.OutsideLedger, User: grant.User{Container: "x"}}, stop, grant.ReportFinding},
	} {
		if got := Reaction(c.f, c.rules); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestContextsOfAGrant: what the contexts of all processes of a grant may take is allowed, and of a
// grant that is exceeded by more the largest container is stopped.
func TestContextsOfAGrant(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*Input)
		want string // the container that is due
	}{
		"by one context": {func(s *Input) { s.runs(10, 0, "/pods/c1", 4*grant.GiB+600*grant.MiB) }, ""},
		"by more":        {func(s *Input) { s.runs(10, 0, "/pods/c1", 4*grant.GiB+601*grant.MiB) }, "c1"},
		"by the contexts of two containers": {func(s *Input) {
			s.runs(10, 1, "/pods/c2", 8*grant.GiB)
			s.runs(11, 1, "/pods/c3", grant.GiB)
		}, ""},
		"by more than those of two containers": {func(s *Input) {
			s.runs(10, 1, "/pods/c2", 9*grant.GiB)
			s.runs(11, 1, "/pods/c3", grant.GiB)
		}, "c2"},
		"by more, in another order": {func(s *Input) {
			s.runs(10, 1, "/pods/c3", grant.GiB)
			s.runs(11, 1, "/pods/c2", 9*grant.GiB)
		}, "c2"},
		"beside many processes that hardly use the GPU": {func(s *Input) {
			s.runs(10, 0, "/pods/c1", 5*grant.GiB)
			for pid := range 50 {
				s.runs(11+pid, 0, "/pods/c1", grant.MiB)
			}
		}, "c1"},
	} {
		s := scene()
		c.do(&s)
		r, tracker := Compare(s), Tracker{}
		tracker.Update(&r)
		got := ""
		for _, f := range tracker.Due(r, grant.Rules{OnOverGrant: grant.StopContainer}) {
			got += f.User.Container
		}
		if got != c.want || len(r.Findings) != 1 {
			t.Errorf("%s: %q is due, want %q: %+v", name, got, c.want, r.Findings)
		}
	}
}

// TestContainersThatUseMostByTurns: what they use beyond their grant is one finding, whose grace
// goes on.
func TestContainersThatUseMostByTurns(t *testing.T) {
	tracker := Tracker{Grace: 30 * time.Second, Interval: time.Second}
	stops, at := 0, noon
	for second := range 100 {
		s := scene()
		both := []string{"/pods/c2", "/pods/c3"}
		s.runs(10, 1, both[second/20%2], 9*grant.GiB)
		s.runs(11, 1, both[1-second/20%2], grant.GiB)
		at = at.Add(time.Second)
		s.Sample.Taken = at
		r := Compare(s)
		tracker.Update(&r)
		stops += len(tracker.Due(r, grant.Rules{OnOverGrant: grant.StopContainer}))
	}
	if stops != 3 {
		t.Errorf("stopped %d times in 100 s, with 30 s of grace", stops)
	}
}

// TestGrace: a container is stopped once its finding has lasted for the grace time, and again only
// after another grace time. Time without samples counts little.
func TestGrace(t *testing.T) {
	const second = time.Second
	type sample struct {
		at    time.Duration
		there bool
		want  int
	}
	for name, c := range map[string]struct {
		grace, interval time.Duration
		samples         []sample
	}{
		"seen all the time": {10 * second, 5 * second, []sample{
			{0, true, 0}, {5 * second, true, 0}, {9 * second, true, 0}, {10 * second, true, 1},
			{11 * second, true, 0},
			{15 * second, true, 0}, {20 * second, true, 1}, {21 * second, false, 0},
			{31 * second, false, 0}}},
		"no sample for ten minutes": {10 * second, second,
			[]sample{{0, true, 0}, {600 * second, true, 0}, {603 * second, true, 0}, {606 * second, true, 0},
				{607 * second, true, 1}}},
		"nor after it was stopped": {10 * second, 5 * second,
			[]sample{{0, true, 0}, {5 * second, true, 0}, {10 * second, true, 1}, {600 * second, true, 0},
				{605 * second, true, 1}}},
		"a short grace": {2 * second, second,
			[]sample{{0, true, 0}, {600 * second, true, 0}, {601 * second, true, 1}}},
		"seldom, as is configured": {10 * second, 60 * second,
			[]sample{{0, true, 0}, {60 * second, true, 1}}},
		"each sample takes a minute": {10 * second, second,
			[]sample{{0, true, 0}, {60 * second, true, 0}, {120 * second, true, 0}, {180 * second, true, 0},
				{240 * second, true, 1}}},
		"not seen in between": {10 * second, 5 * second,
			[]sample{{0, true, 0}, {5 * second, false, 0}, {10 * second, true, 1}}},
		"a clock that was set back": {10 * second, 5 * second,
			[]sample{{0, true, 0}, {5 * second, true, 0}, {1 * second, true, 0}, {6 * second, true, 1}}},
		"a clock that was set back after the stop": {10 * second, 5 * second,
			[]sample{{0, true, 0}, {5 * second, true, 0}, {10 * second, true, 1}, {-3600 * second, true, 0},
				{-3595 * second, true, 0}, {-3590 * second, true, 1}, {-3585 * second, true, 0},
				{-3580 * second, true, 1}}},
		"no grace": {0, second, []sample{
			{0, true, 1}, {second / 2, true, 0}, {second, true, 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			tr := Tracker{Grace: c.grace, Interval: c.interval}
			rules := grant.Rules{OnOutsideLedger: grant.StopContainer}
			for _, at := range c.samples {
				s := scene()
				s.Sample.Taken = noon.Add(at.at)
				if at.there {
					s.runs(10, 0, "/docker/"+id0, grant.GiB)
				}
				r := Compare(s)
				tr.Update(&r)
				if due := tr.Due(r, rules); len(due) != at.want {
					t.Errorf("after %s: %d due, want %d", at.at, len(due), at.want)
				}
			}
		})
	}
}
