package request

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

// scene is a node with a driver, and a container about to be created on it.
type scene struct {
	*hostpathtest.NodeDir
	spec   Spec
	caller Caller
	node   NodeFacts
}

// The majors that the driver has on this node beside 195.
const majorUVM, majorCaps, majorIMEX, majorSwitch = 508, 509, 510, 507

// newScene gives an ordinary container without any GPU, as containerd starts it. DRM minors 0 and
// 128 are NVIDIA's, 1 and 129 are not.
func newScene(t testing.TB) *scene {
	s := &scene{NodeDir: hostpathtest.New(t)}
	s.spec = containerdSpec()
	s.caller = Caller{Container: grant.Container{Engine: grant.Containerd, ID: "c1",
		Bundle: s.Path("bundle")}}
	s.node = NodeFacts{
		Host: s.Host(),
		Policy: grant.Policy{
			StateDir: s.Path("state"), RunDir: s.Path("run"),
			Rules: grant.Rules{DeviceEnv: []string{"NVIDIA_VISIBLE_DEVICES"}},
			Annotations: grant.Annotations{Dialects: []grant.Dialect{
				grant.DialectGPULedger, grant.DialectGPUShare}},
		},
		Majors: func() (map[string]int, error) {
			return map[string]int{"nvidia": 195, "nvidiactl": 195, "nvidia-modeset": 195,
				"nvidia-uvm": majorUVM, "nvidia-caps": majorCaps,
				"nvidia-caps-imex-channels": majorIMEX, "nvidia-nvswitch": majorSwitch}, nil
		},
		DRM: func() (map[int]bool, error) {
			return map[int]bool{0: true, 128: true, 1: false, 129: false}, nil
		},
	}
	return s
}

// mknod makes a real device node; it needs root, as all of this project's tests do.
func (s *scene) mknod(name string, major, minor uint32) string {
	s.T.Helper()
	err := unix.Mknod(s.Path(name), unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor)))
	if err == unix.EPERM {
		s.T.Skip("misses the right to make device nodes: run it as root")
	}
	s.Must(err)
	return s.Path(name)
}

func (s *scene) env(entries ...string) { s.spec.Process.Env = append(s.spec.Process.Env, entries...) }

func (s *scene) bind(source, destination string, options ...string) {
	s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Source: source, Destination: destination, Type: "bind",
		Options: append([]string{"rbind"}, options...)})
}

func (s *scene) device(path, kind string, major, minor int64) {
	s.spec.Linux.Devices = append(s.spec.Linux.Devices, specs.LinuxDevice{
		Path: path, Type: kind, Major: major, Minor: minor})
}

func (s *scene) caps(names ...string) {
	s.spec.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding: names, Effective: names, Permitted: names}
}

// pod says whose container it is, as containerd does.
func (s *scene) pod() {
	for key, value := range map[string]string{"container-type": "container", "sandbox-uid": "u",
		"sandbox-namespace": "ns", "sandbox-name": "p", "container-name": "main"} {
		s.spec.Annotations["io.kubernetes.cri."+key] = value
	}
}

// nobody makes its user one who can become nobody else.
func (s *scene) nobody(groups ...uint32) {
	s.spec.Process.User = specs.User{UID: 65534, GID: 65534, AdditionalGids: groups}
	s.spec.Process.NoNewPrivileges = true
}

func (s *scene) userNamespace() {
	s.spec.Linux.Namespaces = append(s.spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
}

// unruled has the runtime run in a user namespace: any that is not the machine's first one.
func (s *scene) unruled() {
	s.Mkdir("proc/self/ns")
	s.Touch("proc/self/ns/user")
}

// devicesOnV1 has the node's device rules on cgroup v1.
func (s *scene) devicesOnV1() {
	s.Mkdir("sys/fs/cgroup/devices")
	s.Touch("sys/fs/cgroup/devices/cgroup.procs")
}

// rules puts device rules in place of the engine's: "allow c 195:* rwm", "deny a". A "-" leaves the
// access out.
func (s *scene) rules(texts ...string) { s.spec.Linux.Resources.Devices = parseRules(s.T, texts...) }

func (s *scene) addRules(texts ...string) {
	s.spec.Linux.Resources.Devices = append(s.spec.Linux.Resources.Devices, parseRules(s.T, texts...)...)
}

func parseRules(t testing.TB, texts ...string) []specs.LinuxDeviceCgroup {
	t.Helper()
	rules := []specs.LinuxDeviceCgroup{}
	for _, text := range texts {
		var allow, kind, device, access string
		fields := strings.Fields(text)
		allow, kind = fields[0], fields[1]
		if len(fields) > 2 {
			device, access = fields[2], strings.Trim(fields[3], "-")
		} else {
			device, access = "*:*", "rwm"
		}
		major, minor, _ := strings.Cut(device, ":")
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: allow == "allow", Type: strings.Trim(kind, "-"),
			Major: parseNumber(t, major), Minor: parseNumber(t, minor), Access: access})
	}
	return rules
}

