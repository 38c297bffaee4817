package dra

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// A label of the node chooses among the modes of shares. It allows none that the pools do not.
func TestALabelChoosesTheModeOfShares(t *testing.T) {
	every := []grant.Mode{grant.Exclusive, grant.Timeslice, grant.Limit, grant.MPS}
	for name, c := range map[string]struct {
		modes  []grant.Mode // that the node's configuration allows
		pools  []grant.Pool
		chosen grant.Mode
		want   []grant.Mode
		joint  grant.Mode
	}{
		"no label":        {every, nil, "", []grant.Mode{grant.Exclusive, grant.Limit}, grant.Limit},
		"mps":             {every, nil, grant.MPS, []grant.Mode{grant.Exclusive, grant.MPS}, grant.MPS},
		"timeslice":       {every, nil, grant.Timeslice, []grant.Mode{grant.Exclusive, grant.Timeslice}, grant.Timeslice},
		"exclusive":       {every, nil, grant.Exclusive, []grant.Mode{grant.Exclusive}, ""},
		"no pool has it":  {[]grant.Mode{grant.Exclusive, grant.Limit}, nil, grant.MPS, []grant.Mode{grant.Exclusive}, ""},
		"one of a pool's": {[]grant.Mode{grant.Limit, grant.MPS}, []grant.Pool{{}}, grant.MPS, []grant.Mode{grant.MPS}, ""},
	} {
		to := planOf(admission.Seat{Modes: c.modes}, c.pools, c.chosen)
		if !slices.Equal(to.modes, c.want) || to.joint != c.joint || to.counter {
			t.Errorf("%s: got %+v, want %v, %q", name, to, c.want, c.joint)
		}
	}
}

// The label may change while the driver runs. A value that is not known changes nothing.
func TestTheLabelIsReadLive(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}
	d := &Driver{Node: "a", Client: fake.NewClientset(node), Log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct {
		key, value string
		want       grant.Mode
		known      bool
	}{
		{"x", "y", "", true}, {"ack.node.gpu.schedule", "cgpu", grant.Limit, true},
		{"ack.node.gpu.schedule", "core_mem", grant.Limit, true},
		{"ack.node.gpu.schedule", "share", grant.Timeslice, true},
		{"ack.node.gpu.schedule", "default", grant.Exclusive, true},
		{"gpuledger.dev/mode", "mps", grant.MPS, true},
		{"ack.node.gpu.schedule", "mig", grant.MPS, false}, {"gpuledger.dev/mode", "x", grant.MPS, false},
	} {
		node.Labels = map[string]string{c.key: c.value}
		if _, err := d.Client.CoreV1().Nodes().Update(context.Background(), node,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		err := d.SameNode(context.Background())
		if got, _ := d.chosen.Load().(grant.Mode); got != c.want || (err == nil) != c.known {
			t.Errorf("%s=%s: %q, %v; want %q", c.key, c.value, got, err, c.want)
		}
	}
}
