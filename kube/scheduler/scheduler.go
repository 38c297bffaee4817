// Package scheduler is an extender of Kubernetes' scheduler: it says on which nodes a pod's GPUs
// fit, which node is best, and binds the pod with the GPUs that it chose.
//
// It keeps no ledger. What it knows are nodes and pods, as the API shows them. A binding and the
// annotations that state the allocation are one write, so a crash leaves either both or nothing.
// Two processes that do not know of each other yet can still give one GPU away twice: the ledger of
// the node grants it once, refuses the other container, and that pod is moved.
package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/gpuledger/gpuledger/kube/placement"
)

// Config is what a Scheduler needs.
type Config struct {
	Client kubernetes.Interface
	Log    *slog.Logger
	Now    func() time.Time
	// Wish reads what a pod asks for. wants is false for one that asks for no GPU; the error is a
	// sentence for one that asks for what cannot be.
	Wish func(*corev1.Pod) (w placement.Wish, wants bool, err error)
	// Offered are the resources that the device plugin offers on its nodes. It leaves one out where
	// that would be too many for a kubelet.
	Offered []string
	// Policy is that of nodes and pods without one. "": binpack.
	Policy placement.Policy
	// MoveAfter is how long a node refuses a pod until the pod is moved.
	MoveAfter time.Duration
	// Leads reports whether this process may bind, if several serve at once. nil: it may.
	Leads func() bool
	// Measured is called when a call of kube-scheduler begins. What it returns is called with its
	// error. nil: nothing is measured.
	Measured func(call string) func(error)
}

// Scheduler answers kube-scheduler, and looks after the pods that it placed. Make it with New.
type Scheduler struct {
	Config
	cache   *state
	pods    corelisters.PodLister
	events  record.EventRecorder
	synced  atomic.Bool
	waiting waiting
	refused refused
}

// New returns a Scheduler that has read nothing yet.
func New(c Config) *Scheduler {
	s := &Scheduler{Config: c, waiting: waiting{pods: map[types.UID]*waitingPod{}, asks: map[string]bool{}},
		refused: refused{pods: map[types.UID]*refusedPod{}, nodes: map[nodeFor]time.Time{}}}
	s.cache = newState(c, func(pod *corev1.Pod) string {
		w, _, _ := c.Wish(pod)
		return w.App
	})
	return s
}

// Run reads nodes and pods until the context ends. repeat calls what looks after pods again and
// again until then.
func (s *Scheduler) Run(ctx context.Context, repeat func(what string, do func(context.Context) error)) error {
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: s.Client.CoreV1().Events("")})
	s.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "gpuledger-scheduler"})
	factory := informers.NewSharedInformerFactory(s.Client, 0)
	nodes, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.cache.node(o.(*corev1.Node)) },
		UpdateFunc: func(_, o any) { s.cache.node(o.(*corev1.Node)) },
		DeleteFunc: func(o any) { onGone(o, func(n *corev1.Node) { s.cache.nodeGone(n.Name) }) }})
	if err != nil {
		return err
	}
	pods, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.pod(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { s.pod(o.(*corev1.Pod)) },
		DeleteFunc: func(o any) { onGone(o, s.podGone) }})
	if err != nil {
		return err
	}
	s.pods = factory.Core().V1().Pods().Lister()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced, pods.HasSynced) {
		return ctx.Err()
	}
	s.synced.Store(true)
	s.Log.Info("nodes and pods are read")
	var all sync.WaitGroup
	all.Go(func() { repeat("refused pods", s.move) })
	all.Go(func() { repeat("waiting pods", s.retry) })
	all.Wait()
	return nil
}

// Ready returns why the process cannot serve; nil: it can.
func (s *Scheduler) Ready() error {
	switch {
	case !s.synced.Load():
		return errors.New("nodes and pods are not read yet")
	case s.Leads != nil && !s.Leads():
		return errors.New("another process leads")
	}
	return nil
}

func (s *Scheduler) pod(pod *corev1.Pod) {
	s.cache.pod(pod)
	s.waiting.pod(pod, s.Now())
	s.refused.pod(pod, s.Now())
}

func (s *Scheduler) podGone(pod *corev1.Pod) {
	s.cache.podGone(pod.UID)
	s.waiting.gone(pod.UID)
	s.refused.gone(pod.UID)
}

// onGone calls do with an object that was deleted, also if its last state was not seen.
func onGone[T any](o any, do func(T)) {
	if last, is := o.(cache.DeletedFinalStateUnknown); is {
		o = last.Obj
	}
	if object, is := o.(T); is {
		do(object)
	}
}
