package oracle_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestAnAdmittedSpecReachesNothingUngranted: whatever a spec holds, a container that may start
// opens, mounts and requests nothing beyond its grant, as the oracle sees it. A second verdict
// changes nothing.
func TestAnAdmittedSpecReachesNothingUngranted(t *testing.T) {
	s := newTestNode(t)
	verdicts := map[grant.VerdictKind]int{}
	kinds := []grant.VerdictKind{grant.Pass, grant.Admit, grant.Refused}
	unseen := func(kind grant.VerdictKind) bool { return verdicts[kind] == 0 }
	checkWhile(t, func() bool { return slices.ContainsFunc(kinds, unseen) }, func(t *rapid.T) {
		policy, engine := rapid.SampledFrom(policies).Draw(t, "policy"),
			rapid.SampledFrom(engines).Draw(t, "engine")
		config := s.config(t, true)
		d := s.judge(policy, engine, config)
		verdicts[d.Kind]++
		if beyond := s.escape(d, config); beyond != "" {
			t.Fatalf("%s on %s: %s\nbefore:\n%s", policy, engine, beyond, config)
		}
		if d.Config == nil {
			return
		}
		if again := s.judge(policy, engine, d.Config); again.Kind != d.Kind || again.Config != nil &&
			!bytes.Equal(again.Config, d.Config) {
			t.Fatalf("judged again it is %s (%s)\nonce:  %s\ntwice: %s", again.Kind, again.Message, d.Config,
				again.Config)
		}
	})
	t.Log(verdicts)
	if i := slices.IndexFunc(kinds, unseen); i >= 0 {
		t.Errorf("no spec had the verdict %s", kinds[i])
	}
}

// checkWhile checks the property once, and again while the specs drawn lack something, ten times at
// most: one spec in twenty passes, so that a hundred now and then have none, and a thousand never.
func checkWhile(t *testing.T, lacking func() bool, property func(*rapid.T)) {
	for range 10 {
		rapid.Check(t, property)
		if t.Failed() || !lacking() {
			return
		}
	}
}

// TestSpecsThatReachNoGPUPassUntouched: a spec in which the oracle finds no way and no request
// starts unchanged.
func TestSpecsThatReachNoGPUPassUntouched(t *testing.T) {
	s := newTestNode(t)
	harmless := 0
	checkWhile(t, func() bool { return harmless == 0 }, func(t *rapid.T) {
		policy, engine := rapid.SampledFrom(policies).Draw(t, "policy"),
			rapid.SampledFrom(engines).Draw(t, "engine")
		config := s.config(t, false)
		if ways, err := s.world.Ways(config); err != nil || len(ways) > 0 {
			return
		}
		harmless++
		if d := s.judge(policy, engine, config); d.Kind != grant.Pass || d.Config != nil {
			t.Fatalf("%s on %s: %s (%s) %s, edited: %v\n%s", policy, engine, d.Kind, d.Code, d.Message,
				d.Config != nil, config)
		}
	})
	t.Logf("%d harmless specs", harmless)
	if harmless == 0 {
		t.Error("no spec was harmless")
	}
}

// TestMountsOfAPodsDirectories: of the sources in a pod's directories, the guard refuses those that
// the oracle finds to lead elsewhere, and no others.
func TestMountsOfAPodsDirectories(t *testing.T) {
	s := newTestNode(t)
	ways := 0
	for _, source := range s.mounted {
		config, err := json.Marshal(specs.Spec{
			Version: "1.0.2", Process: &specs.Process{Args: []string{"true"}, Cwd: "/"},
			Mounts: []specs.Mount{{Source: source, Destination: "/data", Type: "bind",
				Options: []string{"rbind"}}},
			Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
				Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}}}})
		must(t, err)
		leads, err := s.world.Ways(config)
		must(t, err)
		if d := s.judge("default", grant.Containerd, config); (d.Kind == grant.Refused) != (len(leads) > 0) {
			t.Errorf("%s: %s (%s) %s; the oracle has %v", source, d.Kind, d.Code, d.Message, leads)
		}
		if len(leads) > 0 {
			ways++
		}
	}
	if ways == 0 || ways == len(s.mounted) {
		t.Errorf("%d of %d sources are ways", ways, len(s.mounted))
	}
}

