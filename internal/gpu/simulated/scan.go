package simulated

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Scan takes the inventory of the described GPUs as of this boot. The same description on the same
// host gives the same, but for the time: UUIDs come from name and index, so a GPU that gets another
// name is another GPU. driverRoot is recorded as it is given; a stand-in driver may lie there.
func Scan(d Description, h host.Host, driverRoot string) (grant.Inventory, error) {
	if err := d.check(); err != nil {
		return grant.Inventory{}, fmt.Errorf("cannot simulate these GPUs: %w", err)
	}
	boot, err := h.BootID()
	if err != nil {
		return grant.Inventory{}, err
	}
	majors, err := simulatedMajors(h)
	if err != nil {
		return grant.Inventory{}, err
	}
	inv := grant.Inventory{
		Version: 1,
		Taken:   h.Now().UTC().Truncate(time.Second),
		BootID:  boot,
		Source:  string(grant.Simulated),
		Driver:  grant.Driver{Root: driverRoot},
		Majors:  majors,
		GPUs:    []grant.GPU{},
	}
	for i, g := range d.GPUs {
		inv.GPUs = append(inv.GPUs, g.at(i))
	}
	return inv, nil
}

// at is the GPU in its place. The description was checked, so its profiles fit.
func (g GPUDescription) at(index int) grant.GPU {
	uuid := uuidOf(fmt.Sprintf("%s\x00%d", g.Name, index))
	mig, _ := partition(g.MIG, grant.Bytes(g.Memory))
	for i := range mig {
		mig[i].UUID = "MIG-" + uuidOf(fmt.Sprintf("%s\x00%d\x00%s", uuid, mig[i].GI, mig[i].Profile))
		mig[i].Caps = caps(g.minor(index), mig[i].GI, mig[i].CI)
	}
	numa := 0
	if g.NUMA != nil {
		numa = *g.NUMA
	}
	return grant.GPU{
		UUID:   "GPU-" + uuid,
		Index:  index,
		Minor:  g.minor(index),
		Name:   g.Name,
		Memory: grant.Bytes(g.Memory),
		PCI:    fmt.Sprintf("0000:%02x:00.0", index+1),
		NUMA:   numa,
		Render: []string{fmt.Sprintf("/dev/dri/renderD%d", 128+index)},
		MIG:    mig,
		Health: g.Health,
	}
}

// uuidOf writes a hash in the form of a UUID.
func uuidOf(seed string) string {
	b := sha256.Sum256([]byte("gpuledger simulated GPU\x00" + seed))
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// simulatedMajors assigns the majors of the driver's devices. A name that a real driver registered
// keeps its major, so that a simulated node with real GPUs guards them too. The others get majors
// that no driver has: a simulated device rule must not open real hardware. The kernel assigns 254
// to 234 and then 511 to 384 (fs/char_dev.c). So these come from the far end, which the next loaded
// module does not get.
func simulatedMajors(h host.Host) (map[string]int, error) {
	majors, err := h.NVIDIAMajors()
	if err != nil {
		return nil, err
	}
	used, err := h.CharacterMajors()
	if err != nil {
		return nil, err
	}
	if _, found := majors["nvidia"]; !found {
		majors["nvidia"] = grant.MajorNVIDIA
	}
	next := 384
	for _, name := range []string{"nvidia-uvm", "nvidia-caps"} {
		if _, found := majors[name]; found {
			continue
		}
		for used[next] {
			next++
		}
		if next > 511 {
			return nil, fmt.Errorf("cannot simulate a driver: /proc/devices has no free major left for %s",
				name)
		}
		majors[name] = next
		next++
	}
	return majors, nil
}
