package request

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

type identityKeys struct{ uid, namespace, pod, container, kind string }

// keysOf are the annotations that an engine itself writes last, after whatever a pod brings along. Any other key can be forged on
// that engine; the others vouch for none (grant.Engine.Vouches).
func keysOf(engine grant.Engine) (keys identityKeys, trusted bool) {
	switch engine {
	case grant.Containerd:
		return identityKeys{
			uid: "io.kubernetes.cri.sandbox-uid", namespace: "io.kubernetes.cri.sandbox-namespace", pod: "io.kubernetes.cri.sandbox-name",
			container: "io.kubernetes.cri.container-name", kind: "io.kubernetes.cri.container-type",
		}, true
	case grant.CRIO:
		return identityKeys{
			uid: "io.kubernetes.pod.uid", namespace: "io.kubernetes.pod.namespace", pod: "io.kubernetes.pod.name",
			container: "io.kubernetes.container.name", kind: "io.kubernetes.cri-o.ContainerType",
		}, true
	}
	return identityKeys{}, false
}

// identity reads who a container is, where its engine vouches for it, and whether it is a pod's sandbox.
func identity(annotations map[string]string, engine grant.Engine) (id grant.Identity, sandbox bool) {
	keys, trusted := keysOf(engine)
	if !trusted {
		return grant.Identity{}, false
	}
	if annotations[keys.kind] == "sandbox" {
		return grant.Identity{}, true
	}
	return grant.Identity{UID: annotations[keys.uid], Namespace: annotations[keys.namespace], Pod: annotations[keys.pod], Container: annotations[keys.container]}, false
}

// Vouch writes an identity that the caller knows to be true in the place where Find looks for it, over whatever stands there.
// An engine that vouches for none gets nothing.
func Vouch(annotations map[string]string, engine grant.Engine, id grant.Identity) {
	keys, trusted := keysOf(engine)
	if !trusted {
		return
	}
	for key, value := range map[string]string{keys.uid: id.UID, keys.namespace: id.Namespace, keys.pod: id.Pod, keys.container: id.Container, keys.kind: "container"} {
		annotations[key] = value
	}
}

// The prefix of our own annotations, and the reference's name in annotation and environment.
const (
	prefix    = "gpuledger.dev/"
	grantKey  = prefix + "grant"
	cdiPrefix = "cdi.k8s.io/"
)

// keyed reads an annotation for this container: KEY.<container>, and KEY alone where no pod is known. A pod's engine
// copies its annotations to every container, so there KEY alone does not say whose it is: names reports that.
func (f *finder) keyed(key string) (source, value string, names, found bool) {
	if c := f.request.Container.Pod.Container; c != "" {
		if value, found := f.spec.Annotations[key+"."+c]; found {
			return "annotation:" + key + "." + c, value, true, true
		}
		value, found := f.spec.Annotations[key]
		return "annotation:" + key, value, false, found
	}
	value, found = f.spec.Annotations[key]
	return "annotation:" + key, value, true, found
}

func (f *finder) references() {
	// An empty one, as of a template that was never filled in, asks for nothing.
	if source, value, names, _ := f.keyed(grantKey); value != "" {
		f.mention(source, value, names)
	}
	if value := f.env[grant.ReferenceEnv]; value != "" {
		f.mention("env:"+grant.ReferenceEnv, value, true)
	}
}

func (f *finder) mention(source, value string, names bool) {
	m := grant.Mention{Source: source, Asks: names}
	reference, err := grant.ParseReference(value)
	if err != nil {
		m.Malformed = err.Error()
	}
	m.Reference = reference
	f.request.References = append(f.request.References, m)
}

func (f *finder) allocations() {
	for _, dialect := range f.node.Policy.Annotations.Dialects {
		switch dialect {
		case grant.DialectGPULedger:
			f.ownDialect()
		case grant.DialectGPUShare:
			f.gpuShare()
		}
	}
}

