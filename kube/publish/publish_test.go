package publish

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

const adopt = "[annotations]\ntrust = \"adopt\"\n"

func TestWhatANodePublishes(t *testing.T) {
	n := nodeledgertest.New(t, 4, 16*grant.GiB, adopt+
		"[[pool]]\ngpus = [\"0-2\"]\nmodes = [\"limit\", \"exclusive\"]\n"+
		"[[pool]]\ngpus = [\"3\"]\nmodes = [\"mps\", \"timeslice\"]\n")
	n.SetGPUs(4, 16*grant.GiB, func(list []simulated.GPUDescription) { list[2].Health = "Xid 79" })
	n.Grant(admission.Ask{Memory: 4 * grant.GiB, Compute: 30, Mode: grant.Limit, Names: []string{"0"}})
	n.Grant(admission.Ask{Mode: grant.Exclusive, Names: []string{"1"}})
	a := n.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit, Names: []string{"0"},
		Owner: grant.PodOwner("u1", "train"), Source: grant.Adopted})
	n.Use(a.ID, grant.Identity{UID: "u1", Namespace: "team", Pod: "p", Container: "train"})
	// one whose container has ended, and one of a pod that was granted by hand
	n.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit, Names: []string{"0"},
		Owner: grant.PodOwner("u2", "train"), Source: grant.Adopted})
	n.Grant(admission.Ask{Memory: grant.GiB, Mode: grant.Limit, Names: []string{"0"},
		Owner: grant.PodOwner("u3", "train")})
	n.Hold(n.UUID(3))
	c, err := n.Read()
	s := Of(c, err, true)
	text, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := nodestate.Decode(text)
	if err != nil || !reflect.DeepEqual(read.GPUs, s.GPUs) {
		t.Errorf("read %+v, %v", read, err)
	}
	if s.Closed != "" || !slices.Equal(s.Adopted, []string{"u1/train"}) || len(s.GPUs) != 4 {
		t.Fatalf("%s", text)
	}
	both := []grant.Mode{grant.Exclusive, grant.Limit}
	for i, want := range []nodestate.PublishedGPU{
		{Free: 10 * grant.GiB, Compute: 70, Modes: both, Mode: grant.Limit, Granted: 6 * grant.GiB},
		{Free: 0, Compute: 100, Modes: both, Mode: grant.Exclusive, Granted: 16 * grant.GiB},
		{Free: 16 * grant.GiB, Compute: 100, Modes: both, Closed: "is unhealthy: Xid 79"},
		{Free: 16 * grant.GiB, Compute: 100, Modes: []grant.Mode{grant.Timeslice}, Held: true}, // it cannot run MPS
	} {
		want.Index, want.Memory, want.Space = i, 16*grant.GiB, 16*grant.GiB
		got := s.GPUs[i]
		want.UUID, want.Product = got.UUID, got.Product
		slices.Sort(got.Modes)
		slices.Sort(want.Modes)
		if !reflect.DeepEqual(got, want) || got.UUID != n.UUID(i) {
			t.Errorf("GPU %d: got %+v\nwant %+v", i, got, want)
		}
	}
}

// TestWhereNoComputeIsKeptIsPublished: a pod with a share of compute must go to another node.
func TestWhereNoComputeIsKeptIsPublished(t *testing.T) {
	for config, want := range map[string]bool{"": false, "[enforcement]\ncompute = \"refuse\"\n": true} {
		c, err := nodeledgertest.New(t, 1, 16*grant.GiB, adopt+config).Read()
		if s := Of(c, err, true); len(s.GPUs) != 1 || s.GPUs[0].Unkept != want {
			t.Errorf("%q: %+v", config, s)
		}
	}
}

func TestANodeThatCanGrantNothingSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		spoil  func(n *nodeledgertest.SimulatedNode)
		placed bool
		want   string
		gpus   int
	}{
		"it adopts nothing": {"", nil, true,
			`adopts nothing: annotations.trust is not "adopt" in its configuration`, 1},
		"it adopts nothing, and no scheduler places": {"", nil, false, "", 1},
		"its engine proves no pod": {adopt, func(n *nodeledgertest.SimulatedNode) {
			text, _ := os.ReadFile(n.Config)
			_ = os.WriteFile(n.Config, append([]byte("engine = \"docker\"\n"), text...), 0o600)
		}, true, "adopts nothing: its engine does not prove which pod a container belongs to", 1},
		"its inventory is gone": {adopt, func(n *nodeledgertest.SimulatedNode) {
			_ = os.Remove(n.Dir + "/state/inventory.json")
			_ = os.Remove(n.Dir + "/gpus.json")
		}, true, "refused (inventory-missing)", 0},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeledgertest.New(t, 1, 16*grant.GiB, c.config)
			if c.spoil != nil {
				c.spoil(n)
			}
			content, err := n.Read()
			s := Of(content, err, c.placed)
			if !strings.HasPrefix(s.Closed, c.want) || c.want == "" && s.Closed != "" ||
				len(s.GPUs) != c.gpus {
				t.Errorf("got %+v, want %q", s, c.want)
			}
		})
	}
}

