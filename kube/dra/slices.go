package dra

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/book"
)

// The API takes no more of them in one slice (k8s.io/api/resource/v1, types.go).
const (
	maxDevices  = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
	maxCounters = resourceapi.ResourceSliceMaxCounterSets
)

// Slices describe the node's GPUs and MIG devices to the scheduler. A GPU is one counter and a device for each mode that it could be in; each
// takes the whole counter, so a GPU is in one mode at a time. One that could be in a single mode needs no counter, and has none: for each node
// that the schedulers of Kubernetes 1.36 try, they go through the counters of all nodes (kubernetes/kubernetes#138917), and a cluster without any is
// scheduled many times as fast. That goes by the configuration and not by who has the GPU now: a counter that comes and goes with grants would be
// news for the whole cluster each time, and would not count the claims that stay. Several claims can have a device of a shared mode, and the scheduler adds up what they consume: what the driver
// itself has granted is therefore not taken off, but for what it does not count; see seatsOf.
func Slices(p book.Page) ([]resourceslice.Slice, error) {
	seats, err := seatsOf(p)
	if err != nil {
		return nil, err
	}
	empty, err := admission.Seats(grant.View{}, p.Inventory, p.Node.Policy)
	if err != nil {
		return nil, err
	}
	unserved := mpsMissing(p)
	var (
		counters []resourceapi.CounterSet
		devices  []resourceapi.Device
	)
	for i, s := range seats {
		of := devicesOf(p, s, unserved)
		if len(empty[i].Modes) > 1 && s.MIG == nil && !partitioned(s) { // also while nothing of it is offered
			counters = append(counters, counterOf(s.GPU))
			for i := range of {
				of[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: counterName(s.GPU), Counters: map[string]resourceapi.Counter{whole: {Value: *number(1)}}}}
			}
		}
		devices = append(devices, of...)
	}
	var list []resourceslice.Slice
	for part := range slices.Chunk(devices, maxDevices) {
		list = append(list, resourceslice.Slice{Devices: part})
	}
	for part := range slices.Chunk(counters, maxCounters) {
		list = append(list, resourceslice.Slice{SharedCounters: part})
	}
	if list == nil {
		list = []resourceslice.Slice{{}} // "there is nothing" is not "nobody knows"
	}
	return list, nil
}

// seatsOf are the GPUs with what is left by what the scheduler does not count itself. It counts what claims have of the devices that are published.
// So it knows nothing of a grant whose claim is over while a container of it is left, nor of one whose device is published no more since the
// configuration has other modes for its GPU: these are taken off as others' are. A grant that was released by hand while its claim goes on counts
// twice, until its last container ends: too little is offered then, and not too much.
func seatsOf(p book.Page) ([]admission.Seat, error) {
	seats, err := p.Seats(Source)
	if err != nil {
		return nil, err
	}
	p.Grants = slices.Clone(p.Grants)
	for i := range p.Grants {
		if g := &p.Grants[i]; g.Source == Source && !g.Draining {
			g.GPUs = slices.DeleteFunc(slices.Clone(g.GPUs), func(s grant.Share) bool { return offered(s.UUID, g.Mode, seats) })
		}
	}
	return p.Seats("")
}

// offered reports whether a device of this mode is published, or would be if anything were left of it.
func offered(uuid string, mode grant.Mode, seats []admission.Seat) bool {
	i := slices.IndexFunc(seats, func(s admission.Seat) bool { return s.UUID() == uuid })
	return i >= 0 && !partitioned(seats[i]) && slices.Contains(seats[i].Modes, mode)
}

// partitioned reports whether a GPU is published as its MIG devices alone.
func partitioned(s admission.Seat) bool { return s.MIG == nil && len(s.GPU.MIG) > 0 }

// whole is the one counter of a GPU: whoever takes it has decided the GPU's mode.
const whole = "gpu"

func counterOf(gpu grant.GPU) resourceapi.CounterSet {
	return resourceapi.CounterSet{Name: counterName(gpu), Counters: map[string]resourceapi.Counter{whole: {Value: *number(1)}}}
}

func counterName(gpu grant.GPU) string { return strings.ToLower(gpu.UUID) }

// deviceName tells GPU and mode. It is made of the UUID, because an index can be another GPU's after a boot.
func deviceName(uuid string, mode grant.Mode) string {
	return strings.ToLower(uuid) + "-" + string(mode)
}

// devicesOf are a GPU's devices, one a mode. A mode in which nothing could be granted has none. A MIG device is one of its own:
// the hardware keeps it apart from the others of its GPU. unserved is what mode mps lacks on this node.
func devicesOf(p book.Page, s admission.Seat, unserved string) []resourceapi.Device {
	var devices []resourceapi.Device
	if partitioned(s) {
		return nil
	}
	for _, mode := range s.Modes {
		offer := p.Offer(anyClaim, mode, s)
		d := resourceapi.Device{Name: deviceName(s.UUID(), mode), Attributes: attributes(p, s, mode, offer.Strength), Taints: taints(p, s, mode, offer, unserved)}
		switch {
		case mode == grant.Exclusive, mode == grant.MIG && s.MIG != nil:
			d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{memory: {Value: *quantity(s.Space)}}
		case slices.Contains(shared, mode) && s.Free >= 2*grant.MiB: // a range needs room for one step
			several := true
			d.AllowMultipleAllocations, d.Capacity = &several, consumable(s, sharesCompute(p, mode))
		default:
			continue
		}
		devices = append(devices, d)
	}
	return devices
}

// anyClaim is an owner as all of them are: what a claim's containers get depends on that, for they share one limit.
const anyClaim grant.Owner = "claim:any"

