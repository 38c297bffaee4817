package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// place is where a limit of the driver's is.
type cgroupGPU struct{ cgroup, gpu string }

func cgroupGPUOf(l grant.CgroupLimit) cgroupGPU { return cgroupGPU{l.Cgroup, l.GPU} }

// trouble is why limits are not as they were ordered, and in which cgroups: what is wrong with one says nothing of the others.
type limitErrors struct {
	failed   map[string]bool // by directory
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

// forget is for a cgroup that is gone: nothing is wrong there any more.
func (t *limitErrors) remove(cgroup string) {
	delete(t.failed, cgroup)
	t.list = slices.DeleteFunc(t.list, func(c limitError) bool { return c.cgroup == cgroup })
}

// maxComplaints is how many are said; a node may have hundreds of containers.
const maxErrors = 4

// err is nil where nothing is wrong. What is the same for many is said once.
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
