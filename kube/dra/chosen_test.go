package dra

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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
		if got := d.chosen.Load().mode; got != c.want || (err == nil) != c.known {
			t.Errorf("%s=%s: %q, %v; want %q", c.key, c.value, got, err, c.want)
		}
	}
}

// A driver that cannot read its Node yet must not replace the right slices of the driver before it
// by some of a mode that no label chooses.
func TestNothingIsPublishedBeforeTheLabelIsRead(t *testing.T) {
	for name, c := range map[string]struct {
		label string
		want  string // the modes of the devices for shares
		taint string
	}{
		"a mode":                {"timeslice", "timeslice", ""},
		"a value of no meaning": {"x", "limit", "NoSchedule config-invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			s, to, fail := newSite(t, 1), &recorder{}, true
			s.Driver.chosen.Store(nil)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool, UID: "1",
				Labels: map[string]string{"gpuledger.dev/mode": c.label}}}
			api := fake.NewClientset(node)
			api.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return fail, nil, errors.New("the API is away")
			})
			s.Client = api
			for range 2 {
				if err := s.Publish(t.Context(), to); err == nil || len(to.all) != 0 ||
					!strings.Contains(err.Error(), "the API is away") {
					t.Fatalf("published %v, %v", to.all, err)
				}
			}
			fail = false
			if err := s.Publish(t.Context(), to); (err != nil) != (c.taint != "") || len(to.all) != 1 {
				t.Fatalf("published %v, %v", to.all, err)
			}
			closed, found := to.closedFor(), false
			for device, taint := range closed {
				found = found || strings.HasSuffix(device, "-"+c.want)
				if taint != c.taint {
					t.Errorf("%s is closed for %q, want %q", device, taint, c.taint)
				}
			}
			if !found {
				t.Errorf("no device of mode %s: %v", c.want, closed)
			}
			if c.taint == "" {
				return
			}
			node.Labels["gpuledger.dev/mode"] = "timeslice"
			if _, err := api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.SameNode(t.Context()), s.Publish(t.Context(), to)); err != nil {
				t.Fatal(err)
			}
			open, found := to.closedFor()[s.result("gpu", 0, grant.Timeslice).Device]
			if open != "" || !found {
				t.Errorf("after the label is right: %v", to.closedFor())
			}
		})
	}
}
