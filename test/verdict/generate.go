package verdict

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// GeneratePolicy writes the tables of a config.toml behind its first lines.
func GeneratePolicy(r *rand.Rand, n Node) string {
	var b strings.Builder
	line := func(percent int, format string, args ...any) {
		if r.IntN(100) < percent {
			fmt.Fprintf(&b, format+"\n", args...)
		}
	}
	b.WriteString("[policy]\n")
	line(10, `mode = "report"`)
	line(35, `ungranted = "hide"`)
	line(35, `privileged = "strip"`)
	line(15, `minimum_strength = %q`, one(r, strengths))
	line(10, `reserve = %q`, one(r, []string{"512MiB", "4GiB", "12GiB"}))
	line(15, `device_env = ["NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"]`)
	for range r.IntN(3) {
		if r.IntN(2) == 0 {
			continue
		}
		b.WriteString("[[policy.exempt]]\n")
		switch r.IntN(4) {
		case 0:
			line(100, `namespace = %q`, one(r, []string{"team", "kube-*", "te?m", "*"}))
		case 1:
			line(100, `namespace = "team"`)
			line(100, `container = %q`, one(r, []string{"main", "tr*", "*"}))
		case 2:
			line(100, `pod = %q`, one(r, []string{"job-0", "job-?", "other*"}))
		case 3:
			line(100, `container = %q`, one(r, []string{"side", "*i*"}))
		}
	}
	b.WriteString("[annotations]\n")
	line(35, `trust = "adopt"`)
	line(8, `dialects = ["gpuledger"]`)
	if r.IntN(4) == 0 {
		b.WriteString("[ask]\n")
		line(95, `engines = [%s]`, one(r, []string{`"podman"`, `"docker"`, `"podman", "docker", "none"`,
			`"containerd"`}))
		line(40, `max_memory = %q`, one(r, []string{"2GiB", "8GiB"}))
		line(30, `max_gpus = 2`)
		line(40, `modes = [%s]`, one(r, []string{`"limit", "timeslice"`, `"limit", "exclusive"`,
			`"limit", "mps"`}))
		line(30, `total = %d`, one(r, []int{10, 50, 90}))
	}
	b.WriteString("[enforcement]\n")
	line(6, `limit = %q`, one(r, []string{"library", "driver"}))
	line(12, `compute = "refuse"`)
	if r.IntN(8) == 0 {
		fmt.Fprintf(&b, "[[pool]]\ngpus = [%s]\n", one(r, []string{`"0-2"`, `"0", "3"`,
			`"` + n.GPUs[1].UUID + `"`}))
		line(60, `modes = [%s]`, one(r, []string{`"limit"`, `"limit", "timeslice"`, `"exclusive", "mps"`}))
	}
	if r.IntN(25) == 0 {
		b.WriteString("[policy.more]\nmoed = \"enforce\"\n")
	}
	return b.String()
}

