package node_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// TestModel compares the node with a model that is too simple to be wrong, whatever is granted,
// bound, changed and released, while GPUs fail, pools change and the node boots. No GPU has more
// memory or compute granted than it has, none is in two modes, each grant has the strength of its
// mode or of its weakest container, and no container starts with less than the policy's minimum.
// What fits is granted, and what does not fit is refused with its reason. `make model` takes
// 100,000 steps.
func TestModel(t *testing.T) {
	// every grant is synced to the disk
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
		_ = checks.Value.Set("30")
	}
	steps := 0
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t)
		defer os.RemoveAll(m.dir)
		actions := map[string]func(*rapid.T){"": m.compare}
		for name, act := range map[string]func(*rapid.T){
			"grant": m.grant, "grant again": m.grant, "bind": m.bind, "demand": m.demand, "unbind": m.unbind,
			"change":  m.change,
			"release": m.release, "pin": m.pin, "health": m.health, "reboot": m.reboot, "check": m.check} {
			actions[name] = func(rt *rapid.T) { steps++; act(rt) }
		}
		rt.Repeat(actions)
	})
	t.Logf("%d steps", steps)
}

// What can be granted is units: the GPUs 0 to 3, and as 4 and 5 the MIG devices of GPU 4.
const (
	cards = 4
	units = 6
	card  = 8 * grant.GiB
	part  = 4 * grant.GiB
)

// cardOf is the GPU that a unit is, or is a part of.
func cardOf(unit int) int { return min(unit, cards) }

// unitOf is the unit of a share.
func unitOf(s grant.Share) int {
	if s.Index < cards {
		return s.Index
	}
	return slices.IndexFunc([]int{0, 1, 2, 3, 4, 5}, func(i int) bool { return uuid(i) == s.UUID })
}

// holding is a grant as the model has it.
type holding struct {
	owner     grant.Owner
	mode      grant.Mode
	gpus      []int
	each      grant.Bytes
	compute   int
	draining  bool
	reference grant.Reference
	bound     map[string]grant.Strength // of each of its containers
}

func (h holding) live() bool { return len(h.bound) > 0 || !h.draining }

// strength is that of the weakest container, and without containers that of the next one.
func (h holding) strength() grant.Strength {
	weakest := strengths[h.mode]
	for _, s := range h.bound {
		if rank(s) < rank(weakest) {
			weakest = s
		}
	}
	return weakest
}

func (h holding) has(i int) bool { return slices.Contains(h.gpus, i) }

// model is the node, and its expected state.
type model struct {
	t     *testing.T
	dir   string
	node  *node.Node
	boots int
	sick  [cards + 1]bool
	pools [][]int        // nil: none; the GPUs of each
	modes [][]grant.Mode // of each pool; nil: all
	held  map[grant.ID]*holding
	least grant.Strength // that policy demands
}

func newModel(t *testing.T) *model {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	m := &model{t: t, dir: dir, held: map[grant.ID]*holding{}, least: grant.StrengthNone}
	proc := filepath.Join(dir, "proc")
	m.must(os.MkdirAll(filepath.Join(proc, "sys/kernel/random"), 0o755))
	for _, name := range []string{"self", "devices", strconv.Itoa(os.Getpid())} {
		m.must(os.Symlink("/proc/"+name, filepath.Join(proc, name)))
	}
	m.must(os.WriteFile(filepath.Join(dir, "config.toml"),
		[]byte(fmt.Sprintf("state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\nfile = "+
			"\"x\"\n[audit]\nfile = \"\"\n", dir+"/state", dir+"/run")), 0o600))
	m.boot()
	m.scan()
	return m
}

func (m *model) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// boot gives the node another boot id. No process survives it.
func (m *model) boot() {
	m.boots++
	h := host.Default()
	h.Proc = filepath.Join(m.dir, "proc")
	m.node = node.Open(filepath.Join(m.dir, "config.toml"), h)
	m.must(m.node.Broken)
	m.must(host.ReplaceFile(filepath.Join(m.dir, "proc/sys/kernel/random/boot_id"),
		[]byte(fmt.Sprintf("00000000-0000-0000-0000-%012d\n", m.boots)), 0o644, host.Volatile))
}

