package request

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

func TestUpdatesAreReadAsStrictly(t *testing.T) {
	for _, c := range []struct{ name, resources, key, err string }{
		{"an ordinary one", `{"memory":{"limit":1},"cpu":{"shares":2}}`, "", ""},
		{"raw keys", `{"unified":{"memory.high":"1"}}`, "", ""},
		{"one that moves", `{"unified":{"memory.high":"1","cgroup.procs":"1"}}`, "cgroup.procs", ""},
		{"one that moves, and the limit, which weighs more", `{"unified":{"cgroup.procs":"1","dmem.max":"x"}}`, "dmem.max", ""},
		{"the driver's limit", `{"unified":{"memory.high":"1","dmem.max":"x","dmem.low":"y"}}`, "dmem.low", ""},
		{"NUL in a key", `{"unified":{"dmem.max\u0000x":"1"}}`, "", `unified.dmem.max\x00x has a NUL; runtimes disagree on what it ends`},
		{"a key twice", `{"devices":[],"devices":[]}`, "", "at byte 14: duplicate name devices; runtimes disagree on which counts"},
		{"in capitals", `{"Devices":[]}`, "", `devices is spelt "Devices" there; runtimes disagree on whether it counts`},
		{"of the wrong type", `{"devices":{}}`, "", "devices is of the wrong type"},
		{"too large", strings.Repeat(" ", MaxSpec+1), "", "it has more than 16777216 bytes"},
	} {
		u, err := ParseUpdate([]byte(c.resources))
		if _, key, _ := u.Unfit(); message(err) != c.err || key != c.key {
			t.Errorf("%s: key %q, error %v", c.name, key, err)
		}
	}
	u := Update{Unified: map[string]string{"cgroup.kill": "1", "cgroup.procs": "1", "gpu.max": "1",
		"memory.high": "1", "z.x": "1"}}
	if code, key, doubtful := u.Unfit(); code != grant.GPUDeviceRule || key != "cgroup.kill" ||
		doubtful != "gpu.max" {
		t.Errorf("of several: %s, %s, doubtful %s", code, key, doubtful)
	}
}

func TestUpdatesAreReadAsTheLibraryReadsThem(t *testing.T) {
	tokenstest.Reads(t, tokenstest.Whole((*Update).read), nil, tokenstest.Filled[Update](nil))
	tokenstest.Reads(t, tokenstest.Whole((*Update).read), nil, Update{})
}

func TestUpdatesThatWiden(t *testing.T) {
	for _, c := range []struct {
		name      string
		had, want []string
		widens    string
	}{
		{"no rules", []string{"deny a"}, nil, ""},
		{"what containerd sends along: the same again", []string{"deny a", "allow c 195:0 rw"}, []string{"deny a", "allow c 195:0 rw"}, ""},
		{"another GPU", []string{"deny a", "allow c 195:0 rw"}, []string{"deny a", "allow c 195:1 rw"}, "c 195:1 rw"},
		{"another GPU, added without a deny", []string{"deny a", "allow c 195:0 rw"}, []string{"allow c 195:1 rw"}, "c 195:1 rw"},
		{"all GPUs after one", []string{"deny a", "allow c 195:0 rw"}, []string{"deny a", "allow c 195:* rw"}, "c 195:* rw"},
		{"one GPU of all", []string{"deny a", "allow c 195:* rw"}, []string{"deny a", "allow c 195:1 rw"}, ""},
		{"another minor after the first of every major", []string{"deny a", "allow c *:0 rw"}, []string{"deny a", "allow c 195:1 rw"}, "c 195:1 rw"},
		{"the first minor after the first of every major", []string{"deny a", "allow c *:0 rw"}, []string{"deny a", "allow c 195:0 rw"}, ""},
		{"everything", []string{"deny a", "allow c 195:* rw"}, []string{"allow a"}, "a *:* rwm"},
		{"everything, as before", []string{"allow a"}, []string{"allow a"}, ""},
		{"UVM, whose major is of this boot", []string{"deny a"}, []string{"deny a", "allow c 508:0 rw"}, "c 508:0 rw"},
		{"UVM as before", []string{"deny a", "allow c 508:0 rw"}, []string{"deny a", "allow c 508:0 rw"}, ""},
		{"another driver's device, added without a deny", []string{"deny a"}, []string{"allow c 10:200 rw"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.rules(c.had...)
			rule, widens, err := Widens(parseRules(t, c.want...), s.spec, s.node)
			if rule != c.widens || widens != (c.widens != "") || err != nil {
				t.Errorf("got %q, %v, %v", rule, widens, err)
			}
		})
	}
	s := newScene(t)
	s.node.DRM = func() (map[int]bool, error) { return nil, errors.New("no sysfs") }
	if _, _, err := Widens(parseRules(t, "allow c 226:* rw"), s.spec, s.node); err == nil {
		t.Error("it does not fail where it cannot tell")
	}
}

func unifiedKeys(pairs ...string) func(*scene) {
	return func(s *scene) { s.spec.Linux.Resources.Unified = annotated(pairs...) }
}

