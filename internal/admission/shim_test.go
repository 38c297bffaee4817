package admission

import (
	"slices"
	"strings"
	"testing"
	"time"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// shimmed is the driver of TestDriverFilesByCapability on a node with the shim.
func shimmed() grant.Inventory {
	inv := installed
	inv.Driver.Files = append(slices.Clone(inv.Driver.Files),
		grant.DriverFile{Path: "/l64/libnvidia-ml.so.9", Kind: grant.FileLibrary,
			Capability: grant.Utility, Target: "/usr/lib64", Names: []string{"libnvidia-ml.so.1"}, Bits: 64})
	inv.GPUs = []grant.GPU{{UUID: "GPU-0", Health: grant.Healthy}}
	inv.Shim.Dir = "/shim"
	return inv
}

var limitGrant = grant.Grant{ID: "g-abcdefghijkl", Owner: grant.Bearer, Mode: grant.Limit,
	Strength: grant.StrengthNone, GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}}}

// ofLimit decides about a container with the grant.
func ofLimit(r grant.Request, g grant.Grant, inv grant.Inventory, p grant.Policy) grant.Verdict {
	p.RunDir = "/run/g"
	return judgeLimit(new(Judge), r, g, inv, p)
}

func judgeLimit(j *Judge, r grant.Request, g grant.Grant, inv grant.Inventory, p grant.Policy) grant.Verdict {
	q := &question{request: r, view: grant.View{Now: time.Unix(1e9, 0)}, inventory: inv, policy: p}
	return j.decideWithGrant(q, resolution{grant: &g})
}