// scan takes the inventory of this boot.
func (m *model) scan() {
	boot, err := m.node.Host.BootID()
	m.must(err)
	inv := grant.Inventory{Version: 1, BootID: boot, Taken: time.Now(), Source: "simulated",
		Majors: map[string]int{"nvidia": 195}}
	inv.Driver.Root = "/"
	inv.Driver.Files = nil
	for _, name := range []string{grant.MPSControl, grant.MPSServer} {
		inv.Driver.Files = append(inv.Driver.Files, grant.DriverFile{Kind: grant.FileBinary,
			Path: "/usr/bin/" + name, Target: "/usr/bin/" + name})
	}
	for i := range cards {
		g := grant.GPU{UUID: uuid(i), Index: i, Minor: i, Name: "test", Memory: card, Health: grant.Healthy}
		if m.sick[i] {
			g.Health = "fell off the bus"
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	last := grant.GPU{UUID: uuid(units), Index: cards, Minor: cards, Name: "test", Memory: card,
		Health: grant.Healthy}
	for i := cards; i < units; i++ {
		last.MIG = append(last.MIG, grant.MIGDevice{UUID: uuid(i), Profile: "1g.4gb", Memory: part, GI: i,
			Caps: [2]int{10 + i, 20 + i}})
	}
	if m.sick[cards] {
		last.Health = "fell off the bus"
	}
	inv.GPUs = append(inv.GPUs, last)
	m.must(gpu.Write(gpu.Path(m.node.Policy.StateDir), inv))
}

func uuid(i int) string { return fmt.Sprintf("GPU-%d", i) }

// pool is the pool of a GPU; -1 is none.
func (m *model) pool(i int) int {
	return slices.IndexFunc(m.pools, func(gpus []int) bool { return slices.Contains(gpus, cardOf(i)) })
}

// open reports whether a GPU takes grants of the mode.
func (m *model) open(i int, mode grant.Mode) bool {
	if m.sick[cardOf(i)] || (i >= cards) != (mode == grant.MIG) {
		return false
	}
	p := m.pool(i)
	return m.pools == nil || p >= 0 && (m.modes[p] == nil || slices.Contains(m.modes[p], mode))
}

// on are the live grants on a GPU, except one.
func (m *model) on(i int, but grant.ID) map[grant.ID]*holding {
	all := maps.Clone(m.held)
	maps.DeleteFunc(all, func(id grant.ID, h *holding) bool { return id == but || !h.live() || !h.has(i) })
	return all
}

// fits reports whether a GPU has room for a share of it.
func (m *model) fits(i int, h holding, but grant.ID) bool {
	memory, compute := h.each, h.compute
	for _, o := range m.on(i, but) {
		if o.mode != h.mode || h.mode == grant.Exclusive || h.mode == grant.MIG || h.mode == grant.MPS &&
			len(o.gpus) != len(h.gpus) {
			return false
		}
		memory, compute = memory+o.each, compute+o.compute
	}
	return m.open(i, h.mode) && memory <= card && compute <= 100
}

// allFit reports whether exactly these GPUs have room.
func (m *model) allFit(h holding, but grant.ID) bool {
	for _, i := range h.gpus {
		if !m.fits(i, h, but) {
			return false
		}
		for _, o := range m.on(i, but) {
			if h.mode == grant.MPS && !slices.Equal(o.gpus, h.gpus) {
				return false
			}
		}
	}
	return true
}

// anyFit reports whether some GPUs of one pool have room. It tries every choice.
func (m *model) anyFit(h holding) bool {
	n := len(h.gpus)
	for set := range 1 << units {
		h.gpus = nil
		pool := map[int]bool{}
		for i := range units {
			if set>>i&1 == 1 {
				h.gpus = append(h.gpus, i)
				pool[m.pool(i)] = true
			}
		}
		if len(h.gpus) == n && len(pool) == 1 && m.allFit(h, "") {
			return true
		}
	}
	return false
}

func (m *model) grant(rt *rapid.T) {
	h := holding{mode: rapid.SampledFrom([]grant.Mode{grant.Exclusive, grant.Timeslice, grant.Limit,
		grant.MPS, grant.MPS, grant.MIG}).Draw(rt, "mode"),
		owner: rapid.SampledFrom([]grant.Owner{grant.Bearer, grant.Bearer, "pod:u/a", "pod:u/b",
			"claim:c"}).Draw(rt, "owner")}
	ask := admission.Ask{Mode: h.mode, Owner: h.owner, Source: "test",
		Place: rapid.SampledFrom([]grant.Placement{"", grant.Binpack, grant.Spread}).Draw(rt, "place")}
	n, of := rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3}).Draw(rt, "gpus"), []int{0, 1, 2, 3}
	if h.mode == grant.MIG {
		n, of, h.each, ask.Profile = min(n, units-cards), []int{4, 5}, part, "1g.4gb"
	}
	h.gpus = make([]int, n)
	named := rapid.Bool().Draw(rt, "named")
	if named {
		h.gpus = slices.Sorted(slices.Values(rapid.Permutation(of).Draw(rt, "names")[:n]))
		for _, i := range h.gpus {
			ask.Names = append(ask.Names, uuid(i))
		}
	} else {
		ask.GPUs = n
	}
	if h.mode != grant.Exclusive && h.mode != grant.MIG {
		h.each = grant.Bytes(rapid.IntRange(1, 8).Draw(rt, "GiB")) * grant.GiB
		h.compute = rapid.SampledFrom([]int{0, 0, 25, 50, 100}).Draw(rt, "compute")
		ask.Memory, ask.Compute = h.each*grant.Bytes(n), h.compute
	}
	owns := h.owner != grant.Bearer && slices.ContainsFunc(slices.Collect(maps.Values(m.held)),
		func(o *holding) bool { return o.owner == h.owner && o.live() })
	possible := named && m.allFit(h, "") || !named && m.anyFit(h)
	g, reference, err := grants.Enter(m.node, ask)
	h.reference = reference
	m.swept()
	switch {
	case owns && m.unkept(h):
		m.refused(rt, err, grant.GrantInUse, grant.LimitUnenforceable)
	case owns:
		m.refused(rt, err, grant.GrantInUse)
	case m.unkept(h):
		m.refused(rt, err, grant.LimitUnenforceable)
	case !possible:
		m.refused(rt, err, grant.NoCapacity, grant.ModeConflict)
		if named && n == 1 && h.mode != grant.MIG {
			m.conflict(rt, err, h)
		}
	case err != nil:
		rt.Fatalf("what would fit is refused: %+v: %v", ask, err)
	default:
		m.enter(rt, g, h, named)
	}
}

