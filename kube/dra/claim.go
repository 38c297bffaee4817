package dra

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// claimAsk is what the ledger is asked for a claim.
type claimAsk struct {
	ask     admission.Ask
	devices []kubeletplugin.Device // without CDI names yet
}

// owner returns the owner of a claim's grant.
func owner(uid string) grant.Owner { return grant.Owner(claimOwner + uid) }

const claimOwner = "claim:"

// claimOf returns the UID of the claim that owns a grant.
func claimOf(g grant.Grant) (types.UID, bool) {
	rest, is := strings.CutPrefix(string(g.Owner), claimOwner)
	uid, _, _ := strings.Cut(rest, "/")
	return types.UID(uid), is
}

// translate turns a claim's allocation into a request to the ledger. A claim is one grant, because
// a container uses one grant. So the claim has one mode, and the same amount on each of its GPUs.
func translate(claim *resourceapi.ResourceClaim, pool string, p nodeledger.Content) (claimAsk, error) {
	w := claimAsk{ask: admission.Ask{Owner: owner(string(claim.UID)), Source: Source,
		Label: claim.Namespace + "/" + claim.Name}}
	if claim.Status.Allocation == nil {
		return w, errors.New("the claim is not allocated")
	}
	seats, err := p.Seats(Source)
	if err != nil {
		return w, err
	}
	var parts []allocatedPart
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != DriverName || result.Pool != pool {
			continue
		}
		part, err := partOf(claim, result, seats, p)
		if err != nil {
			return w, err
		}
		parts = append(parts, part)
		w.devices = append(w.devices, kubeletplugin.Device{Requests: []string{result.Request},
			PoolName: result.Pool, DeviceName: result.Device, ShareID: result.ShareID})
	}
	return w, sum(parts, &w.ask)
}

// allocatedPart is one allocated device.
type allocatedPart struct {
	request string
	uuid    string
	mode    grant.Mode
	memory  grant.Bytes
	compute int
}

func partOf(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult,
	seats []admission.Seat, p nodeledger.Content) (allocatedPart, error) {
	configs := claim.Status.Allocation.Devices.Config
	if result.AdminAccess != nil && *result.AdminAccess {
		return allocatedPart{}, fmt.Errorf(
			"request %q wants adminAccess, which would reach GPUs that are others'; watch them through the "+
				"node's /metrics",
			result.Request)
	}
	seat, mode, err := find(result.Device, seats)
	if err != nil {
		return allocatedPart{}, err
	}
	config, err := configFor(result.Request, configs)
	if err != nil {
		return allocatedPart{}, err
	}
	amount, found := result.ConsumedCapacity[memory]
	if config.Mode == grant.Exclusive && slices.Contains(shared, mode) {
		if mode = grant.Exclusive; found && namesAmount(claim, result.Request) &&
			grant.Bytes(amount.Value()) < seat.Free-seat.Free%grant.MiB {
			return allocatedPart{}, notAll(result.Request, amount.String())
		}
	}
	if err := config.allows(result.Request, mode, p.Offer(anyClaim, mode, seat).Strength); err != nil {
		return allocatedPart{}, err
	}
	of := allocatedPart{request: result.Request, uuid: seat.UUID(), mode: mode}
	if mode == grant.Exclusive || mode == grant.MIG {
		return of, nil
	}
	if !found {
		return allocatedPart{}, fmt.Errorf(
			"the allocation of request %q says no amount of memory: this cluster lacks consumable capacity "+
				"(DRAConsumableCapacity, on since Kubernetes 1.36); only the modes exclusive and mig "+
				"work without",
			result.Request)
	}
	percent := result.ConsumedCapacity[compute]
	of.memory, of.compute = grant.Bytes(amount.Value()), int(percent.Value())
	return of, nil
}

// sum merges all parts into one request. Two shares of one GPU become one share if they belong to
// different requests. A request that has a GPU twice asked for two GPUs, so that is an error.
func sum(parts []allocatedPart, ask *admission.Ask) error {
	if len(parts) == 0 {
		return fmt.Errorf("nothing of the claim is allocated from %s on this node", DriverName)
	}
	var merged []allocatedPart
	for _, p := range parts {
		i := slices.IndexFunc(merged, func(m allocatedPart) bool { return m.uuid == p.uuid })
		switch {
		case p.mode != parts[0].mode:
			return fmt.Errorf(
				"the claim has GPUs in mode %s and in mode %s: a claim is one grant, and a grant "+
					"has one mode",
				parts[0].mode, p.mode)
		case i < 0:
			merged = append(merged, p)
		case merged[i].request == p.request:
			return fmt.Errorf(
				"request %q got two shares of one GPU: ask for distinct GPUs with the constraint "+
					"distinctAttribute: %s/uuid, or for one larger share",
				p.request, DriverName)
		default:
			merged[i].memory += p.memory
			merged[i].compute += p.compute
		}
	}
	for _, m := range merged {
		if m.memory != merged[0].memory || m.compute != merged[0].compute {
			return fmt.Errorf(
				"the claim has %s and %d%% on one GPU, and %s and %d%% on another: a grant is the same on "+
					"each of its GPUs",
				merged[0].memory, merged[0].compute, m.memory, m.compute)
		}
		ask.Names = append(ask.Names, m.uuid)
		ask.Memory += m.memory
	}
	ask.Mode, ask.Compute = merged[0].mode, merged[0].compute
	return nil
}

// is reports whether a grant is what the claim asks for, so that an earlier Prepare made it. It
// ignores the size: an administrator may have changed that (gpuledger grant --update). A new grant
// would have another CDI name than the one in the kubelet's checkpoint.
func (w claimAsk) is(g grant.Grant) bool {
	names, uuids := slices.Sorted(slices.Values(w.ask.Names)), slices.Sorted(slices.Values(g.UUIDs()))
	return slices.Equal(names, uuids) && g.Mode == w.ask.Mode
}

// named returns the devices with the grant's CDI name. Only the first device has the name, for all
// requests: some engines apply a name twice if it is listed twice.
func (w claimAsk) named(r grant.Reference) []kubeletplugin.Device {
	devices := slices.Clone(w.devices)
	for _, d := range devices[1:] {
		if !slices.Contains(devices[0].Requests, d.Requests[0]) {
			devices[0].Requests = append(slices.Clip(devices[0].Requests), d.Requests[0])
		}
	}
	devices[0].CDIDeviceIDs = []string{grant.CDIKindGrant + "=" + r.String()}
	return devices
}

// claimName returns a claim's namespace and name from the label of its grant.
func claimName(g grant.Grant) (namespace, name string, ok bool) { return strings.Cut(g.Label, "/") }
