package deviceplugin

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// Annotation is the annotation with a container's reference, beside the variable
// grant.ReferenceEnv. Only the kubelet sets annotations of containers. grant.GivenPrefix is before
// the name of another one, with the grant's id alone.
const Annotation = "gpuledger.dev/grant"

// Allocator enters a grant for each Allocate. The kubelet sends the devices but not the pod, so the
// owner of the grant is a bearer. The answer carries the reference to the container's create. No
// container is ever matched to a grant by size.
type Allocator struct {
	Ledger   nodeledger.Ledger
	Resource Resource
	Log      *slog.Logger
	Now      func() time.Time

	mu          sync.Mutex
	allocations []allocation                // by this process, while the grant is in the ledger
	asked       preferenceCall              // the kubelet's calls since the last Allocate
	seen        map[grant.ID]grant.Identity // the container that was found to use a grant
	podGone     map[grant.ID]bool           // the grant is in use, but its pod is gone
	podListed   map[grant.ID]bool           // this kubelet has listed the pod of that container
}

// preferenceCall is what the kubelet has asked before an Allocate. The kubelet reuses the devices
// of the pod's init containers first. It asks for a preference only if these are not enough
// (k8s.io/kubernetes, pkg/kubelet/cm/devicemanager, devicesToAllocate). So the call tells the pod's
// next container from a container of another pod. Another pod may get the same devices a moment
// after the first pod's end. There is one exception: if a topology manager policy leaves no choice,
// the kubelet takes whole GPUs without this call.
type preferenceCall int

const (
	notAsked     preferenceCall = iota // all devices are an init container's, or the kubelet never asks
	askedForFree                       // the kubelet asked which free devices to take
	askedForMore                       // the kubelet asked which devices to add to an init container's
)

// allocation is a grant that an Allocate has returned. In one admission of a pod, the kubelet
// reuses an init container's devices for later containers.
type allocation struct {
	reference grant.Reference
	at        time.Time
	// The kubelet asked for a preference before this Allocate. If it never asks, a missing call
	// says nothing. Always true for whole GPUs.
	asked bool
	sets  [][]string // the devices of each container that has the grant
}

// recent reports whether a grant was returned so recently that the admission of its pod may not be
// over.
func (l allocation) recent(now time.Time) bool { return now.Sub(l.at) <= admissionTime }

// admissionTime is the longest time between two containers in the admission of one pod.
const admissionTime = 10 * time.Second

// Allocate answers for one container. Its errors appear in the pod's events.
func (d *Allocator) Allocate(ids []string) (*api.ContainerAllocateResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = notAsked
	if d.Resource.Placed {
		return d.placed(ids)
	}
	ask, err := d.Resource.ask(ids)
	if err != nil {
		return nil, err
	}
	p, err := d.Ledger.Read()
	if err != nil {
		return nil, err
	}
	d.allocations = slices.DeleteFunc(d.allocations, func(l allocation) bool {
		return !slices.ContainsFunc(p.Grants, func(g grant.Grant) bool { return g.ID == l.reference.ID })
	})
	if l := d.handedOn(p, ids, asked); l != nil {
		if err := d.widen(p, l.reference.ID, ask.Memory); err != nil {
			return nil, err
		}
		l.sets = append(l.sets, ids)
		return d.answer(l.reference)
	}
	if err := d.giveBack(p, ids, asked); err != nil {
		return nil, err
	}
	_, reference, err := d.Ledger.Enter(ask)
	if err != nil {
		return nil, err
	}
	d.allocations = append(d.allocations, allocation{reference, d.Now(),
		asked != notAsked || d.Resource.Unit == 0, [][]string{ids}})
	d.Log.Info("allocated", "resource", d.Resource.Name, "devices", ask.Label, "grant", reference.ID)
	return d.answer(reference)
}

// handedOn finds the grant of an init container whose devices the kubelet now gives to a later
// container. Both must be in the same pod: another pod that knew the reference could use the grant.
// It takes the last grant that was allocated with any of the devices. Containers that run at the
// same time share no device. So the new container must share a device with every container that has
// the grant.
func (d *Allocator) handedOn(p nodeledger.Content, ids []string, asked preferenceCall) *allocation {
	// Whole GPUs of a NUMA node are taken before the kubelet asks for more. If an init container's
	// GPUs are enough, it does not ask.
	if asked == askedForFree || asked == askedForMore && d.Resource.Unit == 0 {
		return nil
	}
	wanted := set(ids)
	i := lastIndex(d.allocations, func(l allocation) bool {
		return slices.ContainsFunc(l.sets, func(list []string) bool { return overlap(list, wanted) })
	})
	if i < 0 {
		return nil
	}
	l := d.allocations[i]
	inCommon := !slices.ContainsFunc(l.sets, func(list []string) bool { return !overlap(list, wanted) })
	unused := slices.ContainsFunc(p.Grants, func(g grant.Grant) bool {
		return g.ID == l.reference.ID && len(g.Bindings) == 0 && !g.Draining && d.Resource.covers(g, ids)
	})
	if l.asked && inCommon && unused && d.admitting(p, l) {
		return &d.allocations[i]
	}
	return nil
}