// unkept reports that nothing enforces a share of compute in mode limit, and that the policy
// demands a strength.
func (m *model) unkept(h holding) bool {
	return h.mode == grant.Limit && h.compute > 0 && rank(m.least) > rank(grant.StrengthNone)
}

// swept removes ended grants from the model, as every placement does first.
func (m *model) swept() {
	maps.DeleteFunc(m.held, func(_ grant.ID, h *holding) bool { return !h.live() })
}

func (m *model) refused(rt *rapid.T, err error, codes ...grant.Code) {
	var r *grant.Refusal
	if !errors.As(err, &r) || !slices.Contains(codes, r.Code) {
		rt.Fatalf("%v is not one of %v", err, codes)
	}
}

// conflict: a refusal because of another mode names the holder of the GPU and its mode.
func (m *model) conflict(rt *rapid.T, err error, h holding) {
	i := h.gpus[0]
	for id, o := range m.on(i, "") {
		if !m.open(i, h.mode) || o.mode == h.mode && o.mode != grant.Exclusive {
			continue
		}
		m.refused(rt, err, grant.ModeConflict)
		if text := err.Error(); !strings.Contains(text, string(id)) ||
			!strings.Contains(text, "is in mode "+string(o.mode)) {
			rt.Fatalf("the refusal does not say that %s holds GPU %d in mode %s: %s", id, i, o.mode, text)
		}
	}
}

// enter takes a new grant into the model, if it is allowed.
func (m *model) enter(rt *rapid.T, g grant.Grant, h holding, named bool) {
	var gpus []int
	for _, s := range g.GPUs {
		gpus = append(gpus, unitOf(s))
		if want := h.each; h.mode != grant.Exclusive && s.Memory != want || h.mode == grant.Exclusive &&
			s.Memory != card {
			rt.Fatalf("%s has %s of GPU %d", g.ID, s.Memory, s.Index)
		}
	}
	if named && !slices.Equal(gpus, h.gpus) || len(gpus) != len(h.gpus) {
		rt.Fatalf("requested GPUs %v, got %v", h.gpus, gpus)
	}
	if h.gpus = gpus; !m.allFit(h, "") {
		rt.Fatalf("granted is what does not fit: %+v beside %v", h, m.held)
	}
	if h.mode == grant.Exclusive {
		h.each = card
	}
	m.held[g.ID] = &h
}

