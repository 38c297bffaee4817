package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// checkMPS finds why the daemon of a grant in mode mps cannot take the container as a client. The
// view has what gpuledgerd last wrote about its daemons, without those that do not run.
func checkMPS(q *question, u *grantUse) (found findings) {
	if u.grant.Mode != grant.MPS {
		return nil
	}
	if why, late := daemonUnready(q.view.MPS, u.grant, q.request.UID); why != "" {
		found.add(grant.MPSNotReady, "mps", why)
		found[0].late = late
	}
	return found
}

// daemonUnready says why the grant's daemon cannot take processes of a user as clients; "" if it
// can. late: it may be able to in a moment, because it is being started, or because its limits are
// those of its other grants yet. A limit that the daemon does not have would be the whole GPU.
func daemonUnready(daemons []grant.MPSDaemon, g *grant.Grant, uid int) (why string, late bool) {
	name := grant.MPSName(g.UUIDs())
	i := slices.IndexFunc(daemons, func(m grant.MPSDaemon) bool { return grant.MPSName(m.GPUs) == name })
	if i < 0 {
		return "no daemon runs for its GPUs", true
	}
	daemon := daemons[i]
	switch {
	case daemon.Problem != "":
		return daemon.Problem, daemon.Starting
	case daemon.Threads < threads(g):
		return fmt.Sprintf("the daemon gives %d%% of the compute, and the grant has %d%%",
			daemon.Threads, threads(g)), true
	case !daemon.Anybody && uid < 0:
		return fmt.Sprintf("the daemon serves user %d, and the container's user is mapped to no user of "+
			"the node", daemon.UID), false
	case !daemon.Anybody && uid != daemon.UID:
		return fmt.Sprintf("the daemon serves user %d, and the container's user is %d on the node",
			daemon.UID, uid), false
	}
	for _, s := range g.GPUs {
		if limit := daemon.Limits[s.UUID]; limit < s.Memory {
			return fmt.Sprintf("the daemon limits clients on GPU %d to %s, and the grant has %s",
				s.Index, limit, s.Memory), true
		}
	}
	return "", false
}

// threads returns the percent of a GPU's threads that a client of the grant may use: its share of
// compute, or all.
func threads(g *grant.Grant) int {
	if g.Compute == 0 {
		return 100
	}
	return g.Compute
}

// mpsEnv returns a client's own settings, which may only lower what its daemon allows. The daemon
// numbers its GPUs in their order, and they are exactly the grant's. A limit for a GPU that a
// client cannot see would make CUDA ignore all of its limits.
func mpsEnv(g *grant.Grant) []string {
	if g.Mode != grant.MPS {
		return nil
	}
	limits := make([]string, len(g.GPUs))
	for i, s := range g.GPUs {
		limits[i] = fmt.Sprintf("%d=%dM", i, s.Memory/grant.MiB)
	}
	return []string{ // sorted by name, as every translation of the edits writes them
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + strconv.Itoa(threads(g)),
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + strings.Join(limits, ","),
		"CUDA_MPS_PIPE_DIRECTORY=" + grant.PipeInContainer,
	}
}

// mpsMounts returns the mounts of a client: the daemon's directory of pipes, and the shared memory
// of the daemon and its clients, which is not the node's (docs/adr/0045).
func mpsMounts(g *grant.Grant, p *grant.Policy) []*cdispec.Mount {
	if g.Mode != grant.MPS {
		return nil
	}
	dir := grant.MPSDir(p.RunDir, grant.MPSName(g.UUIDs()))
	options := []string{"rw", "nosuid", "nodev", "noexec", "bind"}
	return []*cdispec.Mount{
		{HostPath: dir + "/pipe", ContainerPath: grant.PipeInContainer, Options: options},
		{HostPath: dir + "/shm", ContainerPath: "/dev/shm", Options: slices.Clone(options)},
	}
}
