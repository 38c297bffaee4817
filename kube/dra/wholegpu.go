package dra

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A claim for a whole GPU consumes all of a device that others could share, because it names no
// amount. So the scheduler keeps the others away.

// namesAmount reports whether a request says how much of a device it wants. A subrequest is named
// "request/subrequest".
func namesAmount(claim *resourceapi.ResourceClaim, request string) bool {
	return len(amountsOf(claim, request)) > 0
}

// namesMemory reports whether a request says how much memory it wants.
func namesMemory(claim *resourceapi.ResourceClaim, request string) bool {
	_, names := amountsOf(claim, request)[memory]
	return names
}

// amountsOf returns the amounts that a request names.
func amountsOf(claim *resourceapi.ResourceClaim,
	request string) map[resourceapi.QualifiedName]resource.Quantity {
	main, sub, _ := strings.Cut(request, "/")
	for _, r := range claim.Spec.Devices.Requests {
		if r.Name != main {
			continue
		}
		if r.Exactly != nil {
			return requestsOf(r.Exactly.Capacity)
		}
		for _, s := range r.FirstAvailable {
			if s.Name == sub {
				return requestsOf(s.Capacity)
			}
		}
	}
	return nil
}

func requestsOf(c *resourceapi.CapacityRequirements) map[resourceapi.QualifiedName]resource.Quantity {
	if c == nil {
		return nil
	}
	return c.Requests
}

// notAll is the error for a request that wants a whole GPU, and names less than all of it.
func notAll(request, amount string) error {
	return fmt.Errorf("request %q is for whole GPUs, and its capacity leaves all but %s to others: name no "+
		"capacity; to get a GPU of at least 40 GiB select by "+
		`device.capacity["%s"].memory.compareTo(quantity("40Gi")) >= 0`, request, amount, DriverName)
}
