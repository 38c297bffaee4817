package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// row is a set of seats that one grant can be placed in: those of a pool, and where it would be
// over several GPUs in mode mps either those of one daemon or those of none.
type row struct {
	pool     *grant.Pool
	together string
}

func (a Ask) row(s seat) row {
	if a.count() == 1 {
		return row{pool: s.pool}
	}
	return row{pool: s.pool, together: strings.Join(s.together, ",")}
}

// orderRows keeps the order of pools, but for where the GPUs of a daemon that is there come into
// question.
func (a Ask) orderRows(x, y row) int {
	if x.pool != y.pool {
		return 0
	}
	if a.placement(x.pool) == grant.Spread {
		return count(x.together != "") - count(y.together != "")
	}
	return count(y.together != "") - count(x.together != "")
}

// placement is the ask's own, or else the pool's.
func (a Ask) placement(pool *grant.Pool) grant.Placement {
	if a.Place == "" && pool != nil {
		return pool.Place
	}
	return a.Place
}

// served is what keeps a GPU of a daemon from grants over other GPUs: a client has one daemon, and
// a daemon's GPUs are settled when it starts.
func (s seat) served() string {
	return fmt.Sprintf("is served by an MPS daemon over %d GPUs, for %s", len(s.together),
		strings.Join(s.holders, ", "))
}

// apart says which of the chosen GPUs has a daemon that serves others than these, or "".
func apart(chosen []seat) string {
	for _, s := range chosen {
		for _, o := range chosen {
			if len(s.together) > 0 && !slices.Contains(s.together, o.device.UUID()) {
				return fmt.Sprintf("GPU %s ", s.device.Name()) + s.served()
			}
		}
	}
	return ""
}

// startable is nil where the ask's containers could start one day: of mode mps none does without
// NVIDIA's program, and a grant would take the GPU for nothing.
func (a Ask) startable(inv grant.Inventory) error {
	if a.Mode != grant.MPS || inv.Driver.HasMPS() {
		return nil
	}
	return &grant.Refusal{Code: grant.MPSNotReady,
		Message: "cannot grant in mode mps: this node cannot run MPS, because the driver's files in the " +
			"inventory have no " + grant.MPSControl,
		Hint: "install what the driver's packages lack and run `gpuledger inventory refresh`, or grant in " +
			"another mode (--mode limit)"}
}

// mpsReady finds what keeps the grant's daemon from taking the container as a client. The daemon is
// gpuledgerd's work, and this its word of a moment ago; the reader has asked the kernel whether it
// runs.
func (c *asking) mpsReady() {
	if c.grant.Mode != grant.MPS {
		return
	}
	if why := c.notReady(); why != "" {
		c.find(grant.MPSNotReady, "mps", why)
	}
}

// notReady is that in words, or "". A limit that the daemon does not know of is none: it would be
// the whole GPU.
func (c *asking) notReady() string {
	name := grant.MPSName(c.grant.UUIDs())
	i := slices.IndexFunc(c.view.MPS, func(m grant.MPSDaemon) bool { return grant.MPSName(m.GPUs) == name })
	if i < 0 {
		return "no daemon runs for its GPUs"
	}
	daemon := c.view.MPS[i]
	switch {
	case daemon.Problem != "":
		return daemon.Problem
	case daemon.Threads < c.threads():
		return fmt.Sprintf("the daemon gives %d%% of the compute, and the grant has %d%%",
			daemon.Threads, c.threads())
	case !daemon.Anybody && c.request.UID != daemon.UID:
		return fmt.Sprintf("the daemon serves user %d, and the container's user is %s on the node",
			daemon.UID, user(c.request.UID))
	}
	for _, s := range c.grant.GPUs {
		if limit := daemon.Limits[s.UUID]; limit < s.Memory {
			return fmt.Sprintf("the daemon limits clients on GPU %d to %s, and the grant has %s",
				s.Index, limit, s.Memory)
		}
	}
	return ""
}

func user(uid int) string {
	if uid < 0 {
		return "nobody"
	}
	return strconv.Itoa(uid)
}

// threads is the grant's share of the compute, all of it where it has none of its own.
func (c *asking) threads() int {
	if c.grant.Compute == 0 {
		return 100
	}
	return c.grant.Compute
}

// mpsEnv is the container's own settings: a client may lower what its daemon allows. Device
// ordinals are the daemon's, in the order of its GPUs, which are the grant's and no others: a limit
// for a GPU that a client cannot see would drop all of its limits.
func (c *asking) mpsEnv() []string {
	if c.grant.Mode != grant.MPS {
		return nil
	}
	limits := make([]string, len(c.grant.GPUs))
	for i, s := range c.grant.GPUs {
		limits[i] = fmt.Sprintf("%d=%dM", i, s.Memory/grant.MiB)
	}
	return []string{ // by name, as every translation of the edits writes them
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + strconv.Itoa(c.threads()),
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + strings.Join(limits, ","),
		"CUDA_MPS_PIPE_DIRECTORY=" + grant.PipeInContainer,
	}
}

// mpsMounts are the daemon's pipe directory and the shared memory that it has in common with its
// clients, in place of the node's (docs/adr/0045).
func (c *asking) mpsMounts() []*cdispec.Mount {
	if c.grant.Mode != grant.MPS {
		return nil
	}
	dir := grant.MPSDir(c.policy.RunDir, grant.MPSName(c.grant.UUIDs()))
	options := []string{"rw", "nosuid", "nodev", "noexec", "bind"}
	return []*cdispec.Mount{
		{HostPath: dir + "/pipe", ContainerPath: grant.PipeInContainer, Options: options},
		{HostPath: dir + "/shm", ContainerPath: "/dev/shm", Options: slices.Clone(options)},
	}
}

// brings reports whether a hit is a mount that the grant brings: the container was edited before,
// or by another of our entries.
func (c *asking) brings(h grant.Hit) bool {
	return slices.ContainsFunc(c.mpsMounts(), func(m *cdispec.Mount) bool {
		return h.Vector == "mount:"+m.ContainerPath && h.Value == m.HostPath
	})
}

// assumed is a daemon that is ready for a grant: for what is written down before there is one.
func assumed(g grant.Grant) grant.MPSDaemon {
	m := grant.MPSDaemon{GPUs: g.UUIDs(), Limits: map[string]grant.Bytes{}, Threads: 100}
	for _, s := range g.GPUs {
		m.Limits[s.UUID] = s.Memory
	}
	return m
}
