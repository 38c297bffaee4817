package deviceplugin

import (
	"context"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A list wakes the kubelet up, and it writes the node's status.
func TestTheKubeletIsToldOnlyNews(t *testing.T) {
	s := newSite(t, 2, Whole(), "")
	s.ensure()
	c, _ := s.kubelet.registered()
	stream, err := c.ListAndWatch(context.Background(), &api.Empty{})
	check(t, err)
	told(t, stream)
	before := s.Plugin.changed
	s.ensure()
	if s.Plugin.changed != before {
		t.Error("the same is told again")
	}
}

// told are the ids that are healthy in the next list.
func told(t *testing.T, stream api.DevicePlugin_ListAndWatchClient) string {
	t.Helper()
	r, err := stream.Recv()
	check(t, err)
	var ids []string
	for _, d := range r.Devices {
		if d.Health == api.Healthy {
			ids = append(ids, d.ID)
		}
	}
	return strings.Join(ids, " ")
}
