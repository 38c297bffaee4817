package admission

import (
	"fmt"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// BenchmarkDecide measures one decision about a container without a request, about one that uses
// a grant on a node with as many files as a real driver has, and about one that reaches GPUs
// without a grant.
func BenchmarkDecide(b *testing.B) {
	plain := newWorld()
	granted := newWorld()
	granted.train()
	granted.wants(grant.StrengthNone)
	granted.r.Layout = grant.Layout{Lib64: "/usr/lib/x86_64-linux-gnu"}
	granted.r.Capabilities = []grant.Capability{grant.Compute, grant.Utility}
	granted.r.Hits = []grant.Hit{env("0", "0"), node(grant.ClassGPU, 0), node(grant.ClassControl, 255),
		exactRule, hook}
	granted.p.RunDir = "/run/gpuledger"
	granted.inv.Shim.Dir = "/usr/lib/gpuledger"
	granted.inv.Driver = manyFiles()
	refused := newWorld()
	refused.r.Hits = []grant.Hit{all, migEnv, node(grant.ClassGPU, 0), hook}
	for _, c := range []struct {
		name  string
		world *world
		kind  grant.VerdictKind
	}{{"pass", plain, grant.Pass}, {"grant", granted, grant.Admit}, {"refusal", refused, grant.Refused}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if v := c.world.decide(); v.Kind != c.kind {
					b.Fatalf("%s: %s", v.Kind, v.Message)
				}
			}
		})
	}
}

// manyFiles is a driver with some thirty files for compute and utility, as NVIDIA's has.
func manyFiles() grant.Driver {
	driver := grant.Driver{Root: "/", Files: []grant.DriverFile{
		{Path: "/l64/libcuda.so.9", Kind: grant.FileLibrary, Capability: grant.Compute, Target: "/usr/lib64",
			Names: []string{"libcuda.so", "libcuda.so.1"}, Bits: 64},
		{Path: "/l64/libnvidia-ml.so.9", Kind: grant.FileLibrary, Capability: grant.Utility,
			Target: "/usr/lib64",
			Names:  []string{"libnvidia-ml.so.1"}, Bits: 64},
	}}
	for i := range 30 {
		name := fmt.Sprintf("libnvidia-%d.so.1", i)
		driver.Files = append(driver.Files, grant.DriverFile{Path: "/l64/" + name, Kind: grant.FileLibrary,
			Capability: grant.Compute, Target: "/usr/lib64", Names: []string{name}, Bits: 64})
	}
	return driver
}
