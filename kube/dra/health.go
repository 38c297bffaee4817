package dra

import (
	"time"

	"google.golang.org/grpc"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// healthInterval is how often the kubelet is told of the devices' health. It takes a device that it
// has not heard of for 30 seconds as unknown (pkg/kubelet/cm/dra/healthinfo.go of Kubernetes 1.36).
const healthInterval = 5 * time.Second

// plugin is a driver as the kubelet calls it. The library serves the health of devices for a plugin
// that can report it.
type plugin struct {
	*Driver
	drahealth.UnimplementedDRAResourceHealthServer
}

// NodeWatchResources tells the kubelet the health of the node's devices until it ends the call. The
// kubelet writes it into the status of the pods that have the devices (KEP 4680). While the
// inventory or the ledger cannot be read nothing is sent, so the health becomes unknown.
func (p plugin) NodeWatchResources(_ *drahealth.NodeWatchResourcesRequest,
	to grpc.ServerStreamingServer[drahealth.NodeWatchResourcesResponse]) error {
	for {
		if now, err := p.read(); err == nil {
			if err := to.Send(&drahealth.NodeWatchResourcesResponse{
				Devices: deviceHealth(now, p.Node)}); err != nil {
				return err
			}
		}
		select {
		case <-to.Context().Done():
			return to.Context().Err()
		case <-time.After(healthInterval):
		}
	}
}

// deviceHealth returns the health of all devices that pods of this node can have. A device has the
// health of its GPU, whatever its mode: a claim for the whole GPU may have the device of a shared
// mode. Devices of grants whose GPU is gone are unhealthy.
func deviceHealth(now nodeledger.Content, pool string) []*drahealth.DeviceHealth {
	var list []*drahealth.DeviceHealth
	add := func(uuid, trouble string) {
		health := drahealth.HealthStatus_HEALTHY
		if trouble != "" {
			health = drahealth.HealthStatus_UNHEALTHY
		}
		for _, mode := range grant.Modes {
			list = append(list, &drahealth.DeviceHealth{
				Device: &drahealth.DeviceIdentifier{PoolName: pool, DeviceName: deviceName(uuid, mode)},
				Health: health, Message: trouble, LastUpdatedTime: now.Now.Unix()})
		}
	}
	known := map[string]bool{}
	for _, d := range now.Inventory.Devices() {
		known[d.UUID()] = true
		add(d.UUID(), d.Trouble())
	}
	for _, g := range now.EnteredBy(Source) {
		for _, share := range g.GPUs {
			if !known[share.UUID] {
				known[share.UUID] = true
				add(share.UUID, "the node has no such GPU any more")
			}
		}
	}
	return list
}