// TestALimitMountsTheProxies tests that proxies are mounted under every name of the 64-bit libcuda
// and NVML, the real libraries at the paths where the proxies open them, and the records. All other
// mounts are as without a limit.
func TestALimitMountsTheProxies(t *testing.T) {
	const (
		limits  = "/run/g/limits/g-abcdefghijkl/limits /run/gpuledger/limits"
		region  = "/run/g/limits/g-abcdefghijkl/region /run/gpuledger/region"
		cuda    = "/l64/libcuda.so.9 /run/gpuledger/driver/libcuda.so.1"
		nvml    = "/l64/libnvidia-ml.so.9 /run/gpuledger/driver/libnvidia-ml.so.1"
		always1 = "/l64/libnew.so.9 /img/lib/libnew.so.1"
		always2 = "/fw/gsp.bin /lib/firmware/nvidia/9/gsp.bin"
	)
	img := grant.Layout{Lib64: "/img/lib", Lib32: "/img/lib32"}
	proxies := []string{cuda, "/shim/libcuda.so.1 /img/lib/libcuda.so",
		"/shim/libcuda.so.1 /img/lib/libcuda.so.1", always1, always2}
	compute, utility := []grant.Capability{grant.Compute}, []grant.Capability{grant.Utility}
	compat := []grant.OwnLibrary{{Place: "/compat/libcuda.so.12", Name: "libcuda.so.1"},
		{Place: "/img/lib/libcuda.so.1", Name: "libcuda.so.1"}}
	for name, c := range map[string]struct {
		request  grant.Request
		want     []string
		strength grant.Strength
		weaker   string
	}{
		"compute":               {grant.Request{Layout: img, Capabilities: compute}, append(slices.Clone(proxies), limits, region), grant.StrengthLibrary, ""},
		"32-bit has no proxy":   {grant.Request{Layout: img, Capabilities: compute, Compat32: true}, append(slices.Clone(proxies), limits, region), grant.StrengthLibrary, ""},
		"NVML alone":            {grant.Request{Layout: img, Capabilities: utility}, []string{always1, always2, "/usr/bin/nvidia-smi /usr/bin/nvidia-smi", nvml, "/shim/libnvidia-ml.so.1 /img/lib/libnvidia-ml.so.1", limits, region}, grant.StrengthNone, "does not ask for compute"},
		"nothing of the driver": {grant.Request{Layout: img}, []string{always1, always2}, grant.StrengthNone, "does not ask for compute"},
		"an image without libc": {grant.Request{Capabilities: compute}, []string{always2}, grant.StrengthNone, "the image has no C library (64-bit)"},
		"an image's own":        {grant.Request{Layout: img, Own: compat, Capabilities: compute}, append(slices.Clone(proxies), "/shim/libcuda.so.1 /compat/libcuda.so.12", limits, region), grant.StrengthLibrary, ""},
		"privileged":            {grant.Request{Layout: img, Capabilities: compute, Privileged: true}, append(slices.Clone(proxies), limits, region), grant.StrengthNone, "the container is privileged"},
	} {
		t.Run(name, func(t *testing.T) {
			v := ofLimit(c.request, limitGrant, shimmed(), grant.Policy{})
			if got := places(v.Edits.Mounts); v.Kind != grant.Admit || !slices.Equal(got, c.want) {
				t.Errorf("%s\ngot\n%s\nwant\n%s", v.Kind, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if want := slices.Contains(c.want, limits); v.Strength != c.strength || v.Limited != want {
				t.Errorf("strength %s, limited %t; want %s, %t", v.Strength, v.Limited, c.strength, want)
			}
			if (v.Weaker == "") != (c.weaker == "") || !strings.Contains(v.Weaker, c.weaker) ||
				v.Weaker != "" && !slices.Contains(v.Recorded, v.Weaker) {
				t.Errorf("it is weaker because %q, recorded %q; want %q", v.Weaker, v.Recorded, c.weaker)
			}
			for _, m := range v.Edits.Mounts {
				if writable := strings.HasSuffix(m.ContainerPath, "/region"); slices.Contains(m.Options,
					"ro") == writable {
					t.Errorf("%s has options %v", m.ContainerPath, m.Options)
				}
			}
		})
	}
}

// TestWhyAContainerIsTooWeak tests that the refusal says why the container cannot have the minimum
// strength.
func TestWhyAContainerIsTooWeak(t *testing.T) {
	p := grant.Policy{Rules: grant.Rules{MinimumStrength: grant.StrengthLibrary}}
	v := ofLimit(grant.Request{Capabilities: []grant.Capability{grant.Compute}}, limitGrant, shimmed(), p)
	if v.Code != grant.LimitUnenforceable || !strings.Contains(v.Message,
		"by strength none, which is less than this node's minimum_strength (strength none, not library: "+
			"the image has no C library") {
		t.Errorf("%s: %s", v.Code, v.Message)
	}
}

// TestWithoutALimit tests that nothing of the shim is mounted.
func TestWithoutALimit(t *testing.T) {
	r := grant.Request{Layout: grant.Layout{Lib64: "/img/lib"}, Capabilities: []grant.Capability{
		grant.Compute}}
	timeslice, wide := limitGrant, limitGrant
	timeslice.Mode = grant.Timeslice
	wide.GPUs = nil
	inv := shimmed()
	for i := range 17 {
		uuid := "GPU-" + string(rune('a'+i))
		inv.GPUs = append(inv.GPUs, grant.GPU{UUID: uuid, Health: grant.Healthy})
		wide.GPUs = append(wide.GPUs, grant.Share{UUID: uuid, Memory: grant.GiB})
	}
	noShim, broken, noDriver := inv, inv, inv
	noShim.Shim, broken.Shim = grant.Shim{}, grant.Shim{Problem: "the shim is for another machine"}
	noDriver.Driver.Files = noDriver.Driver.Files[1:] // only the 32-bit libcuda is left
	for name, c := range map[string]struct {
		grant grant.Grant
		inv   grant.Inventory
		limit grant.LimitBackend
		code  grant.Code
	}{
		"mode timeslice":           {timeslice, inv, grant.AutoBackend, ""},
		"mode timeslice, library":  {timeslice, inv, grant.LibraryBackend, ""},
		"no shim":                  {limitGrant, noShim, grant.AutoBackend, ""},
		"no shim, but wanted":      {limitGrant, noShim, grant.LibraryBackend, grant.LimitUnenforceable},
		"a broken shim":            {limitGrant, broken, grant.AutoBackend, ""},
		"no driver":                {limitGrant, noDriver, grant.AutoBackend, ""},
		"more GPUs than it can":    {wide, inv, grant.AutoBackend, ""},
		"only the driver's limit":  {limitGrant, inv, grant.DriverBackend, grant.LimitUnenforceable},
		"no library for the image": {limitGrant, noDriver, grant.LibraryBackend, grant.LimitUnenforceable},
	} {
		t.Run(name, func(t *testing.T) {
			v := ofLimit(r, c.grant, c.inv, grant.Policy{Enforcement: grant.Enforcement{Limit: c.limit}})
			if v.Code != c.code || v.Limited || v.Strength != grant.StrengthNone {
				t.Errorf("%s %s, strength %s, limited %t", v.Kind, v.Code, v.Strength, v.Limited)
			}
			if slices.ContainsFunc(v.Edits.Mounts, func(m *cdispec.Mount) bool {
				return strings.HasPrefix(m.HostPath, "/shim") ||
					strings.HasPrefix(m.ContainerPath, "/run/gpuledger")
			}) {
				t.Errorf("it gets %v", places(v.Edits.Mounts))
			}
		})
	}
}

// TestOnlyTheShimHasStrengthLibrary tests that only a container under the shim has strength
// "library".
func TestOnlyTheShimHasStrengthLibrary(t *testing.T) {
	r := grant.Request{Layout: grant.Layout{Lib64: "/img/lib"}, Capabilities: []grant.Capability{
		grant.Compute}}
	bare := r
	bare.Layout = grant.Layout{}
	admin := r
	admin.SysAdmin = true
	for _, c := range []struct {
		name    string
		request grant.Request
		minimum grant.Strength
		code    grant.Code
	}{
		{"library", r, grant.StrengthLibrary, ""},
		{"server", r, grant.StrengthServer, grant.LimitUnenforceable},
		{"an image without a loader", bare, grant.StrengthLibrary, grant.LimitUnenforceable},
		{"with CAP_SYS_ADMIN", admin, grant.StrengthLibrary, grant.LimitUnenforceable},
	} {
		if v := ofLimit(c.request, limitGrant, shimmed(), grant.Policy{
			Rules: grant.Rules{MinimumStrength: c.minimum}}); v.Code != c.code {
			t.Errorf("%s: %s %s", c.name, v.Kind, v.Code)
		}
	}
}

// TestRecordsInASpec tests that the record of the container's own grant stays, as an earlier edit
// left it, that another one is removed, and that without a grant both refuse.
func TestRecordsInASpec(t *testing.T) {
	hit := func(id grant.ID) grant.Hit {
		return grant.Hit{Vector: "mount:/run/gpuledger/limits", Code: grant.GPUSocket,
			Cover: grant.CoverRecord, Grant: id,
			Removal: grant.Removal{Kind: grant.RemoveMount, Name: "/run/gpuledger/limits"}}
	}
	r := func(id grant.ID) grant.Request { return grant.Request{Hits: []grant.Hit{hit(id)}} }
	if v := ofLimit(r(limitGrant.ID), limitGrant, shimmed(), grant.Policy{}); v.Kind != grant.Admit ||
		len(v.Removed) > 0 {
		t.Errorf("its grant's record: %s %s, removed %v", v.Kind, v.Code, v.Removed)
	}
	if v := ofLimit(r("g-otherothergr"), limitGrant, shimmed(), grant.Policy{}); v.Kind != grant.Admit ||
		len(v.Removed) != 1 {
		t.Errorf("another's: %s %s, removed %v", v.Kind, v.Code, v.Removed)
	}
	if v := Decide(r(limitGrant.ID), grant.View{}, shimmed(), grant.Policy{}); v.Code != grant.GPUSocket {
		t.Errorf("without a grant: %s %s", v.Kind, v.Code)
	}
}

// TestStrengthOfAGrant tests that it is the weakest strength of its containers, and without
// containers that of the next one.
func TestStrengthOfAGrant(t *testing.T) {
	with := func(strengths ...grant.Strength) grant.Grant {
		g := limitGrant
		for _, s := range strengths {
			g.Bindings = append(g.Bindings, grant.Binding{Strength: s})
		}
		return g
	}
	exclusive := limitGrant
	exclusive.Mode = grant.Exclusive
	for name, c := range map[string]struct {
		grant grant.Grant
		inv   grant.Inventory
		want  grant.Strength
	}{
		"free":                        {limitGrant, shimmed(), grant.StrengthLibrary},
		"free, no shim":               {limitGrant, installed, grant.StrengthNone},
		"exclusive":                   {exclusive, shimmed(), grant.StrengthNone},
		"held":                        {with(grant.StrengthLibrary), installed, grant.StrengthLibrary},
		"one of two is not held":      {with(grant.StrengthLibrary, grant.StrengthNone), shimmed(), grant.StrengthNone},
		"bound by a version before":   {with(""), shimmed(), grant.StrengthNone},
		"one of two is of one before": {with("", grant.StrengthLibrary), shimmed(), grant.StrengthNone},
	} {
		if got := Strength(c.grant, c.inv, grant.Policy{}); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
