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
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// The API allows no more of these in one slice (k8s.io/api/resource/v1, types.go).
const (
	maxDevices  = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
	maxCounters = resourceapi.ResourceSliceMaxCounterSets
)

// Slices returns the node's GPUs and MIG devices for the scheduler.
//
// A GPU that can be had whole and in one shared mode is one device. A claim for the whole GPU
// consumes all of its memory, so the scheduler places no other claim on it. A GPU of several shared
// modes is one counter and one device for each mode. Each device takes the whole counter, so a GPU
// is in one mode at a time.
//
// For each node that they try, the schedulers of Kubernetes 1.36 go through the counters of all
// nodes (kubernetes/kubernetes#138917). A cluster without counters is scheduled many times as fast.
// The configuration decides whether there is a counter, not the present grants. A counter that
// changed with grants would be published to the whole cluster each time. It would also not count
// the existing claims.
//
// Several claims can have a device of a shared mode, and the scheduler adds up what they consume.
// So the driver's own grants are not subtracted, except those that the scheduler does not count;
// see seatsOf.
func Slices(p nodeledger.Content, claims Allocations) ([]resourceslice.Slice, error) {
	plans, err := plansOf(p)
	if err != nil {
		return nil, err
	}
	seats, err := seatsOf(p, plans, claims)
	if err != nil {
		return nil, err
	}
	unserved := p.MPSMissing()
	var (
		counters []resourceapi.CounterSet
		devices  []resourceapi.Device
	)
	for i, s := range seats {
		of := devicesOf(p, plans[i], s, unserved)
		// even while none of its devices is offered
		if plans[i].counter {
			counters = append(counters, counterOf(s.GPU))
			for i := range of {
				of[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{
					{CounterSet: counterName(s.GPU),
						Counters: map[string]resourceapi.Counter{whole: {Value: *number(1)}}}}
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
		// An empty slice says that the node has nothing. No slice would mean that nothing is known.
		list = []resourceslice.Slice{{}}
	}
	return list, nil
}

// seatsOf returns the GPUs and what is free on each, without what the scheduler counts itself. The
// scheduler counts what claims have of published devices. It does not count a grant whose claim has
// ended while a container remains. Nor does it count a grant whose device is no longer published,
// because the configuration now has other modes for its GPU. These grants are subtracted like those
// of other users. A grant that was released by hand while its claim still exists counts twice until
// its last container ends. Then too little is offered, never too much.
func seatsOf(p nodeledger.Content, plans []devicePlan, claims Allocations) ([]admission.Seat, error) {
	seats, err := p.Seats(Source)
	if err != nil {
		return nil, err
	}
	p.Grants = slices.Clone(p.Grants)
	for i := range p.Grants {
		if g := &p.Grants[i]; g.Source == Source && !g.Draining {
			g.GPUs = slices.DeleteFunc(slices.Clone(g.GPUs), func(share grant.Share) bool {
				at := slices.IndexFunc(seats,
					func(s admission.Seat) bool { return s.UUID() == share.UUID })
				return at >= 0 && counted(*g, plans[at], seats[at], claims)
			})
		}
	}
	return p.Seats("")
}

// whole is the one counter of a GPU. The device that takes it sets the GPU's mode.
const whole = "gpu"

func counterOf(gpu grant.GPU) resourceapi.CounterSet {
	return resourceapi.CounterSet{Name: counterName(gpu),
		Counters: map[string]resourceapi.Counter{whole: {Value: *number(1)}}}
}

func counterName(gpu grant.GPU) string { return strings.ToLower(gpu.UUID) }

// deviceName returns the name of a device, from the GPU's UUID and the mode. An index could belong
// to another GPU after a boot.
func deviceName(uuid string, mode grant.Mode) string {
	return strings.ToLower(uuid) + "-" + string(mode)
}

// devicesOf returns a GPU's devices: one for all its claims, or one for each mode. A mode without
// room for a grant has none. A MIG device is a device of its own, because the hardware separates it
// from the others of its GPU. unserved says what mode mps lacks on this node.
func devicesOf(p nodeledger.Content, to devicePlan, s admission.Seat, unserved string) []resourceapi.Device {
	var devices []resourceapi.Device
	modes := to.offered(s)
	for _, mode := range modes {
		switch {
		case mode == to.joint && s.Free >= 2*grant.MiB: // a range needs room for one step
			devices = append(devices,
				jointDevice(p, s, mode, slices.Contains(modes, grant.Exclusive), unserved))
		case to.joint != "":
		case mode == grant.Exclusive, mode == grant.MIG && s.MIG != nil:
			d := deviceOf(p, s, mode, unserved)
			d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				memory: {Value: *quantity(s.Space)}}
			devices = append(devices, d)
		case slices.Contains(shared, mode) && s.Free >= 2*grant.MiB:
			devices = append(devices, sharedDevice(p, s, mode, unserved))
		}
	}
	return devices
}

// deviceOf returns a GPU's device for a mode, without capacity.
func deviceOf(p nodeledger.Content, s admission.Seat, mode grant.Mode, unserved string) resourceapi.Device {
	offer := p.Offer(anyClaim, mode, s)
	return resourceapi.Device{Name: deviceName(s.UUID(), mode),
		Attributes: attributes(p, s, mode, offer.Strength), Taints: taints(p, s, mode, offer, unserved)}
}

// sharedDevice returns a GPU's device for shares in a mode.
func sharedDevice(p nodeledger.Content, s admission.Seat, mode grant.Mode,
	unserved string) resourceapi.Device {
	d, several := deviceOf(p, s, mode, unserved), true
	d.AllowMultipleAllocations, d.Capacity = &several, consumable(s, sharesCompute(p, mode))
	return d
}

// jointDevice returns the device of a GPU for shares and for the whole GPU. exclusive says that
// nothing of it is granted outside the scheduler's count, so that it can be granted whole. A taint
// that concerns only shares must not keep claims for the whole GPU away. Instead the device then
// has the mode exclusive, and the attribute unshared has the reason.
func jointDevice(p nodeledger.Content, s admission.Seat, mode grant.Mode, exclusive bool,
	unserved string) resourceapi.Device {
	d := sharedDevice(p, s, mode, unserved)
	d.Attributes[wholeAttribute] = boolean(exclusive && !s.Used())
	i := slices.IndexFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Key == taintUnserved || t.Key == taintWeak
	})
	if exclusive && i >= 0 {
		_, reason, _ := strings.Cut(d.Taints[i].Key, "/")
		reason += ": " + d.Taints[i].Value
		alone := deviceOf(p, s, grant.Exclusive, unserved)
		d.Attributes, d.Taints = alone.Attributes, alone.Taints
		d.Attributes["unshared"] = text(reason)
	}
	return d
}