// pick is one of the grants, "" if there is none.
func (m *model) pick(rt *rapid.T) grant.ID {
	if len(m.held) == 0 {
		return ""
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m.held))).Draw(rt, "id")
}

func (m *model) caller(name string) request.Caller {
	return request.Caller{Container: grant.Container{Engine: grant.Containerd, RuntimeRoot: m.dir + "/none",
		ID: name, Bundle: m.dir}}
}

// bind creates a container that refers to a grant, or is of its owner, and may have privileges that
// undo every limit.
func (m *model) bind(rt *rapid.T) {
	id := m.pick(rt)
	if id == "" || !m.held[id].live() {
		return // there is nothing to refer to
	}
	h := m.held[id]
	name, mighty := fmt.Sprintf("c%d-%s", rapid.IntRange(0, 1).Draw(rt, "container"), id),
		rapid.Bool().Draw(rt, "CAP_SYS_ADMIN")
	if _, runs := h.bound[name]; runs {
		return
	}
	if h.mode == grant.MPS {
		m.serve(h)
	}
	d := m.node.Admit(node.Create{Caller: m.caller(name), Config: []byte(m.config(h, mighty))})
	strength := strengths[h.mode]
	if mighty {
		strength = grant.StrengthNone
	}
	enough := rank(strength) >= rank(m.least) || h.mode == grant.Exclusive && !mighty
	healthy := !slices.ContainsFunc(h.gpus, func(i int) bool { return m.sick[cardOf(i)] })
	alone := len(h.bound) == 0 || h.owner.IsClaim()
	switch possible := healthy && enough && alone && !h.draining; {
	case possible != (d.Kind == grant.Admit):
		rt.Fatalf("%s for %+v with CAP_SYS_ADMIN %v, where policy demands %s: %s (%s) %s", name, h, mighty,
			m.least, d.Kind, d.Code, d.Message)
	case !possible && !enough && healthy && alone && !h.draining && d.Code != grant.LimitUnenforceable:
		rt.Fatalf("what is too weak is refused with %s", d.Code)
	case possible && d.Strength != strength:
		rt.Fatalf("%s in mode %s with CAP_SYS_ADMIN %v gets strength %s, want %s", name, h.mode, mighty,
			d.Strength, strength)
	case possible:
		h.bound = maps.Clone(h.bound)
		if h.bound == nil {
			h.bound = map[string]grant.Strength{}
		}
		h.bound[name] = strength
	}
}

// config is the config.json of a container of the grant: of a pod by its identity, otherwise by
// reference.
func (m *model) config(h *holding, mighty bool) string {
	annotations := fmt.Sprintf(`"gpuledger.dev/grant":%q`, h.reference)
	if uid, name, isPod := strings.Cut(strings.TrimPrefix(string(h.owner), "pod:"), "/"); isPod {
		annotations = fmt.Sprintf(`"io.kubernetes.cri.container-type":"container",`+
			`"io.kubernetes.cri.sandbox-uid":%q,"io.kubernetes.cri.sandbox-namespace":"n",`+
			`"io.kubernetes.cri.sandbox-name":"p","io.kubernetes.cri.container-name":%q`, uid, name)
	}
	caps := `[]`
	if mighty {
		caps = `["CAP_SYS_ADMIN"]`
	}
	return fmt.Sprintf(`{"annotations":{%s},"process":{"capabilities":{"bounding":%s,"effective":%[2]s,`+
		`"permitted":%[2]s}},`+
		`"linux":{"namespaces":[{"type":"mount"},{"type":"pid"}],"resources":{"devices":[{"allow":false,`+
		`"access":"rwm"}]}}}`, annotations, caps)
}

// serve makes an MPS daemon ready for a grant, as far as the node can see: it is this process.
func (m *model) serve(h *holding) {
	self, err := m.node.Host.Self()
	m.must(err)
	daemon := grant.MPSDaemon{Daemon: self, Servers: []grant.Process{self},
		Limits: map[string]grant.Bytes{}, Threads: 100}
	for _, i := range h.gpus {
		daemon.GPUs, daemon.Limits[uuid(i)] = append(daemon.GPUs, uuid(i)), card
	}
	dir := grant.MPSDir(m.node.Policy.RunDir, grant.MPSName(daemon.GPUs))
	m.must(os.MkdirAll(filepath.Join(dir, "pipe"), 0o755))
	if err := unix.Mknod(filepath.Join(dir, "pipe/control"), unix.S_IFSOCK|0o600,
		0); !errors.Is(err, unix.EEXIST) {
		m.must(err)
	}
	m.must(mpsstate.Write(m.node.Host, dir, daemon))
}

