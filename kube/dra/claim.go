package dra

import (
	"cmp"
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

// claimAsk is what the ledger is asked for one grant of a claim.
type claimAsk struct {
	ask     admission.Ask
	devices []kubeletplugin.Device // without CDI names yet
}

// owner returns the owner of a claim's grant. A claim has one grant for each of its requests. If it
// is one grant, for example because it has one request, no request is named. Programs of versions
// that know only one grant a claim read this owner too: to them it is a claim like any other.
func owner(uid types.UID, request string) grant.Owner {
	if request == "" {
		return grant.Owner(claimOwner + string(uid))
	}
	return grant.Owner(claimOwner + string(uid) + ownerRequest + request)
}

// ownerRequest is between UID and request. Neither contains it.
const (
	claimOwner   = "claim:"
	ownerRequest = "."
)

// claimOf returns the UID of the claim that owns a grant.
func claimOf(g grant.Grant) (types.UID, bool) {
	rest, is := strings.CutPrefix(string(g.Owner), claimOwner)
	uid, _, _ := strings.Cut(rest, ownerRequest)
	return types.UID(uid), is
}

// grantsOf returns the grants of a claim.
func grantsOf(uid types.UID, all []grant.Grant) []grant.Grant {
	return slices.DeleteFunc(slices.Clone(all), func(g grant.Grant) bool {
		of, is := claimOf(g)
		return !is || of != uid
	})
}

// translate turns a claim's allocation into requests to the ledger. A container uses one grant, and
// it can name one request of a claim. So each request is a grant, with a mode and amounts of its
// own. Requests whose parameters say so are one grant together.
func translate(claim *resourceapi.ResourceClaim, pool string, p nodeledger.Content) ([]claimAsk, error) {
	if claim.Status.Allocation == nil {
		return nil, errors.New("the claim is not allocated")
	}
	seats, err := p.Seats(Source)
	if err != nil {
		return nil, err
	}
	var groups []requestGroup
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != DriverName || result.Pool != pool {
			continue
		}
		part, err := partOf(claim, result, seats, p)
		if err != nil {
			return nil, err
		}
		config, err := configFor(result.Request, claim.Status.Allocation.Devices.Config)
		if err != nil {
			return nil, err
		}
		name := mainRequest(result.Request)
		if config.Grant == GrantPerClaim {
			name = ""
		}
		i := slices.IndexFunc(groups, func(g requestGroup) bool { return g.name == name })
		if i < 0 {
			groups, i = append(groups, requestGroup{name: name}), len(groups)
		}
		groups[i].parts = append(groups[i].parts, part)
		groups[i].devices = append(groups[i].devices, kubeletplugin.Device{Requests: []string{result.Request},
			PoolName: result.Pool, DeviceName: result.Device, ShareID: result.ShareID})
	}
	switch len(groups) {
	case 0:
		return nil, fmt.Errorf("nothing of the claim is allocated from %s on this node", DriverName)
	case 1:
		groups[0].name = ""
	}
	asks := make([]claimAsk, len(groups))
	for i, g := range groups {
		if asks[i], err = g.ask(claim); err != nil {
			return nil, err
		}
	}
	return asks, nil
}

// requestGroup is what one grant of a claim is for: a request with its subrequests.
type requestGroup struct {
	name    string // "": the requests that are one grant together
	parts   []allocatedPart
	devices []kubeletplugin.Device
}

func (g requestGroup) ask(claim *resourceapi.ResourceClaim) (claimAsk, error) {
	w := claimAsk{devices: g.devices, ask: admission.Ask{Owner: owner(claim.UID, g.name), Source: Source,
		Label: claim.Namespace + "/" + claim.Name}}
	if chosen := g.subrequests(); chosen != "" {
		w.ask.Label += "/" + chosen
	} else if g.name != "" {
		w.ask.Label += "/" + g.name
	}
	return w, sum(g.parts, &w.ask)
}

