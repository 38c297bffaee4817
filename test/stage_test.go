package test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// stage is a node on which rows of the corpus are played: four GPUs, the grants of nodes.toml, host
// nodes to mount.
type stage struct {
	*rig.Node
	policy  stagePolicy
	grants  map[string]grant.Reference
	gpus    []grant.GPU
	spec    []byte // of an ordinary container, its root file system shared by all rows
	fill    *strings.Replacer
	probed  map[string]device64
	audits  int // bytes of the audit log that have been read
	nri     map[string]*rig.NRI
	all     *testing.T     // that the node lives for
	unasked map[string]int // rows that were not run through an entry point, by reason
}

type device64 struct{ major, minor int }

// stagePolicy is one entry of nodes.toml.
type stagePolicy struct {
	Config string
	Report bool // refusals are only recorded
	Grants []struct {
		Name, Args     string
		Held, Released bool // by a container that lives; and released since
	}
}

// simulateMajors writes majors of the driver into /proc/devices that a simulated node lacks, and
// two of other drivers, which no driver of this machine has.
func simulateMajors(t *testing.T) map[string]int {
	t.Helper()
	devices := read(t, "/proc/devices")
	characters, blocks, _ := strings.Cut(devices, "Block devices:")
	majors := map[string]int{}
	next := 400
	for _, name := range []string{"nvidia-uvm", "nvidia-caps", "nvidia-caps-imex-channels",
		"nvidia-nvswitch", "vfio", "kfd"} {
		// of a real driver
		if m := regexp.MustCompile(`(?m)^ *([0-9]+) ` + name + `$`).FindStringSubmatch(characters); m != nil {
			majors[name], _ = strconv.Atoi(m[1])
			continue
		}
		for regexp.MustCompile(fmt.Sprintf(`(?m)^ *%d `, next)).MatchString(characters) {
			next++
		}
		majors[name] = next
		characters = strings.TrimRight(characters, "\n") + fmt.Sprintf("\n%3d %s\n\n", next, name)
		next++
	}
	file := filepath.Join(t.TempDir(), "devices")
	must(t, os.WriteFile(file, []byte(characters+"Block devices:"+blocks), 0o444))
	rig.Mount(t, file, "/proc/devices", "", syscall.MS_BIND, "")
	return majors
}

func newStage(t *testing.T, name string, majors map[string]int) *stage {
	t.Helper()
	var nodes map[string]stagePolicy
	must(t, toml.Unmarshal([]byte(read(t, "testdata/corpus/nodes.toml")), &nodes))
	policy, found := nodes[name]
	if !found {
		t.Fatalf("nodes.toml has no %q", name)
	}
	if len(policy.Grants) == 0 {
		policy.Grants = nodes["default"].Grants
	}
	s := &stage{Node: rig.NewNode(t, rig.Setup{GPUs: 4, Config: policy.Config}), policy: policy,
		grants: map[string]grant.Reference{},
		nri:    map[string]*rig.NRI{}, unasked: map[string]int{}, all: t}
	var inv grant.Inventory
	must(t, json.Unmarshal([]byte(read(t, s.Dir+"/state/inventory.json")), &inv))
	s.gpus = inv.GPUs
	s.engines(t)
	s.image(t, majors)
	s.hostDevices(t, majors)
	s.enterGrants(t)
	s.volumes(t)
	s.placeholders(majors)
	return s
}

// engines makes a link to the wrapper and a configuration for each engine, and one with a runtime
// that does nothing.
func (s *stage) engines(t *testing.T) {
	config := read(t, s.Config)
	for _, engine := range []string{"none", "containerd", "cri-o", "podman", "docker"} {
		must(t, os.Symlink(rig.Binary(t, "gpuledger-runtime"), s.link(engine)))
		s.Write("config."+engine+".toml", strings.Replace(config, `engine = "none"`,
			fmt.Sprintf("engine = %q", engine), 1))
	}
	s.Write("config.recorded.toml", strings.Replace(config, `path = ["runc"]`,
		fmt.Sprintf("path = [%q]", stub(t, s.Node, "runc version 1.5.2")), 1))
}

func (s *stage) link(engine string) string { return filepath.Join(s.Dir, "gpuledger-runtime."+engine) }

