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

// fate is what the kubelet's files tell of a grant.
type fate int

const (
	unknown fate = iota
	wanted       // a container of a pod may be started with it
	over         // no container will be
)

// fate of a grant of that age. A kubelet that was killed may not have written down what it was answered. It forgets a pod in its checkpoint
// only at its next Allocate, but the directory of one that has ended goes soon, and one that it never admitted has none. Where nobody can
// look at the directories, what the kubelet notes counts: a released grant would keep a pod from ever starting again, after a boot say.
func (to given) fate(id grant.ID, age time.Duration, pods string) fate {
	switch {
	case to == nil:
		return unknown
	case len(to[id]) == 0 && age > settled:
		return over
	case len(to[id]) == 0:
		return unknown
	}
	if _, err := os.Stat(pods); err != nil || age <= unstarted {
		return wanted
	}
	if slices.ContainsFunc(to[id], func(uid string) bool {
		_, err := os.Lstat(filepath.Join(pods, uid))
		return !errors.Is(err, fs.ErrNotExist)
	}) {
		return wanted
	}
	return over
}
