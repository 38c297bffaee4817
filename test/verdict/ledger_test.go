package verdict_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/test/verdict"
)

// ledgerCount is how many ledgers the cases go through. One has no inventory, one an old one.
const ledgerCount = 24

// made is when the grants were made; asked is when the cases come, and short grants have expired.
var made, asked = time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC), time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)

// ledgers are made when the first case needs them.
type ledgers struct {
	dir string
	all [ledgerCount]*ledger
}

// ledger is a node of its own, with its grants.
type ledger struct {
	dir    string
	host   host.Host // at the time of the cases
	node   verdict.Node
	grants []verdict.Grant
	policy string // the first lines of each policy
}

func newLedgers(t *testing.T) *ledgers {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return &ledgers{dir: dir}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func (l *ledgers) of(t *testing.T, at uint64) *ledger {
	i := at % ledgerCount
	if l.all[i] == nil {
		l.all[i] = newLedger(t, fmt.Sprintf("%s/%d", l.dir, i), i)
	}
	return l.all[i]
}

const majorUVM, majorCaps, majorIMEX, majorSwitch, majorOther = 508, 509, 510, 507, 500

func newLedger(t *testing.T, dir string, number uint64) *ledger {
	l := &ledger{dir: dir}
	l.policy = fmt.Sprintf("state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\n"+
		"file = \"/dev/null\"\n[audit]\nfile = \"\"\n", dir+"/state", dir+"/run")
	l.proc(t, majorUVM)
	must(t, os.MkdirAll(dir+"/state", 0o700), os.MkdirAll(dir+"/run", 0o700))
	l.host.Now = func() time.Time { return made }
	inv := l.inventory(t)
	must(t, gpu.Write(gpu.Path(dir+"/state"), inv))
	l.model(inv)
	l.devices(t)
	l.fill(t, verdict.GenerateLedger(rand.New(rand.NewPCG(3, number)), l.node))
	l.host.Now = func() time.Time { return asked }
	inv.GPUs[4].Health, inv.Driver = "fallen off the bus", grant.Driver{Root: "/"} // no file to mount
	must(t, gpu.Write(gpu.Path(dir+"/state"), inv))
	l.node.GPUs[4].Healthy = false
	switch number {
	case 5:
		must(t, os.Remove(gpu.Path(dir+"/state")))
		l.node.Inventory = verdict.InventoryMissing
	case 11:
		l.node.Inventory = verdict.InventoryStale // of another boot, in which no container runs
		must(t, os.WriteFile(dir+"/proc/sys/kernel/random/boot_id",
			[]byte("99999999-2222-3333-4444-555555555555\n"), 0o644))
		for i := range l.grants {
			l.grants[i].Bound, l.grants[i].Cgroup = false, ""
		}
	}
	return l
}

// proc writes what the node's kernel says.
func (l *ledger) proc(t *testing.T, uvm int) {
	dir := l.dir
	must(t, os.MkdirAll(dir+"/proc/sys/kernel/random", 0o755), os.MkdirAll(dir+"/sys/dev/char", 0o755),
		os.MkdirAll(dir+"/bundle/rootfs", 0o755),
		os.WriteFile(dir+"/proc/sys/kernel/random/boot_id", []byte("11111111-2222-3333-4444-555555555555\n"),
			0o644),
		os.WriteFile(dir+"/proc/devices",
			[]byte(fmt.Sprintf("Character devices:\n  1 mem\n%d vendor\n195 nvidia\n195 nvidiactl\n"+
				"%d nvidia-uvm\n%d nvidia-caps\n%d nvidia-caps-imex-channels\n%d nvidia-nvswitch\n\n"+
				"Block devices:\n  7 loop\n",
				majorOther, uvm, majorCaps, majorIMEX, majorSwitch)), 0o644))
	pid := fmt.Sprintf("%s/proc/%d", dir, os.Getpid())
	if _, err := os.Lstat(pid); err != nil { // a binding's creator is this process
		must(t, os.Symlink("/proc/self", dir+"/proc/self"), os.Symlink("/proc/thread-self",
			dir+"/proc/thread-self"),
			os.Symlink(fmt.Sprintf("/proc/%d", os.Getpid()), pid))
	}
	l.host = host.Host{Proc: dir + "/proc", Sys: dir + "/sys", Dev: dir + "/dev", Now: l.host.Now}
}

func (l *ledger) inventory(t *testing.T) grant.Inventory {
	d, err := simulated.Describe(6, 16*grant.GiB, "", nil)
	must(t, err)
	big, err := simulated.Describe(1, 80*grant.GiB, "", []string{"1g.10gb", "1g.10gb", "3g.40gb"})
	must(t, err)
	d.GPUs[5] = big.GPUs[0]
	for i, minor := range []int{2, 0, 3, 1, 5, 4} { // no GPU has its index as its minor
		d.GPUs[i].Minor = &minor
	}
	inv, err := simulated.Scan(d, l.host, "/")
	must(t, err)
	inv.Driver.Version = "580.142" // as if it had the programs of MPS
	for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} {
		inv.Driver.Files = append(inv.Driver.Files, grant.DriverFile{Path: "/usr/bin/" + name,
			Kind:       grant.FileBinary,
			Capability: "compute", Target: "/usr/bin/" + name})
	}
	return inv
}

