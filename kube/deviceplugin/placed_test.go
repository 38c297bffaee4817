package deviceplugin

import (
	"context"
	"maps"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// placedSite is a node where a scheduler places. Its configuration's tables come after the rig's.
func placedSite(t *testing.T, gpus int, r Resource, trust string) *site {
	t.Helper()
	return newSite(t, gpus, r, "[annotations]\ntrust = \""+trust+"\"\n")
}

func TestWhereASchedulerPlacesContainersAreMarked(t *testing.T) {
	for name, c := range map[string]struct {
		resource Resource
		of       int
		envs     map[string]string
	}{
		"memory":   {Placed("gpuledger.dev/gpu-memory", grant.GiB, 0), 32, nil},
		"cards":    {Placed("nvidia.com/gpu", 0, 1), 2, nil},
		"percents": {Placed("aliyun.com/gpu-core.percentage", 0, 100), 200, nil},
		"a unit that the GPUs have a part of": {Placed("aliyun.com/gpu-mem", 5*grant.GiB, 0), 7,
			map[string]string{"ALIYUN_COM_GPU_MEM_CONTAINER": "2", "ALIYUN_COM_GPU_MEM_DEV": "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := placedSite(t, 2, c.resource, "adopt")
			s.ensure()
			client, _ := s.kubelet.registered()
			stream, err := client.ListAndWatch(context.Background(), &api.Empty{})
			check(t, err)
			// the kubelet admits what the scheduler has placed, whatever is granted
			s.Grant(admission.Ask{Mode: grant.Exclusive})
			s.Grant(admission.Ask{Memory: 15 * grant.GiB, Mode: grant.Limit})
			s.ensure()
			if free, all := healthy(t, stream); free != c.of || all != c.of {
				t.Errorf("%d of %d are healthy, want all %d", free, all, c.of)
			}
			r, err := s.allocate(client, some(0, 1)...)
			check(t, err)
			if r.Annotations[Annotation] != "adopt" || len(r.Annotations) != 1 ||
				!maps.Equal(r.Envs, c.envs) ||
				len(r.CdiDevices) != 0 || len(s.Grants()) != 2 {
				t.Errorf("got %v and %d grants, want the mark and no grant", r, len(s.Grants()))
			}
			if _, err := s.allocate(client, "GPU-0"); err == nil {
				t.Error("it answers for a device that it never offered")
			}
		})
	}
}

// A restarted kubelet does not admit a pod again whose devices are unhealthy.
func TestANodeThatAdoptsNothingOffersNothingNew(t *testing.T) {
	s := placedSite(t, 1, Placed("gpuledger.dev/gpu-memory", grant.GiB, 0), "verify")
	const want = `this node adopts nothing: annotations.trust is not "adopt"`
	if err := s.Ensure(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	client, _ := s.kubelet.registered()
	stream, err := client.ListAndWatch(context.Background(), &api.Empty{})
	check(t, err)
	if free, all := healthy(t, stream); free != 0 || all != 16 {
		t.Errorf("%d of %d are healthy, want none of 16", free, all)
	}
	s.kubelet.has("old", "gpuledger.dev/gpu-memory", some(3, 4)...)
	_ = s.Ensure(context.Background()) // it asks the kubelet
	_ = s.Ensure(context.Background())
	if free, all := healthy(t, stream); free != 2 || all != 16 {
		t.Errorf("%d of %d are healthy, want those of a container", free, all)
	}
}

// The kubelet admits a pod that asks for what no node offers.
func TestTooManyForAMessageAreNotOffered(t *testing.T) {
	s := placedSite(t, 5, Placed("nvidia.com/gpumem", grant.MiB, 0), "adopt")
	s.ensure()
	if err := s.Registered(); err != nil || len(s.kubelet.requests) != 0 {
		t.Errorf("got %v and %d registrations, want none of both", err, len(s.kubelet.requests))
	}
}
