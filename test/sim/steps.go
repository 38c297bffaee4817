package sim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// enter asks for a grant by hand.
func (l *life) enter() {
	h, ask := l.draft()
	l.begin("grant", func(p *process, n *node.Node) {
		g, reference, err := grants.Enter(n, ask)
		l.answered(p, h, g, reference, err)
	})
}

// enterAll asks for several grants at once, as a driver of Kubernetes does.
func (l *life) enterAll() {
	var of []*holding
	var asks []admission.Ask
	for range 2 + l.random.IntN(3) {
		h, ask := l.draft()
		of, asks = append(of, h), append(asks, ask)
	}
	l.begin("grants", func(p *process, n *node.Node) {
		for i, e := range grants.EnterAll(n, asks, nil) {
			l.answered(p, of[i], e.Grant, e.Reference, e.Err)
		}
	})
}

// answered is when the holder of a grant reads whether there is one.
func (l *life) answered(p *process, h *holding, g grant.Grant, reference grant.Reference, err error) {
	h.busy = false
	if err == nil {
		h.acked, h.id, h.reference, h.expires = true, g.ID, reference, g.Expires
		l.checkPlaced(p, g)
	} else if p.faults < 2 && l.labelled(h.label) != nil {
		l.fail("%s returned an error, and its grant is there: %v", p.name, err)
	}
}

// draft is a request for a grant by hand, and what its holder knows.
func (l *life) draft() (*holding, admission.Ask) {
	h := &holding{label: fmt.Sprintf("grant-%d", len(l.held)), busy: true}
	if l.random.IntN(4) == 0 {
		h.pod = podOf(l.random.IntN(pods))
	}
	ask := admission.Ask{Owner: h.owner(), Label: h.label, Source: "cli", GPUs: 1 + l.random.IntN(l.gpus),
		Mode: []grant.Mode{grant.Limit, grant.Limit, grant.Timeslice, grant.Exclusive, grant.MPS,
			grant.MPS}[l.random.IntN(6)]}
	if l.server && l.random.IntN(4) > 0 {
		ask.Mode = grant.MPS
	}
	if l.divides && l.random.IntN(2) == 0 {
		ask.Mode, ask.Profile = grant.MIG, profile
	}
	each := card
	switch {
	case ask.Mode == grant.MIG:
		each = slice
	case ask.Mode != grant.Exclusive:
		each = grant.Bytes(1+l.random.IntN(8)) * grant.GiB
		ask.Memory = each * grant.Bytes(ask.GPUs)
	}
	h.possible = []grant.Bytes{each * grant.Bytes(ask.GPUs)}
	if (ask.Mode == grant.Limit || ask.Mode == grant.MPS) && l.random.IntN(3) == 0 {
		ask.Compute = 10 * (3 + l.random.IntN(8))
	}
	if l.random.IntN(3) == 0 {
		ask.TTL = time.Duration(1+l.random.IntN(30)) * time.Hour
	}
	l.held = append(l.held, h)
	return h, ask
}

// labelled is the grant of a label, if it is in the ledger.
func (l *life) labelled(label string) (found *grant.Grant) {
	p := l.current
	l.current = nil
	defer func() { l.current = p }()
	v := l.view()
	for i := range v.Grants {
		if v.Grants[i].Label == label {
			found = &v.Grants[i]
		}
	}
	return found
}

