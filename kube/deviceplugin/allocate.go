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

	mu   sync.Mutex
	lent []lent                      // by this process, while the grant is there
	seen map[grant.ID]grant.Identity // who was found to use a grant
}

// lent is a grant as it was given out: the kubelet hands an init container's devices on to the containers after it, in the same
// admission of a pod.
type lent struct {
	reference grant.Reference
	at        time.Time
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
	if l := d.handedOn(p, ids); l != nil {
		if err := d.widen(p, l.reference.ID, ask.Memory); err != nil {
			return nil, err
		}
		l.sets = append(l.sets, ids)
		return d.answer(l.reference)
	}
	if err := d.giveBack(p, ids); err != nil {
		return nil, err
	}
	_, reference, err := d.Book.Enter(ask)
	if err != nil {
		return nil, err
	}
	d.lent = append(d.lent, lent{reference, d.Now(), [][]string{ids}})
	d.Log.Info("allocated", "resource", d.Resource.Name, "devices", ask.Label, "grant", reference.ID)
	return d.answer(reference)
}

// handedOn finds the grant of an init container whose devices the kubelet now gives to a container after it: nobody has used it
// yet. Two containers that run at the same time never have a device in common, so whoever has none in common with one of its
// users is no such.
func (d *Desk) handedOn(p book.Page, ids []string) *lent {
	for i, l := range d.lent {
		inCommon := !slices.ContainsFunc(l.sets, func(set []string) bool { return !overlap(set, ids) })
		unused := slices.ContainsFunc(p.Grants, func(g grant.Grant) bool {
			return g.ID == l.reference.ID && len(g.Bindings) == 0 && !g.Draining && d.Resource.covers(g, ids)
		})
		if inCommon && unused && l.recent(d.Now()) && !d.wasUsed(l.reference.ID) {
			return &d.lent[i]
		}
	}
	return nil
}

// widen makes room in an init container's grant for one after it that needs more, as the scheduler counts the greater of both.
func (d *Desk) widen(p book.Page, id grant.ID, memory grant.Bytes) error {
	i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool { return g.ID == id })
	if d.Resource.Unit == 0 || p.Grants[i].Memory() >= memory {
		return nil
	}
	return d.Book.Widen(p.Grants[i], memory)
}

func (d *Desk) wasUsed(id grant.ID) bool { _, used := d.seen[id]; return used }

// giveBack releases the grants whose devices the kubelet gives out anew: their containers are gone. One that was given out just
// now and not used yet may be an init container's, for which there is another container after it. One that a container uses is left
// alone: it counts until that container is gone anyhow, and a container that is only started again would find it released.
func (d *Desk) giveBack(p book.Page, ids []string) error {
	var failed error
	for _, g := range d.Resource.own(p) {
		if len(g.Bindings) > 0 || !overlap(d.holds(g), ids) {
			continue
		}
		if l := d.lentAs(g.ID); l != nil && l.recent(d.Now()) && !d.wasUsed(g.ID) {
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

// held are the devices of all containers, and of those that had them before: a kubelet may ask for either again.
func (d *Desk) held(p book.Page) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for _, g := range d.Resource.own(p) {
		ids = append(append(ids, d.Resource.holds(g)...), d.holds(g)...)
	}
	return ids
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

func number(id string) int {
	list, err := units([]string{id})
	if err != nil {
		return maxUnits
	}
	return list[0]
}
