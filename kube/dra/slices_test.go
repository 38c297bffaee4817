package dra

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

// several lets all GPUs be in each mode.
const several = "[[pool]]\ngpus = [\"0-63\"]\n" +
	"modes = [\"exclusive\", \"timeslice\", \"limit\", \"mps\", \"mig\"]\n"

// slicesOf returns the present slices of a node.
func slicesOf(t *testing.T, n *nodeledgertest.SimulatedNode) []resourceslice.Slice {
	t.Helper()
	p, err := n.Read()
	if err != nil {
		t.Fatal(err)
	}
	list, err := Slices(p, nothingKnown)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// published describes the devices of a node by GPU and mode: "0 limit memory=16Gi compute=100".
func published(t *testing.T, n *nodeledgertest.SimulatedNode) []string {
	t.Helper()
	var lines []string
	for _, s := range slicesOf(t, n) {
		for _, d := range s.Devices {
			memory := d.Capacity["memory"].Value
			line := fmt.Sprintf("%d %s memory=%s", *d.Attributes["index"].IntValue,
				*d.Attributes["mode"].StringValue,
				memory.String())
			if c, found := d.Capacity["compute"]; found {
				line += " compute=" + c.Value.String()
			}
			for _, taint := range d.Taints {
				line += " " + taint.Key + "=" + taint.Value
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// left releases a grant as at the end of its claim, while a container that the kubelet has lost
// uses it.
func left(n *nodeledgertest.SimulatedNode, g grant.Grant) (end func()) {
	n.T.Helper()
	end = n.Use(g.ID, grant.Identity{})
	if err := n.ReleaseWithCDI(g.ID); err != nil {
		n.T.Fatal(err)
	}
	return end
}

// configure adds to the node's configuration.
func configure(n *nodeledgertest.SimulatedNode, more string) {
	n.T.Helper()
	text, err := os.ReadFile(n.Config)
	if err == nil {
		err = os.WriteFile(n.Config, append(text, more...), 0o600)
	}
	if err != nil {
		n.T.Fatal(err)
	}
}

func TestPublishedDevices(t *testing.T) {
	unhealthy := func(all []simulated.GPUDescription) { all[0].Health = "fell off the bus (Xid 79)" }
	for name, c := range map[string]struct {
		config string
		make   func(n *nodeledgertest.SimulatedNode)
		want   []string
	}{
		"a free GPU can be in each mode of its pool": {several, func(*nodeledgertest.SimulatedNode) {},
			[]string{"0 exclusive memory=16Gi", "0 timeslice memory=16Gi compute=100",
				"0 limit memory=16Gi compute=100"}},
		"what others hold is taken off, in their mode": {several, func(n *nodeledgertest.SimulatedNode) {
			n.Grant(admission.Ask{Memory: 5 * grant.GiB, Compute: 40, Mode: grant.Timeslice})
		}, []string{"0 timeslice memory=11Gi compute=60"}},
		"a GPU that is granted whole is not published": {"", func(n *nodeledgertest.SimulatedNode) {
			n.Grant(admission.Ask{Mode: grant.Exclusive})
		}, nil},
		"what the driver has granted the scheduler counts": {several, func(n *nodeledgertest.SimulatedNode) {
			n.Grant(admission.Ask{Memory: 5 * grant.GiB, Mode: grant.Limit, Source: Source,
				Owner: "claim:u"})
		}, []string{"0 exclusive memory=16Gi", "0 timeslice memory=16Gi compute=100",
			"0 limit memory=16Gi compute=100"}},
		"but not where the claim is over, and a container of it is left": {"",
			func(n *nodeledgertest.SimulatedNode) {
				left(n, n.Grant(admission.Ask{Memory: 5 * grant.GiB, Compute: 40,
					Mode: grant.Limit, Source: Source,
					Owner: "claim:over"}))
				n.Grant(admission.Ask{Memory: 3 * grant.GiB, Mode: grant.Limit, Source: Source,
					Owner: "claim:u"})
			}, []string{"0 limit memory=11Gi compute=60"}},
		"nor where that has the whole": {"", func(n *nodeledgertest.SimulatedNode) {
			left(n, n.Grant(admission.Ask{Mode: grant.Exclusive, Source: Source, Owner: "claim:over"}))
		}, nil},
		"nor where the pool has other modes now": {"", func(n *nodeledgertest.SimulatedNode) {
			n.Grant(admission.Ask{Memory: 5 * grant.GiB, Mode: grant.Limit, Source: Source,
				Owner: "claim:u"})
			configure(n, "[[pool]]\ngpus = [\"0\"]\nmodes = [\"exclusive\"]\n")
		}, nil},
		"nor if the GPU is partitioned": {"", func(n *nodeledgertest.SimulatedNode) {
			n.Grant(admission.Ask{Mode: grant.Exclusive, Source: Source,
				Owner: "claim:u"})
			n.SetGPUs(1, 80*grant.GiB, func(all []simulated.GPUDescription) {
				all[0].MIG = []string{"3g.40gb", "1g.10gb"}
			})
		}, nil},
		"what is used outside the ledger is subtracted, and the whole GPU is not offered": {
			several, func(n *nodeledgertest.SimulatedNode) {
				if err := n.Open().Ledger.SetFound(ledger.Found{
					Outside: map[string]grant.Bytes{n.UUID(0): 3 * grant.GiB}}); err != nil {
					n.T.Fatal(err)
				}
			}, []string{"0 exclusive memory=13Gi gpuledger.dev/outside=3GiB",
				"0 timeslice memory=13Gi compute=100",
				"0 limit memory=13Gi compute=100"}},
		"nor is one that a container has open without a grant": {
			several, func(n *nodeledgertest.SimulatedNode) { n.Hold(n.UUID(0)) },
			[]string{"0 exclusive memory=16Gi gpuledger.dev/outside=open",
				"0 timeslice memory=16Gi compute=100", "0 limit memory=16Gi compute=100"}},
		"a reserve is taken off": {several + "[policy]\nreserve = \"1GiB\"\n",
			func(*nodeledgertest.SimulatedNode) {},
			[]string{"0 exclusive memory=15Gi", "0 timeslice memory=15Gi compute=100",
				"0 limit memory=15Gi compute=100"}},
		"nor if launches must be throttled and cannot be": {
			several + "[enforcement]\ncompute = \"throttle\"\nshim = \"/nowhere\"\n",
			func(*nodeledgertest.SimulatedNode) {},
			[]string{"0 exclusive memory=16Gi", "0 timeslice memory=16Gi compute=100",
				"0 limit memory=16Gi"}},
		"no share of compute in a mode that keeps none, where the policy wants that": {
			several + "[enforcement]\ncompute = \"refuse\"\n",
			func(*nodeledgertest.SimulatedNode) {},
			[]string{"0 exclusive memory=16Gi", "0 timeslice memory=16Gi compute=100",
				"0 limit memory=16Gi"}},
		"nor if it requires more strength than none, and no share whose containers would never start": {
			several + "[policy]\nminimum_strength = \"library\"\n",
			func(*nodeledgertest.SimulatedNode) {},
			[]string{"0 exclusive memory=16Gi", "0 timeslice memory=16Gi compute=100 gpuledger.dev/weak=none",
				"0 limit memory=16Gi gpuledger.dev/weak=none"}},
		"a claim's containers share a limit, so the driver's own does not apply": {
			several + "[enforcement]\nlimit = \"driver\"\n",
			func(*nodeledgertest.SimulatedNode) {},
			[]string{"0 exclusive memory=16Gi", "0 timeslice memory=16Gi compute=100",
				"0 limit memory=16Gi compute=100 gpuledger.dev/weak=none"}},
		"MIG devices, and nothing of their GPUDescription": {"", func(n *nodeledgertest.SimulatedNode) {
			n.SetGPUs(1, 80*grant.GiB, func(all []simulated.GPUDescription) {
				all[0].MIG = []string{"3g.40gb", "1g.10gb"}
			})
			n.Grant(admission.Ask{Mode: grant.MIG, Profile: "1g.10gb"}) // by hand
		}, []string{"0 mig memory=40Gi"}},
		"a MIG device used outside the ledger is tainted": {"", func(n *nodeledgertest.SimulatedNode) {
			n.SetGPUs(1, 80*grant.GiB, func(all []simulated.GPUDescription) {
				all[0].MIG = []string{"3g.40gb", "1g.10gb"}
			})
			inv, problem := n.Open().Inventory()
			if problem != nil {
				n.T.Fatal(problem)
			}
			if err := n.Open().Ledger.SetFound(ledger.Found{Outside: map[string]grant.Bytes{
				inv.GPUs[0].UUID:        4 * grant.GiB,
				inv.GPUs[0].MIG[0].UUID: 4 * grant.GiB}}); err != nil {
				n.T.Fatal(err)
			}
		}, []string{"0 mig memory=40Gi gpuledger.dev/outside=4GiB", "0 mig memory=10Gi"}},
		"and so is one that a container has open": {"", func(n *nodeledgertest.SimulatedNode) {
			n.SetGPUs(1, 80*grant.GiB, func(all []simulated.GPUDescription) {
				all[0].MIG = []string{"3g.40gb", "1g.10gb"}
			})
			inv, problem := n.Open().Inventory()
			if problem != nil {
				n.T.Fatal(problem)
			}
			n.Hold(inv.GPUs[0].MIG[0].UUID)
		}, []string{"0 mig memory=40Gi gpuledger.dev/outside=open", "0 mig memory=10Gi"}},
		"a pool's modes": {"[[pool]]\ngpus = [\"0\"]\nmodes = [\"limit\"]\n",
			func(*nodeledgertest.SimulatedNode) {},
			[]string{"0 limit memory=16Gi compute=100"}},
		"an unhealthy GPU is tainted": {"[[pool]]\ngpus = [\"0\"]\nmodes = [\"limit\"]\n",
			func(n *nodeledgertest.SimulatedNode) { n.SetGPUs(1, 16*grant.GiB, unhealthy) },
			[]string{"0 limit memory=16Gi compute=100 " +
				"gpuledger.dev/closed=is-unhealthy-fell-off-the-bus-Xid-79"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeledgertest.New(t, 1, 16*grant.GiB, c.config)
			c.make(n)
			got := slices.DeleteFunc(published(t, n),
				func(line string) bool { return strings.Contains(line, " mps ") })
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// The capacity of a device is what is left of its GPU. A pod can also ask for a GPU that is large,
// however much of it is left.
func TestADeviceHasTheMemoryOfItsGPUInAll(t *testing.T) {
	n := nodeledgertest.New(t, 2, 80*grant.GiB, several+"[policy]\nreserve = \"1GiB\"\n")
	n.SetGPUs(2, 80*grant.GiB, func(all []simulated.GPUDescription) { all[1].MIG = []string{"1g.10gb"} })
	n.Grant(admission.Ask{Memory: 5 * grant.GiB, Mode: grant.Limit, Names: []string{"0"}})
	if err := n.Open().Ledger.SetFound(ledger.Found{
		Outside: map[string]grant.Bytes{n.UUID(0): 3 * grant.GiB}}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range slicesOf(t, n) {
		for _, d := range s.Devices {
			total, left := d.Attributes["memoryTotal"].IntValue, d.Capacity["memory"].Value
			if total == nil {
				t.Fatalf("%s: %+v", d.Name, d.Attributes)
			}
			got = append(got, fmt.Sprintf("%s has %s, %s are left", *d.Attributes["mode"].StringValue,
				grant.Bytes(*total), left.String()))
		}
	}
	want := []string{"limit has 80GiB, 71Gi are left", "mig has 10GiB, 10Gi are left"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// For a claim over two GPUs the scheduler still counts the GPU whose device is published.
func TestModesOfPoolsOnOneOfAClaimsGPUs(t *testing.T) {
	n := nodeledgertest.New(t, 2, 16*grant.GiB, "")
	n.Grant(admission.Ask{Memory: 10 * grant.GiB, GPUs: 2, Mode: grant.Limit,
		Source: Source,
		Owner:  "claim:u"})
	configure(n, "[[pool]]\ngpus = [\"0\"]\nmodes = [\"exclusive\"]\n"+
		"[[pool]]\ngpus = [\"1\"]\nmodes = [\"exclusive\", \"limit\", \"timeslice\"]\n")
	want := []string{"1 exclusive memory=16Gi", "1 timeslice memory=16Gi compute=100",
		"1 limit memory=16Gi compute=100"}
	if got := published(t, n); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A container of mode mps starts only if gpuledgerd has started NVIDIA's daemon.
func TestModeMPSNeedsGPUledgerd(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, several)
	taints := func() (found []string) {
		for _, line := range published(t, n) {
			if _, taints, tainted := strings.Cut(line, " "+taintUnserved+"="); tainted {
				found = append(found, line[2:5]+" "+taints)
			}
		}
		return found
	}
	if got, want := taints(), []string{"mps no-nvidia-cuda-mps-control"}; !slices.Equal(got, want) {
		t.Errorf("without NVIDIA's program: %q, want %q", got, want)
	}
	n.HasMPS()
	if got, want := taints(), []string{"mps no-gpuledgerd"}; !slices.Equal(got, want) {
		t.Errorf("without gpuledgerd: %q, want %q", got, want)
	}
	n.Daemon()
	if got := taints(); len(got) > 0 {
		t.Errorf("with both: %q, want none", got)
	}
	inv, _ := n.Open().Inventory()
	inv.Driver.Version = "470.256.02"
	n.SetInventory(inv)
	if got, want := taints(), []string{"mps driver-older-than-495"}; !slices.Equal(got, want) {
		t.Errorf("with an old driver: %q, want %q", got, want)
	}
}

// A GPU has one MPS daemon at a time, and the daemon's GPUs are fixed from its start. Until it
// ends, a pod that the scheduler placed there would hang.
func TestAGPUOfAnotherGPUsMPSDaemonIsTainted(t *testing.T) {
	s := newSite(t, 3)
	configure(s.SimulatedNode, several)
	s.HasMPS()
	served := func() (gpus []int64) {
		for _, slice := range slicesOf(t, s.SimulatedNode) {
			for _, d := range slice.Devices {
				i := slices.IndexFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
					return t.Key == taintServed
				})
				if i < 0 {
					continue
				}
				if gpus = append(gpus, *d.Attributes["index"].IntValue); *d.Attributes["mode"].StringValue !=
					"mps" ||
					d.Taints[i].Value != "daemon-over-2-GPUs" ||
					d.Taints[i].Effect != resourceapi.DeviceTaintEffectNoSchedule {
					t.Errorf("device %s has the taint %v", d.Name, d.Taints[i])
				}
			}
		}
		return gpus
	}
	s.has(t, claim("u-1", s.result("gpu", 0, grant.MPS, "4Gi", "0"),
		s.result("gpu", 1, grant.MPS, "4Gi", "0")))
	s.has(t, claim("u-2", s.result("gpu", 2, grant.MPS, "4Gi", "0")))
	if got := served(); !slices.Equal(got, []int64{0, 1}) {
		t.Errorf("GPUs %v are tainted, want 0 and 1, which share a daemon", got)
	}
	for gpu, refused := range map[int]bool{0: true, 1: true, 2: false} {
		if r := s.prepares(t, claim(fmt.Sprint("u-on-", gpu),
			s.result("gpu", gpu, grant.MPS, "4Gi", "0"))); (r.Err != nil) != refused {
			t.Errorf("a share of GPU %d: %v, want it refused: %v", gpu, r.Err, refused)
		}
	}
	s.unprepares(t, "u-1")
	if got := served(); len(got) > 0 {
		t.Errorf("GPUs %v are tainted after the claim over two, want none", got)
	}
}

// The API refuses a slice that breaks one of these rules, and only the driver's log shows it.
func TestSlicesKeepTheRulesOfTheAPI(t *testing.T) {
	for _, gpus := range []int{1, 8, 16, 64} {
		n := nodeledgertest.New(t, gpus, 80*grant.GiB+17*grant.MiB+5*grant.KiB, several)
		p, err := n.Read()
		if err != nil {
			t.Fatal(err)
		}
		list, err := Slices(p, nothingKnown)
		if err != nil {
			t.Fatal(err)
		}
		counters, names := map[string]bool{}, map[string]bool{}
		for _, s := range list {
			for _, c := range s.SharedCounters {
				counters[c.Name] = true
			}
			if len(s.Devices) > 64 || len(s.SharedCounters) > 8 || len(s.Devices) > 0 &&
				len(s.SharedCounters) > 0 {
				t.Errorf("%d GPUs: a slice has %d devices and %d counters", gpus, len(s.Devices),
					len(s.SharedCounters))
			}
		}
		if len(counters) != gpus {
			t.Errorf("%d GPUs have %d counters", gpus, len(counters))
		}
		for _, s := range list {
			for _, d := range s.Devices {
				if problems := validation.IsDNS1123Label(d.Name); len(problems) > 0 || names[d.Name] {
					t.Errorf("name %q: %v", d.Name, problems)
				}
				names[d.Name] = true
				if len(d.ConsumesCounters) != 1 || !counters[d.ConsumesCounters[0].CounterSet] {
					t.Errorf("%s consumes %v", d.Name, d.ConsumesCounters)
				}
				checkPolicies(t, d)
			}
		}
	}
}

// The schedulers of Kubernetes 1.36 go through the counters of the whole cluster for each node. So
// a counter that separates no modes is not published.
func TestAGPUOfOneModeHasNoCounter(t *testing.T) {
	n := nodeledgertest.New(t, 3, 80*grant.GiB,
		"[[pool]]\ngpus = [\"0\"]\nmodes = [\"limit\"]\n"+
			"[[pool]]\ngpus = [\"1\"]\nmodes = [\"exclusive\"]\n[[pool]]\ngpus = [\"2-3\"]\n"+
			"modes = [\"exclusive\", \"limit\", \"timeslice\", \"mig\"]\n")
	n.SetGPUs(4, 80*grant.GiB, func(all []simulated.GPUDescription) {
		all[2].MIG = []string{"3g.40gb",
			"1g.10gb"}
	})
	counted := func() (counters []string, consumers map[int64]int) {
		consumers = map[int64]int{}
		for _, s := range slicesOf(t, n) {
			for _, c := range s.SharedCounters {
				counters = append(counters, c.Name)
			}
			for _, d := range s.Devices {
				consumers[*d.Attributes["index"].IntValue] += len(d.ConsumesCounters)
			}
		}
		return counters, consumers
	}
	counters, consumers := counted()
	if len(counters) != 1 || counters[0] != strings.ToLower(n.UUID(3)) || consumers[3] < 3 ||
		consumers[0]+consumers[1]+consumers[2] > 0 || len(consumers) != 4 {
		t.Errorf(
			"the counters are %v, and are taken by so many devices of each GPU: %v; want those of GPU 3, "+
				"which can be in several modes",
			counters, consumers)
	}
	n.Grant(admission.Ask{Mode: grant.Timeslice, Names: []string{n.UUID(3)}, Memory: grant.GiB})
	if counters, consumers := counted(); len(counters) != 1 || consumers[3] != 1 {
		t.Errorf(
			"with a grant in one mode, the counters are %v, and are taken by so many devices of each GPU: "+
				"%v; want that of GPU 3 as before",
			counters, consumers)
	}
}

// minimumStrength in a class or a claim is compared with what is published.
func TestTheStrengthOfEachMode(t *testing.T) {
	n := nodeledgertest.New(t, 2, 80*grant.GiB, several)
	n.SetGPUs(2, 80*grant.GiB, func(all []simulated.GPUDescription) { all[1].MIG = []string{"1g.10gb"} })
	p, err := n.Read()
	if err != nil {
		t.Fatal(err)
	}
	list, err := Slices(p, nothingKnown)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range list[0].Devices {
		got[*d.Attributes["mode"].StringValue] = *d.Attributes["strength"].StringValue
	}
	if want := map[string]string{"exclusive": "none", "timeslice": "none", "limit": "none", "mps": "server",
		"mig": "hardware"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// checkPolicies checks that min <= default <= max <= value, and that max and default are whole
// steps.
func checkPolicies(t *testing.T, d resourceapi.Device) {
	t.Helper()
	for name, c := range d.Capacity {
		if c.RequestPolicy == nil {
			continue
		}
		r := c.RequestPolicy.ValidRange
		least, standard, most, step, value := r.Min.Value(), c.RequestPolicy.Default.Value(), r.Max.Value(),
			r.Step.Value(), c.Value.Value()
		if least > standard || standard > most || most > value || least+step > value || most%step != 0 ||
			standard%step != 0 || d.AllowMultipleAllocations == nil {
			t.Errorf("%s: %s has min %d, default %d, max %d, step %d, value %d", d.Name, name,
				least, standard, most,
				step, value)
		}
	}
}

func TestTaintsAreLabels(t *testing.T) {
	for _, text := range []string{"is unhealthy: " + strings.Repeat("no answer, ", 20), "--", "",
		"fell off the bus (Xid 79)", "ä", "3GiB"} {
		if problems := validation.IsValidLabelValue(label(text)); len(problems) > 0 {
			t.Errorf("%q becomes %q: %v", text, label(text), problems)
		}
	}
}

// nothingKnown is what a driver knows of claims before the API has answered it.
func nothingKnown(types.UID) (map[string]grant.Bytes, bool) { return nil, false }