// ownKeys are gpuledger.dev/{gpus,memory,compute,mode}, each a statement of its own about the allocation.
var ownKeys = [...]struct {
	name string
	read func(*grant.Allocation, string) error
}{
	{"gpus", func(a *grant.Allocation, v string) (err error) { a.GPUs, err = gpuList(v); return }},
	{"memory", func(a *grant.Allocation, v string) (err error) { a.Memory, err = amount(v); return }},
	{"compute", func(a *grant.Allocation, v string) (err error) { a.Compute, err = percent(v); return }},
	{"mode", func(a *grant.Allocation, v string) (err error) { a.Mode, err = grant.ParseMode(v); return }},
}

func (f *finder) ownDialect() {
	for _, key := range ownKeys {
		source, value, names, found := f.keyed(prefix + key.name)
		if !found {
			continue
		}
		a := grant.Allocation{Source: source, Asks: names}
		if err := key.read(&a, value); err != nil {
			a.Malformed = err.Error()
		}
		f.request.Allocations = append(f.request.Allocations, a)
	}
}

// Names are the annotations and environment variables by which a container tells of its grant, in all dialects: what a reference page
// must have.
func Names() []string {
	names := []string{grantKey, grant.ReferenceEnv, shareIndex, sharePod, shareCard, shareContainer, shareAllocation}
	for _, key := range ownKeys {
		names = append(names, prefix+key.name)
	}
	return names
}