// sharesCompute reports whether a claim can have a share of compute of a GPU in a mode.
func sharesCompute(p book.Page, mode grant.Mode) bool {
	g := grant.Grant{Mode: mode, Owner: anyClaim, GPUs: make([]grant.Share, 1)}
	return admission.ComputeUnkept(g, p.Inventory, p.Node.Policy) == ""
}

// consumable are the capacities of a shared GPU. A claim that names no memory gets all that there is, so that it never runs
// with less than it needs by an oversight; one that names no compute gets no share of its own, and no limit. Where no share of compute can be
// granted in the device's mode the scheduler is told of none.
func consumable(s admission.Seat, shares bool) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	free := s.Free - s.Free%grant.MiB
	capacities := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{memory: {Value: *quantity(free),
		RequestPolicy: policy(quantity(free), quantity(grant.MiB), quantity(free), quantity(grant.MiB))}}
	if s.Compute > 0 && shares {
		percent := int64(s.Compute)
		capacities[compute] = resourceapi.DeviceCapacity{Value: *number(percent), RequestPolicy: policy(number(0), number(0), number(percent), number(1))}
	}
	return capacities
}

func policy(standard, least, most, step *resource.Quantity) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{Default: standard, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: least, Max: most, Step: step}}
}

func quantity(b grant.Bytes) *resource.Quantity {
	return resource.NewQuantity(int64(b), resource.BinarySI)
}
func number(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

func attributes(p book.Page, s admission.Seat, mode grant.Mode, strength grant.Strength) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"uuid": text(s.UUID()), "index": integer(s.GPU.Index), "product": text(s.GPU.Name), "driver": text(p.Inventory.Driver.Version),
		"mode": text(string(mode)), "strength": text(string(strength)), "health": text(s.GPU.Health), "numa": integer(s.GPU.NUMA),
		deviceattribute.StandardDeviceAttributePCIBusID: text(s.GPU.PCI),
	}
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(s.GPU.PCI); err == nil { // a simulated GPU has none
		all[root.Name] = root.Value
	}
	if s.MIG != nil {
		all["profile"], all["parent"] = text(s.MIG.Profile), text(s.GPU.UUID)
	}
	for name, a := range all {
		if a.StringValue != nil && *a.StringValue == "" {
			delete(all, name)
		}
	}
	return all
}

func text(s string) resourceapi.DeviceAttribute {
	if len(s) > resourceapi.DeviceAttributeMaxValueLength {
		s = s[:resourceapi.DeviceAttributeMaxValueLength]
	}
	return resourceapi.DeviceAttribute{StringValue: &s}
}

func integer(n int) resourceapi.DeviceAttribute {
	value := int64(n)
	return resourceapi.DeviceAttribute{IntValue: &value}
}

// The taints of a device. A pod that runs is never ended for one: its grant stands.
const (
	taintClosed   = "gpuledger.dev/closed"   // it takes no grants: unhealthy, or its entry in the ledger is damaged
	taintOutside  = "gpuledger.dev/outside"  // used outside the ledger, so nobody can have the whole of it
	taintServed   = "gpuledger.dev/served"   // its MPS daemon is over other GPUs, too, and takes no grant that is over this one alone
	taintUnserved = "gpuledger.dev/unserved" // nobody starts MPS daemons on this node
	taintWeak     = "gpuledger.dev/weak"     // what would hold containers to a share is not what the node's policy wants: none of them would start
)

func taints(p book.Page, s admission.Seat, mode grant.Mode, offer grant.Verdict, unserved string) []resourceapi.DeviceTaint {
	var list []resourceapi.DeviceTaint
	add := func(key, value string) {
		list = append(list, resourceapi.DeviceTaint{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if s.Closed != "" {
		add(taintClosed, label(s.Closed))
	}
	if s.Outside > 0 && mode == grant.Exclusive {
		add(taintOutside, label(s.Outside.String()))
	}
	if unserved != "" && mode == grant.MPS {
		add(taintUnserved, label(unserved))
	}
	if n := servedWith(p, s); n > 1 && mode == grant.MPS {
		add(taintServed, label(fmt.Sprintf("daemon over %d GPUs", n)))
	}
	if offer.Kind == grant.Refused && offer.Code == grant.LimitUnenforceable {
		add(taintWeak, label(string(offer.Strength)))
	}
	return list
}

// mpsMissing is what a node lacks to start MPS daemons, without which no container of mode mps starts; "" where nothing is known to be missing.
func mpsMissing(p book.Page) string {
	switch {
	case !p.Inventory.Driver.HasMPS():
		return "no " + grant.MPSControl
	case p.Node.Daemon() == 0:
		return "no gpuledgerd"
	}
	return ""
}

// servedWith is how many GPUs the MPS daemon is over that serves a GPU. Where that is the driver's own claims' the GPU's device has to stay, for they have it.
func servedWith(p book.Page, s admission.Seat) int {
	i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool { return g.Mode == grant.MPS && g.Has(s.UUID()) })
	if i < 0 {
		return 0
	}
	return len(p.Grants[i].GPUs)
}

// label is a text as a label's value may be: at most 63 letters, digits, '-', '_' and '.', of which the outer are letters
// or digits.
func label(text string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.':
			return r
		}
		return '-'
	}, text)
	for strings.Contains(clean, "--") {
		clean = strings.ReplaceAll(clean, "--", "-")
	}
	return strings.Trim(clean[:min(len(clean), 63)], "-.")
}

// find is the seat and the mode of a device.
func find(name string, seats []admission.Seat) (admission.Seat, grant.Mode, error) {
	for _, s := range seats {
		for _, mode := range grant.Modes {
			if deviceName(s.UUID(), mode) == name {
				return s, mode, nil
			}
		}
	}
	return admission.Seat{}, "", fmt.Errorf("this node has no device %q: its GPU is gone or was never here", name)
}