// subrequests returns the subrequests of which something was allocated, as REQUEST/SUBREQUEST.
func (g requestGroup) subrequests() string {
	var all []string
	for _, p := range g.parts {
		if strings.Contains(p.request, "/") {
			all = append(all, p.request)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

// mainRequest returns the request of a subrequest, or the request itself.
func mainRequest(name string) string {
	main, _, _ := strings.Cut(name, "/")
	return main
}

// asOneGrant returns all requests of a claim as one grant. Older versions prepared a claim with
// several requests so.
func asOneGrant(uid types.UID, asks []claimAsk) claimAsk {
	w := claimAsk{ask: admission.Ask{Owner: owner(uid, ""), Mode: asks[0].ask.Mode}}
	for _, one := range asks {
		w.ask.Names = append(w.ask.Names, one.ask.Names...)
		w.devices = append(w.devices, one.devices...)
		if one.ask.Mode != w.ask.Mode {
			w.ask.Mode = "" // no grant has this mode, so none matches
		}
	}
	slices.Sort(w.ask.Names)
	w.ask.Names = slices.Compact(w.ask.Names)
	return w
}

// allocatedPart is one allocated device.
type allocatedPart struct {
	request string
	uuid    string
	mode    grant.Mode
	memory  grant.Bytes
	all     bool // the request names no memory, so that memory is all that was free
	compute int
	minimum grant.Strength // "": any
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
	of := allocatedPart{request: result.Request, uuid: seat.UUID(), mode: mode,
		minimum: config.MinimumStrength}
	if mode.IsWhole() {
		return of, nil
	}
	if !found {
		return allocatedPart{}, fmt.Errorf(
			"the allocation of request %q says no amount of memory: this cluster lacks consumable capacity "+
				"(DRAConsumableCapacity, on since Kubernetes 1.36); only the modes exclusive and mig "+
				"work without",
			result.Request)
	}
	of.all = !namesMemory(claim, result.Request)
	percent := result.ConsumedCapacity[compute]
	of.memory, of.compute = grant.Bytes(amount.Value()), int(percent.Value())
	return of, nil
}

// sum merges the parts of a grant into one request to the ledger. Two shares of one GPU become one
// share if they belong to different requests. A request that has a GPU twice asked for two GPUs, so
// that is an error.
func sum(parts []allocatedPart, ask *admission.Ask) error {
	var merged []allocatedPart
	for _, p := range parts {
		if p.minimum.AtLeast(ask.MinimumStrength) {
			ask.MinimumStrength = p.minimum
		}
		i := slices.IndexFunc(merged, func(m allocatedPart) bool { return m.uuid == p.uuid })
		switch {
		case p.mode != parts[0].mode:
			return fmt.Errorf(
				"%s has GPUs in mode %s and in mode %s, and a grant has one mode", subject(parts),
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
			merged[i].all = merged[i].all && p.all
			merged[i].compute += p.compute
		}
	}
	leastOfAll(merged)
	for _, m := range merged {
		if m.memory != merged[0].memory || m.compute != merged[0].compute {
			return fmt.Errorf(
				"%s has %s and %d%% on one GPU, and %s and %d%% on another: a grant is the same on "+
					"each of its GPUs",
				subject(parts), merged[0].memory, merged[0].compute, m.memory, m.compute)
		}
		ask.Names = append(ask.Names, m.uuid)
		ask.Memory += m.memory
	}
	ask.Mode, ask.Compute = merged[0].mode, merged[0].compute
	return nil
}

// leastOfAll makes the parts equal if no request names memory: each gets what the GPU with the
// least free memory has. The scheduler then counts more than is granted, never less.
func leastOfAll(parts []allocatedPart) {
	if slices.ContainsFunc(parts, func(p allocatedPart) bool { return !p.all }) {
		return
	}
	least := slices.MinFunc(parts, func(a, b allocatedPart) int { return cmp.Compare(a.memory, b.memory) })
	for i := range parts {
		parts[i].memory = least.memory
	}
}

// subject names what a grant is for.
func subject(parts []allocatedPart) string {
	first := mainRequest(parts[0].request)
	if slices.ContainsFunc(parts, func(p allocatedPart) bool { return mainRequest(p.request) != first }) {
		return "the grant of the claim"
	}
	return fmt.Sprintf("request %q", first)
}

// matches reports whether a grant is what the claim asks for, so that an earlier Prepare made it.
// It ignores the size: an administrator may have changed that (gpuledger grant --update). A new
// grant would have another CDI name than the one in the kubelet's checkpoint. Of another subrequest
// it is another allocation. Older versions did not enter the subrequest.
func (w claimAsk) matches(g grant.Grant) bool {
	was, is := subrequestsIn(g.Label), subrequestsIn(w.ask.Label)
	if was != "" && is != "" && was != is {
		return false
	}
	names, uuids := slices.Sorted(slices.Values(w.ask.Names)), slices.Sorted(slices.Values(g.UUIDs()))
	return slices.Equal(names, uuids) && g.Mode == w.ask.Mode
}

// withCDIName returns the devices with the grant's CDI name. Only the first device has the name,
// for all requests of the grant: some engines apply a name twice if it is listed twice.
func (w claimAsk) withCDIName(r grant.Reference) []kubeletplugin.Device {
	devices := slices.Clone(w.devices)
	for _, d := range devices[1:] {
		if !slices.Contains(devices[0].Requests, d.Requests[0]) {
			devices[0].Requests = append(slices.Clip(devices[0].Requests), d.Requests[0])
		}
	}
	devices[0].CDIDeviceIDs = []string{grant.CDIKindGrant + "=" + r.String()}
	return devices
}

// claimName returns a claim's namespace and name from the label of its grant:
// NAMESPACE/NAME[/REQUEST[/SUBREQUEST]].
func claimName(g grant.Grant) (namespace, name string, ok bool) {
	namespace, rest, ok := strings.Cut(g.Label, "/")
	name, _, _ = strings.Cut(rest, "/")
	return namespace, name, ok
}

// subrequestsIn returns the subrequests in the label of a grant; "": it names none.
func subrequestsIn(label string) string {
	parts := strings.SplitN(label, "/", 3)
	if len(parts) < 3 || !strings.Contains(parts[2], "/") {
		return ""
	}
	return parts[2]
}
