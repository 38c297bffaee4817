//go:build e2e

package e2e

import (
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// preparing is a claim that the scheduler placed before the administrator took the GPUs: the ledger has the last word when the kubelet has it
// prepared, the pod's events have its sentence, and the pod starts as soon as there is room.
func (s *site) preparing(driver **agent) {
	(*driver).kill() // so that the scheduler does not hear of the grants
	var ids []string
	for _, gpu := range []string{"0", "1"} {
		ids = append(ids, string(s.Grant("--gpu", gpu, "--memory", "15GiB", "--mode", "timeslice").ID))
	}
	s.applied(claiming("late", "limit", 1, object{"memory": "4Gi"}, false)...)
	eventually(s.T, "the scheduler has placed the claim", func() bool {
		return s.kubectl("get", "resourceclaim", "late", "-n", "team", "-o", "jsonpath={.status.allocation.devices.results[0].device}").Stdout != ""
	})
	*driver = s.startDRA()
	const want = "gpuledger: refused (" + string(grant.ModeConflict) + "): cannot grant 4GiB on a GPU in mode limit: GPU 0 has "
	eventually(s.T, "the pod's events say "+want, func() bool { return strings.Contains(s.eventsOf("late"), want) })
	if described := s.administer("describe", "pod", "late", "-n", "team"); !strings.Contains(described, want) {
		s.T.Errorf("kubectl describe says\n%s", described)
	}
	for _, id := range ids {
		if strings.Contains(s.eventsOf("late"), id) {
			s.T.Errorf("the pod's events name grant %s, which is another's", id)
		}
		s.Must("release", id)
	}
	s.runs("late")
}