// demand changes the policy's minimum strength. Running containers are not judged again.
func (m *model) demand(rt *rapid.T) {
	m.least = rapid.SampledFrom(append([]grant.Strength{grant.StrengthNone, grant.StrengthNone},
		grant.Strengths...)).Draw(rt, "minimum strength")
	m.node.Policy.Rules.MinimumStrength = m.least
}

func (m *model) unbind(rt *rapid.T) {
	id := m.pick(rt)
	if id == "" || len(m.held[id].bound) == 0 {
		return
	}
	h := m.held[id]
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(h.bound))).Draw(rt, "container")
	m.must(m.node.Unbind(m.caller(name).Container))
	h.bound = maps.Clone(h.bound)
	delete(h.bound, name)
}

func (m *model) release(rt *rapid.T) {
	id := m.pick(rt)
	if id == "" {
		_, err := grants.Release(m.node, "g-aaaaaaaaaaaa", false)
		var missing *grant.NotFoundError
		if !errors.As(err, &missing) {
			rt.Fatalf("release of what is not there: %v", err)
		}
		return
	}
	force := rapid.Bool().Draw(rt, "force")
	_, err := grants.Release(m.node, id, force)
	m.must(err)
	if m.held[id].draining = true; force || len(m.held[id].bound) == 0 {
		delete(m.held, id)
	}
}

func (m *model) change(rt *rapid.T) {
	id := m.pick(rt)
	if id == "" || m.held[id].mode == grant.Exclusive || m.held[id].mode == grant.MIG {
		return
	}
	old := *m.held[id]
	h := old
	h.each = grant.Bytes(rapid.IntRange(1, 8).Draw(rt, "GiB")) * grant.GiB
	memory := h.each * grant.Bytes(len(h.gpus))
	what := grants.Change{Memory: &memory}
	if rapid.Bool().Draw(rt, "with compute") {
		h.compute = rapid.SampledFrom([]int{0, 10, 50, 100}).Draw(rt, "compute")
		what.Compute = &h.compute
	}
	_, err := grants.Update(m.node, id, what)
	over := !old.live() || old.draining
	m.swept()
	var missing *grant.NotFoundError
	switch grows := h.each > old.each || h.compute > old.compute; {
	case over:
		if !errors.As(err, &missing) {
			rt.Fatalf("change of a grant that is over: %v", err)
		}
	case (grows || what.Compute != nil) && m.unkept(h):
		m.refused(rt, err, grant.LimitUnenforceable)
	case grows && !m.allFit(h, id):
		m.refused(rt, err, grant.NoCapacity, grant.ModeConflict)
	case old.mode == grant.MPS && len(old.bound) > 0 &&
		(h.each < old.each || cmp.Or(h.compute, 100) < cmp.Or(old.compute, 100)):
		m.refused(rt, err, grant.GrantInUse) // its containers keep what they have
	case err != nil:
		rt.Fatalf("a change that fits is refused: %v", err)
	default:
		m.held[id] = &h
	}
}

// pin gives the node other pools.
func (m *model) pin(rt *rapid.T) {
	m.pools, m.modes, m.node.Policy.Pools = nil, nil, nil
	for _, gpus := range rapid.SampledFrom([][][]int{nil, {{0, 1}, {2, 3, 4}}, {{0}, {1, 2}},
		{{0, 1, 2, 3, 4}}}).Draw(rt, "pools") {
		modes := rapid.SampledFrom([][]grant.Mode{nil, {grant.MPS}, {grant.Limit, grant.MPS, grant.MIG},
			{grant.Exclusive, grant.Timeslice}}).Draw(rt, "modes")
		pool := grant.Pool{Modes: modes, Place: rapid.SampledFrom([]grant.Placement{
			grant.Binpack, grant.Spread}).Draw(rt, "placement")}
		for _, i := range gpus {
			pool.GPUs = append(pool.GPUs, strconv.Itoa(i))
		}
		m.pools, m.modes = append(m.pools, gpus), append(m.modes, modes)
		m.node.Policy.Pools = append(m.node.Policy.Pools, pool)
	}
}

