package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// containerState is what a runtime wrote about a container when it had created it.
type containerState struct {
	init   grant.Process
	cgroup cgroup
}

// maxState bounds a runtime's state; runc's holds the whole spec.
const maxState = 16 << 20

// readState reads the state of a container of runc (state.json) or crun (status). fs.ErrNotExist: there is none.
func readState(root, container string) (containerState, error) {
	dir := filepath.Join(root, container)
	state, err := readRunc(filepath.Join(dir, "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return readCrun(filepath.Join(dir, "status"))
	}
	return state, err
}

// readRunc reads runc's state (libcontainer's BaseState and State). cgroup_paths has a path by v1 controller, and
// that of v2 under "".
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

// readCrun reads crun's status. Its cgroup's path is the same in every hierarchy, from the hierarchy's root.
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
