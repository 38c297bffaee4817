package containers

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/tokens"
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
func (r *Reader) readState(root, container string) (containerState, error) {
	dir := filepath.Join(root, container)
	state, err := r.states.read(filepath.Join(dir, "state.json"), readRunc)
	if errors.Is(err, fs.ErrNotExist) {
		return r.states.read(filepath.Join(dir, "status"), readCrun)
	}
	return state, err
}

// states are the states that a program that stays has read. runc's state holds the whole spec, and
// does not change while its file is the same. Nil remembers none.
type states struct {
	mu    sync.Mutex
	known map[string]knownState // by path
}

type knownState struct {
	containerState
	stamp host.Stamp
}

// maxStates is how many states are remembered before all are forgotten, with those of containers
// that are gone.
const maxStates = 4096

// Keep makes the reader remember states whose files do not change, for a program that stays.
func (r *Reader) Keep() { r.states = &states{known: map[string]knownState{}} }

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

func readRunc(path string) (containerState, error) {
	var state runcState
	if err := decodeState(path, state.read); err != nil {
		return containerState{}, err
	}
	init := grant.Process{PID: state.PID, Start: state.Start}
	return containerState{init, cgroup{paths: state.Cgroups}}, checkInit(path, init)
}

func readCrun(path string) (containerState, error) {
	var state crunState
	if err := decodeState(path, state.read); err != nil {
		return containerState{}, err
	}
	init := grant.Process{PID: state.PID, Start: state.Start}
	return containerState{init, cgroup{relative: state.Cgroup}}, checkInit(path, init)
}

// decodeState is lenient about what is not judged here: a bundle's path need not be UTF-8.
func decodeState(path string, read func(*jsontext.Decoder) error) error {
	data, err := host.ReadRegular(path, maxState)
	if err != nil {
		return err
	}
	return decode(data, read)
}

func decode(data []byte, read func(*jsontext.Decoder) error) error {
	return tokens.AnyUTF8(data, read, jsontext.AllowDuplicateNames(true))
}

// checkInit refuses a state that names no init: the init would be taken for gone.
func checkInit(path string, init grant.Process) error {
	if init.PID <= 0 || init.Start == 0 {
		return fmt.Errorf("cannot tell the container's init from %s", path)
	}
	return nil
}
