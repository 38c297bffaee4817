package deviceplugin

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/book"
)

// Annotation is what tells a container's create about its grant, beside the variable grant.ReferenceEnv. Only the kubelet sets
// annotations of containers.
const Annotation = "gpuledger.dev/grant"

// Desk enters a grant for each Allocate. The kubelet says how many devices, and not for whom; the grant is a bearer's, and its
// reference travels in the answer to the container's create. Nothing is ever matched by size.
type Desk struct {
	Book     book.Book
	Resource Resource
	Log      *slog.Logger
	Now      func() time.Time

	mu    sync.Mutex
	lent  []lent                      // by this process, while the grant is there
	asked question                    // by the kubelet, since the last Allocate
	seen  map[grant.ID]grant.Identity // who was found to use a grant
	stray map[grant.ID]bool           // in use, though the pod that it was for is gone
}

// question is what the kubelet has asked about the devices that it is about to give out. It takes an init container's before any other, and asks
// for a preference only where these are not enough (k8s.io/kubernetes, pkg/kubelet/cm/devicemanager, devicesToAllocate). So this tells a pod's
// next container from another pod's, which may get the same devices a moment after that pod's end. Only whole GPUs it takes without a question
// where a policy of its topology manager leaves no choice.
type question int

const (
	nothing  question = iota // all of them are an init container's; or the kubelet asks nothing ever
	whichOne                 // which of the free ones to take
	whichToo                 // which ones to add to an init container's
)

// lent is a grant as it was given out: the kubelet hands an init container's devices on to the containers after it, in the same
// admission of a pod.
type lent struct {
	reference grant.Reference
	at        time.Time
	asked     bool       // before it the kubelet has asked which devices to take: one that never asks cannot be told by that
	sets      [][]string // the devices of each container that has it
}

// recent reports whether a grant was lent so short ago that the admission of its pod may not be over.
func (l lent) recent(now time.Time) bool { return now.Sub(l.at) <= admissionTime }

// admissionTime is how long the admission of one pod may take between two of its containers.
const admissionTime = 10 * time.Second