// config draws a config.json. One that claims a grant sometimes has odd JSON.
func (s *testNode) config(t *rapid.T, claims bool) []byte {
	spec := specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: "rootfs"}, Annotations: map[string]string{"note": "1"},
		Process: &specs.Process{Args: []string{"true"}, Cwd: "/",
			Env: append([]string{"PATH=/bin"}, rapid.SliceOfN(s.variable(), 0, 3).Draw(t, "env")...)},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
			Devices:    rapid.SliceOfN(s.device(), 0, 2).Draw(t, "devices"),
			Resources:  &specs.LinuxResources{Devices: ruleList(claims).Draw(t, "rules")},
		},
		Mounts: rapid.SliceOfN(s.mount(), 0, 2).Draw(t, "mounts"),
	}
	if rapid.IntRange(0, 9).Draw(t, "user namespace") == 0 {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	}
	caps := rapid.SliceOfNDistinct(rapid.SampledFrom(
		[]string{"CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_DAC_OVERRIDE"}), 0, 3, rapid.ID[string]).Draw(t, "caps")
	spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	if rapid.IntRange(0, 5).Draw(t, "annotated") == 0 {
		a := rapid.SampledFrom(annotations).Draw(t, "annotation")
		spec.Annotations[a[0]] = a[1]
	}
	if path := rapid.SampledFrom(hooks).Draw(t, "hook"); path != "" {
		//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
		spec.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: path, Args: []string{path}}}}
	}
	if rapid.IntRange(0, 19).Draw(t, "unified") == 0 {
		spec.Linux.Resources.Unified = map[string]string{
			rapid.SampledFrom([]string{"dmem.max", "memory.high", "dmemory.max", "cgroup.procs",
				"cgroup.freeze", "cgroup.max.depth", "../x/cgroup.procs"}).Draw(t, "key"): "1"}
	}
	if claims {
		s.claim(t, &spec)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if claims && rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
		swap := rapid.SampledFrom(oddities).Draw(t, "oddity")
		data = bytes.Replace(data, []byte(swap[0]), []byte(swap[1]), 1)
	}
	return data
}

// claim names a grant, half of the time.
func (s *testNode) claim(t *rapid.T, spec *specs.Spec) {
	h := rapid.SampledFrom(s.grants).Draw(t, "grant")
	if h.reference.ID == "" {
		return
	}
	if rapid.Bool().Draw(t, "by annotation") {
		spec.Annotations["gpuledger.dev/grant"] = h.reference.String()
	} else {
		spec.Process.Env = append(spec.Process.Env, "GPULEDGER_GRANT="+h.reference.String())
	}
}

// annotations that request a GPU, and some that only look similar.
var annotations = [][2]string{
	{"cdi.k8s.io/x", "nvidia.com/gpu=0"}, {"cdi.k8s.io/x", "vendor.example/net=eth0"},
	{"org.systemd.property.DeviceAllow", "[('/dev/nvidia0', 'rw')]"},
	{"org.systemd.property.DevicePolicy", "'auto'"}, {"org.systemd.property.TimeoutStopUSec", "uint64 1"},
	{"nvidia.com/gpu.product", "V100"},
	{"gpuledger.dev", "x"}, {"cdi.example.com/x", "nvidia.com/gpu=0"},
}

var hooks = []string{"", "", "", "", "", "", "", "", "", "/bin/true", "/opt/nvidia/hook-of-mine",
	"/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-ctk", "/x/nvidia-cdi-hook"}

// oddities are replacements in the JSON that runtimes read differently.
var oddities = [][2]string{
	{`"resources":{`, `"resources":{"CPU":{"Type":"c"},`},
	{`"resources":{`, `"Resources":{"devices":[{"allow":true,"access":"rwm"}]},"resources":{`},
	{`"resources":{`, `"resources":{"devices":[{"allow":true,"access":"rwm"}]},"resources":{`},
	{`"env":[`, `"ENV":["NVIDIA_VISIBLE_DEVICES=all"],"env":[`},
	{`"process":{`, `"proce\u017f\u017f":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"process":{`},
	{`"allow":false`, `"allow":false,"Allow":true`},
	{`"major":`, `"major":195,"Major":`},
	{`"annotations":{`, `"annotations":{"note":"x","note":"y",`},
	{`"linux":{`, `"linux":null,"linux":{`},
	{`{`, `{"x-vendor":{"linux":{"devices":[1]}},`},
}

func (s *testNode) variable() *rapid.Generator[string] {
	values := []string{"all", "0", "1", "0,1", "void", "none", "", "7", s.gpus[0].UUID, s.gpus[2].UUID,
		"all,void", "nvidia.com/gpu=0", " 0 ", "0:0", ","}
	return rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom([]string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
			"NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA",
			"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_IMEX_CHANNELS", "NVIDIA_DRIVER_CAPABILITIES",
			"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES_X", "nvidia_visible_devices", "NVIDIA_GDS",
			"A"}).Draw(t, "name")
		if strings.HasPrefix(name, "NVIDIA_G") {
			return name + "=" + rapid.SampledFrom([]string{"enabled", "disabled", ""}).Draw(t, "switch")
		}
		return name + "=" + rapid.SampledFrom(values).Draw(t, "value")
	})
}

