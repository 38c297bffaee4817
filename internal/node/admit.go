package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/layout"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Create is a container about to be created.
type Create struct {
	request.Caller
	Config []byte // its config.json
	Unread error  // why that could not be read
	Live   *Live  // in a hook: the real runtime has made the container already

	// Edit applies a verdict to the config.json; nil is edit.OCI. A *grant.Refusal from it is the verdict then.
	Edit func(config []byte, v grant.Verdict) ([]byte, error)
	// Reserve says that the container's own create has yet to come, in another process: until then this one holds the grant.
	Reserve bool

	// Hooked: the edits may bring a hook, which the runtime then calls. Restored: the container comes from a checkpoint, and CRIU brings
	// its cgroup back after the hooks, whatever stands in the spec.
	Hooked, Restored bool

	// Patience is how long Admit may wait for the ledger to be told that the container's pod is one of its grant's; 0: not at all.
	Patience time.Duration

	// Asks is called once, when the container is found to ask for a GPU: the longer part of an admission is to come. It may be nil.
	Asks func()

	// For Settle alone. AnyRoot: the runtime's root is a guess, so a binding of this id is the container's own whatever root
	// it names. Running: the container is past stopping, so that a refusal is only recorded.
	AnyRoot, Running bool
}

// Decision is a verdict in force.
type Decision struct {
	grant.Verdict
	Config []byte          // the config.json to run instead of the given one; nil: run it as it is
	Mode   grant.RulesMode // report or disabled: the verdict, a refusal or a pass that takes GPUs away, is only recorded; run the container as it is
	Bound  bool            // the grant is bound to the container by this call; Unbind if it does not come to be
	Known  bool            // the wrapper bound the grant to this very container before

	// Of a live container whose device rules are too wide: what GPUs are told by here, and what stands in place of a rule
	// for everything.
	Devices grant.DeviceMap
	Others  []grant.DeviceRule

	pod   grant.Identity // who asked, where the engine vouches for it
	left  grant.Request  // what Config still reaches
	env   []string       // that it has
	began time.Time      // when the decision was asked for; zero where nobody measures it
}

// Admit decides about a create and, where it admits, binds the grant to the container. It never fails: what goes wrong
// is a refusal, or for a container that reaches no GPU nothing at all.
func (n *Node) Admit(c Create) Decision {
	began := time.Now()
	d := n.admit(c)
	d.began = began
	n.recordOnly(&d)
	if !d.Bound && (d.Kind != grant.Refused || d.Mode != "") {
		n.Tidy(c.Container.RuntimeRoot, c.Container.ID) // of a dead container of this id: it would live again with this one
	}
	if !d.Known { // the wrapper has recorded it
		n.audit(c.Container, d.pod, d)
	}
	return d
}

// recordOnly takes the force from a decision where the policy is not enforced. Admissions go on, so that the ledger stays true;
// nothing is refused then, hidden or stripped.
func (n *Node) recordOnly(d *Decision) {
	if d.Kind == grant.Admit || d.Kind == grant.Pass && !d.Touches() {
		return
	}
	if mode := n.Mode(); mode != grant.Enforce {
		d.Mode, d.Config = mode, nil
	}
}

// Unjudged reports whether a container is to run as it would without gpuledger: nothing is enforced, or the policy exempts
// it, and the decision changes nothing of it.
func (n *Node) Unjudged(d Decision) bool {
	switch {
	case d.Mode != "":
		return true
	case d.Kind != grant.Pass || d.Touches():
		return false
	}
	return admission.Exempt(d.pod, n.Policy) || n.Mode() != grant.Enforce
}

// Explain is what Admit would say, without doing any of it.
func (n *Node) Explain(c Create) Decision {
	v, refused := n.visit(c)
	if refused != nil {
		return *refused
	}
	d := v.look(v.decide)
	if d.Kind != grant.Refused && !admission.Exempt(d.pod, n.Policy) && v.comesUpon(false) {
		return *v.crowdedCgroup(d.pod)
	}
	return d
}