// pick is an acknowledged grant that nobody changes, or nil.
func (l *life) pick() *holding {
	var all []*holding
	for _, h := range l.held {
		if h.acked && !h.busy && !h.over {
			all = append(all, h)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[l.random.IntN(len(all))]
}

// pickToChange is pick, or, more often than not, a grant with a record for the shim: the update of
// its memory changes two files, and may end between them.
func (l *life) pickToChange() *holding {
	if l.random.IntN(4) == 0 {
		return l.pick()
	}
	var all []*holding
	kept := limits.Kept(l.eyes.Policy.LimitsRoot())
	for _, h := range l.held {
		if h.acked && !h.busy && !h.over && h.user == 0 && slices.Contains(kept, string(h.id)) {
			all = append(all, h)
		}
	}
	if len(all) == 0 {
		return l.pick()
	}
	return all[l.random.IntN(len(all))]
}

// create makes a container: with a reference, by adoption, by asking, or without a GPU.
func (l *life) create(name int) {
	annotations, engine, size := "", grant.Containerd, 1+l.random.IntN(8)
	switch h := l.pick(); {
	case h != nil && l.random.IntN(2) == 0:
		annotations = h.annotations()
	case l.random.IntN(2) == 0:
		annotations = identity(podOf(l.random.IntN(pods))) +
			fmt.Sprintf(`,"gpuledger.dev/memory.c":"%dGiB"`, size)
	case l.random.IntN(4) > 0:
		engine = grant.Podman
		annotations = fmt.Sprintf(`"gpuledger.dev/gpus":"1","gpuledger.dev/memory":"%dGiB"`, size)
	}
	l.begin(nameOf(name), func(p *process, n *node.Node) { l.make(p, n, name, engine, annotations) })
}

// pods is how many pods have a container that may be created, each time under another id.
const pods = 4

func podOf(i int) string { return fmt.Sprintf("u%d", i) }

// identity is what containerd writes into the spec of the container c of a pod.
func identity(pod string) string {
	return fmt.Sprintf(`"io.kubernetes.cri.container-type":"container",`+
		`"io.kubernetes.cri.sandbox-uid":%q,"io.kubernetes.cri.sandbox-namespace":"n",`+
		`"io.kubernetes.cri.sandbox-name":"p","io.kubernetes.cri.container-name":"c"`, pod)
}

func (h *holding) owner() grant.Owner {
	if h.pod == "" {
		return grant.Bearer
	}
	return grant.PodOwner(h.pod, "c")
}

// annotations are those of a container that may use the grant: a pod's container proves that by
// what it is, any other one by the reference.
func (h *holding) annotations() string {
	if h.pod == "" {
		return fmt.Sprintf(`"gpuledger.dev/grant":%q`, h.reference)
	}
	return identity(h.pod)
}

func (l *life) container(name int, engine grant.Engine) grant.Container {
	return grant.Container{Engine: engine, RuntimeRoot: l.path("runc"), ID: nameOf(name),
		Bundle: l.path("bundle")}
}

// make is the wrapper, and then the runtime that it becomes.
func (l *life) make(p *process, n *node.Node, name int, engine grant.Engine, annotations string) {
	spec := fmt.Sprintf(`{"annotations":{%s},"process":{},"linux":{"cgroupsPath":%q,"namespaces":[`+
		`{"type":"mount"},{"type":"pid"}],"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`,
		annotations, cgroupOf(name))
	p.creates, p.binds, p.earliest = true, true, l.now
	l.sawReady(p)
	d := n.Admit(node.Create{Caller: request.Caller{Container: l.container(name, engine)},
		Config: []byte(spec)})
	p.creates = false
	l.trace("%s: %s %s %v", p.name, d.Kind, d.Code, d.Bound)
	if annotations == "" {
		l.checkUnasked(p, d)
	}
	if d.Kind == grant.Refused {
		l.refused(p, name, d)
		return
	}
	b := &box{name: name, creator: p}
	if d.Bound {
		b.grant, b.alone = d.Grant.ID, d.Grant.Mode.IsWhole()
		b.limited, b.mps = d.Limited, d.Grant.Mode == grant.MPS
		if d.Grant.Expired(p.earliest) {
			l.fail("%s is admitted with grant %s, which had expired before", p.name, d.Grant.ID)
		}
		l.checkClient(p, d.Grant)
		l.checkPlaced(p, *d.Grant)
		for _, s := range d.Grant.GPUs {
			b.gpus = append(b.gpus, s.UUID)
		}
	}
	l.boxes = append(l.boxes, b)
	l.pause()
	if os.Mkdir(l.path("runc", nameOf(name)), 0o700) == nil {
		l.pause()
		b.pid, b.start = l.fork(cgroupOf(name))
		l.started++
		l.populate(name, 1)
		l.pause()
		l.record(b)
		l.pause()
	}
	b.creator = nil
	l.forget()
}

// checkUnasked: a container that asks for no GPU starts, and without a grant. It is refused only if
// the record that its cgroup leads to cannot be read: that may be another container's, with a GPU.
func (l *life) checkUnasked(p *process, d node.Decision) {
	unread := d.Code == grant.InjectionImpossible && p.faults > 0
	if d.Bound || d.Kind == grant.Refused && !unread {
		l.fail("%s asks for no GPU: %s %s, bound: %v", p.name, d.Kind, d.Code, d.Bound)
	}
}

// record writes the state as crun and runc do.
func (l *life) record(b *box) {
	name := nameOf(b.name)
	if b.name%2 == 0 {
		l.write(fmt.Sprintf(`{"pid":%d,"process-start-time":%d,"cgroup-path":%q}`, b.pid, b.start,
			cgroupOf(b.name)), "runc", name, "status")
	} else {
		l.write(fmt.Sprintf(`{"init_process_pid":%d,"init_process_start":%d,"cgroup_paths":{"":%q}}`,
			b.pid, b.start, l.path("sys/fs/cgroup", cgroupOf(b.name))), "runc", name, "state.json")
	}
	b.written = true
	l.machine.changes++
}

// refused: a create that was refused leaves nothing, if it met no errors of the disk.
func (l *life) refused(p *process, name int, d node.Decision) {
	if p.faults > 0 {
		return
	}
	v := l.inside()
	for _, g := range v.Grants {
		for _, b := range g.Bindings {
			if b.Creator == (grant.Process{PID: p.pid, Start: p.start}) {
				l.fail("%s is refused (%s), and grant %s is bound to it", p.name, d.Code, g.ID)
			}
		}
	}
}

// end ends a container's init; processes may be left in its cgroup for a while.
func (l *life) end() {
	if len(l.boxes) == 0 {
		return
	}
	b := l.boxes[l.random.IntN(len(l.boxes))]
	if b.creator != nil {
		return
	}
	l.trace("end %s", nameOf(b.name))
	if left := !b.left && l.random.IntN(4) == 0; left {
		l.machine.exit(b.pid)
		l.machine.changes++
		b.pid, b.left = 0, true
		return
	}
	l.emptied(b)
	l.forget()
}

// remove is the engine's delete of a container, of one that runs by force.
func (l *life) remove() {
	name := l.random.IntN(names)
	if slices.ContainsFunc(l.boxes, func(b *box) bool { return b.name == name && b.creator != nil }) {
		return
	}
	l.begin("delete-"+nameOf(name), func(_ *process, n *node.Node) {
		n.Delete(l.path("runc"), nameOf(name))
		l.pause()
		l.deleted(name)
	})
}

func (l *life) deleted(name int) {
	busy := func(b *box) bool { return b.name == name && b.creator != nil }
	if slices.ContainsFunc(l.boxes, busy) {
		return
	}
	for _, b := range l.boxes {
		if b.name == name {
			l.emptied(b)
		}
	}
	l.machine.remove("runc", nameOf(name))
	l.machine.changes++
	l.forget()
}

func (l *life) release() {
	h := l.pick()
	if h == nil {
		return
	}
	h.busy, h.over = true, true
	l.begin("release", func(p *process, n *node.Node) {
		_, err := grants.Release(n, h.id, false)
		h.answered(p, err)
	})
}

// answered is when the holder of a grant reads whether it was released. After an error it stands,
// if the disk has failed only once.
func (h *holding) answered(p *process, err error) {
	var gone *grant.NotFoundError
	h.busy, h.released = false, err == nil || errors.As(err, &gone)
	h.over = h.released || p.faults > 1
}

func (l *life) change() {
	h := l.pickToChange()
	if h == nil || h.user != 0 { // root may give a user more than the quota
		return
	}
	most := []int{4, 4, 16}[l.random.IntN(3)] // what is small fits mostly

	// over 1, 2 or 3 GPUs
	memory, before := grant.Bytes(1+l.random.IntN(most))*1536*grant.MiB, h.possible
	h.busy, h.possible = true, append(slices.Clone(before), memory)
	l.begin("update", func(p *process, n *node.Node) {
		p.update = true
		_, err := grants.Update(n, h.id, grants.Change{Memory: &memory})
		if h.busy = false; err == nil {
			h.possible = []grant.Bytes{memory}
		} else if p.faults == 0 {
			h.possible = before
		}
	})
}

// tidy is a pass of gpuledgerd, or an administrator's check.
func (l *life) tidy() {
	kind := l.random.IntN(5)
	l.begin("tidy", func(p *process, n *node.Node) {
		switch kind {
		case 0:
			n.RemoveDeadBindings()
		case 1:
			_, _ = grants.Reconcile(n)
		case 2, 3:
			_, err := grants.SettleLimits(n)
			l.settledBy(p, err)
		default:
			_, _ = grants.Check(n)
		}
	})
}

// look takes the inventory, in which a GPU may have failed or recovered.
func (l *life) look() {
	if l.random.IntN(2) == 0 {
		i := l.random.IntN(l.gpus)
		l.sick[i] = !l.sick[i]
	}
	if l.divides && l.random.IntN(2) == 0 {
		l.divide(l.random.IntN(l.gpus))
	}
	l.begin("scan", func(_ *process, n *node.Node) { _ = l.machine.scan(n) })
}
