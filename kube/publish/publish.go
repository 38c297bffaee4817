package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// Publisher keeps the State of a node on its Node object.
type Publisher struct {
	Ledger nodeledger.Ledger
	Node   string // its name in the cluster
	Client kubernetes.Interface
	Pod    string // NAMESPACE/NAME of the own pod; "": this is no pod
	Adopts bool   // a scheduler places pods here
	Log    *slog.Logger

	mu    sync.Mutex
	there *string // the annotation on the Node, as far as it is known; nil: unknown

	wrote   written                // what Ensure wrote last
	used    map[string]grant.Bytes // of each GPU, as it was published last
	measure time.Time              // when used was taken
}

// written is one writing of the annotation.
type written struct {
	text  string
	state nodestate.Published
	at    time.Time
}

// Ensure writes the annotation if it is not as the ledger is, or not as it was written. It is
// called repeatedly, and that is the pace of the changes. Those of amounts wait longer.
func (p *Publisher) Ensure(ctx context.Context) error {
	content, err := p.Ledger.Read()
	state := Of(content, err, p.Adopts)
	p.addUsed(state, content)
	state.Pod = p.Pod
	want, unwritable := state.Encode()
	if unwritable != nil {
		return unwritable
	}
	if p.has(want) || p.has(p.wrote.text) && !due(p.wrote.state, state, time.Since(p.wrote.at)) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{nodestate.Annotation: want}}})
	if err != nil {
		return err
	}
	node, err := p.Client.CoreV1().Nodes().Patch(ctx, p.Node, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("cannot publish what the ledger has for the scheduler: %w", err)
	}
	p.see(node)
	p.wrote = written{want, state, time.Now()}
	return nil
}

// usedEvery is the interval between two changes of what is used. It changes faster than anyone
// needs to see it in the API.
const usedEvery = 30 * time.Second

// addUsed enters what is used of the GPUs.
func (p *Publisher) addUsed(s nodestate.Published, c nodeledger.Content) {
	now := p.used
	if time.Since(p.measure) >= usedEvery {
		now, p.measure = c.Used(), time.Now()
	}
	usedOf(s, now, p.used)
	p.used = map[string]grant.Bytes{}
	for _, g := range s.GPUs {
		p.used[g.UUID] = g.Used
	}
}

func (p *Publisher) has(value string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there != nil && *p.there == value
}

func (p *Publisher) see(node *corev1.Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	value := node.Annotations[nodestate.Annotation]
	p.there = &value
}

// Follow watches the Node until the context ends, so that Ensure writes again what others have
// changed. It logs an error when it differs from the last one, and tries again after every pause.
func (p *Publisher) Follow(ctx context.Context, pause time.Duration) {
	for last := ""; ctx.Err() == nil; {
		now := ""
		if err := p.follow(ctx); err != nil && ctx.Err() == nil {
			now = err.Error()
		}
		if now != "" && now != last {
			p.Log.Warn("node", "error", now)
		}
		last = now
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// follow reads the Node and watches it until the API ends that.
func (p *Publisher) follow(ctx context.Context) error {
	node, err := p.Client.CoreV1().Nodes().Get(ctx, p.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read the own node: %w", err)
	}
	p.see(node)
	w, err := p.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: node.ResourceVersion,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", p.Node).String()})
	if err != nil {
		return fmt.Errorf("cannot watch the own node: %w", err)
	}
	defer w.Stop()
	for {
		var event watch.Event
		select {
		case event = <-w.ResultChan():
		case <-ctx.Done():
			return nil
		}
		node, is := event.Object.(*corev1.Node)
		switch {
		case !is: // the end, or an error, as of a version that is too old
			return nil
		case event.Type == watch.Deleted:
			p.see(&corev1.Node{})
		default:
			p.see(node)
		}
	}
}
