package grants

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Tree is the processes of a grant that are in no container: one, and those in its cgroup.
type Tree struct {
	Grant  grant.Grant
	Cgroup string // its directory; to be removed when it is empty
}

// EnterTree enters a grant for processes that are in no container. It is bound in the critical
// section that enters it, and counts while this process runs or a process is in the cgroup, which
// is made below this process's.
func EnterTree(n *node.Node, ask admission.Ask) (t Tree, err error) {
	self, err := n.Host.Self()
	if err != nil {
		return t, err
	}
	return enterTree(n, ask, self, true)
}

// Program is a process of the node that is in no container.
type Program struct {
	grant.Process
	// Is reports whether the pid is still this process's, and that the user's who asks.
	Is func() bool
	// Shim says that the program is started with the shim, which only root can mount.
	Shim bool
}

var errProgramEnded = errors.New("cannot grant: the program that asked has ended, or runs as another user")

// EnterProgram is EnterTree for another process, which is moved into the cgroup.
func EnterProgram(n *node.Node, ask admission.Ask, p Program) (Tree, error) {
	if !p.Is() {
		return Tree{}, errProgramEnded
	}
	t, err := enterTree(n, ask, p.Process, p.Shim)
	if err != nil {
		return t, err
	}
	if err = join(t.Cgroup, n, p); err != nil {
		_, e := Release(n, t.Grant.ID, true)
		_ = os.Remove(t.Cgroup)
		err = errors.Join(err, e)
	}
	return t, err
}

// Rejoin has a program join the cgroup of a grant that was entered for it. The answer to its
// request was lost.
func Rejoin(n *node.Node, g grant.Grant, p Program) error {
	i := slices.IndexFunc(g.Bindings, func(b grant.Binding) bool {
		return isTree(n, b) && b.Creator == p.Process && len(b.Cgroups) > 0
	})
	if i < 0 {
		return errProgramEnded // the one that the grant was for
	}
	return join(containers.CgroupDir(n.Host, g.Bindings[i].Cgroups[0]), n, p)
}

func join(cgroup string, n *node.Node, p Program) error {
	if !p.Is() {
		return errProgramEnded
	}
	if err := containers.Join(n.Host, cgroup, p.PID, p.Is); err != nil {
		return fmt.Errorf("cannot move the program into the cgroup of its grant: %w", err)
	}
	return nil
}

// Trees are the cgroups, as directories, of grants whose processes are in no container.
func Trees(n *node.Node, o Overview) (cgroups []string) {
	for _, g := range o.Grants {
		for _, b := range g.Bindings {
			if isTree(n, b) && len(b.Cgroups) > 0 {
				cgroups = append(cgroups, containers.CgroupDir(n.Host, b.Cgroups[0]))
			}
		}
	}
	return cgroups
}

// isTree reports whether a binding is of processes that are in no container.
func isTree(n *node.Node, b grant.Binding) bool {
	return b.RuntimeRoot == n.Policy.RunDir && b.Container == treeName(b.Grant)
}

func treeName(id grant.ID) string { return "gpuledger-" + string(id) }

func enterTree(n *node.Node, ask admission.Ask, creator grant.Process, shim bool) (t Tree, err error) {
	if n.Broken != nil {
		return t, n.Broken
	}
	ask.Owner, ask.Source = grant.Bearer, grant.Asked
	if t.Grant, _, err = node.NewGrant(ask); err != nil {
		return t, err
	}
	b := grant.Binding{Grant: t.Grant.ID, RuntimeRoot: n.Policy.RunDir, Container: treeName(t.Grant.ID),
		Creator: creator, Strength: grant.StrengthNone, Weaker: "its processes are in no container"}
	var path string
	if t.Cgroup, path, err = containers.MakeCgroup(n.Host, creator.PID, b.Container); err != nil {
		return t, fmt.Errorf("cannot make the cgroup by which the grant's processes are known: %w", err)
	}
	b.Cgroups, b.Occupies = []string{path}, []string{path}
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		g := &t.Grant
		if err := place(g, n, ask, v, inv); err != nil {
			return err
		}
		if err := tx.Put(*g); err != nil {
			return err
		}
		failpoint.Hit("grants/tree")
		if shim && len(admission.NodeMounts(*g, inv, n.Policy)) > 0 {
			if err := limitfiles.Write(n.Policy, *g); err != nil {
				return err
			}
		}
		return tx.Bind(b)
	})
	if err != nil {
		_ = os.Remove(t.Cgroup)
	}
	t.Grant = withStrength(n, t.Grant)
	if !shim {
		t.Grant.Bindings = []grant.Binding{b}
		t.Grant.Strength, t.Grant.ComputeStrength = grant.StrengthNone, ""
	}
	return t, err
}