func (s *testNode) device() *rapid.Generator[specs.LinuxDevice] {
	return rapid.Custom(func(t *rapid.T) specs.LinuxDevice {
		return specs.LinuxDevice{
			Path: rapid.SampledFrom([]string{"/dev/x", "/dev/nvidia0", "/dev/fuse", s.dir + "/dev/nvidia1",
				s.dir + "/dev/link", s.dir + "/dev/null"}).Draw(t, "path"),
			Type: rapid.SampledFrom([]string{"c", "c", "c", "u", "b", "p"}).Draw(t, "type"),
			Major: rapid.SampledFrom([]int64{195, 195, 1, 10, majorUVM, majorCaps, majorIMEX, majorSwitch,
				226}).Draw(t, "major"),
			Minor: rapid.SampledFrom([]int64{0, 0, 1, 2, 3, 77, 128, 129, 254, 255}).Draw(t, "minor"),
		}
	})
}

func (s *testNode) mount() *rapid.Generator[specs.Mount] {
	var sources []string
	for _, name := range []string{"dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/innocent", "dev/link",
		"dev/null", "dev", "dev/plain", "dev/torun", "run", "state", "state/inventory.json",
		"dev/../run", "bundle", "missing"} {
		sources = append(sources, s.dir+"/"+name)
	}
	sources = append(append(sources, s.mounted...), "/dev/null", "/etc/hostname", "tmpfs", ".", "missing",
		"../dev/plain", "../dev/nvidia1", "../dev/link", "../dev/torun", "./../run")
	return rapid.Custom(func(t *rapid.T) specs.Mount {
		m := specs.Mount{
			Source: rapid.SampledFrom(sources).Draw(t, "source"),
			Destination: rapid.SampledFrom([]string{
				"/data", "/dev/nvidia0", "/var/run/nvidia-container-devices/0",
				"/run/nvidia-container-devices/all", "/var/run/nvidia-container"}).Draw(t, "destination"),
			Type:    rapid.SampledFrom([]string{"bind", "bind", "none", "", "tmpfs"}).Draw(t, "type"),
			Options: rapid.SampledFrom([][]string{{"rbind", "ro"}, {"bind"}, {"ro"}, nil}).Draw(t, "options"),
		}
		if m.Source == "tmpfs" {
			m.Type, m.Options = "tmpfs", []string{"mode=755"}
		}
		return m
	})
}

// ruleList draws device rules. Those that are not odd are as engines write them: a denial of all,
// and what is allowed. The guard may refuse others needlessly: if rules cancel each other, it
// trusts none of them.
func ruleList(odd bool) *rapid.Generator[[]specs.LinuxDeviceCgroup] {
	rule := rapid.Custom(func(t *rapid.T) specs.LinuxDeviceCgroup {
		r := specs.LinuxDeviceCgroup{
			Allow:  !odd || rapid.IntRange(0, 3).Draw(t, "deny") > 0,
			Type:   rapid.SampledFrom([]string{"c", "c", "c", "c", "c", "b", "b", "a", ""}).Draw(t, "type"),
			Access: rapid.SampledFrom([]string{"rwm", "rw", "r", "w", "m"}).Draw(t, "access"),
			Major: numberOf(t, "major", odd, 195, 195, majorUVM, majorCaps, majorIMEX,
				majorSwitch, 226, 1, 10),
			Minor: numberOf(t, "minor", odd, 0, 1, 2, 77, 128, 254, 255),
		}
		// another number of DRM could become a GPU's (docs/adr/0065)
		if !odd && r.Major != nil && *r.Major == 226 && r.Minor != nil {
			*r.Minor = rapid.SampledFrom([]int64{128, 129}).Draw(t, "minor of DRM")
		}
		if odd && rapid.IntRange(0, 19).Draw(t, "odd type") == 0 {
			r.Type = rapid.SampledFrom([]string{"u", "p", "char", "A"}).Draw(t, "strange")
		}
		return r
	})
	return rapid.Custom(func(t *rapid.T) []specs.LinuxDeviceCgroup {
		rules := rapid.SliceOfN(rule, 0, 4).Draw(t, "list")
		if !odd {
			return append([]specs.LinuxDeviceCgroup{{Access: "rwm"}}, rules...)
		}
		switch rapid.IntRange(0, 9).Draw(t, "begin") {
		case 0:
			return append([]specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}, rules...)
		case 1:
			return rules
		case 2, 3, 4:
			return append([]specs.LinuxDeviceCgroup{{Access: "rwm"}}, rules...)
		}
		return []specs.LinuxDeviceCgroup{{Access: "rwm"}}
	})
}

func numberOf(t *rapid.T, what string, odd bool, plain ...int64) *int64 {
	n := rapid.SampledFrom(plain).Draw(t, what)
	switch form := rapid.IntRange(0, 19).Draw(t, fmt.Sprint("form of ", what)); {
	case form < 4:
		return nil
	case form == 4 && odd:
		n = rapid.SampledFrom([]int64{-1, -7, 1 << 31, 1<<32 + 195, 1<<32 - 1, math.MaxInt64,
			math.MinInt64}).Draw(t, "odd "+what)
	}
	return &n
}