// model makes the oracle's node of the inventory.
func (l *ledger) model(inv grant.Inventory) {
	l.node = verdict.Node{Dev: l.dir + "/dev", Taken: map[int64]bool{majorOther: true},
		Majors: map[string]int64{"nvidia-uvm": majorUVM, "nvidia-caps": majorCaps,
			"nvidia-caps-imex-channels": majorIMEX, "nvidia-nvswitch": majorSwitch}}
	for _, g := range inv.GPUs {
		m := verdict.GPU{UUID: g.UUID, Index: g.Index, Minor: int64(g.Minor), Memory: int64(g.Memory),
			Healthy: true,
			Render:  []int64{int64(128 + g.Index)}}
		for _, d := range g.MIG {
			m.MIG = append(m.MIG, verdict.MIG{UUID: d.UUID, Memory: int64(d.Memory),
				Caps: [2]int64{int64(d.Caps[0]), int64(d.Caps[1])}})
		}
		l.node.GPUs = append(l.node.GPUs, m)
	}
}

// devices makes the node's devices.
func (l *ledger) devices(t *testing.T) {
	dev := l.dir + "/dev"
	must(t, os.MkdirAll(dev+"/plain", 0o755))
	l.node.Files = map[string]verdict.File{"/var/run": {Link: "/run"}}
	for name, d := range map[string]verdict.Number{"nvidia0": {Major: 195}, "nvidia1": {Major: 195, Minor: 1},
		"nvidiactl":      {Major: 195, Minor: 255},
		"nvidia-modeset": {Major: 195, Minor: 254}, "innocent": {Major: 195, Minor: 2},
		"nvidia-uvm": {Major: majorUVM}, "null": {Major: 1, Minor: 3},
		"card": {Major: 226, Minor: 129}} {
		l.node.Files[dev+"/"+name] = verdict.File{Device: d}
		if err := syscall.Mknod(dev+"/"+name, syscall.S_IFCHR|0o666, int(d.Major<<8|d.Minor)); err != nil {
			t.Skipf("cannot make device nodes, so what mounts of them lead to is not tested: %v", err)
		}
	}
	for name, target := range map[string]string{"link": "nvidia1", "torun": "../run"} {
		l.node.Files[dev+"/"+name] = verdict.File{Link: target}
		must(t, os.Symlink(target, dev+"/"+name))
	}
}

