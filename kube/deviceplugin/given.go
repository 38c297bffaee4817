package deviceplugin

import (
	"encoding/json"
	"errors"
	"io/fs"
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

// unstarted is how long a pod that was admitted may have no directory: the kubelet makes it when it begins to start the pod, which
// waits for the node's network.
const unstarted = 10 * time.Minute

// over reports whether no pod of the node will start a container with a grant of that age. A kubelet that was killed may not have
// written down what it was answered. It forgets a pod in its checkpoint only at its next Allocate, but the directory of one that has
// ended goes soon, and one that it never admitted has none.
func (to given) over(id grant.ID, age time.Duration, pods string) bool {
	if to == nil {
		return false
	}
	if len(to[id]) == 0 {
		return age > settled
	}
	if _, err := os.Stat(pods); err != nil || age <= unstarted {
		return false
	}
	return !slices.ContainsFunc(to[id], func(uid string) bool {
		_, err := os.Lstat(filepath.Join(pods, uid))
		return !errors.Is(err, fs.ErrNotExist)
	})
}