// image is the root file system of all rows. It carries a node for every device of a GPU, as an
// image's layers may.
func (s *stage) image(t *testing.T, majors map[string]int) {
	b := s.Bundle("image", rig.Shell(probeAll))
	root := filepath.Join(b.Dir, "rootfs")
	must(t, os.Mkdir(filepath.Join(root, "probe"), 0o755))
	s.probed = map[string]device64{"null": {1, 3}}
	add := func(major int, minors ...int) {
		for _, minor := range minors {
			s.probed[fmt.Sprintf("%d:%d", major, minor)] = device64{major, minor}
		}
	}
	add(195, 0, 1, 2, 3, 254, 255)
	add(majors["nvidia-uvm"], 0, 1)
	add(majors["nvidia-caps"], 1, 2)
	add(majors["nvidia-caps-imex-channels"], 0)
	add(majors["nvidia-nvswitch"], 0, 255)
	add(226, 128, 129, 130, 131)
	for name, d := range s.probed {
		mknod(t, filepath.Join(root, "probe", name), d.major, d.minor)
	}
	var spec specs.Spec
	must(t, json.Unmarshal(b.Config(), &spec))
	spec.Root.Path = root
	data, err := json.Marshal(spec)
	must(t, err)
	s.spec = data
}

// probeAll opens every node for reading and for writing, and prints the results.
const probeAll = `for f in /probe/*; do
  { true <$f && echo "$f: open"; true >$f && echo "$f: open"; } 2>&1
done; echo end`

func mknod(t *testing.T, path string, major, minor int) {
	t.Helper()
	must(t, syscall.Mknod(path, syscall.S_IFCHR|0o666, minor&0xff|major<<8|minor&^0xff<<12),
		os.Chmod(path, 0o666))
}

// hostDevices are nodes of GPUs, and names for them, as a tenant might mount them.
func (s *stage) hostDevices(t *testing.T, majors map[string]int) {
	dev := filepath.Join(s.Dir, "dev")
	for _, dir := range []string{"nvidia-caps", "dri", "plain"} {
		must(t, os.MkdirAll(filepath.Join(dev, dir), 0o755))
	}
	for i := range 4 {
		mknod(t, fmt.Sprintf("%s/nvidia%d", dev, i), 195, i)
		mknod(t, fmt.Sprintf("%s/dri/renderD%d", dev, 128+i), 226, 128+i)
	}
	mknod(t, dev+"/nvidiactl", 195, 255)
	mknod(t, dev+"/nvidia-modeset", 195, 254)
	mknod(t, dev+"/nvidia-uvm", majors["nvidia-uvm"], 0)
	mknod(t, dev+"/nvidia-caps/nvidia-cap1", majors["nvidia-caps"], 1)
	mknod(t, dev+"/innocent", 195, 1)
	mknod(t, dev+"/null", 1, 3)
	mknod(t, dev+"/fuse", 10, 229)
	for link, target := range map[string]string{"link": "nvidia1", "chain": "link", "tonull": "null"} {
		must(t, os.Symlink(target, filepath.Join(dev, link)))
	}
	must(t, os.Symlink(dev, filepath.Join(s.Dir, "devices")),
		os.Symlink(s.Dir+"/run", filepath.Join(s.Dir, "torun")),
		os.WriteFile(filepath.Join(dev, "plain/nvidia0"), []byte("a file"), 0o644),
		os.Mkdir(filepath.Join(s.Dir, "mps"), 0o755))
	// so that a daemon in it closes no mount of its parents (docs/adr/0009)
	rig.Mount(t, "tmpfs", filepath.Join(s.Dir, "mps"), "tmpfs", 0, "")
	must(t, os.MkdirAll(filepath.Join(s.Dir, "mps/log"), 0o755),
		os.MkdirAll(filepath.Join(s.Dir, "mps/pipe"), 0o755),
		os.WriteFile(filepath.Join(s.Dir, "mps/pipe/control_lock"), nil, 0o666),
		os.MkdirAll(filepath.Join(s.Dir, "decoy"), 0o755),
		os.WriteFile(filepath.Join(s.Dir, "decoy/control"), nil, 0o666),
		os.WriteFile(filepath.Join(s.Dir, "decoy/control_lock"), nil, 0o666),
		os.Symlink("pipe", filepath.Join(s.Dir, "mps/link")),
		os.MkdirAll(filepath.Join(s.Dir, "nvidia-data"), 0o755),
		os.MkdirAll(filepath.Join(s.Dir, "running"), 0o755))
	listen(t, filepath.Join(s.Dir, "mps/pipe/control"))
	must(t, os.Mkdir(filepath.Join(s.Dir, "quiet"), 0o755),
		syscall.Mknod(filepath.Join(s.Dir, "quiet/control"), syscall.S_IFSOCK|0o666, 0),
		os.WriteFile(filepath.Join(s.Dir, "quiet/control_lock"), nil, 0o666))
	s.listensAsUser(t, filepath.Join(s.Dir, "tenants/pipe"))
	must(t, os.Symlink("pipe", filepath.Join(s.Dir, "tenants/link")))
}

