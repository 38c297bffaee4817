package simulated

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// profileName is a GPU instance profile: compute slices, gigabytes, and perhaps what it has of the
// media engines. Profiles of several compute instances in one GPU instance (1c.3g.40gb) are not
// simulated.
var profileName = regexp.MustCompile(`^([12347])g\.([1-9][0-9]{0,2})gb(\+me|\+me\.all|\+gfx|-me)?$`)

// maxSlices is the number of compute slices of every GPU so far that can be partitioned (MIG user
// guide).
const maxSlices = 7

// firstInstance is the lowest GPU instance id that the driver gives to a profile of so many slices
// on an A100 or H100.
var firstInstance = map[int]int{7: 0, 4: 1, 3: 1, 2: 3, 1: 7}

type profile struct {
	name      string
	slices    int
	gigabytes int
}

func parseProfile(name string) (profile, error) {
	parts := profileName.FindStringSubmatch(name)
	if parts == nil {
		return profile{}, fmt.Errorf("unknown MIG profile %q: want slices and memory, as 1g.10gb or 3g.40gb",
			name)
	}
	slices, _ := strconv.Atoi(parts[1])
	gigabytes, _ := strconv.Atoi(parts[2])
	return profile{name, slices, gigabytes}, nil
}

// partition lays the profiles out on a GPU with so much memory. The devices have no UUIDs yet.
func partition(names []string, memory grant.Bytes) ([]grant.MIGDevice, error) {
	profiles := make([]profile, len(names))
	slices, gigabytes := 0, 0
	for i, name := range names {
		p, err := parseProfile(name)
		if err != nil {
			return nil, err
		}
		profiles[i] = p
		slices += p.slices
		gigabytes += p.gigabytes
	}
	if slices > maxSlices {
		return nil, fmt.Errorf("MIG profiles %v take %d slices and a GPU has %d", names, slices, maxSlices)
	}
	// A name rounds its gigabytes to the next whole number: two of 71gb fit on a card of 140.4.
	if total := int((memory + grant.GiB - 1) / grant.GiB); gigabytes > total+len(names)/2 {
		return nil, fmt.Errorf("MIG profiles %v take %d GiB and the GPU has %v", names, gigabytes, memory)
	}
	return place(profiles, gigabytes, memory), nil
}

// place gives each profile an instance id and its memory: what its name says, or its part of a GPU
// that has a little less than the names say.
func place(profiles []profile, gigabytes int, memory grant.Bytes) []grant.MIGDevice {
	devices := []grant.MIGDevice{}
	for _, p := range profiles {
		size := grant.Bytes(p.gigabytes) * grant.GiB
		if sum := grant.Bytes(gigabytes) * grant.GiB; sum > memory {
			size = memory / grant.Bytes(gigabytes) * grant.Bytes(p.gigabytes) / grant.MiB * grant.MiB
		}
		gi := firstInstance[p.slices]
		for slices.ContainsFunc(devices, func(d grant.MIGDevice) bool { return d.GI == gi }) {
			gi++
		}
		devices = append(devices, grant.MIGDevice{Profile: p.name, Memory: size, GI: gi})
	}
	return devices
}

// caps are the minors that the driver gives to a MIG device's two instances: two for the node, then
// for each card 15 GPU instances, each with its own and those of 8 compute instances
// (/proc/driver/nvidia-caps/mig-minors).
func caps(card, gi, ci int) [2]int {
	const first, instances, computes = 3, 15, 8
	instance := first + (card*instances+gi)*(computes+1)
	return [2]int{instance, instance + 1 + ci}
}