func parseNumber(t testing.TB, text string) *int64 {
	if text == "*" {
		return nil
	}
	var n int64
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

// facts are what the vectors know of the scene's container.
func (s *scene) facts() *containerFacts {
	s.T.Helper()
	f, err := readFacts(s.spec, s.caller, s.node)
	s.Must(err)
	return f
}

func (s *scene) find() grant.Request {
	s.T.Helper()
	r, err := Find(s.spec, s.caller, s.node)
	s.Must(err)
	return r
}

// sameAgain looks as a container's first look does, and as its second one, which must find the
// same.
func (s *scene) sameAgain(first grant.Request) {
	s.T.Helper()
	node := s.node
	node.Seen = &Seen{}
	for range 2 {
		again, err := Find(s.spec, s.caller, node)
		s.Must(err)
		again.Devices.Majors = first.Devices.Majors // known from the first look on
		if !reflect.DeepEqual(again, first) {
			s.T.Errorf("with what was seen before it finds\n%+v\nand without\n%+v", again, first)
		}
	}
}

// hits gives what was found as lines: code, vector, value, cover, removal; the scene's directory is
// called T.
func (s *scene) hits() []string {
	s.T.Helper()
	lines := []string{}
	found := s.find()
	s.sameAgain(found)
	for _, h := range found.Hits {
		lines = append(lines, strings.ReplaceAll(line(h), s.Dir, "T"))
	}
	return lines
}

func line(h grant.Hit) string {
	cover := map[grant.Cover]string{grant.CoverNever: "never", grant.CoverGPUs: "gpus",
		grant.CoverNode: "node", grant.CoverDrop: "drop", grant.CoverNarrow: "narrow"}[h.Cover]
	if h.Cover == grant.CoverGPUs {
		cover += "=" + strings.Join(h.GPUs, "+")
	}
	if h.Node.Class != "" {
		cover += fmt.Sprintf("=%s/%d", h.Node.Class, h.Node.Minor)
	}
	text := fmt.Sprintf("%s | %s | %s | %s", h.Code, h.Vector, h.Value, cover)
	if h.Removal != (grant.Removal{}) {
		text += " | -" + h.Removal.String()
	}
	return text
}

func (s *scene) wantHits(want ...string) {
	s.T.Helper()
	if got := s.hits(); !slices.Equal(got, want) {
		s.T.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// check runs a table whose rows change an ordinary container and say what is to be found.
type row struct {
	name  string
	setup func(*scene)
	want  []string
}

func check(t *testing.T, rows []row) {
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			s := newScene(t)
			r.setup(s)
			s.wantHits(r.want...)
		})
	}
}

func ptr(n int64) *int64 { return &n }

// containerdSpec is an unprivileged container of containerd's CRI plugin
// (oci.WithDefaultUnixDevices).
func containerdSpec() Spec {
	rule := func(major, minor int64) specs.LinuxDeviceCgroup {
		r := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: ptr(major),
			Minor: ptr(minor), Access: "rwm"}
		if minor < 0 {
			r.Minor = nil
		}
		return r
	}
	return Spec{
		Process: &Process{Env: []string{"PATH=/usr/bin:/bin", "HOME=/root"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}},
		},
		Annotations: map[string]string{},
		Linux: &Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
			Resources: &Resources{Devices: []specs.LinuxDeviceCgroup{
				{Allow: false, Access: "rwm"},
				{Allow: true, Type: "c", Access: "m"}, {Allow: true, Type: "b", Access: "m"},
				rule(1, 3), rule(1, 8), rule(1, 7), rule(5, 0), rule(1, 5), rule(1, 9),
				rule(5, 1), rule(136, -1),
				rule(5, 2), rule(10, 200),
			}}},
	}
}