// listensAsUser has a user of the node make what looks like an MPS daemon's pipe directory, and
// listen there until the test ends.
func (s *stage) listensAsUser(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755), os.Chown(dir, 1000, 1000))
	cmd := exec.Command(tenantProgram(t), "bind", dir+"/control", "user", "1000", "serve", "ready",
		"control_lock", "wait")
	cmd.Dir = dir
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	rig.Eventually(t, "the user listens", func() bool { return exists(filepath.Join(dir, "control_lock")) })
}

// listen is a socket on which the test listens until it ends.
func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
}

// pod is the kubelet's directory of the node's one pod, volume one of Docker's. Engines'
// directories for such things are known by name.
func (s *stage) pod() string    { return "/var/lib/kubelet/pods/" + filepath.Base(s.Dir) }
func (s *stage) volume() string { return "/var/lib/docker/volumes/" + filepath.Base(s.Dir) }

// volumes mounts what a tenant may have named there, as the kubelet does for subPath and Docker for
// a volume with o=bind. The caller has made /var/lib the test's own.
func (s *stage) volumes(t *testing.T) {
	bind := func(source, target string) {
		info, err := os.Stat(source)
		must(t, err, os.MkdirAll(filepath.Dir(target), 0o755))
		if info.IsDir() {
			must(t, os.Mkdir(target, 0o755))
		} else {
			must(t, os.WriteFile(target, nil, 0o600))
		}
		rig.Mount(t, source, target, "", syscall.MS_BIND, "")
	}
	own := func(dir string) {
		var at, above syscall.Stat_t
		must(t, os.MkdirAll(dir, 0o755), syscall.Stat(dir, &at), syscall.Stat(filepath.Dir(dir), &above))
		if at.Dev == above.Dev {
			rig.Mount(t, "tmpfs", dir, "tmpfs", 0, "size=64k")
		}
	}
	own(filepath.Join(s.Dir, "run/limits")) // a grant in use may have it already
	own(filepath.Join(s.Dir, "run/mps/0a1b/shm"))
	own(s.pod() + "/volumes/kubernetes.io~csi/v/mount")
	for name, source := range map[string]string{"run": "run", "limits": "run/limits",
		"shm": "run/mps/0a1b/shm", "bindings": "run/bindings", "state": "state",
		"inventory": "state/inventory.json", "above": "", "nvidia1": "dev/nvidia1", "dev": "dev",
		"mps": "mps/pipe", "control": "mps/pipe/control", "data": "nvidia-data",
		"file": "dev/plain/nvidia0"} {
		bind(filepath.Join(s.Dir, source), s.pod()+"/volume-subpaths/v/"+name+"/0")
	}
	bind("/", s.pod()+"/volume-subpaths/v/root/0")
	bind("/etc", s.pod()+"/volume-subpaths/v/etc/0")
	bind(s.Dir+"/run", s.volume()+"/_data")
	token := s.pod() + "/volumes/kubernetes.io~projected/token"
	must(t, os.MkdirAll(token, 0o755), os.WriteFile(s.pod()+"/etc-hosts", nil, 0o644))
	rig.Mount(t, "tmpfs", token, "tmpfs", 0, "size=64k")
}

