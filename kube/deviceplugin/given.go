package deviceplugin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// checkpointFile is where the kubelet keeps what was allocated, beside the plugins' sockets
// (k8s.io/kubernetes, pkg/kubelet/cm/devicemanager).
const checkpointFile = "kubelet_internal_checkpoint"

// given is what the kubelet will give to containers that it starts, out of its checkpoint: it writes there what an Allocate has
// answered before it starts the container, and a container that it starts again gets the same. The pod-resources API tells neither
// of init containers nor of pods that were not admitted. nil: nobody knows.
type given map[grant.ID][]string // the UIDs of the pods whose containers have a grant's reference

// readGiven reads the checkpoint. The file is the kubelet's own, so whatever is not as it is known to be tells nothing.
func readGiven(dir, resource string) given {
	data, err := os.ReadFile(filepath.Join(dir, checkpointFile))
	if err != nil {
		return nil
	}
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID    string
				AllocResp []byte
			}
			RegisteredDevices map[string][]string
		}
	}
	if json.Unmarshal(data, &file) != nil {
		return nil
	}
	if _, registered := file.Data.RegisteredDevices[resource]; !registered {
		return nil
	}
	to := given{}
	for _, e := range file.Data.PodDeviceEntries {
		var answer api.ContainerAllocateResponse
		if e.PodUID == "" || proto.Unmarshal(e.AllocResp, &answer) != nil {
			return nil
		}
		if r, err := grant.ParseReference(answer.Envs[grant.ReferenceEnv]); err == nil {
			to[r.ID] = append(to[r.ID], e.PodUID)
		}
	}
	return to
}

// unstarted is how long a pod that was admitted may have no cgroup: the kubelet makes it when it begins to start the pod, which
// waits for the node's network, and begins anew after a boot.
const unstarted = 10 * time.Minute

// fate is what the kubelet's files tell of a grant.
type fate int

const (
	unknown fate = iota
	wanted       // a container of a pod may be started with it
	over         // no container will be
)

// fate of a grant of that age, told by a kubelet that was watched for as long. A kubelet that was killed may not have written down what it was
// answered. It forgets a pod in its checkpoint only at its next Allocate, but the cgroup of one that has ended goes soon, and one that it never
// admitted has none. there reports whether a pod may be on the node; where nobody can tell, what the kubelet notes counts: a released grant
// would keep a pod from ever starting again, after a boot say.
func (to given) fate(id grant.ID, age time.Duration, there func(uid string) bool) fate {
	switch {
	case to == nil:
		return unknown
	case len(to[id]) == 0 && age > settled:
		return over
	case len(to[id]) == 0:
		return unknown
	case age <= unstarted || slices.ContainsFunc(to[id], there):
		return wanted
	}
	return over
}