// fill enters the planned grants.
func (l *ledger) fill(t *testing.T, plan []verdict.Grant) {
	guard := l.open(t, verdict.Input{Policy: l.policy})
	for i, g := range plan {
		ask := admission.Ask{Mode: grant.Mode(g.Mode), Owner: grant.Owner(g.Owner), Compute: g.Compute,
			Source: "test"}
		for _, s := range g.Shares {
			ask.Names = append(ask.Names, s.UUID)
			if g.Mode != "exclusive" && g.Mode != "mig" {
				ask.Memory += grant.Bytes(s.Memory)
			}
		}
		for _, tie := range g.Ties {
			parsed, err := grant.ParseTie(tie)
			must(t, err)
			ask.For = append(ask.For, parsed)
		}
		if g.Expired {
			ask.TTL = time.Hour
		}
		entered, reference, err := grants.Enter(guard, ask)
		if err != nil {
			t.Logf("%s leaves a grant out: %v", l.dir, err)
			continue
		}
		g.ID, g.Secret = string(reference.ID), reference.Secret
		for k, s := range entered.GPUs { // the ledger sorts them
			g.Shares[k] = verdict.Share{UUID: s.UUID, Memory: int64(s.Memory)}
		}
		if g.Bound {
			l.bind(t, guard, i, g)
		}
		if g.Draining {
			_, err := grants.Release(guard, reference.ID, false)
			must(t, err)
		}
		l.grants = append(l.grants, g)
	}
}

// bind has another container use a grant. Its creator is this process, so it stays alive.
func (l *ledger) bind(t *testing.T, guard *node.Node, i int, g verdict.Grant) {
	uid, name, space, pod := "none", "main", "team", "x"
	for _, tie := range g.Ties {
		kind, value, _ := strings.Cut(tie, ":")
		if kind == "pod" {
			uid = value
		} else {
			space = value
		}
	}
	if owner, ok := strings.CutPrefix(g.Owner, "pod:"); ok {
		uid, name, _ = strings.Cut(owner, "/")
	}
	reference := g.ID
	if g.Secret != "" {
		reference += "." + g.Secret
	}
	cgroup := ""
	if g.Cgroup != "" {
		cgroup = fmt.Sprintf(`"cgroupsPath":%q,`, g.Cgroup)
	}
	config := fmt.Sprintf(`{"ociVersion":"1.0.2","process":{"env":["GPULEDGER_GRANT=%s"],"args":["x"],"cwd":"/"},"root":{"path":"rootfs"},
"annotations":{"io.kubernetes.cri.container-type":"container","io.kubernetes.cri.sandbox-uid":%q,"io.kubernetes.cri.sandbox-namespace":%q,
"io.kubernetes.cri.sandbox-name":%q,"io.kubernetes.cri.container-name":%q},
"linux":{%s"resources":{"devices":[{"allow":false,"access":"rwm"}]},"namespaces":[{"type":"pid"},{"type":"mount"}]}}`,
		reference, uid, space, pod, name, cgroup)
	c := grant.Container{Engine: grant.Containerd, RuntimeRoot: l.dir + "/runtime",
		ID: fmt.Sprintf("other-%d", i), Bundle: l.dir + "/bundle"}
	d := guard.Admit(node.Create{Caller: request.Caller{Container: c}, Config: []byte(config)})
	if d.Kind != grant.Admit || !d.Bound {
		t.Fatalf("%s: cannot bind %+v: %s %s", l.dir, g, d.Kind, d.Message)
	}
}

// input is what the cases of a block share.
func (l *ledger) input(rootless bool) verdict.Input {
	n := l.node
	n.Rootless = rootless
	return verdict.Input{Node: n, Grants: slices.Clone(l.grants)}
}

func (l *ledger) open(t *testing.T, in verdict.Input) *node.Node {
	guard, err := l.tryOpen(in)
	must(t, err)
	return guard
}

// tryOpen opens the node with a policy; its own mistake is an error only if the oracle sees none.
func (l *ledger) tryOpen(in verdict.Input) (*node.Node, error) {
	config := l.dir + "/config.toml"
	if err := os.WriteFile(config, []byte(in.Policy), 0o600); err != nil {
		return nil, err
	}
	h := l.host
	if in.Node.Rootless {
		h.UID = 1000
	}
	guard := node.Open(config, h)
	if broken := verdict.ReadPolicy(in.Policy).Broken; broken != (guard.Broken != nil) {
		return nil, fmt.Errorf("the configuration is broken: %v, and by the documents: %v", guard.Broken,
			broken)
	}
	return guard, nil
}