// cluster is an API with one node.
type cluster struct {
	*fake.Clientset
	t *testing.T
	p *Publisher
	n *nodeledgertest.SimulatedNode
}

func newCluster(t *testing.T) *cluster {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, adopt)
	c := &cluster{fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}), t, nil, n}
	c.p = &Publisher{Ledger: n.Ledger, Node: "a", Client: c.Clientset, Adopts: true,
		Log: slog.New(slog.DiscardHandler)}
	return c
}

// did returns how often a verb was used.
func (c *cluster) did(verb string) (n int) {
	for _, a := range c.Actions() {
		if a.GetVerb() == verb {
			n++
		}
	}
	return n
}

func (c *cluster) ensure() {
	c.t.Helper()
	if err := c.p.Ensure(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) published() nodestate.Published {
	c.t.Helper()
	node, err := c.CoreV1().Nodes().Get(c.t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	s, err := nodestate.Decode(node.Annotations[nodestate.Annotation])
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func TestOnlyChangesAreWritten(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	c.ensure()
	if c.did("patch") != 1 || c.published().GPUs[0].Free != 16*grant.GiB {
		t.Fatalf("%d writes, %+v", c.did("patch"), c.published())
	}
	g := c.n.Grant(admission.Ask{Memory: 4 * grant.GiB, Mode: grant.Limit})
	c.ensure()
	c.ensure()
	if c.did("patch") != 2 || c.published().GPUs[0].Free != 12*grant.GiB {
		t.Errorf("%d writes, %+v", c.did("patch"), c.published())
	}
	if err := c.n.Release(g.ID); err != nil {
		t.Fatal(err)
	}
	fail := true
	c.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fail, nil, errors.New("no")
	})
	if err := c.p.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot publish") {
		t.Errorf("got %v", err)
	}
	fail = false
	c.ensure()
	if c.published().GPUs[0].Free != 16*grant.GiB {
		t.Errorf("it is not written after an error: %+v", c.published())
	}
}

// Use outside the ledger can change every second.
func TestChangesOfAmountsWait(t *testing.T) {
	c := newCluster(t)
	use := func(outside grant.Bytes) {
		if err := c.n.Open().Ledger.SetFound(ledger.Found{
			Outside: map[string]grant.Bytes{c.n.UUID(0): outside}}); err != nil {
			t.Fatal(err)
		}
		c.ensure()
	}
	for i := range 60 { // less than ten seconds
		use(grant.GiB + grant.Bytes(i%2*2)*grant.MiB)
	}
	if c.did("patch") != 1 || c.published().GPUs[0].Outside != grant.GiB {
		t.Errorf("%d writes, %+v", c.did("patch"), c.published())
	}
	c.n.Grant(admission.Ask{Memory: 4 * grant.GiB, Mode: grant.Limit})
	c.ensure()
	if got := c.published().GPUs[0]; c.did("patch") != 2 || got.Granted != 4*grant.GiB ||
		got.Outside != grant.GiB+2*grant.MiB {
		t.Errorf("a new grant: %d writes, %+v", c.did("patch"), got)
	}
	use(grant.GiB)
	c.p.wrote.at = c.p.wrote.at.Add(-smallWait)
	c.ensure()
	if got := c.published().GPUs[0]; c.did("patch") != 3 || got.Outside != grant.GiB {
		t.Errorf("after a minute: %d writes, %+v", c.did("patch"), got)
	}
}

