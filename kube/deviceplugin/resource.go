package deviceplugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// Source is the source of the grants that the plugin enters.
const Source = "device-plugin"

// Resource is what a pod requests in its limits: units of memory on one GPU, or whole GPUs.
type Resource struct {
	Name string      // such as gpuledger.dev/gpu-memory
	Unit grant.Bytes // of memory; 0: whole GPUs
	Mode grant.Mode  // of the grants; Exclusive for whole GPUs
	// Variables returns the variables that containers of another system expect, beside the
	// reference. nil: none.
	Variables func(g grant.Grant, seat grant.Bytes) map[string]string
	// Placed says that a scheduler places pods, and their containers adopt what it allocates to
	// them. Then the plugin makes no grants (placed.go).
	Placed bool
	// Each is how many there are of each GPU, where a scheduler places and Unit is 0.
	Each int
}

// Memory returns the resource of memory in units, under gpuledger's own name.
func Memory(unit grant.Bytes, mode grant.Mode) Resource {
	return Resource{Name: "gpuledger.dev/gpu-memory", Unit: unit, Mode: mode}
}

// Whole returns the resource of whole GPUs.
func Whole() Resource { return Resource{Name: "gpuledger.dev/gpu", Mode: grant.Exclusive} }

// GPUShare returns the resource of memory in GiB under the name and with the variables of Alibaba's
// gpushare (gpushare-device-plugin, pkg/gpu/nvidia/const.go). The pod's sum is not among the
// variables, because an Allocate is about one container.
func GPUShare(mode grant.Mode) Resource {
	return Resource{Name: gpushareMemory, Unit: grant.GiB, Mode: mode,
		Variables: func(g grant.Grant, of grant.Bytes) map[string]string {
			return map[string]string{"ALIYUN_COM_GPU_MEM_IDX": fmt.Sprint(g.GPUs[0].Index),
				shareContainer: inGiB(g.Memory()), shareCard: inGiB(of)}
		}}
}

const (
	gpushareMemory = "aliyun.com/gpu-mem"
	shareContainer = "ALIYUN_COM_GPU_MEM_CONTAINER" // what the container has, in units
	shareCard      = "ALIYUN_COM_GPU_MEM_DEV"       // what its card has
)

func inGiB(b grant.Bytes) string { return strconv.FormatUint(uint64(b/grant.GiB), 10) }

// socket returns the name of the resource's socket, which the kubelet calls.
func (r Resource) socket() string {
	return strings.NewReplacer("/", "_", ".", "-").Replace(r.Name) + ".sock"
}

// label returns the label of a grant, which lists the kubelet's devices: "gpuledger.dev/gpu-memory
// 0-3".
func (r Resource) label(ids []int) string { return r.Name + " " + ranges(ids) }

// holds returns the kubelet's devices that a grant of this resource stands for.
func (r Resource) holds(g grant.Grant) []string {
	var ids []string
	if r.Unit == 0 {
		for _, s := range g.GPUs {
			ids = append(ids, s.UUID)
		}
		return ids
	}
	_, list, _ := strings.Cut(g.Label, " ")
	for _, n := range numbers(list) {
		ids = append(ids, unitID(n))
	}
	return ids
}

// covers reports whether a grant can serve a container with these devices. A grant can get more
// units, but no other GPU.
func (r Resource) covers(g grant.Grant, ids []string) bool {
	return r.Unit > 0 || !slices.ContainsFunc(ids, func(id string) bool { return !g.Has(id) })
}

// mine reports whether a grant of the plugin is of this resource.
func (r Resource) mine(g grant.Grant) bool {
	name, _, _ := strings.Cut(g.Label, " ")
	return name == r.Name
}

// own returns the resource's grants.
func (r Resource) own(p nodeledger.Content) []grant.Grant {
	return slices.DeleteFunc(p.EnteredBy(Source), func(g grant.Grant) bool { return !r.mine(g) })
}

// Devices returns the list for the kubelet. held are the devices that the kubelet counts as
// allocated. Devices that other users have are unhealthy, so the scheduler does not count on them.
func (r Resource) Devices(p nodeledger.Content, held map[string]bool) ([]*api.Device, error) {
	seats, err := p.Seats("")
	if err != nil {
		return nil, err
	}
	// Only DRA offers MIG devices.
	seats = slices.DeleteFunc(seats, func(s admission.Seat) bool {
		return s.MIG != nil || len(s.GPU.MIG) > 0
	})
	if r.Unit == 0 {
		return r.gpus(seats, held), nil
	}
	return r.units(seats, held), nil
}

func (r Resource) gpus(seats []admission.Seat, held map[string]bool) []*api.Device {
	var list []*api.Device
	for _, s := range seats {
		free := s.Mode == "" && !s.Used() && slices.Contains(s.Modes, grant.Exclusive)
		d := &api.Device{ID: s.GPU.UUID, Health: health(s.Closed == "" && (held[s.GPU.UUID] || free))}
		if s.GPU.NUMA >= 0 {
			d.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(s.GPU.NUMA)}}}
		}
		list = append(list, d)
	}
	return list
}

// units returns as many devices as fit on the GPUs, each GPU rounded down. The units of containers
// stay healthy, and beside them as many as are free. The kubelet subtracts what it has allocated by
// devices and not by memory, and a grant can have more memory than its devices: the unit was larger
// when it was made, or the grant was enlarged. Of the units that no container has, the last are
// unhealthy, because the first are allocated first. If a GPU is gone, the list still reaches the
// last unit that a container has. Units name no GPU, and a restarted kubelet admits no pod again
// whose units are not listed.
func (r Resource) units(seats []admission.Seat, held map[string]bool) []*api.Device {
	total, usable := 0, len(held)
	for _, s := range seats {
		total += int(s.GPU.Memory / r.Unit)
		if s.Closed == "" && slices.Contains(s.Modes, r.Mode) {
			usable += int(s.Free / r.Unit)
		}
	}
	for id := range held {
		total = max(total, number(id)+1)
	}
	list := make([]*api.Device, total)
	for n := range list {
		list[n] = &api.Device{ID: unitID(n), Health: api.Healthy}
	}
	for n := total - 1; n >= 0 && usable < total; n-- {
		if !held[unitID(n)] {
			list[n].Health = api.Unhealthy
			usable++
		}
	}
	return list
}

func health(ok bool) string {
	if ok {
		return api.Healthy
	}
	return api.Unhealthy
}

// ask returns the request to the ledger for these devices.
func (r Resource) ask(ids []string) (admission.Ask, error) {
	ask := admission.Ask{Mode: r.Mode, Owner: grant.Bearer, Source: Source}
	if r.Unit == 0 {
		ask.Names, ask.Label = ids, r.Name
		return ask, nil
	}
	list, err := units(ids)
	if err != nil {
		return ask, err
	}
	ask.Memory, ask.Label = grant.Bytes(len(list))*r.Unit, r.label(list)
	return ask, nil
}