// Allocate answers for one container. Its errors stand in the pod's events.
func (d *Desk) Allocate(ids []string) (*api.ContainerAllocateResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nothing
	ask, err := d.Resource.ask(ids)
	if err != nil {
		return nil, err
	}
	p, err := d.Book.Read()
	if err != nil {
		return nil, err
	}
	d.lent = slices.DeleteFunc(d.lent, func(l lent) bool {
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
	_, reference, err := d.Book.Enter(ask)
	if err != nil {
		return nil, err
	}
	d.lent = append(d.lent, lent{reference, d.Now(), asked != nothing || d.Resource.Unit == 0, [][]string{ids}})
	d.Log.Info("allocated", "resource", d.Resource.Name, "devices", ask.Label, "grant", reference.ID)
	return d.answer(reference)
}

// handedOn finds the grant of an init container whose devices the kubelet now gives to a container after it, in the same pod: whoever knew its
// reference and is another pod could use the grant. It is the last one that any of the devices was lent with. Two containers that run at the
// same time never have a device in common, so whoever has none in common with one of its users is no such.
func (d *Desk) handedOn(p book.Page, ids []string, asked question) *lent {
	if asked == whichOne || asked == whichToo && d.Resource.Unit == 0 { // whole GPUs of a NUMA node it takes before it asks for more; an init container's alone it takes without a question
		return nil
	}
	i := lastIndex(d.lent, func(l lent) bool {
		return slices.ContainsFunc(l.sets, func(set []string) bool { return overlap(set, ids) })
	})
	if i < 0 {
		return nil
	}
	l := d.lent[i]
	inCommon := !slices.ContainsFunc(l.sets, func(set []string) bool { return !overlap(set, ids) })
	unused := slices.ContainsFunc(p.Grants, func(g grant.Grant) bool {
		return g.ID == l.reference.ID && len(g.Bindings) == 0 && !g.Draining && d.Resource.covers(g, ids)
	})
	if l.asked && inCommon && unused && d.admitting(p, l) {
		return &d.lent[i]
	}
	return nil
}

func lastIndex(list []lent, is func(lent) bool) int {
	for i := len(list) - 1; i >= 0; i-- {
		if is(list[i]) {
			return i
		}
	}
	return -1
}

// admitting reports whether the admission of the pod that a grant was lent for may go on: no container of it has started then, and none has seen
// the reference.
func (d *Desk) admitting(p book.Page, l lent) bool {
	return l.recent(d.Now()) && !p.Node.Ledger.Used(l.reference.ID)
}

// widen makes room in an init container's grant for one after it that needs more, as the scheduler counts the greater of both.
func (d *Desk) widen(p book.Page, id grant.ID, memory grant.Bytes) error {
	i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool { return g.ID == id })
	if d.Resource.Unit == 0 || p.Grants[i].Memory() >= memory {
		return nil
	}
	return d.Book.Widen(p.Grants[i], memory)
}

// giveBack releases the grants whose devices the kubelet gives out anew: their containers are gone. One that was given out just
// now and not used yet may be an init container's, for which there is another container after it, unless the devices are free ones. One that a
// container uses is left alone: it counts until that container is gone anyhow, and a container that is only started again would find it released.
func (d *Desk) giveBack(p book.Page, ids []string, asked question) error {
	var failed error
	for _, g := range d.Resource.own(p) {
		if len(g.Bindings) > 0 || !overlap(d.holds(g), ids) {
			continue
		}
		if l := d.lentAs(g.ID); l != nil && asked != whichOne && d.admitting(p, *l) {
			continue
		}
		d.Log.Info("its devices are given out anew; the grant is released", "grant", g.ID)
		failed = errors.Join(failed, d.Book.Release(g.ID))
	}
	return failed
}

func (d *Desk) lentAs(id grant.ID) *lent {
	i := slices.IndexFunc(d.lent, func(l lent) bool { return l.reference.ID == id })
	if i < 0 {
		return nil
	}
	return &d.lent[i]
}

// holds are the devices of the container that has a grant: the last one that it was handed on to. The grant's label has those of the
// first, of which others may be given out to other containers by now.
func (d *Desk) holds(g grant.Grant) []string {
	if l := d.lentAs(g.ID); l != nil {
		return l.sets[len(l.sets)-1]
	}
	return d.Resource.holds(g)
}

// tenants are the grants that the kubelet counts, with the devices of their containers and of those that had them before: a kubelet may ask for
// either again. What is left of a pod that is gone the kubelet counts as free, so it is told that it is not.
func (d *Desk) tenants(p book.Page) tenants {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := tenants{grants: slices.DeleteFunc(d.Resource.own(p), func(g grant.Grant) bool { return d.stray[g.ID] })}
	for _, g := range t.grants {
		t.devices = append(append(t.devices, d.Resource.holds(g)...), d.holds(g)...)
	}
	return t
}

// answer carries the reference. It is no CDI device, because the kubelet keeps the answer across boots, and CDI files in /run do
// not live as long.
func (d *Desk) answer(r grant.Reference) (*api.ContainerAllocateResponse, error) {
	response := &api.ContainerAllocateResponse{Envs: map[string]string{grant.ReferenceEnv: r.String()}, Annotations: map[string]string{Annotation: r.String()}}
	if d.Resource.Variables == nil {
		return response, nil
	}
	p, err := d.Book.Read()
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

// Preferred chooses among the devices that are free: the first ones, so that the last are those that others take.
func (d *Desk) Preferred(available, must []string, size int) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked = whichOne; len(must) > 0 {
		d.asked = whichToo
	}
	chosen := slices.Clone(must)
	if d.Resource.Unit > 0 {
		slices.SortFunc(available, func(a, b string) int { return number(a) - number(b) })
	}
	for _, id := range available {
		if len(chosen) < size && !slices.Contains(chosen, id) {
			chosen = append(chosen, id)
		}
	}
	return chosen
}

// forgetQuestion is for a new kubelet: it gives out nothing that the one before has asked about.
func (d *Desk) forgetQuestion() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = nothing
}

func number(id string) int {
	list, err := units([]string{id})
	if err != nil {
		return maxUnits
	}
	return list[0]
}
