package dra

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// A claim for a whole GPU consumes all of a device that others could share, because it names no
// amount. So the scheduler keeps the others away.

// namesAmount reports whether a request says how much of a device it wants. A subrequest is named
// "request/subrequest".
func namesAmount(claim *resourceapi.ResourceClaim, request string) bool {
	main, sub, _ := strings.Cut(request, "/")
	for _, r := range claim.Spec.Devices.Requests {
		if r.Name != main {
			continue
		}
		if r.Exactly != nil {
			return namesCapacity(r.Exactly.Capacity)
		}
		for _, s := range r.FirstAvailable {
			if s.Name == sub {
				return namesCapacity(s.Capacity)
			}
		}
	}
	return false
}

func namesCapacity(c *resourceapi.CapacityRequirements) bool { return c != nil && len(c.Requests) > 0 }

// notAll is the error for a request that wants a whole GPU, and names less than all of it.
func notAll(request, amount string) error {
	return fmt.Errorf("request %q is for whole GPUs, and its capacity leaves all but %s to others: name no "+
		"capacity; to get a GPU of at least 40 GiB select by "+
		`device.capacity["%s"].memory.compareTo(quantity("40Gi")) >= 0`, request, amount, DriverName)
}
