package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// containerState is what a runtime wrote about a container when it had created it.
type containerState struct {
	init   grant.Process
	cgroup cgroup
}

// maxState bounds a runtime's state; runc's holds the whole spec.
const maxState = 16 << 20

// readState reads the state of a container of runc (state.json) or crun (status). fs.ErrNotExist:
// there is none.
func (l *Ledger) readState(root, container string) (containerState, error) {
	dir := filepath.Join(root, container)
	state, err := l.states.read(filepath.Join(dir, "state.json"), readRunc)
	if errors.Is(err, fs.ErrNotExist) {
		return l.states.read(filepath.Join(dir, "status"), readCrun)
	}
	return state, err
}

// states are those that were read, for a program that stays: runc's holds the whole spec, and says
// the same until its file is another. Nil remembers none.
type states struct {
	mu    sync.Mutex
	known map[string]knownState // by path
}

type knownState struct {
	containerState
	stamp host.Stamp
}

// maxStates is how many are remembered before all are forgotten: those of containers that are gone
// go so.
const maxStates = 4096

// Keep has it remember what does not change between two looks at it, for a program that stays.
func (l *Ledger) Keep() { l.states = &states{known: map[string]knownState{}} }

func (s *states) read(path string, read func(path string) (containerState, error)) (containerState, error) {
	if s == nil {
		return read(path)
	}
	is, now := host.StampOf(path), time.Now()
	s.mu.Lock()
	known, found := s.known[path]
	s.mu.Unlock()
	if found && known.stamp == is {
		return known.containerState, nil
	}
	state, err := read(path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxStates {
		clear(s.known)
	}
	if delete(s.known, path); err == nil && is.Before(now) {
		s.known[path] = knownState{state, is}
	}
	return state, err
}

// readRunc reads runc's state (libcontainer's BaseState and State). cgroup_paths has a path by v1
// controller, and that of v2 under "".
func readRunc(path string) (containerState, error) {
	var state struct {
		PID     int               `json:"init_process_pid"`
		Start   uint64            `json:"init_process_start"`
		Cgroups map[string]string `json:"cgroup_paths"`
	}
	if err := decodeState(path, &state); err != nil {
		return containerState{}, err
	}
	init := grant.Process{PID: state.PID, Start: state.Start}
	return containerState{init, cgroup{paths: state.Cgroups}}, checkInit(path, init)
}

// readCrun reads crun's status. Its cgroup's path is the same in every hierarchy, from the
// hierarchy's root.
func readCrun(path string) (containerState, error) {
	var state struct {
		PID    int    `json:"pid"`
		Start  uint64 `json:"process-start-time"`
		Cgroup string `json:"cgroup-path"`
	}
	if err := decodeState(path, &state); err != nil {
		return containerState{}, err
	}
	init := grant.Process{PID: state.PID, Start: state.Start}
	return containerState{init, cgroup{relative: state.Cgroup}}, checkInit(path, init)
}

// decodeState is lenient in what we don't judge: a bundle's path need be no UTF-8.
func decodeState(path string, out any) error {
	data, err := readFile(path, maxState)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// checkInit refuses a state that names no init: it would read as one that is gone.
func checkInit(path string, init grant.Process) error {
	if init.PID <= 0 || init.Start == 0 {
		return fmt.Errorf("cannot tell the container's init from %s", path)
	}
	return nil
}
