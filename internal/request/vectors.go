package request

import "github.com/gpuledger/gpuledger/internal/grant"

// vectors are the ways to a GPU. Each is a function of the facts (facts.go), in a file of its own,
// and knows nothing of what another one finds. A new one is a row here and such a file.
//
// Add a new file system as a case in mounts, and a new source of a bind mount in sourceAt; if that
// source is a regular file, isPlain must let it through. All three are in mount.go. Add a new kind
// of device in devices.class (device.go), the hook of another injector in injectorHooks (hook.go).
// A character device of NVIDIA's driver needs none of them: host.NVIDIAMajors finds it by its name.
// A field of the spec that is not read yet goes into Spec (spec.go), specFields (fields.go) and
// specOf (internal/nri), a new refusal code into grant.Codes. Every vector, kind of mount and kind
// of device has rows in the corpus (test/testdata/corpus). internal/admission/hits.go decides which
// hits a grant covers. A library of the driver is no way to a GPU: internal/gpu/driver lists those.
var vectors = [...]struct {
	name string
	find func(*containerFacts) vectorResult // returns the hits of this vector
}{
	{"environment that an injector obeys", environment},
	{"device rules that let a GPU be opened", deviceRules},
	{"device nodes", deviceNodes},
	{"descriptors that are handed in", descriptors},
	{"restores by which CRIU sets other device rules, or leaves the cgroup", restored},
	{"mounts of device nodes, device lists and the ledger's directories", mounts},
	{"raw cgroup keys that set the driver's limit, or that set no resource", unified},
	{"a class of Intel RDT whose name is a path", intelRdt},
	{"hooks of NVIDIA's injectors", hooks},
	{"CDI names, and annotations that change device policy", annotations},
	{"ways that make root in the container root on the node", nodeRoot},
}

// Find lists every way to a GPU that the spec contains, in the order of vectors. It returns an
// error if it cannot tell whether a device is a GPU's; the caller then refuses the container.
func Find(spec Spec, caller Caller, node NodeFacts) (grant.Request, error) {
	f, err := readFacts(spec, caller, node)
	if err != nil {
		return grant.Request{}, err
	}
	r := grant.Request{Container: f.caller.Container, Sandbox: f.sandbox, SysAdmin: f.sysAdmin, UID: f.uid()}
	r.Unruled, r.AllDevices, r.Privileged = f.rules.unruled, f.rules.all, f.rules.privileged
	r.Rules, r.Unclosed = f.rules.allows, f.rules.unclosed
	for i := range vectors {
		vectors[i].find(f).addTo(&r)
	}
	unsearched(f).addTo(&r)
	r.Capabilities, r.Compat32 = driverCapabilities(f)
	r.References, r.Injected = references(f), injected(f)
	r.Allocations, r.MustAdopt = allocations(f), adoptMark(f)
	if a, named := namedGPUs(f, r.Hits); named {
		r.Allocations = append(r.Allocations, a)
	}
	r.Devices = grant.DeviceMap{Majors: f.devices.numbers.majors, DRM: f.devices.drm, Taken: f.rules.taken}
	return r, f.devices.err
}

// vectorResult is what one vector found, each kind in its order. grant.Request says what they mean.
// The methods that add to them are not inlined: gpuledger-hook would be 6 kB larger.
type vectorResult struct {
	hits, doubtful  []grant.Hit
	notes, nodeRoot []string
	dropped         []grant.Removal
}

// hit adds a way to a GPU that the spec contains. A grant must cover it, or the container is
// refused.
//
//go:noinline
func (found *vectorResult) hit(h grant.Hit) { found.hits = append(found.hits, h) }

// note adds a sentence for the audit log. It changes no verdict.
//
//go:noinline
func (found *vectorResult) note(text string) { found.notes = append(found.notes, text) }

// root adds a way by which the container's root is root on the node.
//
//go:noinline
func (found *vectorResult) root(way string) { found.nodeRoot = append(found.nodeRoot, way) }

// drop adds what asks for no GPU and is removed from the spec if a grant is admitted.
//
//go:noinline
func (found *vectorResult) drop(kind grant.RemovalKind, name string) {
	found.dropped = append(found.dropped, grant.Removal{Kind: kind, Name: name})
}

// addTo appends these results to the request.
func (found vectorResult) addTo(r *grant.Request) {
	r.Hits, r.Doubtful = extended(r.Hits, found.hits), extended(r.Doubtful, found.doubtful)
	r.Noted, r.NodeRoot = extended(r.Noted, found.notes), extended(r.NodeRoot, found.nodeRoot)
	r.Dropped = extended(r.Dropped, found.dropped)
}

// extended returns both lists as one, as append does, without a copy of the first list.
func extended[T any](all, more []T) []T {
	if all == nil {
		return more
	}
	return append(all, more...)
}