// anyClaim stands for the owner of any claim's grant. The verdict depends on the kind of owner,
// because the containers of a claim share one limit.
const anyClaim grant.Owner = "claim:any"

// sharesCompute reports whether a claim can have a share of a GPU's compute in a mode.
func sharesCompute(p nodeledger.Content, mode grant.Mode) bool {
	g := grant.Grant{Mode: mode, Owner: anyClaim, GPUs: make([]grant.Share, 1)}
	return admission.WhyNoComputeShare(g, p.Inventory, p.Node.Policy) == ""
}

// consumable returns the capacities of a shared GPU. A claim that names no memory gets all of it,
// so that it does not get too little by mistake. A claim that names no compute gets no share of
// compute and no limit. If the device's mode allows no share of compute, the capacity is left out.
func consumable(s admission.Seat, shares bool) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	free := s.Free - s.Free%grant.MiB
	capacities := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{memory: {Value: *quantity(free),
		RequestPolicy: policy(quantity(free), quantity(grant.MiB), quantity(free), quantity(grant.MiB))}}
	if s.Compute > 0 && shares {
		percent := int64(s.Compute)
		capacities[compute] = resourceapi.DeviceCapacity{Value: *number(percent),
			RequestPolicy: policy(number(0), number(0), number(percent), number(1))}
	}
	return capacities
}