func list(value string) []string {
	var items []string
	for _, item := range strings.Split(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func gpuList(value string) ([]string, error) {
	gpus := list(value)
	if len(gpus) != strings.Count(value, ",")+1 { // an empty name stands for a GPU that somebody left out
		return nil, &grant.UsageError{Message: "cannot read gpus " + strconv.Quote(value) + ": want UUIDs or indexes, separated by commas"}
	}
	return gpus, nil
}

func amount(value string) (grant.Bytes, error) {
	memory, err := grant.ParseBytes(value)
	if err == nil && memory == 0 {
		err = &grant.UsageError{Message: "cannot read memory " + strconv.Quote(value) + ": want more than 0"}
	}
	return memory, err
}

func percent(value string) (int, error) {
	n, _ := strconv.Atoi(value) // what is no number is 0, and what is too large the largest
	if n < 1 || n > 100 {
		return 0, &grant.UsageError{Message: "cannot read compute " + strconv.Quote(value) + ": want a percentage from 1 to 100"}
	}
	return n, nil
}

// annotations judges keys that make some component act: CDI names of GPU vendors, systemd properties that change
// the device policy (runc and crun hand org.systemd.property.* on to systemd), and crun's own keys, of crun(1).
func (f *finder) annotations() {
	for _, key := range sortedKeys(f.spec.Annotations) {
		value := f.spec.Annotations[key]
		switch {
		case strings.Contains(key, cdiPrefix): // also nvidia.cdi.k8s.io/, of NVIDIA's NRI plugin
			f.cdiNames(key, value)
		case strings.HasPrefix(key, unitPrefix):
			f.unitProperty(key, value)
		case slices.Contains(subCgroups, key) && slices.Contains(strings.Split(value, "/"), ".."):
			f.hit(grant.Hit{Vector: "annotation:" + key, Value: value, Code: grant.GPUDeviceRule, Cover: grant.CoverNever})
		case slices.Contains(rootsWords, key):
			f.nodeRootBy("annotation:" + key)
		}
	}
}

// unitPrefix is before a property of the container's unit, which runc and crun hand on to systemd where that has the cgroups.
const unitPrefix = "org.systemd.property."

// unitProperty judges one. Those of devices change what the container may open, and those of processes move others into its unit, as
// cgroup.procs does (docs/adr/0064). Slice puts the unit elsewhere than its runtime knows. Whether a grant is in use is asked of the
// cgroup that the runtime knows, so a grant drops it; without one it gives nothing.
func (f *finder) unitProperty(key, value string) {
	name := strings.TrimPrefix(key, unitPrefix)
	switch {
	case strings.HasPrefix(name, "Device"), strings.HasPrefix(name, "PID"):
		f.hit(grant.Hit{Vector: "annotation:" + key, Value: value, Code: grant.GPUDeviceRule, Cover: grant.CoverNever})
	case name == "Slice":
		f.request.Dropped = append(f.request.Dropped, grant.Removal{Kind: grant.RemoveAnnotation, Name: key})
	case !slices.ContainsFunc(ownProperties, func(own string) bool { return strings.HasPrefix(name, own) }):
		f.nodeRootBy("annotation:" + key)
	}
}

// ownProperties are what the names begin with of properties that concern the unit alone: its resources, its end, its words
// (systemd.resource-control(5), systemd.kill(5), systemd.scope(5)). Any other can start and end other units or the machine
// (Conflicts, OnFailure, FailureAction).
var ownProperties = []string{"CPU", "StartupCPU", "Allowed", "StartupAllowed", "Memory", "StartupMemory", "DefaultMemory", "DefaultStartupMemory", "Tasks", "IO", "StartupIO", "BlockIO", "StartupBlockIO",
	"IP", "RestrictNetworkInterfaces", "SocketBind", "NFTSet", "ManagedOOM", "OOM", "Delegate", "DisableControllers", "Coredump", "Timeout", "RuntimeMax", "RuntimeRandomizedExtra", "Kill", "SendSIG", "FinalKillSignal",
	"RestartKillSignal", "WatchdogSignal", "CollectMode", "AddRef", "Description", "Documentation", "DefaultDependencies", "After", "Before", "User", "Group", "Log"}

// subCgroups name a cgroup below the container's, into which crun moves it. One that is not below lies outside of the device
// rules.
var subCgroups = []string{"run.oci.systemd.subgroup", "run.oci.delegate-cgroup"}

// rootsWords are keys whose value is a file that the runtime itself uses as root on the node: what hooks print is appended to
// it, or it is loaded as a library, or says what CRIU runs. crun's other keys (handler, seccomp.receiver, pidfd_receiver,
// systemd.force_cgroup_v1, keep_original_groups, ...) reach no GPU.
var rootsWords = []string{"run.oci.hooks.stdout", "run.oci.hooks.stderr", "run.oci.seccomp.plugins", "org.criu.config"}

// cdiNames judges the CDI names in an annotation. A grant's own name is a reference to it; GPUs of ours a grant can cover;
// any other vendor's are never ours to give.
func (f *finder) cdiNames(key, value string) {
	hit := grant.Hit{Vector: "annotation:" + key, Value: value, Code: grant.CDIDeviceOutsideGrant, Cover: grant.CoverGPUs}
	names := list(value)
	for _, name := range names {
		switch kind, device := grant.CDIName(name); {
		case kind == grant.CDIKindGPU:
			hit.GPUs = append(hit.GPUs, device)
		case kind == grant.CDIKindGrant:
			f.mention(hit.Vector, device, f.request.Container.Pod.Container == "")
		}
		hit.Value = untold(hit.Value, name)
	}
	if slices.ContainsFunc(names, isForeignGPU) {
		hit.Cover = grant.CoverNever
	} else if len(hit.GPUs) == 0 {
		return
	}
	f.hit(hit)
}

// untold takes a grant's reference out of a value in which it is named as a CDI device: a hit is told and logged.
func untold(value, name string) string {
	if kind, device := grant.CDIName(name); kind == grant.CDIKindGrant && device != "" {
		return strings.ReplaceAll(value, "="+device, "=REFERENCE")
	}
	return value
}

// isForeignGPU reports whether a CDI name is of a vendor of GPUs: nvidia.com and below, and what has our name and is none of
// our kinds.
func isForeignGPU(name string) bool {
	kind, _ := grant.CDIName(name)
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
