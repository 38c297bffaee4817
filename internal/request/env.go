package request

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The values of NVIDIA_VISIBLE_DEVICES that are no list (nvidia-container-toolkit,
// internal/config/image).
const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"

	allDevices  = "all"
	noneDevices = "none"
	voidDevices = "void"
)

// injectorEnv are variables that make an injector give more than NVIDIA_VISIBLE_DEVICES says,
// whatever their value; on restricts a row to one value.
var injectorEnv = []struct{ name, on string }{
	{name: "NVIDIA_MIG_CONFIG_DEVICES"},
	{name: "NVIDIA_MIG_MONITOR_DEVICES"},
	{name: "NVIDIA_IMEX_CHANNELS"},
	{name: "NVIDIA_GPU_MEMORY_REQUEST"},
	{name: "NVIDIA_GPU_MEMORY_LIMIT"},
	{name: "NVIDIA_GDS", on: "enabled"},
	{name: "NVIDIA_MOFED", on: "enabled"},
	{name: "NVIDIA_GDRCOPY", on: "enabled"},
	{name: "NVIDIA_NVSWITCH", on: "enabled"},
}

// environment examines the variables that an injector obeys, and those of a client of MPS.
func environment(f *containerFacts) (found vectorResult) {
	names := f.node.Policy.Rules.DeviceEnv
	if !slices.Contains(names, visibleDevices) { // every injector obeys it, whatever this node's obey
		names = append([]string{visibleDevices}, names...)
	}
	for _, name := range names {
		if value, set := f.env[name]; set {
			found.deviceList("env:"+name, value, grant.Removal{Kind: grant.RemoveEnv, Name: name})
		}
	}
	legacyImage(f, &found)
	mpsSettings(f, &found)
	for _, v := range injectorEnv {
		value := f.env[v.name]
		if value == "" || v.on != "" && value != v.on {
			continue
		}
		found.hit(grant.Hit{Vector: "env:" + v.name, Value: value, Code: grant.GPUEnv, Cover: grant.CoverDrop,
			Removal: grant.Removal{Kind: grant.RemoveEnv, Name: v.name}})
	}
	return found
}

// mpsSettings finds CUDA_MPS_*, a client's own settings. They can lift the limits of the server's:
// a pinned limit that names a GPU which the client cannot see drops them all. Without a grant they
// have no effect. CUDA's next version can have new ones, so all names count but the kubelet's: the
// hook and NRI cannot remove a variable, so they refuse what counts.
func mpsSettings(f *containerFacts, found *vectorResult) {
	for _, name := range sortedKeys(f.env) {
		if strings.HasPrefix(name, "CUDA_MPS_") && !isServiceLink(name) {
			found.drop(grant.RemoveEnv, name)
		}
	}
}

// isServiceLink reports whether a variable has a name that the kubelet gives to each container for
// a Service of its namespace, for example for cuda-mps-exporter (makeEnvVariableMap,
// pkg/kubelet/envvars; CUDA_MPS_EXPORTER_PORT_80_TCP_ADDR is the longest kind). CUDA has no
// variable with such a name.
func isServiceLink(name string) bool {
	if strings.HasSuffix(name, "_SERVICE_HOST") || strings.HasSuffix(name, "_PORT") ||
		strings.Contains(name, "_SERVICE_PORT_") {
		return true
	}
	for _, end := range []string{"_PROTO", "_ADDR"} {
		name = strings.TrimSuffix(name, end)
	}
	for _, protocol := range []string{"_TCP", "_UDP", "_SCTP"} {
		if rest, is := strings.CutSuffix(name, protocol); is {
			number := strings.TrimRight(rest, "0123456789")
			return number != rest && strings.HasSuffix(number, "_PORT_")
		}
	}
	return false
}

// deviceList examines a value in the grammar of NVIDIA_VISIBLE_DEVICES: "all", "none", "void" or a
// list of indexes, UUIDs and CDI names. It takes more for a request than NVIDIA's parser does, in
// which one special word overrides the list.
func (found *vectorResult) deviceList(vector, value string, removal grant.Removal) {
	var ids []string
	for _, id := range strings.Split(value, ",") {
		switch id = strings.TrimSpace(id); id {
		case "", noneDevices, voidDevices:
		default:
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	hit := grant.Hit{Vector: vector, Value: value, Code: grant.VisibleDevicesOutsideGrant,
		Cover: grant.CoverGPUs, GPUs: ids, Removal: removal}
	for _, id := range ids {
		switch {
		case id == allDevices:
			hit.Code = grant.VisibleDevicesAll
		case isCDIName(id) && hit.Code != grant.VisibleDevicesAll:
			hit.Code, hit.Cover = grant.CDIDeviceOutsideGrant, grant.CoverNever
		}
		hit.Value = withoutReference(hit.Value, id)
	}
	found.hit(hit)
}

// legacyImage finds images from before NVIDIA_VISIBLE_DEVICES: with CUDA_VERSION and without
// NVIDIA_REQUIRE_CUDA an injector gives them all GPUs.
func legacyImage(f *containerFacts, found *vectorResult) {
	_, asks := f.env[visibleDevices]
	version := f.env["CUDA_VERSION"]
	if asks || version == "" || f.env["NVIDIA_REQUIRE_CUDA"] != "" {
		return
	}
	found.hit(grant.Hit{Vector: "env:CUDA_VERSION", Value: version, Code: grant.VisibleDevicesAll,
		Cover: grant.CoverGPUs, GPUs: []string{allDevices}})
}

// isCDIName distinguishes vendor/class=device from an index or a UUID.
func isCDIName(id string) bool { return strings.Contains(id, "=") && strings.Contains(id, "/") }
