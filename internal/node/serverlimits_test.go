package node

import (
	"os"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
)

// TestServerLimits: a client without settings of its own gets what the daemon's servers give, which
// is what the largest grant has.
func TestServerLimits(t *testing.T) {
	n := &Node{Host: host.Default()}
	n.Policy.RunDir = t.TempDir()
	g := grant.Grant{Mode: grant.MPS, Compute: 25,
		GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}, {UUID: "GPU-1", Memory: grant.GiB}}}
	if got := ServerLimitsOf(n, &g); got != (ServerLimits{}) {
		t.Errorf("without a daemon: %+v", got)
	}
	dir := grant.MPSDir(n.Policy.RunDir, grant.MPSName(g.UUIDs()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		threads int
		memory  [2]grant.Bytes
		compute int
		want    ServerLimits
	}{
		{25, [2]grant.Bytes{grant.GiB, grant.GiB}, 25, ServerLimits{true, true, true}},
		{50, [2]grant.Bytes{grant.GiB, grant.GiB}, 25, ServerLimits{true, false, true}},
		{100, [2]grant.Bytes{grant.GiB, grant.GiB}, 0, ServerLimits{true, true, true}},
		{25, [2]grant.Bytes{grant.GiB, 2 * grant.GiB}, 25, ServerLimits{true, true, false}},
	} {
		m := grant.MPSDaemon{GPUs: g.UUIDs(), Threads: c.threads,
			Limits: map[string]grant.Bytes{"GPU-0": c.memory[0], "GPU-1": c.memory[1]}}
		if err := mpsstate.Write(n.Host, dir, m); err != nil {
			t.Fatal(err)
		}
		g.Compute = c.compute
		if got := ServerLimitsOf(n, &g); got != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	broken := grant.MPSDaemon{GPUs: g.UUIDs(), Problem: "its control socket was moved"}
	if err := mpsstate.Write(n.Host, dir, broken); err != nil {
		t.Fatal(err)
	}
	g.Compute = 25
	if got := ServerLimitsOf(n, &g); got != (ServerLimits{Known: true}) {
		t.Errorf("a daemon that is not ready: %+v", got)
	}
	g.Mode = grant.Limit
	if ServerLimitsOf(n, &g) != (ServerLimits{}) || ServerLimitsOf(n, nil) != (ServerLimits{}) {
		t.Error("a daemon limits a grant of another mode")
	}
	all := ServerLimits{true, true, true}
	if all.Replace("NVIDIA_DRIVER_CAPABILITIES", true) || all.Replace("CUDA_MPS_CLIENT_PRIORITY", true) ||
		!all.Replace("CUDA_MPS_PIPE_DIRECTORY", false) {
		t.Error("variables that a daemon replaces are others")
	}
}