func (n *Node) admit(c Create) Decision {
	v, refused := n.visit(c)
	if refused != nil {
		return *refused
	}
	return v.apart(v.listed(v.decided()))
}

// visit is one container at the door. What it reads of the node it reads once.
type visit struct {
	*Node
	Create
	finder    request.Node
	inventory func() (grant.Inventory, *grant.Problem)
	image     layout.Image
	layout    func() grant.Layout // of the image
	own       func() []grant.OwnLibrary
	judged    *admission.Judge
	fresh     func() grant.ID // of a grant that is adopted
	cover     cover           // of the place of the grant's records
	request   grant.Request
	cgroups   []string // where the container's processes will be
	occupies  []string // where they may be
	crowded   bool     // others are there already, or may be below
}

// visit reads the spec and what tells GPUs on this node.
func (n *Node) visit(c Create) (visit, *Decision) {
	own := *n
	own.Ledger = n.Ledger.Glance()
	v := visit{Node: &own, Create: c, inventory: sync.OnceValues(func() (grant.Inventory, *grant.Problem) {
		if c.Asks != nil {
			c.Asks()
		}
		return n.Inventory()
	}), judged: new(admission.Judge)}
	v.finder = n.finder(v.inventory)
	v.finder.Seen = &request.Seen{}
	if c.Unread != nil {
		return v, refusal(grant.SpecInvalid, "cannot read config.json of container %q: %v", c.Container.ID, c.Unread)
	}
	var refused *Decision
	var spec request.Spec
	v.request, spec, refused = v.find(c.Config)
	v.image = imageOf(spec, c.Container.Bundle)
	if spec.Linux != nil {
		v.image.UIDs, v.image.GIDs = spec.Linux.UIDMappings, spec.Linux.GIDMappings
	}
	v.layout = sync.OnceValue(func() grant.Layout { return layout.Of(v.image) })
	v.own = sync.OnceValue(v.ownLibraries)
	v.fresh = sync.OnceValue(freshID)
	v.cover = coverOf(spec.Mounts)
	return v, refused
}

// imageOf is where the container's own files are.
func imageOf(spec request.Spec, bundle string) layout.Image {
	var i layout.Image
	if spec.Root != nil {
		if i.Root = spec.Root.Path; !filepath.IsAbs(i.Root) {
			i.Root = filepath.Join(bundle, i.Root)
		}
	}
	if spec.Process != nil {
		i.Args, i.Path = spec.Process.Args, request.Variable(spec, "PATH")
		i.Search = strings.FieldsFunc(request.Variable(spec, "LD_LIBRARY_PATH"), func(c rune) bool { return c == ':' || c == ';' })
	}
	for _, m := range spec.Mounts {
		i.Mounts = append(i.Mounts, m.Destination)
	}
	return i
}

func freshID() grant.ID {
	random, err := host.Random()
	if err != nil {
		return "" // and nothing can be adopted
	}
	return grant.NewID(random)
}

// find reads the spec. What cannot be read could be anything, so it is refused; the real runtime would refuse it too.
func (v visit) find(config []byte) (grant.Request, request.Spec, *Decision) {
	spec, err := request.Parse(config)
	if err != nil {
		return grant.Request{}, spec, refusal(grant.SpecInvalid, "cannot read config.json of container %q: %v", v.Container.ID, err)
	}
	r, refused := v.findIn(spec)
	return r, spec, refused
}

func (v visit) findIn(spec request.Spec) (grant.Request, *Decision) {
	r, err := request.Find(spec, v.Caller, v.finder)
	if err != nil {
		return grant.Request{}, refusal(grant.Internal, "%v", err)
	}
	bound(&r, spec.Annotations)
	r.Drivable = v.drivable(spec)
	if spec.Linux != nil {
		r.Cgroup = spec.Linux.CgroupsPath
	}
	return r, nil
}

// hintOf is for a refusal whose message says all there is to say here.
func hintOf(code grant.Code) string { return "see " + grant.Docs + "refusals.md#" + string(code) }

