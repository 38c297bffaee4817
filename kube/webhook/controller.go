package webhook

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/gpuledger/gpuledger/kube/dialect"
)

// makers is how many templates are made at once.
const makers = 4

// Controller makes the templates that new pods name. A review makes none, because it proves
// nothing: any program that reaches the webhook can send one. A pod was admitted by the API server.
//
// Kubernetes makes a pod's claims when their templates are there, and tries again until then. All
// replicas of the webhook make them, as the names of the templates have a hash of their content.
type Controller struct {
	Templates Templates
	Rules     Rules
	Exempt    []string // namespaces whose pods are not looked at
	Log       *slog.Logger

	pods   cache.Indexer // by byTemplate
	events record.EventRecorder
}

// byTemplate is the index of pods by the templates that they name, as NAMESPACE/NAME.
const byTemplate = "template"

// Run makes the templates of all pods until the context ends. It calls begun when it has read the
// pods.
func (c *Controller) Run(ctx context.Context, begun func()) error {
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(
		&typedv1.EventSinkImpl{Interface: c.Templates.Client.CoreV1().Events("")})
	c.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "gpuledger-webhook"})
	queue := newQueue()
	factory := informers.NewSharedInformerFactoryWithOptions(c.Templates.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = c.selector() }),
		informers.WithTransform(c.trim))
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.AddIndexers(cache.Indexers{byTemplate: c.templatesOf}); err != nil {
		return err
	}
	c.pods = informer.GetIndexer()
	// what a pod names does not change
	added, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		keys, _ := c.templatesOf(o)
		for _, key := range keys {
			queue.Add(key)
		}
	}})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), added.HasSynced) {
		return ctx.Err()
	}
	begun()
	defer context.AfterFunc(ctx, queue.ShutDown)()
	var all sync.WaitGroup
	for range makers {
		all.Go(func() {
			for c.next(ctx, queue) {
			}
		})
	}
	all.Wait()
	return ctx.Err()
}

// selector selects pods that no node has: those of others have their claims.
func (c *Controller) selector() string {
	all := []fields.Selector{fields.OneTermEqualSelector("spec.nodeName", "")}
	for _, namespace := range c.Exempt {
		all = append(all, fields.OneTermNotEqualSelector("metadata.namespace", namespace))
	}
	return fields.AndSelectors(all...).String()
}

// trim leaves of a pod what templatesOf reads, because many pods can wait.
func (c *Controller) trim(o any) (any, error) {
	pod, is := o.(*corev1.Pod)
	if !is {
		return o, nil
	}
	if pod.Annotations[AskedFor] != "" {
		return dialect.Readable(pod), nil
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion}}, nil
}

// templatesOf returns the keys of a pod in the index.
func (c *Controller) templatesOf(o any) (keys []string, _ error) {
	pod, is := o.(*corev1.Pod)
	if !is {
		return nil, nil
	}
	for _, t := range c.Rules.templatesOf(pod) {
		keys = append(keys, t.Namespace+"/"+t.Name)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// next makes the next template. It returns false when the queue ends.
func (c *Controller) next(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) bool {
	key, ends := queue.Get()
	if ends {
		return false
	}
	defer queue.Done(key)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.make(limited, key); err != nil && ctx.Err() == nil {
		c.Log.Warn("the template of a pod's claim", "error", err, "template", key)
		queue.AddRateLimited(key)
	} else {
		queue.Forget(key)
	}
	return true
}

// make makes a template, if a pod still waits for it.
func (c *Controller) make(ctx context.Context, key string) error {
	pods, err := c.pods.ByIndex(byTemplate, key)
	if err != nil || len(pods) == 0 {
		return err
	}
	pod := pods[0].(*corev1.Pod)
	_, name, _ := strings.Cut(key, "/")
	for _, t := range c.Rules.templatesOf(pod) {
		if t.Name != name {
			continue
		}
		if err := c.Templates.make(ctx, t); err != nil {
			c.events.Eventf(pod, corev1.EventTypeWarning, "FailedGPUClaim", "gpuledger: %v", err)
			return err
		}
	}
	return nil
}
