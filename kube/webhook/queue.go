package webhook

import (
	"strings"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// newQueue returns the queue of the templates that are to be made, as NAMESPACE/NAME. Who can
// create pods can have thousands of templates made, or have as many fail. The templates of other
// namespaces do not wait for these.
func newQueue() workqueue.TypedRateLimitingInterface[string] {
	fair := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{
		Queue: &turns{waiting: map[string][]string{}}})
	return workqueue.NewTypedRateLimitingQueueWithConfig(retries(),
		workqueue.TypedRateLimitingQueueConfig[string]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
				workqueue.TypedDelayingQueueConfig[string]{Queue: fair})})
}

// retries says how long each template waits for its next try. It has no limit for all of them
// together, as the default has.
func retries() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 1000*time.Second)
}

// turns are the keys that wait. Each namespace has its turn for one. The work queue locks it.
type turns struct {
	waiting map[string][]string // by namespace
	order   []string            // the namespaces that have keys, the next one first
	keys    int
}

// Touch is called for a key that waits already.
func (t *turns) Touch(string) {}

// Push adds a key.
func (t *turns) Push(key string) {
	namespace, _, _ := strings.Cut(key, "/")
	if len(t.waiting[namespace]) == 0 {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], key)
	t.keys++
}

// Len returns the number of keys.
func (t *turns) Len() int { return t.keys }

// Pop removes the next key.
func (t *turns) Pop() string {
	namespace := t.order[0]
	keys := t.waiting[namespace]
	t.order, t.waiting[namespace] = t.order[1:], keys[1:]
	if len(keys) > 1 {
		t.order = append(t.order, namespace)
	} else {
		delete(t.waiting, namespace)
	}
	t.keys--
	return keys[0]
}