func lastIndex(list []allocation, is func(allocation) bool) int {
	for i := len(list) - 1; i >= 0; i-- {
		if is(list[i]) {
			return i
		}
	}
	return -1
}

// admitting reports whether the admission of a grant's pod may still run. Then no container of the
// pod has started or seen the reference.
func (d *Allocator) admitting(p nodeledger.Content, l allocation) bool {
	return l.recent(d.Now()) && !p.Node.Ledger.Bindings.Used(l.reference.ID)
}

// widen enlarges an init container's grant for a later container that needs more memory. The
// scheduler also counts the larger of the two.
func (d *Allocator) widen(p nodeledger.Content, id grant.ID, memory grant.Bytes) error {
	i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool { return g.ID == id })
	if d.Resource.Unit == 0 || p.Grants[i].Memory() >= memory {
		return nil
	}
	return d.Ledger.SetMemory(p.Grants[i], memory)
}

// giveBack releases the grants whose devices the kubelet allocates again, because their containers
// are gone. It keeps a recent unused grant: the grant may be an init container's and be needed by a
// later container. If the kubelet asked for free devices, it releases that one, too. It keeps a
// grant in use: the grant counts until its container is gone. A container that is only restarted
// would otherwise find its grant released.
func (d *Allocator) giveBack(p nodeledger.Content, ids []string, asked preferenceCall) error {
	var failed error
	wanted := set(ids)
	for _, g := range d.Resource.own(p) {
		if len(g.Bindings) > 0 || !overlap(d.holds(g), wanted) {
			continue
		}
		if l := d.allocationOf(g.ID); l != nil && asked != askedForFree && d.admitting(p, *l) {
			continue
		}
		d.Log.Info("its devices are given out anew; the grant is released", "grant", g.ID)
		failed = errors.Join(failed, d.Ledger.Release(g.ID))
	}
	return failed
}

func (d *Allocator) allocationOf(id grant.ID) *allocation {
	i := slices.IndexFunc(d.allocations, func(l allocation) bool { return l.reference.ID == id })
	if i < 0 {
		return nil
	}
	return &d.allocations[i]
}

// holds returns the devices of the last container that got the grant. The grant's label has the
// devices of the first container. The kubelet may have given some of those to other containers
// since.
func (d *Allocator) holds(g grant.Grant) []string {
	if l := d.allocationOf(g.ID); l != nil {
		return l.sets[len(l.sets)-1]
	}
	return d.Resource.holds(g)
}

// held returns the devices that the kubelet counts as allocated, by the ledger: the present and the
// earlier ones of each grant. A kubelet may ask for either again. The kubelet counts the devices of
// a pod that is gone as free, so those are reported to it as unhealthy.
func (d *Allocator) held(p nodeledger.Content) map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	devices := map[string]bool{}
	for _, g := range d.Resource.own(p) {
		if !d.podGone[g.ID] {
			maps.Copy(devices, set(d.Resource.holds(g)))
			maps.Copy(devices, set(d.holds(g)))
		}
	}
	return devices
}

// answer returns the response with the reference. It is no CDI device: the kubelet keeps the answer
// across boots, and CDI files in /run do not survive a boot.
func (d *Allocator) answer(r grant.Reference) (*api.ContainerAllocateResponse, error) {
	response := &api.ContainerAllocateResponse{Envs: map[string]string{grant.ReferenceEnv: r.String()},
		Annotations: map[string]string{Annotation: r.String(),
			grant.GivenPrefix + strings.ReplaceAll(d.Resource.Name, "/", "_"): string(r.ID)}}
	if d.Resource.Variables == nil {
		return response, nil
	}
	p, err := d.Ledger.Read()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool { return g.ID == r.ID })
	if i < 0 {
		return nil, fmt.Errorf("grant %s is gone already", r.ID)
	}
	gpu, _ := p.Inventory.Find(p.Grants[i].GPUs[0].UUID)
	for name, value := range d.Resource.Variables(p.Grants[i], gpu.Memory) {
		response.Envs[name] = value
	}
	return response, nil
}

// Preferred chooses devices from the free ones, the first ones first. The last ones are those that
// other users take.
func (d *Allocator) Preferred(available, must []string, size int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked = askedForFree; len(must) > 0 {
		d.asked = askedForMore
	}
	chosen, has := slices.Clone(must), set(must)
	if d.Resource.Unit > 0 {
		slices.SortFunc(available, func(a, b string) int { return number(a) - number(b) })
	}
	for _, id := range available {
		if len(chosen) < size && !has[id] {
			chosen, has[id] = append(chosen, id), true
		}
	}
	return chosen
}

// forgetPreferenceCall is called for a new kubelet, which allocates nothing that the earlier
// kubelet asked about.
func (d *Allocator) forgetPreferenceCall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = notAsked
}

func number(id string) int {
	list, err := units([]string{id})
	if err != nil {
		return maxUnits
	}
	return list[0]
}