// health makes a GPU fail, or recover.
func (m *model) health(rt *rapid.T) {
	i := rapid.IntRange(0, cards).Draw(rt, "GPU")
	m.sick[i] = !m.sick[i]
	m.scan()
}

// reboot ends every container. Grants survive it; nothing is granted before the inventory is taken
// again.
func (m *model) reboot(rt *rapid.T) {
	pools := m.node.Policy.Pools
	m.boot()
	m.node.Policy.Pools, m.node.Policy.Rules.MinimumStrength = pools, m.least
	for _, h := range m.held {
		h.bound = nil
	}
	_, _, err := grants.Enter(m.node, admission.Ask{Mode: grant.Exclusive, Owner: grant.Bearer})
	m.refused(rt, err, grant.InventoryStale)
	m.scan()
}

func (m *model) check(rt *rapid.T) {
	report, err := grants.Check(m.node)
	if err != nil || len(report.Damaged) > 0 {
		rt.Fatalf("check: %+v, %v", report, err)
	}
}

// strengths are those that enforce the modes, on a node without a shim and with an older driver.
var strengths = map[grant.Mode]grant.Strength{grant.Exclusive: grant.StrengthNone,
	grant.Timeslice: grant.StrengthNone, grant.Limit: grant.StrengthNone,
	grant.MPS: grant.StrengthServer, grant.MIG: grant.StrengthHardware}

// rank orders strengths, as the documentation does.
func rank(s grant.Strength) int {
	return strings.Index("none library server driver hardware", string(s))
}

// compare runs after every step.
func (m *model) compare(rt *rapid.T) {
	picture, err := grants.ReadStatus(m.node)
	if err != nil {
		rt.Fatal(err)
	}
	seen := 0
	for _, g := range picture.Grants {
		h := m.held[g.ID]
		if h == nil || !h.live() {
			rt.Fatalf("%s is live, and the model has %+v", g.ID, h)
		}
		if g.Mode != h.mode || g.Memory() != h.each*grant.Bytes(len(h.gpus)) || g.Compute != h.compute ||
			g.Draining != h.draining || len(g.Bindings) != len(h.bound) {
			rt.Fatalf("%+v is %+v in the model", g, h)
		}
		if g.Strength != h.strength() {
			rt.Fatalf("a grant in mode %s with %v is reported with strength %s", g.Mode, h.bound, g.Strength)
		}
		seen++
	}
	for _, h := range m.held {
		if h.live() {
			seen--
		}
	}
	if seen != 0 {
		rt.Fatalf("the ledger and the model differ by %d grants", seen)
	}
	for i, c := range picture.Cards[:cards] {
		m.invariant(rt, i, c)
	}
	for i, p := range picture.Cards[cards].Parts {
		m.whole(rt, cards+i, p)
	}
}

// whole: a MIG device is granted to one grant, or free.
func (m *model) whole(rt *rapid.T, i int, p grants.Part) {
	free := part
	if len(m.on(i, "")) > 0 || m.sick[cards] || m.pools != nil && m.pool(i) < 0 {
		free = 0
	}
	if len(m.on(i, "")) > 1 || len(p.Grants) != len(m.on(i, "")) || p.Free != free {
		rt.Fatalf("MIG device %s has %d grants and %s free; the model has %v and %s free", p.Name,
			len(p.Grants), p.Free, m.on(i, ""), free)
	}
}

// invariant is what must hold for each GPU after any request.
func (m *model) invariant(rt *rapid.T, i int, c grants.Card) {
	var memory grant.Bytes
	compute, mode := 0, grant.Mode("")
	for id, h := range m.on(i, "") {
		memory, compute = memory+h.each, compute+h.compute
		if mode != "" && (mode != h.mode || mode == grant.Exclusive) {
			rt.Fatalf("GPU %d is in mode %s, and %s holds it in mode %s", i, mode, id, h.mode)
		}
		mode = h.mode
	}
	if memory > card || compute > 100 {
		rt.Fatalf("GPU %d has %s and %d%% granted", i, memory, compute)
	}
	free := card - memory
	if m.sick[i] || m.pools != nil && m.pool(i) < 0 {
		free = 0
	}
	if c.Allocated != memory || c.Compute != compute || c.Mode != mode || c.Free != free {
		rt.Fatalf("GPU %d: the node has %s, %d%%, mode %q, %s free; the model %s, %d%%, mode %q, %s free",
			i, c.Allocated, c.Compute, c.Mode, c.Free, memory, compute, mode, free)
	}
}
