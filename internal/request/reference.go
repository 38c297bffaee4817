package request

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// references reads the references to grants: CDI names in annotations, our annotation and the
// variable in the environment. An empty one of the last two, as of a template that was never filled
// in, asks for nothing. What one place repeats is there once.
func references(f *containerFacts) (all []grant.Mention) {
	seen := map[grant.Mention]bool{} // an annotation can repeat one thousands of times
	add := func(source, value string, names bool) {
		if m := mention(source, value, names); !seen[m] {
			seen[m], all = true, append(all, m)
		}
	}
	for _, key := range f.keys {
		if !IsCDIKey(key) {
			continue
		}
		for _, name := range list(f.spec.Annotations[key]) {
			if kind, device := grant.CDIName(name); kind == grant.CDIKindGrant {
				add("annotation:"+key, device, f.caller.Container.Pod.Container == "")
			}
		}
	}
	if source, value, names, _ := f.keyed(grantKey); value != "" && value != grant.AdoptMark {
		add(source, value, names)
	}
	if value := f.env[grant.ReferenceEnv]; value != "" {
		add("env:"+grant.ReferenceEnv, value, true)
	}
	return all
}

// adoptMark returns the annotation that says that the container must adopt an allocation. The
// kubelet gives it to a container without the container's name in its key. So this key counts even
// beside one with the name, which the pod's author could write to start without the GPU.
func adoptMark(f *containerFacts) string {
	source, value, _, _ := f.keyed(grantKey)
	if f.spec.Annotations[grantKey] == grant.AdoptMark {
		return "annotation:" + grantKey
	}
	if value == grant.AdoptMark {
		return source
	}
	return ""
}

// injected reads the grants that were given to the container, of which references finds only one.
// Each CDI device that the engine has added sets the same variable in the environment, so the last
// one replaces the references of the others. Their hooks remain, and each has its grant's id in its
// own environment. For the device plugin see grant.GivenPrefix.
func injected(f *containerFacts) (all []grant.Mention) {
	for _, key := range f.keys {
		if strings.HasPrefix(key, grant.GivenPrefix) {
			all = append(all, given("annotation:"+key, f.spec.Annotations[key]))
		}
	}
	if f.spec.Hooks == nil {
		return all
	}
	for _, hook := range f.spec.Hooks.CreateRuntime {
		for _, entry := range hook.Env {
			id, found := strings.CutPrefix(entry, grant.ReferenceEnv+"=")
			if m := given("hook:gpuledger-hook", id); found && !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	return all
}

func given(source, id string) grant.Mention {
	return grant.Mention{Source: source, Reference: grant.Reference{ID: grant.ID(id)}}
}

// mention reads a reference to a grant. names says that it names this container.
func mention(source, value string, names bool) grant.Mention {
	m := grant.Mention{Source: source, Asks: names}
	reference, err := grant.ParseReference(value)
	if err != nil {
		m.Malformed = err.Error()
	}
	m.Reference = reference
	return m
}
