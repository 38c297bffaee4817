// Package containers finds out which containers run on the node. It asks the kernel about
// processes and cgroups, and reads the states that runc and crun write about their containers. It
// believes nothing else, takes no lock and writes nothing.
package containers

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Reader reads what is known of containers. It holds nothing open and may be used by many
// goroutines.
type Reader struct {
	Host host.Host
	Here Here

	states   *states   // nil: no state is remembered
	searches *searches // nil but for one create
}

// New gives a reader of a node's containers. It touches nothing.
func New(h host.Host) *Reader { return &Reader{Host: h, Here: hereOf(h)} }

// Here is the boot and the namespaces in which this program runs: by them a binding says where its
// pids and start times mean something. Each is asked of the kernel once.
type Here struct {
	BootID func() (string, error)
	PIDNS  func() (uint64, error)
	TimeNS func() (uint64, error)
}

func hereOf(h host.Host) Here {
	return Here{BootID: kept(h.BootID), PIDNS: kept(h.PIDNamespace), TimeNS: kept(h.TimeNamespace)}
}

// kept reads a value until that succeeds, and keeps it. A process that lives for months must not
// keep the error of one moment.
func kept[T any](read func() (T, error)) func() (T, error) {
	var known atomic.Pointer[T]
	return func() (T, error) {
		if v := known.Load(); v != nil {
			return *v, nil
		}
		v, err := read()
		if err == nil {
			known.Store(&v)
		}
		return v, err
	}
}

// IsID accepts what can be the name of a runtime's state directory. Engines choose ids, and only
// the id stands between their root and another path.
func IsID(id string) bool {
	return id != "" && id != "." && id != ".." && !strings.ContainsAny(id, "/\x00")
}

// Life reports whether the real runtime has a container of that id which runs, bound or not. A
// second create of its id must bind nothing: the binding would live as long as the first container
// does.
func (r *Reader) Life(runtimeRoot, id string) grant.Life {
	if !IsID(id) {
		return grant.Dead
	}
	if _, err := r.readState(runtimeRoot, id); errors.Is(err, fs.ErrNotExist) {
		// The caller asks for the runtime, which it calls next: another container with the id,
		// under another root, does not matter.
		return grant.Dead
	}
	b := grant.Binding{RuntimeRoot: runtimeRoot, Container: id}
	life, _, unseen := r.byState(&b)
	if unseen { // it was deleted meanwhile
		r.bySearch([]*grant.Binding{&b})
		return b.Life
	}
	return life
}

// Init is a container's first process, running or not, as the real runtime recorded it; false if it
// has none.
func (r *Reader) Init(runtimeRoot, id string) (grant.Process, bool) {
	if !IsID(id) {
		return grant.Process{}, false
	}
	state, err := r.readState(runtimeRoot, id)
	return state.init, err == nil
}

// Cgroup is the directory of a container's cgroup, as the real runtime recorded it; "" if it has
// none of its own.
func (r *Reader) Cgroup(runtimeRoot, id string) string {
	if !IsID(id) {
		return ""
	}
	state, err := r.readState(runtimeRoot, id)
	if err != nil {
		return ""
	}
	return state.cgroup.dir(r.Host)
}

// Bundle is the bundle that a container was created from, as the real runtime recorded it; "" if it
// has none.
func Bundle(runtimeRoot, id string) string {
	if !IsID(id) {
		return ""
	}
	var crun crunBundle
	if decodeState(filepath.Join(runtimeRoot, id, "status"), crun.read) == nil {
		return crun.Bundle
	}
	var runc runcLabels
	if decodeState(filepath.Join(runtimeRoot, id, "state.json"), runc.read) != nil {
		return ""
	}
	return runc.bundle()
}
