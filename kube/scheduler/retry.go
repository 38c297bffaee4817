package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// keyTried is the annotation of a waiting pod whose change makes kube-scheduler try it again.
	keyTried = prefix + "tried"
	// grace is how long kube-scheduler has to try a pod by itself: a change of a node wakes it,
	// too.
	grace = 3 * time.Second
	// pause and longest are between two tries of one pod.
	pause   = 5 * time.Second
	longest = 5 * time.Minute
	// atOnce is how many pods one pass wakes.
	atOnce = 20
)

// waiting are the pods that are on no node. kube-scheduler tries one again when a node changes. It
// may then ask before this process has read the change, and would not ask again for five minutes.
type waiting struct {
	mu   sync.Mutex
	pods map[types.UID]*waitingPod
	asks map[string]bool // the schedulers that have asked this process; others' pods are left alone
	seen uint64          // the state's changes at the last pass that woke all it had to
}

type waitingPod struct {
	pod   *corev1.Pod
	nodes []string // those that the last filter was about; nil: not known
	since time.Time
	fits  time.Time // since when there is room for it
	next  time.Time // when it may be woken
	pause time.Duration
}

// pod notes what the API says about a pod.
func (w *waiting) pod(pod *corev1.Pod, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.pods[pod.UID]; known != nil {
		known.pod = pod
	}
	switch {
	case pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil ||
		pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "":
		delete(w.pods, pod.UID)
	case w.pods[pod.UID] == nil && unschedulable(pod):
		w.pods[pod.UID] = &waitingPod{pod: pod, since: now, pause: pause}
	}
}

// unschedulable reports whether kube-scheduler found no node for a pod.
func unschedulable(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason == corev1.PodReasonUnschedulable
	})
}

// rejected notes that no node has GPUs for a pod now.
func (w *waiting) rejected(pod *corev1.Pod, nodes []string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[pod.UID]
	if p == nil {
		p = &waitingPod{since: now, pause: pause}
		w.pods[pod.UID] = p
	}
	p.pod, p.nodes, p.fits = pod, slices.Clone(nodes), time.Time{}
	w.seen = 0 // what has changed since then may be what it waits for
}

// asked notes that a pod's scheduler asks this process.
func (w *waiting) asked(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name := pod.Spec.SchedulerName; !w.asks[name] {
		w.asks[name], w.seen = true, 0
	}
}

func (w *waiting) gone(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// all returns copies of the waiting pods whose scheduler asks this process, the oldest first.
func (w *waiting) all() []waitingPod {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]waitingPod, 0, len(w.pods))
	for _, p := range w.pods {
		if w.asks[p.pod.Spec.SchedulerName] {
			list = append(list, *p)
		}
	}
	slices.SortFunc(list, func(a, b waitingPod) int {
		return a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time)
	})
	return list
}

// change changes a waiting pod, if it still waits.
func (w *waiting) change(uid types.UID, do func(*waitingPod)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[uid]; p != nil {
		do(p)
	}
}

// retry wakes pods for which there is room, and that kube-scheduler has not tried since.
func (s *Scheduler) retry(ctx context.Context) error {
	if s.Leads != nil && !s.Leads() {
		return nil
	}
	s.cache.mu.Lock()
	changes := s.cache.changes
	s.cache.mu.Unlock()
	s.waiting.mu.Lock()
	nothing := changes == s.waiting.seen || len(s.waiting.pods) == 0
	s.waiting.mu.Unlock()
	if nothing {
		return nil
	}
	var failed error
	later, woken := false, 0
	for _, p := range s.waiting.all() {
		if s.isGone(p) {
			s.waiting.gone(p.pod.UID)
			continue
		}
		w, wants, err := s.wish(p.pod)
		if err != nil || !wants || !s.fitsNow(p.pod, &w, p.nodes) {
			s.waiting.change(p.pod.UID, func(p *waitingPod) { p.fits = time.Time{} })
			continue
		}
		later = true // until it is bound
		if woken == atOnce || !s.takesTurn(p) {
			continue
		}
		woken++
		failed = errors.Join(failed, s.wake(ctx, p.pod))
	}
	if !later {
		s.waiting.mu.Lock()
		s.waiting.seen = changes
		s.waiting.mu.Unlock()
	}
	return failed
}

// isGone reports whether a pod was deleted before its last filter.
func (s *Scheduler) isGone(p waitingPod) bool {
	if s.Now().Sub(p.since) < longest {
		return false // the API may not have shown it yet
	}
	_, err := s.pods.Pods(p.pod.Namespace).Get(p.pod.Name)
	return apierrors.IsNotFound(err)
}

// takesTurn reports whether a pod that fits has waited long enough. Then its next wait begins,
// which is longer.
func (s *Scheduler) takesTurn(p waitingPod) (due bool) {
	now := s.Now()
	s.waiting.change(p.pod.UID, func(p *waitingPod) {
		if p.fits.IsZero() {
			p.fits = now
		}
		if due = now.Sub(p.fits) >= grace && !now.Before(p.next); due {
			p.next, p.pause = now.Add(p.pause), min(2*p.pause, longest)
		}
	})
	return due
}

// wake changes a pod, which makes kube-scheduler try it.
func (s *Scheduler) wake(ctx context.Context, pod *corev1.Pod) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, pod.UID, keyTried,
		s.Now().UTC().Format(time.RFC3339Nano))
	_, err := s.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("cannot have pod %s tried again: %w", pod.Name, err)
	}
	return nil
}