func TestRawCgroupKeysOfTheDriversLimit(t *testing.T) {
	check(t, []row{
		{"others", unifiedKeys("memory.high", "1", "dmemory", "1", "misc.max", "x 1"), nil},
		{"the limit", unifiedKeys("dmem.max", "nvidia/0000:3b:00.0/vidmem max"),
			[]string{"limit-unenforceable | unified:dmem.max | nvidia/0000:3b:00.0/vidmem max | never"}},
		{"each of them, among others", unifiedKeys("dmem.min", "a", "memory.high", "1", "dmem.low", "b"),
			[]string{
				"limit-unenforceable | unified:dmem.low | b | never",
				"limit-unenforceable | unified:dmem.min | a | never"}},
		{"one that moves processes", unifiedKeys("cgroup.procs", "4711"),
			[]string{"gpu-device-rule | unified:cgroup.procs | 4711 | never"}},
		{"one of another cgroup", unifiedKeys("../x/cgroup.freeze", "1"),
			[]string{"gpu-device-rule | unified:../x/cgroup.freeze | 1 | never"}},
		{"the limit, where no cgroup holds anything", func(s *scene) {
			s.unruled()
			unifiedKeys("dmem.max", "x")(s)
		}, []string{"limit-unenforceable | unified:dmem.max | x | never"}},
		{"one that moves, where no cgroup holds anything", func(s *scene) {
			s.unruled()
			unifiedKeys("cgroup.procs", "4711")(s)
		}, nil},
	})
}

// TestEveryRawCgroupKey has each file that Linux puts into a cgroup
// (Documentation/admin-guide/cgroup-v2.rst of Linux 6.18), and what could be one.
func TestEveryRawCgroupKey(t *testing.T) {
	const resource, doubtful = "", "doubtful"
	for want, keys := range map[string]string{
		"gpu-device-rule": "cgroup.type cgroup.procs cgroup.threads cgroup.controllers " +
			"cgroup.subtree_control cgroup.events cgroup.stat cgroup.stat.local cgroup.freeze cgroup.kill " +
			"cgroup. cgroup cgroup.newer cgroup.max cgroup.procs. cgroup.procs/ /cgroup.procs " +
			"./cgroup.procs ../cgroup.procs ../../x/cgroup.procs cpu.max/../cgroup.procs " +
			"x/memory.high / . ..",
		"limit-unenforceable": "dmem.max dmem.min dmem.low dmem.current dmem.capacity dmem.newer dmem.",
		resource: "cgroup.max.descendants cgroup.max.depth cgroup.pressure irq.pressure " +
			"cpu.stat cpu.stat.local cpu.weight cpu.weight.nice cpu.max cpu.max.burst cpu.pressure " +
			"cpu.uclamp.min cpu.uclamp.max cpu.idle " +
			"memory.current memory.min memory.low memory.high memory.max memory.reclaim memory.peak " +
			"memory.oom.group memory.events memory.events.local memory.stat memory.numa_stat " +
			"memory.swap.current memory.swap.high memory.swap.peak memory.swap.max memory.swap.events " +
			"memory.zswap.current memory.zswap.max memory.zswap.writeback memory.pressure " +
			"io.stat io.cost.qos io.cost.model io.weight io.max io.latency io.prio.class io.bfq.weight " +
			"io.pressure " +
			"pids.max pids.current pids.peak pids.events pids.events.local pids.forks " +
			"cpuset.cpus cpuset.cpus.effective cpuset.mems cpuset.mems.effective cpuset.cpus.exclusive " +
			"cpuset.cpus.exclusive.effective cpuset.cpus.partition cpuset.cpus.isolated " +
			"rdma.max rdma.current misc.max misc.capacity misc.current misc.peak misc.events " +
			"misc.events.local " +
			"hugetlb.2MB.max hugetlb.2MB.current hugetlb.1GB.rsvd.max hugetlb.1GB.rsvd.current " +
			"hugetlb.2MB.events hugetlb.2MB.events.local hugetlb.2MB.numa_stat memory.newer",
		doubtful: "dmem dmemory devices.allow gpu.max cpu cpu. Cgroup.procs .cgroup.procs tasks " +
			"release_agent freezer.state notify_on_release k",
	} {
		for _, key := range strings.Fields(keys) {
			code, odd := unifiedCode(key)
			if got := string(code); odd != (want == doubtful) || !odd && got != want {
				t.Errorf("%s: %q, doubtful %v, want %q", key, got, odd, want)
			}
		}
	}
	if code, odd := unifiedCode(""); code != grant.GPUDeviceRule || odd {
		t.Errorf("no name: %s, %v", code, odd)
	}
}

// TestDoubtfulRawCgroupKeys ask for nothing, and are known to who decides about a grant.
func TestDoubtfulRawCgroupKeys(t *testing.T) {
	s := newScene(t)
	unifiedKeys("gpu.max", "1", "pids.max", "2")(s)
	r := s.find()
	if len(r.Hits) != 0 || len(r.Doubtful) != 1 ||
		line(r.Doubtful[0]) != "limit-unenforceable | unified:gpu.max | 1 | never" {
		t.Errorf("%+v", r)
	}
	if want := []string{"cgroup key gpu.max, of no controller that is known"}; !slices.Equal(r.Noted, want) {
		t.Errorf("noted %q, want %q", r.Noted, want)
	}
}
