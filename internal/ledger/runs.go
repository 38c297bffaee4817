package ledger

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// ContainerLife tells whether the real runtime has a container of that id which runs, bound or not.
// A second create of its id must bind nothing: the binding would live as long as the first
// container does.
func (l *Ledger) ContainerLife(runtimeRoot, container string) grant.Life {
	if !isContainerID(container) {
		return grant.Dead
	}
	if _, err := l.readState(runtimeRoot, container); errors.Is(err, fs.ErrNotExist) {
		// for the runtime, which is called next: another container with the id, under another root,
		// does not matter
		return grant.Dead
	}
	b := grant.Binding{RuntimeRoot: runtimeRoot, Container: container}
	life, _, unseen := l.contained(&b)
	if unseen { // it was deleted meanwhile
		l.unseen([]*grant.Binding{&b})
		return b.Life
	}
	return life
}

// ContainerInit is a container's first process, running or not, as the real runtime recorded it;
// false if it has none.
func (l *Ledger) ContainerInit(runtimeRoot, container string) (grant.Process, bool) {
	if !isContainerID(container) {
		return grant.Process{}, false
	}
	state, err := l.readState(runtimeRoot, container)
	return state.init, err == nil
}

// ContainerBundle is the bundle that a container was created from, as the real runtime recorded it;
// "" if it has none.
func (l *Ledger) ContainerBundle(runtimeRoot, container string) string {
	if !isContainerID(container) {
		return ""
	}
	var crun struct {
		Bundle string `json:"bundle"`
	}
	if decodeState(filepath.Join(runtimeRoot, container, "status"), &crun) == nil {
		return crun.Bundle
	}
	var runc struct {
		Config struct {
			Labels []string `json:"labels"` // "bundle=/path"
		} `json:"config"`
	}
	if decodeState(filepath.Join(runtimeRoot, container, "state.json"), &runc) != nil {
		return ""
	}
	for _, label := range runc.Config.Labels {
		if bundle, found := strings.CutPrefix(label, "bundle="); found {
			return bundle
		}
	}
	return ""
}

// ContainerCgroup is the directory of a container's cgroup, as the real runtime recorded it; "" if
// it has none of its own.
func (l *Ledger) ContainerCgroup(runtimeRoot, container string) string {
	if !isContainerID(container) {
		return ""
	}
	state, err := l.readState(runtimeRoot, container)
	if err != nil {
		return ""
	}
	return state.cgroup.dir(l.Host)
}
