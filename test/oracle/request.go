package oracle

import (
	"path/filepath"
	"strings"
)

// requests are the values on which NVIDIA's container toolkit would act. Source: its documentation
// and internal/config/image.
func requests(s spec) []Way {
	var ways []Way
	env := map[string]string{}
	for _, entry := range s.env { // the last one counts
		if name, value, found := strings.Cut(entry, "="); found {
			env[name] = value
		}
	}
	visible, set := env["NVIDIA_VISIBLE_DEVICES"]
	if !set && env["CUDA_VERSION"] != "" && env["NVIDIA_REQUIRE_CUDA"] == "" {
		visible = "all" // a legacy image
	}
	if visible != "void" && visible != "none" {
		for _, element := range strings.Split(visible, ",") {
			if element = strings.TrimSpace(element); element != "" {
				ways = append(ways, Way{"visible devices", element})
			}
		}
	}
	for _, name := range []string{"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES",
		"NVIDIA_IMEX_CHANNELS"} {
		if env[name] != "" {
			ways = append(ways, Way{"variable " + name, Nothing})
		}
	}
	for _, name := range []string{"NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH"} {
		if env[name] == "enabled" {
			ways = append(ways, Way{"variable " + name, Nothing})
		}
	}
	for _, path := range s.hooks {
		switch filepath.Base(path) { // nvidia-container-runtime-hook acts only on the requests above
		case "nvidia-cdi-hook", "nvidia-ctk", "nvidia-container-cli":
			ways = append(ways, Way{"hook " + path, Nothing})
		}
	}
	for key, value := range s.annotations {
		if strings.HasPrefix(key, "cdi.k8s.io/") && strings.Contains(value, "nvidia.com/") {
			ways = append(ways, Way{"annotation " + key, Nothing})
		}
	}
	for _, key := range s.unified {
		if strings.HasPrefix(key, "dmem.") || affectsProcesses(key) { // dmem: the driver's limit of memory
			ways = append(ways, Way{"unified " + key, Nothing})
		}
	}
	return ways
}

// affectsProcesses reports whether writing a file of a cgroup affects processes or the cgroup
// itself, or whether the file is another cgroup's.
func affectsProcesses(key string) bool {
	switch key {
	case "cgroup.procs", "cgroup.threads", "cgroup.type", "cgroup.subtree_control", "cgroup.freeze",
		"cgroup.kill":
		return true
	}
	return filepath.Base(key) != key
}
