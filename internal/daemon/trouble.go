package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// place is where a limit of the driver's is.
type place struct{ cgroup, gpu string }

func placeOf(l grant.CgroupLimit) place { return place{l.Cgroup, l.GPU} }

// trouble is why limits are not as they were ordered, and in which cgroups: what is wrong with one says nothing of the others.
type trouble struct {
	of     map[string]bool // by directory
	said   []complaint
	silent bool // the driver has not answered: nothing is known of any
}

type complaint struct{ cgroup, why string }

func (t *trouble) add(cgroup, why string) {
	if t.of == nil {
		t.of = map[string]bool{}
	}
	t.of[cgroup] = true
	t.said = append(t.said, complaint{cgroup, why})
}

// forget is for a cgroup that is gone: nothing is wrong there any more.
func (t *trouble) forget(cgroup string) {
	delete(t.of, cgroup)
	t.said = slices.DeleteFunc(t.said, func(c complaint) bool { return c.cgroup == cgroup })
}

// maxComplaints is how many are said; a node may have hundreds of containers.
const maxComplaints = 4

// err is nil where nothing is wrong. What is the same for many is said once.
func (t trouble) err() error {
	var said []string
	more := 0
	for _, c := range t.said {
		switch {
		case slices.Contains(said, c.why):
		case len(said) == maxComplaints:
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

func (t trouble) about(what string) error {
	if err := t.err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