func TestHowSoonAChangeIsWritten(t *testing.T) {
	gpu := nodestate.PublishedGPU{UUID: "a", Memory: 64 * grant.GiB, Free: 32 * grant.GiB,
		Outside: 4 * grant.GiB, Modes: []grant.Mode{grant.Limit}}
	for name, c := range map[string]struct {
		change func(*nodestate.PublishedGPU)
		after  time.Duration
	}{
		"a grant":       {func(g *nodestate.PublishedGPU) { g.Granted = grant.MiB }, 0},
		"compute":       {func(g *nodestate.PublishedGPU) { g.Compute = 5 }, 0},
		"health":        {func(g *nodestate.PublishedGPU) { g.Closed = "is unhealthy" }, 0},
		"a mode":        {func(g *nodestate.PublishedGPU) { g.Modes = []grant.Mode{grant.MPS} }, 0},
		"much less":     {func(g *nodestate.PublishedGPU) { g.Free -= 2 * grant.GiB }, amountWait},
		"much more":     {func(g *nodestate.PublishedGPU) { g.Free += 2 * grant.GiB }, amountWait},
		"no use":        {func(g *nodestate.PublishedGPU) { g.Outside = 0 }, amountWait},
		"held":          {func(g *nodestate.PublishedGPU) { g.Held = true }, amountWait},
		"a little less": {func(g *nodestate.PublishedGPU) { g.Free -= grant.GiB }, smallWait},
		"a little more": {func(g *nodestate.PublishedGPU) { g.Outside += grant.GiB }, smallWait},
	} {
		was, now := gpu, gpu
		c.change(&now)
		of := func(g nodestate.PublishedGPU) nodestate.Published {
			return nodestate.Published{GPUs: []nodestate.PublishedGPU{g}}
		}
		if !due(of(was), of(now), c.after) || c.after > 0 && due(of(was), of(now), c.after-time.Second) {
			t.Errorf("%s: it is not due after %s", name, c.after)
		}
	}
	if !due(nodestate.Published{}, nodestate.Published{Closed: "its inventory is gone"}, 0) {
		t.Error("a node that closes waits")
	}
}

func TestWhatOthersChangeIsWrittenAgain(t *testing.T) {
	c := newCluster(t)
	c.ensure()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { c.p.Follow(ctx, time.Millisecond); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	for c.did("watch") == 0 { // unlike a real API, this one keeps nothing for a watch that comes later
		time.Sleep(time.Millisecond)
	}
	for _, change := range []func(*corev1.Node){
		func(n *corev1.Node) { n.Annotations = nil },
		func(n *corev1.Node) {
			n.Annotations = map[string]string{nodestate.Annotation: `{"version":1,"gpus":[]}`}
		},
	} {
		before := c.did("patch")
		node, err := c.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(node)
		// once: the watch of this API panics at a hundred changes that are not read yet
		if _, err := c.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(time.Minute)
		for c.ensure(); c.did("patch") == before; c.ensure() {
			if time.Now().After(deadline) {
				t.Fatal("it is not written again within a minute")
			}
			time.Sleep(time.Millisecond)
		}
		if s := c.published(); len(s.GPUs) != 1 {
			t.Errorf("it is %+v", s)
		}
	}
}

// The annotation stays when a node is not published any more. Its reader sees that by the pod.
func TestTheWriterIsPublished(t *testing.T) {
	c := newCluster(t)
	for _, pod := range []string{"gpuledger-system/gpuledger-device-plugin-a", "gpuledger-system/b"} {
		c.p = &Publisher{Ledger: c.n.Ledger, Node: "a", Client: c.Clientset, Adopts: true, Pod: pod,
			Log: slog.New(slog.DiscardHandler)}
		c.ensure()
		if got := c.published().Pod; got != pod {
			t.Errorf("it is published by %q, want %q", got, pod)
		}
	}
}

// What is used changes all the time, so the annotation has it only to a twentieth of the GPU.
func TestUseIsPublishedSeldom(t *testing.T) {
	of := func(now, before grant.Bytes) grant.Bytes {
		s := nodestate.Published{GPUs: []nodestate.PublishedGPU{{UUID: "a", Memory: 20 * grant.GiB}}}
		usedOf(s, map[string]grant.Bytes{"a": now}, map[string]grant.Bytes{"a": before})
		return s.GPUs[0].Used
	}
	for name, c := range map[string]struct{ now, before, want grant.Bytes }{
		"a little more": {11 * grant.GiB, 10 * grant.GiB, 10 * grant.GiB},
		"a little less": {9 * grant.GiB, 10 * grant.GiB, 10 * grant.GiB},
		"more":          {12 * grant.GiB, 10 * grant.GiB, 12 * grant.GiB},
		"the first":     {grant.MiB, 0, grant.MiB},
		"nothing more":  {0, grant.MiB, 0},
	} {
		if got := of(c.now, c.before); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}