// enterGrants makes the grants. Those that are held get a container each.
func (s *stage) enterGrants(t *testing.T) {
	proving := *s.Node // some are tied, which requires an engine that proves pods
	proving.Config = filepath.Join(s.Dir, "config.containerd.toml")
	for _, g := range s.policy.Grants {
		reference := proving.Grant(strings.Fields(g.Args)...)
		s.grants[g.Name] = reference
		if !g.Held {
			continue
		}
		b := s.Bundle("held-by-"+g.Name, rig.Light, rig.Annotation("gpuledger.dev/grant", reference.String()))
		if r := b.Create(); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
		if g.Released {
			s.Must("release", string(reference.ID))
		}
	}
	s.audits = len(s.audit())
}

// audit is the audit log. It begins with the first recorded line.
func (s *stage) audit() string {
	log, _ := os.ReadFile(filepath.Join(s.Dir, "audit.jsonl"))
	return string(log)
}

// cgroups is the cgroup above those of the node's containers.
func (s *stage) cgroups() string {
	var spec specs.Spec
	must(s.all, json.Unmarshal(s.spec, &spec))
	return filepath.Dir(spec.Linux.CgroupsPath)
}

// placeholders are the names that rows write in braces.
func (s *stage) placeholders(majors map[string]int) {
	pairs := []string{"{dir}", s.Dir, "{cgroups}", s.cgroups(), "{pod}", s.pod(), "{volume}", s.volume(),
		"{uvm}", strconv.Itoa(majors["nvidia-uvm"]), "{caps}", strconv.Itoa(majors["nvidia-caps"]),
		"{imex}", strconv.Itoa(majors["nvidia-caps-imex-channels"]), "{nvswitch}",
		strconv.Itoa(majors["nvidia-nvswitch"]),
		"{vfio}", strconv.Itoa(majors["vfio"]), "{kfd}", strconv.Itoa(majors["kfd"])}
	for _, g := range s.gpus {
		pairs = append(pairs, fmt.Sprintf("{gpu%d}", g.Index), g.UUID)
	}
	for name, r := range s.grants {
		pairs = append(pairs, "{"+name+"}", r.String(), "{"+name+".id}", string(r.ID),
			"{"+name+".secret}", r.Secret)
	}
	s.fill = strings.NewReplacer(pairs...)
}

// shares are a grant's GPUs.
func (s *stage) shares(name string) []grant.GPU {
	var gpus []grant.GPU
	for _, g := range s.policy.Grants {
		if g.Name != name {
			continue
		}
		words := strings.Fields(g.Args)
		for i, word := range words {
			if word == "--gpu" {
				index, _ := strconv.Atoi(words[i+1])
				gpus = append(gpus, s.gpus[index])
			}
		}
	}
	return gpus
}

func (s *stage) uuids(name string) []string {
	var uuids []string
	for _, g := range s.shares(name) {
		uuids = append(uuids, g.UUID)
	}
	return uuids
}

// devices are what a container with this grant opens, of those that are probed: every container
// opens null.
func (s *stage) devices(name string) []string {
	open := []string{"null"}
	for _, g := range s.shares(name) {
		open = append(open, fmt.Sprintf("195:%d", g.Minor))
	}
	if name == "" {
		return open
	}
	return append(open, "195:255", s.fill.Replace("{uvm}:0"), s.fill.Replace("{uvm}:1"))
}

// cell makes the row's bundle.
func (s *stage) cell(t *testing.T, r row, id string) *cell {
	t.Helper()
	data, err := json.Marshal(r)
	must(t, err)
	r = row{}
	must(t, json.Unmarshal([]byte(s.fill.Replace(string(data))), &r))
	var spec specs.Spec
	must(t, json.Unmarshal(s.spec, &spec))
	spec.Linux.CgroupsPath = strings.TrimSuffix(spec.Linux.CgroupsPath, "image") + id
	r.applyTo(t, s.grants, &spec)
	config, err := json.Marshal(spec)
	must(t, err)
	if r.Patch != "" {
		config = patched(t, config, r.Patch)
	}
	for i := 0; i+1 < len(r.Replace); i += 2 {
		if !strings.Contains(string(config), r.Replace[i]) {
			t.Fatalf("there is no %q to replace in\n%s", r.Replace[i], config)
		}
		config = []byte(strings.Replace(string(config), r.Replace[i], r.Replace[i+1], 1))
	}
	b := &rig.Bundle{Node: s.Node, Dir: filepath.Join(s.Dir, "bundles", id), ID: id}
	must(t, os.MkdirAll(b.Dir, 0o755))
	return &cell{row: r, Bundle: b, stage: s, config: config}
}
