package request

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// cdiPrefix begins the annotations with CDI names.
const cdiPrefix = "cdi.k8s.io/"

// IsCDIKey reports whether an annotation with this key has CDI names.
func IsCDIKey(key string) bool { return strings.Contains(key, cdiPrefix) }

// annotations examines keys that make some component act: CDI names of GPU vendors, systemd
// properties that change the device policy (runc and crun pass org.systemd.property.* on to
// systemd), and crun's own keys, of crun(1).
func annotations(f *containerFacts) (found vectorResult) {
	for _, key := range f.keys {
		value := f.spec.Annotations[key]
		switch {
		case IsCDIKey(key): // also nvidia.cdi.k8s.io/, of NVIDIA's NRI plugin
			cdiNames(key, value, &found)
		case strings.HasPrefix(key, unitPrefix):
			unitProperty(f, key, value, &found)
		case slices.Contains(subCgroups, key) && slices.Contains(strings.Split(value, "/"), ".."):
			changesRules(f, key, value, &found)
		case key == handlerKey && value == "krun" && host.DevicesOnV1(f.node.Host) && f.devices.reachable():
			changesRules(f, key, value, &found)
		case slices.Contains(rootsWords, key):
			found.root("annotation:" + key)
		}
	}
	return found
}

// changesRules finds that an annotation changes what the container's device rules say, or where
// they apply. Where none takes effect it changes nothing (docs/adr/0050).
func changesRules(f *containerFacts, key, value string, found *vectorResult) {
	if !f.rules.unruled {
		found.hit(grant.Hit{Vector: "annotation:" + key, Value: value, Code: grant.GPUDeviceRule,
			Cover: grant.CoverNever})
	}
}

// unitPrefix is before a property of the container's unit. runc and crun pass it on to systemd if
// systemd manages the cgroups.
const unitPrefix = "org.systemd.property."

// unitProperty examines a property of a systemd unit. Those of devices change what the container
// may open. Those of processes move others into its unit, as cgroup.procs does (docs/adr/0064).
// Slice puts the unit elsewhere than its runtime knows. gpuledger looks into the cgroup that the
// runtime knows to find out whether a grant is in use, so a grant drops Slice; without a grant it
// gives nothing.
func unitProperty(f *containerFacts, key, value string, found *vectorResult) {
	name := strings.TrimPrefix(key, unitPrefix)
	switch {
	case strings.HasPrefix(name, "Device"), strings.HasPrefix(name, "PID"):
		changesRules(f, key, value, found)
	case name == "Slice":
		found.drop(grant.RemoveAnnotation, key)
	case !slices.ContainsFunc(ownProperties,
		func(own string) bool { return strings.HasPrefix(name, own) }):
		found.root("annotation:" + key)
	}
}

// ownProperties begin the names of properties that concern the unit alone: its resources, its end,
// its description (systemd.resource-control(5), systemd.kill(5), systemd.scope(5)). Any other can
// start and end other units or the machine (Conflicts, OnFailure, FailureAction).
var ownProperties = []string{"CPU", "StartupCPU", "Allowed", "StartupAllowed", "Memory", "StartupMemory",
	"DefaultMemory", "DefaultStartupMemory", "Tasks", "IO", "StartupIO", "BlockIO", "StartupBlockIO", "IP",
	"RestrictNetworkInterfaces", "SocketBind", "NFTSet", "ManagedOOM", "OOM", "Delegate",
	"DisableControllers", "Coredump", "Timeout", "RuntimeMax", "RuntimeRandomizedExtra", "Kill", "SendSIG",
	"FinalKillSignal", "RestartKillSignal", "WatchdogSignal", "CollectMode", "AddRef", "Description",
	"Documentation", "DefaultDependencies", "After", "Before", "User", "Group", "Log"}

// subCgroups name a cgroup below the container's, into which crun moves it. The device rules do not
// apply in one that is not below.
var subCgroups = []string{"run.oci.systemd.subgroup", "run.oci.delegate-cgroup"}

// handlerKey names what runs the container in crun. The handler krun adds a device rule of type `a`
// for /dev/kvm (libkrun_modify_oci_configuration). On cgroup v1 crun ignores the numbers of such a
// rule (write_devices_resources_v1), so it opens every device (by crun's source, up to 1.29.1).
const handlerKey = "run.oci.handler"

// rootsWords are keys whose value is a file that the runtime itself uses as root on the node: it
// appends to the file what hooks print, or loads it as a library, or the file configures CRIU.
// crun's other keys (seccomp.receiver, pidfd_receiver, systemd.force_cgroup_v1,
// keep_original_groups, ...) reach no GPU.
var rootsWords = []string{"run.oci.hooks.stdout", "run.oci.hooks.stderr", "run.oci.seccomp.plugins",
	"org.criu.config"}

// cdiNames examines the CDI names in an annotation. A grant can cover those of GPUs. It removes
// NVIDIA's: an injector behind gpuledger would resolve them by a file that gpuledger does not read,
// in which an index may be another GPU's by now. A reference must stay in the spec, so beside one
// they are covered by no grant.
func cdiNames(key, value string, found *vectorResult) {
	hit := grant.Hit{Vector: "annotation:" + key, Value: value, Code: grant.CDIDeviceOutsideGrant,
		Cover: grant.CoverGPUs}
	names := list(value)
	never, refers := false, false
	for _, name := range names {
		kind, device := grant.CDIName(name)
		refers = refers || kind == grant.CDIKindGrant
		switch {
		case isCDIGPU(kind) && device != "" && device != allDevices:
			hit.GPUs = append(hit.GPUs, device)
			if kind != grant.CDIKindGPU {
				hit.Removal = grant.Removal{Kind: grant.RemoveAnnotation, Name: key}
			}
		case isForeignGPU(kind), kind == grant.CDIKindGPU:
			never = true
		}
		hit.Value = withoutReference(hit.Value, name)
	}
	switch {
	case never, refers && hit.Removal != (grant.Removal{}):
		hit.Cover, hit.GPUs, hit.Removal = grant.CoverNever, nil, grant.Removal{}
	case len(hit.GPUs) == 0:
		return
	}
	found.hit(hit)
}

// isCDIGPU reports whether the devices of a kind are GPUs by index or UUID: ours, those that
// nvidia-ctk writes, and those of NVIDIA's device plugin. Of NVIDIA's other kinds it is not known
// which GPU a device is.
func isCDIGPU(kind string) bool {
	return kind == grant.CDIKindGPU || kind == "nvidia.com/gpu" || kind == "k8s.device-plugin.nvidia.com/gpu"
}

// withoutReference removes a grant's reference from a value in which it is named as a CDI device: a
// hit is printed and logged.
func withoutReference(value, name string) string {
	if kind, device := grant.CDIName(name); kind == grant.CDIKindGrant && device != "" {
		return strings.ReplaceAll(value, "="+device, "=REFERENCE")
	}
	return value
}

// isForeignGPU reports whether a CDI kind is of a vendor of GPUs: nvidia.com and below, and what
// has our name and is none of our kinds.
func isForeignGPU(kind string) bool {
	vendor, _, _ := strings.Cut(kind, "/")
	return vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com") ||
		vendor == grant.CDIVendor && kind != grant.CDIKindGPU && kind != grant.CDIKindGrant
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
