package gpu

import (
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// encode writes a snapshot. TestWriteEqualsTheJSONLibrary compares it with the fields' tags.
func encode(inv grant.Inventory) ([]byte, error) {
	w := tokens.NewIndented()
	w.Object(func() {
		w.Name("version").Int(int64(inv.Version))
		w.Name("taken").Time(inv.Taken)
		w.Name("boot_id").String(inv.BootID)
		w.Name("source").String(inv.Source)
		w.Name("driver").Object(func() { writeDriver(w, inv.Driver) })
		tokens.WriteMap(w.Name("majors"), inv.Majors, func(major int) { w.Int(int64(major)) })
		w.Name("gpus").Array(func() {
			for _, g := range inv.GPUs {
				w.Object(func() { writeGPU(w, g) })
			}
		})
	})
	return w.End()
}

func writeDriver(w *tokens.Writer, v grant.Driver) {
	w.Name("version").String(v.Version)
	w.Name("cuda").String(v.CUDA)
	w.Name("root").String(v.Root)
	w.Words("memory_limits", v.MemoryLimits)
	if len(v.Files) == 0 {
		return
	}
	w.Name("files").Array(func() {
		for _, f := range v.Files {
			w.Object(func() { writeFile(w, f) })
		}
	})
}

func writeFile(w *tokens.Writer, f grant.DriverFile) {
	w.Name("path").String(f.Path)
	w.Name("kind").String(string(f.Kind))
	w.Words("capability", string(f.Capability))
	w.Name("target").String(f.Target)
	if len(f.Names) > 0 {
		w.Name("names").Strings(f.Names)
	}
	if f.Bits != 0 {
		w.Name("bits").Int(int64(f.Bits))
	}
}

func writeGPU(w *tokens.Writer, g grant.GPU) {
	w.Name("uuid").String(g.UUID)
	w.Name("index").Int(int64(g.Index))
	w.Name("minor").Int(int64(g.Minor))
	w.Name("name").String(g.Name)
	w.Name("memory").Uint(uint64(g.Memory))
	w.Name("pci").String(g.PCI)
	w.Name("numa").Int(int64(g.NUMA))
	w.Name("render").Strings(g.Render)
	if len(g.Links) > 0 {
		w.Name("links").Strings(g.Links)
	}
	w.Name("mig").Array(func() {
		for _, m := range g.MIG {
			w.Object(func() { writeMIG(w, m) })
		}
	})
	w.Name("health").String(g.Health)
	if g.DriverLink != 0 {
		w.Name("driver_link").Uint(g.DriverLink)
	}
	w.Words("virtual", string(g.Virtual))
}

func writeMIG(w *tokens.Writer, m grant.MIGDevice) {
	w.Name("uuid").String(m.UUID)
	w.Name("profile").String(m.Profile)
	w.Name("memory").Uint(uint64(m.Memory))
	w.Name("gi").Int(int64(m.GI))
	w.Name("ci").Int(int64(m.CI))
	if m.Caps != [2]int{} {
		w.Name("caps").Array(func() {
			w.Int(int64(m.Caps[0]))
			w.Int(int64(m.Caps[1]))
		})
	}
}
