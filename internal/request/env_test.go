package request

import (
	"fmt"
	"testing"
)

func TestEnvironment(t *testing.T) {
	set := func(entries ...string) func(*scene) { return func(s *scene) { s.env(entries...) } }
	const nvd = "NVIDIA_VISIBLE_DEVICES="
	check(t, []row{
		{"no variable of an injector", set("CUDA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all",
			"NVIDIA=all"), nil},
		{"all", set(nvd + "all"), []string{"visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | all | " +
			"gpus=all | -env:NVIDIA_VISIBLE_DEVICES"}},
		{"an index", set(nvd + "0"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | 0 | gpus=0 | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"UUIDs", set(nvd + "GPU-a,GPU-b"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | GPU-a,GPU-b | gpus=GPU-a+GPU-b | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a MIG device by index", set(nvd + "0:1"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | 0:1 | gpus=0:1 | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"all inside a list", set(nvd + "0,all"), []string{
			"visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | 0,all | gpus=0+all | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"all beside void, which NVIDIA's parser takes for nothing", set(nvd + "all,void"),
			[]string{"visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | all,void | gpus=all | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"white space around a name", set(nvd + " all "), []string{
			"visible-devices-all | env:NVIDIA_VISIBLE_DEVICES |  all  | gpus=all | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a tab and a newline", set(nvd + "\t0\n"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | \t0\n | gpus=0 | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"the beginning of a UUID", set(nvd + "GPU-a1b2"),
			[]string{"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | GPU-a1b2 | " +
				"gpus=GPU-a1b2 | -env:NVIDIA_VISIBLE_DEVICES"}},
		{"a MIG device by UUID", set(nvd + "MIG-a1b2"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | MIG-a1b2 | gpus=MIG-a1b2 | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a MIG device by its old name", set(nvd + "MIG-GPU-a/1/0"),
			[]string{"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | MIG-GPU-a/1/0 | " +
				"gpus=MIG-GPU-a/1/0 | -env:NVIDIA_VISIBLE_DEVICES"}},
		{"an index of -1", set(nvd + "-1"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | -1 | gpus=-1 | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a range", set(nvd + "0-3"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | 0-3 | gpus=0-3 | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"an index beside void, which NVIDIA's parser takes for nothing", set(nvd + "0,void"),
			[]string{"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | 0,void | gpus=0 | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a CDI name of the management kind", set(nvd + "management.nvidia.com/gpu=all"),
			[]string{"cdi-device-outside-grant | env:NVIDIA_VISIBLE_DEVICES | " +
				"management.nvidia.com/gpu=all | never | -env:NVIDIA_VISIBLE_DEVICES"}},
		{"of duplicates the last one counts: empty", set(nvd+"all", nvd), nil},
		{"a value with = in it", set(nvd + "a=b"), []string{
			"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | a=b | gpus=a=b | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"white space around the name, which is another name", set(" " + nvd + "all"), nil},
		{"what programs get, not what they reach",
			set("NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics,display", "NVIDIA_REQUIRE_DRIVER=>=535",
				"NVIDIA_PRODUCT_NAME=CUDA", "CUDA_CACHE_DISABLE=1"), nil},
		{"what preloads", set("LD_PRELOAD=/evil.so", "LD_LIBRARY_PATH=/x", "CUDA_DISABLE_CONTROL=1"), nil},
		{"other projects' hints", set("ALIYUN_COM_GPU_MEM_IDX=0", "GPU_CORE_UTILIZATION_POLICY=disable",
			"CUDA_DEVICE_MEMORY_LIMIT=1g"), nil},
		{"none", set(nvd + "none"), nil},
		{"void", set(nvd + "void"), nil},
		{"empty", set(nvd), nil},
		{"commas only", set(nvd + ",, ,"), nil},
		{"none and void", set(nvd + "none,void"), nil},
		{"All in capitals is a name like any other", set(nvd + "ALL"),
			[]string{"visible-devices-outside-grant | env:NVIDIA_VISIBLE_DEVICES | ALL | gpus=ALL | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"another variable that only looks alike", set("nvidia_visible_devices=all",
			"NVIDIA_VISIBLE_DEVICES_=all"), nil},
		{"of duplicates the last one counts: all", set(nvd+"void", nvd+"all"),
			[]string{"visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | all | gpus=all | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"of duplicates the last one counts: void", set(nvd+"all", nvd+"void"), nil},
		{"an entry without = is no request", set("NVIDIA_VISIBLE_DEVICES", "GPULEDGER_GRANT", "CUDA_VERSION"),
			nil},
		{"an entry without = after one with it takes nothing back", set(nvd+"all", "NVIDIA_VISIBLE_DEVICES"),
			[]string{"visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | all | gpus=all | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a CDI name", set(nvd + "nvidia.com/gpu=0"), []string{
			"cdi-device-outside-grant | env:NVIDIA_VISIBLE_DEVICES | nvidia.com/gpu=0 | never | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a CDI name of any other kind, which the injector obeys too", set(nvd + "vendor.example/thing=x"),
			[]string{"cdi-device-outside-grant | env:NVIDIA_VISIBLE_DEVICES | vendor.example/thing=x | " +
				"never | -env:NVIDIA_VISIBLE_DEVICES"}},
		{"a grant's CDI name, whose secret is not told",
			set(nvd + "0, gpuledger.dev/grant=g-abcdefghijkl.00112233445566778899aabbccddeeff"), []string{
				"cdi-device-outside-grant | env:NVIDIA_VISIBLE_DEVICES | 0, " +
					"gpuledger.dev/grant=REFERENCE | " +
					"never | -env:NVIDIA_VISIBLE_DEVICES"}},
		{"a CDI name beside an index", set(nvd + "0,nvidia.com/gpu=1"),
			[]string{"cdi-device-outside-grant | env:NVIDIA_VISIBLE_DEVICES | 0,nvidia.com/gpu=1 | never | " +
				"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"a legacy CUDA image", set("CUDA_VERSION=8.0.61"),
			[]string{"visible-devices-all | env:CUDA_VERSION | 8.0.61 | gpus=all"}},
		{"a CUDA image that says what it requires", set("CUDA_VERSION=12.4.1",
			"NVIDIA_REQUIRE_CUDA=cuda>=12.4"), nil},
		{"a legacy CUDA image that is told void", set("CUDA_VERSION=8.0.61", nvd+"void"), nil},
		{"a legacy CUDA image with the variable set empty", set("CUDA_VERSION=8.0.61", nvd), nil},
		{"a legacy CUDA image whose requirement is empty", set("CUDA_VERSION=8.0.61", "NVIDIA_REQUIRE_CUDA="),
			[]string{"visible-devices-all | env:CUDA_VERSION | 8.0.61 | gpus=all"}},
		{"an empty CUDA_VERSION", set("CUDA_VERSION="), nil},
		{"MIG configuration", set("NVIDIA_MIG_CONFIG_DEVICES=all"),
			[]string{"gpu-env | env:NVIDIA_MIG_CONFIG_DEVICES | all | drop | " +
				"-env:NVIDIA_MIG_CONFIG_DEVICES"}},
		{"MIG monitoring", set("NVIDIA_MIG_MONITOR_DEVICES=0"),
			[]string{"gpu-env | env:NVIDIA_MIG_MONITOR_DEVICES | 0 | drop | " +
				"-env:NVIDIA_MIG_MONITOR_DEVICES"}},
		{"IMEX channels", set("NVIDIA_IMEX_CHANNELS=0"), []string{
			"gpu-env | env:NVIDIA_IMEX_CHANNELS | 0 | drop | -env:NVIDIA_IMEX_CHANNELS"}},
		{"NVIDIA's own memory limit", set("NVIDIA_GPU_MEMORY_LIMIT=1", "NVIDIA_GPU_MEMORY_REQUEST=1"),
			[]string{
				"gpu-env | env:NVIDIA_GPU_MEMORY_REQUEST | 1 | drop | -env:NVIDIA_GPU_MEMORY_REQUEST",
				"gpu-env | env:NVIDIA_GPU_MEMORY_LIMIT | 1 | drop | -env:NVIDIA_GPU_MEMORY_LIMIT"}},
		{"features switched on", set("NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled", "NVIDIA_GDRCOPY=enabled",
			"NVIDIA_NVSWITCH=enabled"), []string{
			"gpu-env | env:NVIDIA_GDS | enabled | drop | -env:NVIDIA_GDS",
			"gpu-env | env:NVIDIA_MOFED | enabled | drop | -env:NVIDIA_MOFED",
			"gpu-env | env:NVIDIA_GDRCOPY | enabled | drop | -env:NVIDIA_GDRCOPY",
			"gpu-env | env:NVIDIA_NVSWITCH | enabled | drop | -env:NVIDIA_NVSWITCH"}},
		{"features switched off", set("NVIDIA_GDS=disabled", "NVIDIA_MOFED=", "NVIDIA_MIG_CONFIG_DEVICES="),
			nil},
		{"a swarm resource that nobody configured", set("DOCKER_RESOURCE_GPU=0"), nil},
		{"a swarm resource", func(s *scene) {
			s.node.Policy.Rules.DeviceEnv = []string{"NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"}
			s.env("DOCKER_RESOURCE_GPU=0", nvd+"void")
		}, []string{"visible-devices-outside-grant | env:DOCKER_RESOURCE_GPU | 0 | gpus=0 | " +
			"-env:DOCKER_RESOURCE_GPU"}},
		{"a swarm resource that is told nothing", func(s *scene) {
			s.node.Policy.Rules.DeviceEnv = []string{"NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"}
			s.env("DOCKER_RESOURCE_GPU=void")
		}, nil},
		{"NVIDIA_VISIBLE_DEVICES counts though the configuration lists another name only", func(s *scene) {
			s.node.Policy.Rules.DeviceEnv = []string{"DOCKER_RESOURCE_GPU"}
			s.env(nvd + "all")
		}, []string{"visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | all | gpus=all | " +
			"-env:NVIDIA_VISIBLE_DEVICES"}},
		{"no process at all", func(s *scene) { s.spec.Process = nil }, nil},
	})
}

func TestPartsOfTheDriver(t *testing.T) {
	for value, want := range map[string]string{
		"":                           "[compute utility] false",
		"compute":                    "[compute] false",
		" graphics , video,graphics": "[graphics video] false",
		"all":                        "[compute utility graphics video display ngx] true",
		"compute,all":                "[compute utility graphics video display ngx] true",
		"compat32,utility":           "[utility] true",
		"nonsense,COMPUTE":           "[] false",
	} {
		s := newScene(t)
		s.env("NVIDIA_DRIVER_CAPABILITIES=x", "NVIDIA_DRIVER_CAPABILITIES="+value)
		r := s.find()
		if got := fmt.Sprint(r.Capabilities, " ", r.Compat32); got != want || len(r.Hits) > 0 {
			t.Errorf("%q: %s, want %s; hits %v", value, got, want, r.Hits)
		}
	}
	if r := newScene(t).find(); fmt.Sprint(r.Capabilities) != "[compute utility]" {
		t.Errorf("unset: %v", r.Capabilities)
	}
}

// TestVariable: runc's reading of the environment, without making a map of it.
func TestVariable(t *testing.T) {
	for _, env := range [][]string{nil, {"A=1"}, {"A=1", "B=2", "A=3"}, {"A=3", "A"}, {"A", "AA=1", "=2"},
		{"A=", "B=A=1"}, {"A=1", "A="}, {"=1", "A=b=c"}} {
		s := Spec{Process: &Process{Env: env}}
		for _, name := range []string{"A", "B", "AA", ""} {
			if got, want := Variable(s, name), lastWins(s.Process)[name]; got != want {
				t.Errorf("%q of %q: %q, want %q", name, env, got, want)
			}
		}
	}
	if got := Variable(Spec{}, "A"); got != "" {
		t.Errorf("without a process: %q", got)
	}
}
