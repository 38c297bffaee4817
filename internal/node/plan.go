package node

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/layout"
)

// plan is a decision that is not in force yet, with what it was tested by.
type plan struct {
	Decision
	left grant.Request // what the edited config.json still reaches
	env  []string      // the environment in it
}

// decide gives the verdict alone.
func decide(f *createFacts, view grant.View) Decision {
	return Decision{Verdict: f.judge.Decide(f.request, view, f.gpu.inventory, f.policy)}
}

// planned gives the verdict, and the edited config.json where the verdict has edits.
func planned(f *createFacts, view grant.View) plan {
	p := plan{Decision: decide(f, view)}
	if !p.Touches() {
		return p
	}
	if refused := refuseUnmakeable(f, p.Decision); refused != nil {
		return plan{Decision: *refused}
	}
	if refused := refuseCovered(f, p.Decision); refused != nil {
		return plan{Decision: *refused}
	}
	err := p.edit(f)
	if err == nil {
		err = p.sound(f, view)
	}
	var impossible *grant.Refusal
	if errors.As(err, &impossible) {
		r := refusal(impossible.Code, "%s", impossible.Message)
		r.Hint = impossible.Hint
		return plan{Decision: *r}
	}
	if err == nil && f.Live != nil && opensMore(p.Verdict) {
		devices, err := f.finder.Devices()
		if err != nil {
			return plan{Decision: *refusal(grant.Internal, "%v", err)}
		}
		p.Close, p.Others = admission.Closed(devices), admission.Confined(devices)
	}
	if err != nil {
		return plan{Decision: *refusal(grant.Internal, "internal error: %v", err)}
	}
	return p
}

// opensMore reports whether a rule that is to go opens more than GPUs. Of a live container only the
// GPUs are closed then: the runtime's own rules may be for the same devices.
func opensMore(v grant.Verdict) bool {
	return v.Narrow || slices.ContainsFunc(v.Removed, func(r grant.Removal) bool {
		return r.Kind == grant.RemoveRule && strings.Contains(r.Name, "*")
	})
}

// edit applies the verdict and runs Find on the edited spec. This second Find takes the driver's
// files and majors from the inventory, because the edits come from there. If the given spec named a
// device that could be the driver's, the first Find has asked the kernel for the majors already.
func (p *plan) edit(f *createFacts) (err error) {
	inventory, finder := f.gpu.inventory, f.finder
	finder.Files = inventory.Driver.Sources()
	finder.Majors = func() (map[string]int, error) { return inventory.Majors, nil }
	apply := f.Edit
	if apply == nil {
		apply = edit.OCI
	}
	if p.Config, err = apply(f.Config, p.Verdict); err != nil {
		return err
	}
	spec, refused := parse(f.Container, p.Config)
	if refused == nil {
		p.left, refused = f.find(spec, finder)
	}
	if refused != nil {
		return errors.New(refused.Message)
	}
	p.left.Layout, p.left.Own = f.request.Layout, f.request.Own
	p.left.Allocations = withNamed(p.left.Allocations, f.request.Allocations)
	if spec.Process != nil {
		p.env = spec.Process.Env
	}
	return nil
}

// withNamed returns the allocations that an edited spec still has, with what the given spec named
// to its engine: Docker's --gpus is in the spec as a hook, and the edits remove it.
func withNamed(left, given []grant.Allocation) []grant.Allocation {
	isNamed := func(a grant.Allocation) bool { return a.Named }
	left = slices.DeleteFunc(left, isNamed)
	if i := slices.IndexFunc(given, isNamed); i >= 0 {
		left = append(left, given[i])
	}
	return left
}

// sound returns nil if all that the edited spec still reaches is in the grant. (That editing it
// again changes nothing is tested as a property.)
func (p plan) sound(f *createFacts, view grant.View) error {
	second := f.judge.Decide(p.left, view, f.gpu.inventory, f.policy)
	if second.Kind != p.Kind {
		return fmt.Errorf("the edited spec would be judged %q (%s): %s", second.Kind,
			second.Code, second.Message)
	}
	if what := missing(second, p.env); what != "" {
		return fmt.Errorf("the edited spec still has what was taken away: %s", grant.Printable(what))
	}
	return nil
}