func one[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

type object = map[string]any

// Case is a generated create.
type Case struct {
	Config     []byte
	Engine     string
	CgroupsOff bool
}

// generator writes one spec.
type generator struct {
	*rand.Rand
	in        Input
	policy    Policy
	grant     *Grant // the one that the spec is about; nil: none
	id        Identity
	env       []any
	mounts    []any
	devices   []any
	rules     []any
	notes     object
	hooks     object
	unified   object
	caps      []any
	namespace []any
	process   object
	linux     object
	root      object
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

var (
	uids = []string{"7a1c2f00-0000-4000-8000-000000000001", "7a1c2f00-0000-4000-8000-000000000002",
		"7a1c2f00-0000-4000-8000-000000000003"}
	containers = []string{"main", "train", "side"}
	namespaces = []string{"team", "other"}
	engines    = []string{"containerd", "containerd", "cri-o", "cri-o", "podman", "docker", "none"}
)

// Pods are the owners that ledgers and specs use: UID, then container.
func Pods() (list []string) {
	for _, uid := range uids {
		for _, c := range containers {
			list = append(list, uid+"/"+c)
		}
	}
	return list
}

// Namespace is the namespace of the pods with a UID, and Pod their name.
func Namespace(uid string) (namespace, pod string) {
	i := slices.Index(uids, uid)
	return namespaces[max(i, 0)%2], fmt.Sprintf("job-%d", i)
}

// Generate makes a create on a node with a policy and a ledger.
func Generate(r *rand.Rand, in Input) Case {
	g := &generator{Rand: r, in: in, policy: ReadPolicy(in.Policy), notes: object{}, hooks: object{},
		unified: object{},
		process: object{}, linux: object{}, root: object{"path": "rootfs"}}
	engine := one(r, engines)
	if len(in.Grants) > 0 && g.chance(55) {
		g.grant = &in.Grants[r.IntN(len(in.Grants))]
	}
	g.in.Engine = engine
	g.identity(engine)
	g.base()
	if g.grant != nil {
		g.reference()
	}
	if g.chance(25) {
		g.allocation()
	}
	for range one(r, []int{0, 0, 1, 1, 1, 2, 3}) {
		one(r, vectors)(g)
	}
	return Case{Config: g.write(), Engine: engine, CgroupsOff: g.chance(2)}
}

func (g *generator) identity(engine string) {
	k, proves := keys[engine]
	uid, name := one(g.Rand, uids), one(g.Rand, containers)
	if g.grant != nil && g.chance(75) {
		if pod, ok := strings.CutPrefix(g.grant.Owner, "pod:"); ok {
			uid, name, _ = strings.Cut(pod, "/")
		}
		for _, tie := range g.grant.Ties {
			if pod, ok := strings.CutPrefix(tie, "pod:"); ok {
				uid = pod
			}
		}
	}
	space, pod := Namespace(uid)
	if !proves || g.chance(10) { // what a user forges for another engine
		if g.chance(30) {
			other := keys[one(g.Rand, []string{"containerd", "cri-o"})]
			if other != k {
				g.notes[other.kind], g.notes[other.uid], g.notes[other.namespace] = "container", uid, space
				g.notes[other.pod], g.notes[other.container] = pod, name
			}
		}
	}
	if !proves || g.chance(12) {
		return
	}
	g.id = Identity{Proven: true, UID: uid, Namespace: space, Pod: pod, Container: name}
	g.notes[k.kind], g.notes[k.namespace], g.notes[k.pod] = "container", space, pod
	g.notes[k.container], g.notes[k.uid] = name, uid
	switch {
	case g.chance(8):
		g.notes[k.kind] = "sandbox"
		delete(g.notes, k.container)
	case engine == "containerd" && g.chance(8): // before 1.6.11
		delete(g.notes, k.uid)
	}
}

func number(n int64) *int64 { return &n }

func rule(allow bool, kind string, major, minor int64, access string) object {
	r := object{"allow": allow}
	if kind != "" {
		r["type"] = kind
	}
	if major >= 0 {
		r["major"] = number(major)
	}
	if minor >= 0 {
		r["minor"] = number(minor)
	}
	if access != "" {
		r["access"] = access
	}
	return r
}

// base is what engines write into every spec.
func (g *generator) base() {
	g.env = []any{"PATH=/usr/bin:/bin", "HOME=/root"}
	g.rules = []any{rule(false, "", -1, -1, "rwm"), rule(true, "c", 1, 3, "rwm"), rule(true, "c", 136, -1,
		"rwm"),
		rule(true, "c", -1, -1, "m"), rule(true, "b", -1, -1, "m")}
	g.mounts = []any{object{"destination": "/proc", "type": "proc", "source": "proc"},
		object{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []any{"nosuid"}}}
	for _, kind := range []string{"pid", "ipc", "uts", "mount", "network"} {
		g.namespace = append(g.namespace, object{"type": kind})
	}
	g.caps = []any{"CAP_CHOWN", "CAP_MKNOD"}
	if g.chance(8) {
		g.namespace = append(g.namespace, object{"type": "user"})
		g.linux["uidMappings"] = []any{object{"containerID": 0, "hostID": 100000, "size": 65536}}
		g.linux["gidMappings"] = g.linux["uidMappings"]
	}
	if g.chance(30) {
		g.env = append(g.env, "NVIDIA_DRIVER_CAPABILITIES="+one(g.Rand, []string{"all", "compute,utility",
			"graphics", "display,compute"}))
	}
	if g.chance(20) {
		g.linux["cgroupsPath"] = one(g.Rand, []string{"/jobs/c1", "/kubepods/besteffort/podx/c1",
			"system.slice:docker:c1"})
	}
	g.process["user"] = object{"uid": one(g.Rand, []int{0, 0, 1000}), "gid": 0}
}

// reference presents the grant, well or not.
func (g *generator) reference() {
	text := g.grant.ID
	if g.grant.Secret != "" {
		text += "." + g.grant.Secret
	}
	switch g.IntN(30) {
	case 0:
		text = "g-aaaaaaaaaaaa." + strings.Repeat("0", 32)
	case 1:
		text = g.grant.ID + "." + strings.Repeat("a", 32)
	case 2:
		text = one(g.Rand, []string{"grant", "g-short", "", "adopt", text + "x"})
	}
	name := "gpuledger.dev/grant"
	if g.id.Proven && g.chance(85) {
		name += "." + g.id.Container
	}
	switch g.IntN(10) {
	case 0, 1, 2, 3:
		g.notes[name] = text
	case 4, 5, 6:
		g.variable("GPULEDGER_GRANT", text)
	case 7:
		g.notes[name] = text
		g.variable("GPULEDGER_GRANT", text)
	}
	if g.chance(6) { // another one beside it
		other := one(g.Rand, g.in.Grants)
		if g.chance(50) {
			g.variable("GPULEDGER_GRANT", other.ID+"."+other.Secret)
		} else {
			g.notes["gpuledger.dev/grant."+one(g.Rand, containers)] = other.ID
		}
	}
	if g.chance(3) {
		g.notes["gpuledger.dev/grant"] = "adopt"
	}
}

func (g *generator) variable(name, value string) {
	if g.chance(10) { // of duplicates the last one wins
		g.env = append(g.env, name+"="+one(g.Rand, []string{"all", "void", "0", ""}))
	}
	g.env = append(g.env, name+"="+value)
}

// gpu is a GPU to name: mostly one of the grant.
func (g *generator) gpu() GPU {
	if g.grant != nil && g.chance(60) {
		if gpu, ok := g.in.Node.gpuOf(one(g.Rand, g.grant.Shares).UUID); ok {
			return gpu
		}
	}
	return one(g.Rand, g.in.Node.GPUs)
}

// gpuName is a name of a GPU or MIG device.
func (g *generator) gpuName() string {
	if g.grant != nil && g.chance(60) {
		uuid := one(g.Rand, g.grant.Shares).UUID
		gpu, _ := g.in.Node.gpuOf(uuid)
		if gpu.UUID != uuid || g.chance(50) {
			return uuid
		}
		return strconv.Itoa(gpu.Index)
	}
	gpu := one(g.Rand, g.in.Node.GPUs)
	if len(gpu.MIG) > 0 && g.chance(70) {
		i := g.IntN(len(gpu.MIG))
		return one(g.Rand, []string{gpu.MIG[i].UUID, fmt.Sprintf("%d:%d", gpu.Index, i)})
	}
	return one(g.Rand, []string{gpu.UUID, strconv.Itoa(gpu.Index), strconv.Itoa(gpu.Index)})
}

// allocation states a share: true of the grant, or not.
func (g *generator) allocation() {
	if g.chance(20) && g.id.Proven {
		g.gpushare()
		return
	}
	memory, mode, compute := one(g.Rand, []string{"1GiB", "2GiB", "4GiB", "20GiB"}), one(g.Rand, modes),
		one(g.Rand, []string{"10", "30", "100"})
	names := g.gpuName()
	if g.grant != nil && g.chance(75) {
		total, uuids := int64(0), []string{}
		for _, s := range g.grant.Shares {
			total += s.Memory
			uuids = append(uuids, s.UUID)
		}
		memory, mode, compute, names = fmt.Sprintf("%dMiB", total>>20), g.grant.Mode,
			strconv.Itoa(g.grant.Compute), strings.Join(uuids, ",")
	}
	if g.chance(5) {
		memory, mode = one(g.Rand, []string{"8", "4 GB", "-1GiB", "0GiB"}), one(g.Rand, []string{"shared",
			mode})
	}
	values := map[string]string{"memory": memory, "mode": mode, "compute": compute, "gpus": names,
		"gpu": names}
	form := g.IntN(3)
	percents := []int{35, 10, 80, 20, 35}
	for i, key := range allocationKeys {
		if !g.chance(percents[i]) {
			continue
		}
		switch {
		case form == 0 && !g.id.Proven || g.chance(15):
			g.env = append(g.env, "GPULEDGER_"+strings.ToUpper(key)+"="+values[key])
		case g.id.Proven && form > 0:
			g.notes["gpuledger.dev/"+key+"."+g.id.Container] = values[key]
		default:
			g.notes["gpuledger.dev/"+key] = values[key]
		}
	}
}

func (g *generator) gpushare() {
	gpu := g.gpu()
	if len(gpu.MIG) > 0 {
		gpu = g.in.Node.GPUs[0]
	}
	part := one(g.Rand, []int{1, 2, 4})
	if g.chance(25) {
		g.notes["scheduler.framework.gpushare.allocation"] = fmt.Sprintf(`{%q:{"%d":%d}}`, one(g.Rand,
			containers), gpu.Index, part)
		return
	}
	factor := one(g.Rand, []int{1, 1, 1024})
	g.notes["ALIYUN_COM_GPU_MEM_IDX"] = one(g.Rand, []string{strconv.Itoa(gpu.Index), strconv.Itoa(gpu.Index),
		strconv.Itoa(gpu.Index), "-1"})
	g.notes["ALIYUN_COM_GPU_MEM_DEV"] = strconv.FormatInt(gpu.Memory>>30*int64(factor), 10)
	if g.chance(85) {
		g.notes["ALIYUN_COM_GPU_MEM_POD"] = strconv.Itoa(one(g.Rand, []int{1, 4, 4, 4}) * factor)
	}
	if g.chance(85) {
		g.env = append(g.env, fmt.Sprintf("ALIYUN_COM_GPU_MEM_CONTAINER=%d", part*factor))
	}
}

// write is the spec as JSON, sometimes as no engine would write it.
func (g *generator) write() []byte {
	g.process["env"], g.process["args"], g.process["cwd"] = g.env, []any{"sh"}, "/"
	g.process["capabilities"] = object{"bounding": g.caps, "effective": g.caps, "permitted": g.caps}
	resources := object{"devices": g.rules}
	if len(g.unified) > 0 {
		resources["unified"] = g.unified
	}
	g.linux["resources"], g.linux["namespaces"] = resources, g.namespace
	if len(g.devices) > 0 {
		g.linux["devices"] = g.devices
	}
	spec := object{"ociVersion": "1.0.2", "process": g.process, "root": g.root, "mounts": g.mounts,
		"annotations": g.notes, "linux": g.linux}
	if len(g.hooks) > 0 {
		spec["hooks"] = g.hooks
	}
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	if g.IntN(60) == 0 {
		return one(g.Rand, distortions)(string(text))
	}
	return text
}

// distortions: texts that runtimes would read differently, or not at all; and a few that are
// sound.
var distortions = []func(string) []byte{
	func(s string) []byte { return []byte(s[:len(s)/2]) },
	func(s string) []byte { return []byte(strings.Replace(s, `"linux"`, `"Linux"`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"devices"`, `"Devices"`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"env"`, `"ENV"`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"mounts"`, `"mounts":[],"mounts"`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"PATH=`, `"A=1","`+"\xff"+`PATH=`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"PATH=`, `"A=\u0000","PATH=`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"env":[`, `"env":["NOEQUALS",`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"cwd"`, `"CWD":"/","cwd"`, 1)) },
	func(s string) []byte { return []byte(strings.Replace(s, `"resources":{`, `"resources":{"CPU":{},`, 1)) },
	func(s string) []byte {
		return []byte(strings.Replace(s, `"process":`, `"hostname":null,"hooks":null,"process":`, 1))
	},
	func(s string) []byte {
		return []byte(strings.Replace(s, `"annotations":{`, `"annotations":{"Env":"x","env":"y",`, 1))
	},
}
