package sim

import (
	"fmt"
	"os"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// box is a container that the virtual runtime has made, or is about to make.
type box struct {
	name    int
	creator *process // nil after the create
	pid     int      // of its init; 0 before and after it runs
	start   uint64
	grant   grant.ID
	gpus    []string
	alone   bool // its grant is exclusive
	limited bool // the shim keeps it to its memory
	mps     bool // its grant is in mode mps
	written bool // the runtime's state is
	left    bool // processes are left in its cgroup

	faulty bool       // its create has met errors of the disk
	beside []grant.ID // of other creates of the id, which were at work during its life
}

func (b *box) runs() bool { return b.creator != nil || b.pid != 0 || b.left }

// containers are those of which something runs.
type containers struct {
	*world
	boxes []*box
}

// start makes a container.
func (c *containers) start(name int, engine grant.Engine, annotations string) {
	c.begin(nameOf(name), func(p *process, n *node.Node) { c.make(p, n, name, engine, annotations) })
}

// make is the wrapper, and then the runtime that it becomes.
func (c *containers) make(p *process, n *node.Node, name int, engine grant.Engine, annotations string) {
	spec := fmt.Sprintf(`{"annotations":{%s},"process":{},"linux":{"cgroupsPath":%q,"namespaces":[`+
		`{"type":"mount"},{"type":"pid"}],"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`,
		annotations, cgroupOf(name))
	p.creates, p.binds, p.makes, p.earliest = true, true, name, c.now
	p.sawReady(c.controls)
	d := n.Admit(node.Create{Caller: request.Caller{Container: grant.Container{Engine: engine,
		RuntimeRoot: c.path("runc"), ID: nameOf(name), Bundle: c.path("bundle")}},
		Config: []byte(spec)})
	p.creates = false
	c.trace("%s: %s %s %v", p.name, d.Kind, d.Code, d.Bound)
	if annotations == "" {
		c.report(checkUnasked(p, d))
	}
	if d.Kind == grant.Refused {
		v := c.inside()
		c.report(checkRefused(p, d, v))
		for _, g := range v.Grants { // the disk may have failed when that was to be undone
			if p.hasBound(g) {
				noteBeside(c.boxes, c.all, g.ID, nameOf(name))
			}
		}
		return
	}
	b := &box{name: name, creator: p, faulty: p.faults > 0, beside: p.beside}
	if d.Bound {
		b.grant, b.alone = d.Grant.ID, d.Grant.Mode.IsWhole()
		b.limited, b.mps = d.Limited, d.Grant.Mode == grant.MPS
		if d.Grant.Expired(p.earliest) || c.isOver(d.Grant.ID, p.earliest) {
			c.fail("%s is admitted with grant %s, which had expired before", p.name, d.Grant.ID)
		}
		c.report(checkClient(p, d.Grant))
		c.report(checkPlaced(p, *d.Grant))
		for _, s := range d.Grant.GPUs {
			b.gpus = append(b.gpus, s.UUID)
		}
	}
	c.boxes = append(c.boxes, b)
	c.pause()
	if os.Mkdir(c.path("runc", nameOf(name)), 0o700) == nil {
		c.pause()
		b.pid, b.start = c.fork(cgroupOf(name))
		c.happened[containersStarted]++
		c.populate(name, 1)
		c.pause()
		c.record(b)
		c.pause()
	}
	b.creator = nil
	c.forget()
}

// checkUnasked: a container that asks for no GPU starts, and without a grant. It is refused only if
// the record that its cgroup leads to cannot be read: that may be another container's, with a GPU.
func checkUnasked(p *process, d node.Decision) string {
	unread := d.Code == grant.InjectionImpossible && p.faults > 0
	if d.Bound || d.Kind == grant.Refused && !unread {
		return fmt.Sprintf("%s asks for no GPU: %s %s, bound: %v", p.name, d.Kind, d.Code, d.Bound)
	}
	return ""
}

// checkRefused: a create that was refused leaves nothing, if it met no errors of the disk.
func checkRefused(p *process, d node.Decision, v grant.View) string {
	if p.faults > 0 {
		return ""
	}
	for _, g := range v.Grants {
		if p.hasBound(g) {
			return fmt.Sprintf("%s is refused (%s), and grant %s is bound to it", p.name, d.Code, g.ID)
		}
	}
	return ""
}

// hasBound reports whether a create has bound a grant.
func (p *process) hasBound(g grant.Grant) bool {
	return slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool {
		return b.Creator == grant.Process{PID: p.pid, Start: p.start}
	})
}

// record writes the state as crun and runc do.
func (c *containers) record(b *box) {
	name := nameOf(b.name)
	if b.name%2 == 0 {
		c.write(fmt.Sprintf(`{"pid":%d,"process-start-time":%d,"cgroup-path":%q}`, b.pid, b.start,
			cgroupOf(b.name)), "runc", name, "status")
	} else {
		c.write(fmt.Sprintf(`{"init_process_pid":%d,"init_process_start":%d,"cgroup_paths":{"":%q}}`,
			b.pid, b.start, c.path("sys/fs/cgroup", cgroupOf(b.name))), "runc", name, "state.json")
	}
	b.written = true
	c.changes++
}

// end ends a container's init; processes may be left in its cgroup for a while.
func (c *containers) end() {
	if len(c.boxes) == 0 {
		return
	}
	b := c.boxes[c.random.IntN(len(c.boxes))]
	if b.creator != nil {
		return
	}
	c.trace("end %s", nameOf(b.name))
	if left := !b.left && c.random.IntN(4) == 0; left {
		c.exit(b.pid)
		c.changes++
		b.pid, b.left = 0, true
		return
	}
	c.emptied(b)
	c.forget()
}

// delete is the engine's delete of a container, of one that runs by force.
func (c *containers) delete() {
	name := c.random.IntN(names)
	if slices.ContainsFunc(c.boxes, func(b *box) bool { return b.name == name && b.creator != nil }) {
		return
	}
	c.begin("delete-"+nameOf(name), func(_ *process, n *node.Node) {
		n.Delete(c.path("runc"), nameOf(name))
		c.pause()
		c.deleted(name)
	})
}

func (c *containers) deleted(name int) {
	busy := func(b *box) bool { return b.name == name && b.creator != nil }
	if slices.ContainsFunc(c.boxes, busy) {
		return
	}
	for _, b := range c.boxes {
		if b.name == name {
			c.emptied(b)
		}
	}
	c.remove("runc", nameOf(name))
	c.changes++
	c.forget()
}

// emptied ends all processes of a container.
func (c *containers) emptied(b *box) {
	c.exit(b.pid)
	if b.pid != 0 || b.left {
		c.populate(b.name, 0)
	}
	b.pid, b.left = 0, false
}

// orphaned is when a process was killed. What it has made without writing it down goes with it.
func (c *containers) orphaned(p *process) {
	for _, b := range c.boxes {
		if b.creator == p {
			b.creator = nil
			if !b.written && b.pid != 0 {
				c.emptied(b)
			}
		}
	}
	c.forget()
}

// forget drops containers of which nothing runs; their states stay until they are deleted.
func (c *containers) forget() {
	c.boxes = slices.DeleteFunc(c.boxes, func(b *box) bool { return !b.runs() })
}