func refusal(code grant.Code, format string, args ...any) *Decision {
	v := grant.Verdict{Kind: grant.Refused, Code: code, Message: fmt.Sprintf(format, args...), Strength: grant.StrengthNone, Hint: hintOf(code)}
	v.Details = []grant.Detail{{Vector: "node", Value: v.Message, Code: code}}
	return &Decision{Verdict: v}
}

// look decides on the ledger as it is, without waiting for anybody.
func (v visit) look(decide func(grant.View) Decision) (d Decision) {
	_ = v.Ledger.View(func(tx *ledger.Tx) error {
		d = decide(v.withWhole(tx, v.view(tx, v.request)))
		return nil
	})
	return d
}

// view reads the grants that the container owns or names. What cannot be read is a problem of the view: it stops only
// containers that want a GPU.
func (c visit) view(tx *ledger.Tx, r grant.Request) grant.View {
	v := grant.View{Now: c.Host.Now()}
	if c.Broken != nil {
		v.Problems = append(v.Problems, grant.Problem{Code: grant.ConfigInvalid, Message: c.Broken.Error(),
			Hint: "correct the configuration; containers without GPUs start meanwhile"})
	}
	add := func(g grant.Grant, err error) {
		if err == nil && g.Orphaned() {
			return
		}
		if c.AnyRoot && c.holds(g) { // it keeps what it was created with, though the grant's time be over
			g.Draining, g.Expires = false, time.Time{}
		}
		// A binding of this very container stands in nobody's way: whether its id is in use is asked apart.
		g.Bindings = slices.DeleteFunc(g.Bindings, c.isOwn)
		var damaged *ledger.DamagedError
		switch {
		case err == nil && !slices.ContainsFunc(v.Grants, func(o grant.Grant) bool { return o.ID == g.ID }):
			v.Grants = append(v.Grants, g)
		case errors.As(err, &damaged):
			v.Damaged = append(v.Damaged, damaged.Damage)
		case err != nil && !errors.Is(err, ledger.ErrNotFound):
			v.Problems = append(v.Problems, unreadable(err))
		}
	}
	if owner := r.Container.Pod.Owner(); owner != "" {
		add(tx.ByOwner(owner))
	}
	for _, m := range r.References {
		if m.Malformed == "" {
			add(tx.Get(m.ID))
		}
	}
	if slices.ContainsFunc(v.Grants, func(g grant.Grant) bool { return g.Mode == grant.Exclusive }) {
		var err error
		if v.Held, err = tx.Held(); err != nil {
			v.Problems = append(v.Problems, unreadable(err))
		}
	}
	v.MPS = c.mps(v.Grants)
	return v
}

// isOwn reports whether a binding is this container's. Whoever reserves, and who settles after the create, may not know the
// runtime's root; ids that engines make up differ.
func (v visit) isOwn(b grant.Binding) bool {
	return b.Container == v.Container.ID && (b.RuntimeRoot == v.Container.RuntimeRoot || b.Reserved || v.AnyRoot)
}

// holds reports whether the container's own create has bound the grant.
func (v visit) holds(g grant.Grant) bool {
	return slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return v.isOwn(b) && !b.Reserved && !b.Left })
}

// judge gives the verdict alone.
func (v visit) judge(view grant.View) Decision {
	var inv grant.Inventory
	if admission.Asks(v.request, view) {
		inv, view.Problems = v.inventoryFor(view)
		v.see(inv, view)
	}
	return Decision{Verdict: v.judged.Decide(v.request, view, inv, v.Policy), pod: v.request.Container.Pod}
}

// inventoryFor is the inventory, with the view's problems and its own.
func (v visit) inventoryFor(view grant.View) (grant.Inventory, []grant.Problem) {
	inv, problem := v.inventory()
	if problem == nil {
		problem = v.otherPartition(view.Grants, inv)
	}
	if problem == nil {
		return inv, view.Problems
	}
	return inv, append(slices.Clip(view.Problems), *problem)
}

// see looks at the image, which only matters on a node with a driver to mount.
func (v *visit) see(inv grant.Inventory, view grant.View) {
	switch {
	case len(inv.Driver.Files) == 0:
		return
	case v.unseen():
		v.request.Layout = grant.Layout{Unseen: true}
	default:
		v.request.Layout = v.layout()
	}
	if inv.Shim.Dir != "" && couldBeLimited(view) {
		v.request.Own = v.own()
	}
}

