package node

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/layout"
	"github.com/gpuledger/gpuledger/internal/request"
)

// createFacts are all that a create is decided by, except for the ledger. They are read before the
// ledger is locked: a path of a tenant's may lead into a file system that never answers, and a
// process that waits for one cannot be killed. They never change: what adds to them returns others.
type createFacts struct {
	Create
	policy  grant.Policy
	request grant.Request // what the spec reaches and says
	env     []string      // the container's environment
	image   layout.Image
	cover   cover    // of the place of the grant's records
	fresh   grant.ID // of a grant that is adopted

	finder request.NodeFacts
	load   func() snapshot // reads the inventory once
	judge  *admission.Judge

	gpu     gpuFacts
	cgroups cgroups // empty until an admission is about to be committed
}

// snapshot is the inventory as it was read.
type snapshot struct {
	inventory grant.Inventory
	problem   *grant.Problem // of the inventory
	stamp     host.Stamp     // of its file, from before it was read
}

// gpuFacts are the part that only a container which asks for a GPU needs. gather reads them.
type gpuFacts struct {
	gathered bool // the inventory and, on a node with a driver's files, the image were read
	snapshot

	libraries bool               // own was read
	own       []grant.OwnLibrary // the image's own copies of what a limit lies over
}

// readFacts reads the spec, and what is known of the container beside it. The second result is a
// refusal of a spec that cannot be read: it could hold anything, and the real runtime would refuse
// it.
func readFacts(n *Node, c Create) (*createFacts, *Decision) {
	f := &createFacts{Create: c, policy: n.Policy, judge: new(admission.Judge)}
	read := n.Inventory
	if c.inventory != nil {
		read = c.inventory
	}
	f.load = sync.OnceValue(func() snapshot {
		s := snapshot{stamp: n.InventoryStamp()}
		s.inventory, s.problem = read()
		return s
	})
	f.finder = n.finder(func() (grant.Inventory, *grant.Problem) {
		s := f.load()
		return s.inventory, s.problem
	})
	f.finder.Seen = &request.Seen{}
	if c.Unread != nil {
		return f, refusal(grant.SpecInvalid, "cannot read config.json of container %q: %v",
			c.Container.ID, c.Unread)
	}
	spec, refused := parse(c.Container, c.Config)
	if refused != nil {
		return f, refused
	}
	f.image = imageOf(spec, c.Container.Bundle)
	if spec.Linux != nil {
		f.image.UIDs, f.image.GIDs = spec.Linux.UIDMappings, spec.Linux.GIDMappings
	}
	if spec.Process != nil {
		f.env = spec.Process.Env
	}
	f.cover = coverOf(spec.Mounts)
	if f.request, refused = f.find(spec, f.finder); refused != nil {
		return f, refused
	}
	if admission.Adopts(f.request, grant.View{}, n.Policy) {
		f.fresh = freshID()
	}
	return f, nil
}

// pod is the container's, if the engine proves it.
func (f *createFacts) pod() grant.Identity { return f.request.Container.Pod }

func parse(c grant.Container, config []byte) (request.Spec, *Decision) {
	spec, err := request.Parse(config)
	if err != nil {
		return spec, refusal(grant.SpecInvalid, "cannot read config.json of container %q: %v", c.ID, err)
	}
	return spec, nil
}

// find lists what a spec of the container reaches: of the one that was given, or of the edited one.
func (f *createFacts) find(spec request.Spec, finder request.NodeFacts) (grant.Request, *Decision) {
	r, err := request.Find(spec, f.Caller, finder)
	if err != nil {
		return grant.Request{}, refusal(grant.Internal, "%v", err)
	}
	addPodUnits(&r, spec.Annotations)
	r.CanSetDriverLimit = f.canSetDriverLimit(spec)
	if spec.Linux != nil {
		r.Cgroup = spec.Linux.CgroupsPath
	}
	return r, nil
}

// imageOf returns where the container's own files are.
func imageOf(spec request.Spec, bundle string) layout.Image {
	var i layout.Image
	if spec.Root != nil {
		if i.Root = spec.Root.Path; !filepath.IsAbs(i.Root) {
			i.Root = filepath.Join(bundle, i.Root)
		}
	}
	if spec.Process != nil {
		i.Args, i.Path = spec.Process.Args, request.Variable(spec, "PATH")
		separator := func(c rune) bool { return c == ':' || c == ';' }
		i.Search = strings.FieldsFunc(request.Variable(spec, "LD_LIBRARY_PATH"), separator)
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

// gather returns the facts with what a decision by this view of the ledger needs. For a container
// that asks for no GPU it reads nothing.
func gather(f *createFacts, view grant.View) *createFacts {
	if f.suffice(view) {
		return f
	}
	more := *f
	f = &more
	if !f.gpu.gathered {
		f.gpu.gathered = true
		f.gpu.snapshot = f.load()
		if len(f.gpu.inventory.Driver.Files) > 0 { // the image matters only where there is a driver to mount
			f.request.Layout = grant.Layout{Unseen: true}
			if !f.unseen() {
				f.request.Layout = layout.Of(f.image)
			}
		}
	}
	if f.needsLibraries(view) && !f.gpu.libraries {
		f.gpu.libraries, f.gpu.own = true, ownLibraries(f.image, f.Container.Bundle)
		if len(f.gpu.inventory.Driver.Files) > 0 {
			f.request.Own = f.gpu.own
		}
	}
	return f
}

// suffice reports whether all has been read that a decision by this view of the ledger needs.
func (f *createFacts) suffice(view grant.View) bool {
	if !admission.Asks(f.request, view) {
		return true
	}
	return f.gpu.gathered && (f.gpu.libraries || !f.needsLibraries(view))
}

// outdated reports whether the inventory has been refreshed since it was read: the GPUs may have
// other partitions now.
func (f *createFacts) outdated(n *Node) bool {
	return f.gpu.gathered && f.gpu.stamp != n.InventoryStamp()
}

// renewed reads the facts anew if they are outdated. The second result is as readFacts has it.
func renewed(n *Node, f *createFacts) (*createFacts, *Decision) {
	if !f.outdated(n) {
		return f, nil
	}
	return readFacts(n, f.Create)
}

func (f *createFacts) needsLibraries(view grant.View) bool {
	return f.gpu.inventory.Shim.Dir != "" && couldBeLimited(view)
}

// unseen reports whether nothing of the image can be seen or changed any more: the container runs,
// or its create was reported by NRI, which does not know the root file system.
func (f *createFacts) unseen() bool { return f.image.Root == "" || f.Running }

// isOwn reports whether a binding is this container's. A process that reserves, or that settles
// after the create, may not know the runtime's root; ids that engines make up differ.
func (f *createFacts) isOwn(b grant.Binding) bool {
	return b.Container == f.Container.ID &&
		(b.RuntimeRoot == f.Container.RuntimeRoot || b.Reserved || f.AnyRoot)
}

// coverOf finds the last mount of the container's own that lies over the place of a grant's
// records.
func coverOf(mounts []specs.Mount) (c cover) {
	for _, m := range mounts {
		place := filepath.Clean("/" + m.Destination)
		over := func(dir string) bool { return host.Within(dir, place) }
		if !over(grant.ShimPlace) && !over("/var"+grant.ShimPlace) {
			continue
		}
		c = cover{true, m.Destination, m.Type == "tmpfs" && !isBind(m)}
	}
	return c
}

func isBind(m specs.Mount) bool {
	return slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}
