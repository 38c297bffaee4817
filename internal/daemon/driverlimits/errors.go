package driverlimits

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// cgroupGPU identifies a limit of the driver.
type cgroupGPU struct{ cgroup, gpu string }

func cgroupGPUOf(l grant.CgroupLimit) cgroupGPU { return cgroupGPU{l.Cgroup, l.GPU} }

// limitErrors are why limits are not as they were set, and in which cgroups. An error in one says
// nothing about the others.
type limitErrors struct {
	failed   map[string]bool // by the cgroup's directory
	list     []limitError
	noAnswer bool // the driver has not answered: nothing is known of any
}

type limitError struct{ cgroup, why string }

func (t *limitErrors) add(cgroup, why string) {
	if t.failed == nil {
		t.failed = map[string]bool{}
	}
	t.failed[cgroup] = true
	t.list = append(t.list, limitError{cgroup, why})
}

// remove is for a cgroup that is gone: its errors do not matter any more.
func (t *limitErrors) remove(cgroup string) {
	delete(t.failed, cgroup)
	t.list = slices.DeleteFunc(t.list, func(c limitError) bool { return c.cgroup == cgroup })
}

// maxErrors is how many errors are printed; a node may have hundreds of containers.
const maxErrors = 4

// err is nil if there are none. Equal errors are printed once.
func (t limitErrors) err() error {
	var said []string
	more := 0
	for _, c := range t.list {
		switch {
		case slices.Contains(said, c.why):
		case len(said) == maxErrors:
			more++
		default:
			said = append(said, c.why)
		}
	}
	switch {
	case len(said) == 0:
		return nil
	case more > 0:
		said = append(said, fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(said, "; "))
}

func (t limitErrors) wrap(what string) error {
	if err := t.err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