// missing names an edit that takes something away and is not in a spec, or returns "". verdict is
// the one about that spec, env its environment.
func missing(verdict grant.Verdict, env []string) string {
	if verdict.Narrow {
		return "device rules"
	}
	i := slices.IndexFunc(verdict.Removed, func(r grant.Removal) bool {
		return r.Kind != grant.RemoveEnv || !isSet(verdict.Edits.Env, r.Name, env)
	})
	if i < 0 {
		return ""
	}
	return verdict.Removed[i].String()
}

// isSet reports whether an environment has a variable, and every occurrence has the value of the
// edits.
func isSet(edits []string, name string, env []string) bool {
	ofName := func(entry string) bool { return strings.HasPrefix(entry, name+"=") }
	i := slices.IndexFunc(edits, ofName)
	return i >= 0 && slices.ContainsFunc(env, ofName) &&
		!slices.ContainsFunc(env, func(entry string) bool { return ofName(entry) && entry != edits[i] })
}

// refuseUnmakeable returns a refusal if a runtime would have to make mount points in a root file
// system that it cannot write to.
func refuseUnmakeable(f *createFacts, d Decision) *Decision {
	l := f.request.Layout
	if d.Kind != grant.Admit || l.Unseen || !l.ReadOnly && len(f.image.UIDs) == 0 {
		return nil
	}
	var places []string
	for _, m := range d.Edits.Mounts {
		// A mount over the place of the records is a file system that the runtime itself mounts.
		if !f.cover.exists || !strings.HasPrefix(m.ContainerPath, grant.ShimPlace+"/") {
			places = append(places, m.ContainerPath)
		}
	}
	place, why, err := layout.Unmakeable(f.image, places)
	switch {
	case err != nil:
		return refusal(grant.InjectionImpossible, "cannot look for the places of the driver's files: %v", err)
	case place != "":
		r := refusal(grant.InjectionImpossible,
			"the root file system of container %q %s and has no %s, where a file of the driver goes",
			f.Container.Name(), why, grant.Printable(place))
		r.Hint = "an image that has the places as empty files starts; so does one on a root file system " +
			"that its runtime can write to (" + grant.Docs + "driver.md)"
		return r
	}
	return nil
}

// cover is the last mount of a container's own that lies over the place of a grant's records.
type cover struct {
	exists      bool
	destination string
	volatile    bool // a file system of the container's own, in which a runtime makes what it needs
}

// refuseCovered returns a refusal if a runtime would have to make mount points in a directory that
// the container mounts, which may be the node's own /run.
func refuseCovered(f *createFacts, d Decision) *Decision {
	if d.Kind != grant.Admit || !d.Limited || !f.cover.exists || f.cover.volatile {
		return nil
	}
	r := refusal(grant.InjectionImpossible,
		"the memory limit of container %q goes to %s, which its own mount at %s covers",
		f.Container.Name(), grant.ShimPlace, grant.Printable(f.cover.destination))
	r.Hint = "mount what it needs of that directory, file by file, or use a tmpfs"
	return r
}

// sameEdits reports whether two verdicts change a spec in the same way.
func sameEdits(a, b grant.Verdict) bool {
	// Of mounts and devices there are tens: reflection takes a tenth of a millisecond for them.
	mounts := slices.EqualFunc(a.Edits.Mounts, b.Edits.Mounts, sameMount)
	nodes := slices.EqualFunc(a.Edits.DeviceNodes, b.Edits.DeviceNodes, sameNode)
	a.Edits.Mounts, b.Edits.Mounts, a.Edits.DeviceNodes, b.Edits.DeviceNodes = nil, nil, nil, nil
	return mounts && nodes && a.Kind == b.Kind && a.Narrow == b.Narrow && slices.Equal(a.Rules, b.Rules) &&
		slices.Equal(a.Removed, b.Removed) && slices.Equal(a.Masked, b.Masked) &&
		reflect.DeepEqual(a.Edits, b.Edits)
}

func sameMount(a, b *cdispec.Mount) bool {
	return a.HostPath == b.HostPath && a.ContainerPath == b.ContainerPath && a.Type == b.Type &&
		slices.Equal(a.Options, b.Options)
}

func sameNode(a, b *cdispec.DeviceNode) bool {
	x, y := *a, *b
	x.FileMode, y.FileMode, x.UID, y.UID, x.GID, y.GID = nil, nil, nil, nil, nil, nil
	return x == y && same(a.FileMode, b.FileMode) && same(a.UID, b.UID) && same(a.GID, b.GID)
}

// same compares what pointers lead to.
func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}