// unseen: it was told by NRI, which knows no root; or it runs, and nothing is mounted any more.
func (v visit) unseen() bool { return v.image.Root == "" || v.Running }

// placeless is a refusal where a runtime would have to make mount points in a root file system that it cannot write to.
func (v visit) placeless(d Decision, l grant.Layout) *Decision {
	if d.Kind != grant.Admit || l.Unseen || !l.ReadOnly && len(v.image.UIDs) == 0 {
		return nil
	}
	var places []string
	for _, m := range d.Edits.Mounts {
		if !v.cover.exists || !strings.HasPrefix(m.ContainerPath, grant.ShimPlace+"/") { // else in a file system that the runtime mounts
			places = append(places, m.ContainerPath)
		}
	}
	place, why, err := layout.Unmakeable(v.image, places)
	switch {
	case err != nil:
		return refusal(grant.InjectionImpossible, "cannot look for the places of the driver's files: %v", err)
	case place != "":
		r := refusal(grant.InjectionImpossible, "the root file system of container %q %s and has no %s, where a file of the driver goes", v.Container.Name(), why, grant.Printable(place))
		r.Hint = "an image that has the places as empty files starts; so does one on a root file system that its runtime can write to (" + grant.Docs + "driver.md)"
		return r
	}
	return nil
}

// decide gives the verdict, and the edited config.json where it has edits.
func (v visit) decide(view grant.View) Decision {
	d := v.judge(view)
	if !d.Touches() {
		return d
	}
	inv, problems := v.inventoryFor(view)
	view.Problems = problems
	v.see(inv, view)
	if refused := v.placeless(d, v.request.Layout); refused != nil {
		return *refused
	}
	if refused := v.hidden(d); refused != nil {
		return *refused
	}
	err := v.edit(&d, inv)
	if err == nil {
		err = v.sound(d, view, inv)
	}
	var impossible *grant.Refusal
	if errors.As(err, &impossible) {
		r := refusal(impossible.Code, "%s", impossible.Message)
		r.Hint, r.pod = impossible.Hint, d.pod
		return *r
	}
	if err != nil {
		return *refusal(grant.Internal, "internal error: %v", err)
	}
	if v.Live == nil || !d.Narrow {
		return d
	}
	if d.Devices, err = v.finder.Devices(); err != nil {
		return *refusal(grant.Internal, "%v", err)
	}
	d.Others = admission.Confined(d.Devices)
	return d
}

// edit applies a verdict and looks at the result with the same eyes as at the original. What it adds of the inventory is known: the driver's files
// and its majors, which were asked of the kernel where the spec itself had to do with them.
func (v visit) edit(d *Decision, inv grant.Inventory) (err error) {
	v.finder.Files = inv.Driver.Sources()
	v.finder.Majors = func() (map[string]int, error) { return inv.Majors, nil }
	apply := v.Edit
	if apply == nil {
		apply = edit.OCI
	}
	if d.Config, err = apply(v.Config, d.Verdict); err != nil {
		return err
	}
	left, spec, refused := v.find(d.Config)
	if refused != nil {
		return errors.New(refused.Message)
	}
	left.Layout, left.Own = v.request.Layout, v.request.Own
	d.left = left
	if spec.Process != nil {
		d.env = spec.Process.Env
	}
	return nil
}

// sound is nil where everything that the edited spec still reaches is in the grant. (That editing it again changes nothing is
// a property test's business.)
func (v visit) sound(d Decision, view grant.View, inv grant.Inventory) error {
	second := v.judged.Decide(d.left, view, inv, v.Policy)
	if second.Kind != d.Kind {
		return fmt.Errorf("the edited spec would be judged %q (%s): %s", second.Kind, second.Code, second.Message)
	}
	if what := missing(second, func() []string { return d.env }); what != "" {
		return fmt.Errorf("the edited spec still has what was taken away: %s", grant.Printable(what))
	}
	return nil
}
