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

// ProgramGrant is a grant for a program in no container: a process, and those in its cgroup.
type ProgramGrant struct {
	Grant  grant.Grant
	Cgroup string // its directory; to be removed when it is empty
}

// EnterThisProgram enters a grant for this process and what it will start. It is bound in the
// critical section that enters it, and counts while this process runs or a process is in the
// cgroup, which is made below this process's.
func EnterThisProgram(n *node.Node, ask admission.Ask) (ProgramGrant, error) {
	self, err := n.Host.Self()
	if err != nil {
		return ProgramGrant{}, err
	}
	return enterProgram(n, ask, self, true)
}

// Program is a process of the node that is in no container.
type Program struct {
	grant.Process
	// Is reports whether the pid is still this process's, and that the user's who asks.
	Is func() bool
	// Shim says that the program is started with the shim, which only root can mount.
	Shim bool
}

// ProgramError says why this program cannot have a grant. For another there may be one.
type ProgramError struct{ Err error }

func (e *ProgramError) Error() string { return e.Err.Error() }
func (e *ProgramError) Unwrap() error { return e.Err }

var errProgramEnded = &ProgramError{
	errors.New("cannot grant: the program that asked has ended, or runs as another user")}

// EnterProgram is EnterThisProgram for another process, which is moved into the cgroup.
func EnterProgram(n *node.Node, ask admission.Ask, p Program) (ProgramGrant, error) {
	if !p.Is() {
		return ProgramGrant{}, errProgramEnded
	}
	entered, err := enterProgram(n, ask, p.Process, p.Shim)
	if err != nil {
		return entered, err
	}
	if err = join(entered.Cgroup, n, p); err != nil {
		_, e := Release(n, entered.Grant.ID, true)
		_ = os.Remove(entered.Cgroup)
		err = errors.Join(err, e)
	}
	return entered, err
}

// Rejoin has a program join the cgroup of a grant that was entered for it. The answer to its
// request was lost.
func Rejoin(n *node.Node, g grant.Grant, p Program) error {
	i := slices.IndexFunc(g.Bindings, func(b grant.Binding) bool {
		return IsOfProgram(n, b) && b.Creator == p.Process && len(b.Cgroups) > 0
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
		return &ProgramError{fmt.Errorf("cannot move the program into the cgroup of its grant: %w", err)}
	}
	return nil
}

// ProgramCgroups are the directories of the cgroups of programs, among bindings.
func ProgramCgroups(n *node.Node, bindings []grant.Binding) (dirs []string) {
	for _, b := range bindings {
		if IsOfProgram(n, b) && len(b.Cgroups) > 0 {
			dirs = append(dirs, containers.CgroupDir(n.Host, b.Cgroups[0]))
		}
	}
	return dirs
}

// IsOfProgram reports whether a binding is a program's, and no container's. No runtime keeps a
// state of it.
func IsOfProgram(n *node.Node, b grant.Binding) bool {
	return b.RuntimeRoot == n.Policy.RunDir && b.Container == grant.ProgramName(b.Grant)
}

func enterProgram(n *node.Node, ask admission.Ask, creator grant.Process, shim bool) (entered ProgramGrant,
	err error) {
	if n.Broken != nil {
		return entered, n.Broken
	}
	ask.Owner, ask.Source = grant.Bearer, grant.Asked
	if entered.Grant, _, err = node.NewGrant(ask); err != nil {
		return entered, err
	}
	b := grant.Binding{Grant: entered.Grant.ID, RuntimeRoot: n.Policy.RunDir,
		Container: grant.ProgramName(entered.Grant.ID), Creator: creator, Strength: grant.StrengthNone,
		Weaker: "its processes are in no container"}
	var path string
	if entered.Cgroup, path, err = containers.MakeCgroup(n.Host, creator.PID, b.Container); err != nil {
		return entered, &ProgramError{
			fmt.Errorf("cannot make the cgroup by which the grant's processes are known: %w", err)}
	}
	b.Cgroups, b.Occupies = []string{path}, []string{path}
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		g := &entered.Grant
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
		_ = os.Remove(entered.Cgroup)
	}
	entered.Grant = withStrength(n, entered.Grant)
	if !shim {
		entered.Grant.Bindings = []grant.Binding{b}
		entered.Grant.Strength, entered.Grant.ComputeStrength = grant.StrengthNone, ""
	}
	return entered, err
}
