package admission

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// mpsWorld is a container that refers to a grant in mode mps over both GPUs, whose daemon is ready.
func mpsWorld() (*world, *grant.Grant) {
	w := newWorld()
	w.bearer()
	i := slices.IndexFunc(w.v.Grants, func(g grant.Grant) bool { return g.ID == bearerGrant })
	g := &w.v.Grants[i]
	g.Mode, g.Strength, g.Compute = grant.MPS, StrengthOf(grant.MPS), 25
	w.v.MPS = []grant.MPSDaemon{readyDaemon(*g)}
	return w, g
}

// TestMPSReady tests that a client starts only if the daemon holds it to its grant.
func TestMPSReady(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world, *grant.MPSDaemon)
		want   string // of the message; "" is an admission
	}{
		"ready":                             {func(*world, *grant.MPSDaemon) {}, ""},
		"no daemon":                         {func(w *world, _ *grant.MPSDaemon) { w.v.MPS = nil }, "no daemon runs for its GPUs"},
		"the daemon of other GPUs":          {func(_ *world, m *grant.MPSDaemon) { m.GPUs = append(m.GPUs, "GPU-9") }, "no daemon runs for its GPUs"},
		"its state is not ready":            {func(_ *world, m *grant.MPSDaemon) { m.Problem = "its server 7 is INITIALIZING" }, "its server 7 is INITIALIZING"},
		"a limit that is too small":         {func(w *world, m *grant.MPSDaemon) { m.Limits[m.GPUs[0]]-- }, "the daemon limits clients on GPU"},
		"no limit on a GPU":                 {func(w *world, m *grant.MPSDaemon) { delete(m.Limits, m.GPUs[0]) }, "the daemon limits clients on GPU"},
		"less compute than granted":         {func(_ *world, m *grant.MPSDaemon) { m.Threads = 24 }, "the daemon gives 24% of the compute"},
		"another user":                      {func(w *world, _ *grant.MPSDaemon) { w.r.UID = 1000 }, "the container's user is 1000 on the node"},
		"another user, of any":              {func(w *world, m *grant.MPSDaemon) { w.r.UID, m.Anybody = 1000, true }, ""},
		"a user without an id on the node":  {func(w *world, _ *grant.MPSDaemon) { w.r.UID = -1 }, "the container's user is mapped to no user of the node"},
		"a limit for larger grants than it": {func(_ *world, m *grant.MPSDaemon) { m.Limits[m.GPUs[0]] *= 2; m.Threads = 100 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := mpsWorld()
			c.change(w, &w.v.MPS[0])
			v := w.decide()
			if c.want == "" && v.Kind != grant.Admit || c.want != "" &&
				(v.Code != grant.MPSNotReady || !strings.Contains(v.Message, c.want)) {
				t.Errorf("%s %s: %s, want %q", v.Kind, v.Code, v.Message, c.want)
			}
		})
	}
}

// TestMPSEdits tests that the settings name exactly the granted GPUs by their ordinals, whatever
// the container brought, that the mounts are the two of the daemon, and that the edited container
// is admitted again.
func TestMPSEdits(t *testing.T) {
	w, g := mpsWorld()
	for _, name := range []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PROTOCOL_VERSION"} {
		w.r.Dropped = append(w.r.Dropped, grant.Removal{Kind: grant.RemoveEnv, Name: name})
	}
	v := w.decide()
	if v.Kind != grant.Admit || v.Strength != grant.StrengthServer {
		t.Fatalf("%+v", v)
	}
	limits := map[int]string{1: "0=4096M", 2: "0=4096M,1=4096M"}[len(g.GPUs)]
	if got := strings.Join(v.Edits.Env[:3], " "); got !=
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+limits+
			" CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" {
		t.Errorf("set is %s", got)
	}
	if len(v.Removed) != 1 || v.Removed[0].Name != "CUDA_MPS_PROTOCOL_VERSION" {
		t.Errorf("removed is %v", v.Removed)
	}
	dir := grant.MPSDir(w.p.RunDir, grant.MPSName(g.UUIDs()))
	for _, want := range []string{dir + "/pipe:/tmp/nvidia-mps", dir + "/shm:/dev/shm"} {
		source, place, _ := strings.Cut(want, ":")
		w.hit(grant.Hit{Vector: "mount:" + place, Value: source, Code: grant.GPUSocket,
			Cover: grant.CoverNever})
	}
	if again := w.decide(); again.Kind != grant.Admit {
		t.Errorf("decided again: %s: %s", again.Code, again.Message)
	}
	w.hit(grant.Hit{Vector: "mount:/elsewhere", Value: dir + "/pipe", Code: grant.GPUSocket,
		Cover: grant.CoverNever})
	if v := w.decide(); v.Code != grant.GPUSocket {
		t.Errorf("its pipe directory elsewhere: %s %s", v.Kind, v.Code)
	}
}