func policy(standard, least, most, step *resource.Quantity) *resourceapi.CapacityRequestPolicy {
	return &resourceapi.CapacityRequestPolicy{Default: standard,
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: least, Max: most, Step: step}}
}

func quantity(b grant.Bytes) *resource.Quantity {
	return resource.NewQuantity(int64(b), resource.BinarySI)
}
func number(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

func attributes(p nodeledger.Content, s admission.Seat, mode grant.Mode,
	strength grant.Strength) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"uuid": text(s.UUID()), "index": integer(s.GPU.Index), "product": text(s.GPU.Name),
		"driver": text(p.Inventory.Driver.Version),
		"mode":   text(string(mode)), "strength": text(string(strength)), "health": text(s.GPU.Health),
		"numa": integer(s.GPU.NUMA), "memoryTotal": integer(int(s.Memory())),
		deviceattribute.StandardDeviceAttributePCIBusID: text(s.GPU.PCI),
	}
	all[wholeAttribute] = boolean(mode == grant.Exclusive)
	// a simulated GPU has none
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(s.GPU.PCI); err == nil {
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

// wholeAttribute says whether a claim of mode exclusive can have the device. Each device has it.
const wholeAttribute = "whole"

func boolean(is bool) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{BoolValue: &is} }

func integer(n int) resourceapi.DeviceAttribute {
	value := int64(n)
	return resourceapi.DeviceAttribute{IntValue: &value}
}

// The taints of a device. None ends a running pod, because the pod's grant stays.
const (
	// It takes no grants: it is unhealthy, or its entry in the ledger is damaged.
	taintClosed = "gpuledger.dev/closed"
	// It is used outside the ledger, so no grant can have the whole GPU or MIG device.
	taintOutside = "gpuledger.dev/outside"
	// Its MPS daemon also serves other GPUs, so it takes no grant over this GPU alone.
	taintServed = "gpuledger.dev/served"
	// No program starts MPS daemons on this node.
	taintUnserved = "gpuledger.dev/unserved"
	// The strength of a share here is less than the node's policy requires: no container would
	// start.
	taintWeak = "gpuledger.dev/weak"
)

func taints(p nodeledger.Content, s admission.Seat, mode grant.Mode, offer grant.Verdict,
	unserved string) []resourceapi.DeviceTaint {
	var list []resourceapi.DeviceTaint
	add := func(key, value string) {
		list = append(list, resourceapi.DeviceTaint{Key: key, Value: value,
			Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if s.Closed != "" {
		add(taintClosed, label(s.Closed))
	}
	switch {
	case !mode.IsWhole():
	case s.Outside > 0:
		add(taintOutside, label(s.Outside.String()))
	case s.Held:
		add(taintOutside, "open")
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

// servedWith returns the number of GPUs of the MPS daemon that serves a GPU. The daemon may serve
// the driver's own claims, which have the GPU's device, so the device must stay published.
func servedWith(p nodeledger.Content, s admission.Seat) int {
	i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool {
		return g.Mode == grant.MPS && g.Has(s.UUID())
	})
	if i < 0 {
		return 0
	}
	return len(p.Grants[i].GPUs)
}

// label makes a valid label value of a text: at most 63 letters, digits, '-', '_' and '.'. The
// first and the last are letters or digits.
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

// find returns the seat and the mode of a device.
func find(name string, seats []admission.Seat) (admission.Seat, grant.Mode, error) {
	for _, s := range seats {
		for _, mode := range grant.Modes {
			if deviceName(s.UUID(), mode) == name {
				return s, mode, nil
			}
		}
	}
	return admission.Seat{}, "", fmt.Errorf("this node has no device %q: its GPU is gone or was never here",
		name)
}
