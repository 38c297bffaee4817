package gpu

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// readInventory reads a snapshot. TestReadEqualsTheJSONLibrary compares it with the fields' tags.
func readInventory(d *jsontext.Decoder, inv *grant.Inventory) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.Int(d, &inv.Version)
		case "taken":
			return tokens.Time(d, &inv.Taken)
		case "boot_id":
			return tokens.String(d, &inv.BootID)
		case "source":
			return tokens.String(d, &inv.Source)
		case "driver":
			return readDriver(d, &inv.Driver)
		case "majors":
			return tokens.Map(d, &inv.Majors, tokens.Int[int])
		case "gpus":
			return tokens.List(d, &inv.GPUs, readGPU)
		}
		return d.SkipValue()
	})
}

func readDriver(d *jsontext.Decoder, v *grant.Driver) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "version":
			return tokens.String(d, &v.Version)
		case "cuda":
			return tokens.String(d, &v.CUDA)
		case "root":
			return tokens.String(d, &v.Root)
		case "memory_limits":
			return tokens.String(d, &v.MemoryLimits)
		case "files":
			// the rest of the document is mostly files
			v.Files = make([]grant.DriverFile, 0, 16+len(d.UnreadBuffer())/256)
			return tokens.List(d, &v.Files, readFile)
		}
		return d.SkipValue()
	})
}

func readFile(d *jsontext.Decoder, f *grant.DriverFile) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "path":
			return tokens.String(d, &f.Path)
		case "kind":
			return tokens.String(d, &f.Kind)
		case "capability":
			return tokens.String(d, &f.Capability)
		case "target":
			return tokens.String(d, &f.Target)
		case "names":
			return tokens.Strings(d, &f.Names)
		case "bits":
			return tokens.Int(d, &f.Bits)
		}
		return d.SkipValue()
	})
}

func readGPU(d *jsontext.Decoder, g *grant.GPU) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "uuid":
			return tokens.String(d, &g.UUID)
		case "index":
			return tokens.Int(d, &g.Index)
		case "minor":
			return tokens.Int(d, &g.Minor)
		case "name":
			return tokens.String(d, &g.Name)
		case "memory":
			return tokens.Uint64(d, &g.Memory)
		case "pci":
			return tokens.String(d, &g.PCI)
		case "numa":
			return tokens.Int(d, &g.NUMA)
		case "render":
			return tokens.Strings(d, &g.Render)
		case "links":
			return tokens.Strings(d, &g.Links)
		case "mig":
			return tokens.List(d, &g.MIG, readMIG)
		case "health":
			return tokens.String(d, &g.Health)
		case "driver_link":
			return tokens.Uint64(d, &g.DriverLink)
		case "virtual":
			return tokens.String(d, &g.Virtual)
		}
		return d.SkipValue()
	})
}

func readMIG(d *jsontext.Decoder, m *grant.MIGDevice) error {
	return tokens.Object(d, func(name []byte) error {
		switch string(name) {
		case "uuid":
			return tokens.String(d, &m.UUID)
		case "profile":
			return tokens.String(d, &m.Profile)
		case "memory":
			return tokens.Uint64(d, &m.Memory)
		case "gi":
			return tokens.Int(d, &m.GI)
		case "ci":
			return tokens.Int(d, &m.CI)
		case "caps":
			return tokens.Array(d, m.Caps[:], tokens.Int[int])
		}
		return d.SkipValue()
	})
}
