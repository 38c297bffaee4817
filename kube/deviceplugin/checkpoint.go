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

// checkpointFile is the kubelet's file of allocations, beside the plugins' sockets
// (k8s.io/kubernetes, pkg/kubelet/cm/devicemanager).
const checkpointFile = "kubelet_internal_checkpoint"

// checkpoint maps a grant to the UIDs of the pods whose containers have its reference. It is read
// from the kubelet's checkpoint. The kubelet writes the answer to an Allocate there before it
// starts the container. A restarted container gets the same answer. The pod-resources API lists
// neither init containers nor pods that were not admitted. nil means that the checkpoint could not
// be read.
type checkpoint map[grant.ID][]string

// readCheckpoint reads the kubelet's checkpoint. The file has the kubelet's private format, so any
// unexpected content gives nil.
func readCheckpoint(dir, resource string) checkpoint {
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
	to := checkpoint{}
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

// checkpointVersion tells two checkpoints apart: the kubelet writes each as a new file. It is nil
// if there is none.
type checkpointVersion struct{ os.FileInfo }

func statCheckpoint(dir string) checkpointVersion {
	info, err := os.Stat(filepath.Join(dir, checkpointFile))
	if err != nil {
		return checkpointVersion{}
	}
	return checkpointVersion{info}
}

// same reports whether two checkpoints are one file with one content.
func (v checkpointVersion) same(other checkpointVersion) bool {
	if v.FileInfo == nil || other.FileInfo == nil {
		return v.FileInfo == nil && other.FileInfo == nil
	}
	return os.SameFile(v.FileInfo, other.FileInfo) && v.ModTime().Equal(other.ModTime()) &&
		v.Size() == other.Size()
}

// unstarted is how long an admitted pod may have no cgroup. The kubelet makes the cgroup when it
// begins to start the pod. It first waits for the node's network, and does all this again after a
// boot.
const unstarted = 10 * time.Minute

// futureUse says whether a container may still be started with a grant, from the kubelet's files.
type futureUse int

const (
	unknown futureUse = iota
	wanted            // a container of a pod may be started with it
	present           // the same, and the pod has a cgroup on the node
	over              // no container will be started with it
)

// futureUse judges a grant of this age, from a kubelet that was watched for at least as long. A
// killed kubelet may not have written down an answer. It removes a pod from its checkpoint only at
// its next Allocate. But the cgroup of an ended pod is removed soon, and a pod that was never
// admitted has none. pods are those that have one. If that is unknown (nil), the checkpoint counts:
// without its grant a pod could never start again, for example after a boot.
func (to checkpoint) futureUse(id grant.ID, age time.Duration, pods func() map[string]bool) futureUse {
	switch {
	case to == nil:
		return unknown
	case len(to[id]) == 0 && age > settled:
		return over
	case len(to[id]) == 0:
		return unknown
	case slices.ContainsFunc(to[id], func(uid string) bool { return pods()[uid] }):
		return present
	case age <= unstarted || pods() == nil:
		return wanted
	}
	return over
}
